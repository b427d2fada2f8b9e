//! Names that a client knows not to be there, without asking.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode};
use bivouac_types::{Errno, FsResult, Ino, NodeId, mode};
use bivouac_wire::Op;

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };

fn make(client: &Client, dir: Ino, name: &str) -> Ino {
    client.mknod(&op(client), dir, name.as_bytes(), &FILE).unwrap().ino
}

fn is_absent(client: &Client, dir: Ino, name: &str) -> bool {
    let outcome: FsResult<_> = client.lookup(dir, name.as_bytes());
    outcome.is_err_and(|error| error.errno() == Errno::ENOENT)
}

/// A directory of this node's.
fn dir_at(formation: &Formation, node: u16) -> Ino {
    let client = &formation.clients[0];
    let make = |number: u32| {
        client.mknod(&op(client), Ino::ROOT, format!("d{node}.{number}").as_bytes(), &DIR).unwrap().ino
    };
    (0..).map(make).find(|dir| formation.map.home(*dir) == Some(NodeId(node))).unwrap()
}

/// Asks, and whether there is a lease then.
fn has_lease(client: &Client, dir: Ino) -> bool {
    client.getattr(dir).unwrap();
    !client.lease(dir).is_zero()
}

/// Makes files until the client says of a missing name that it is not there without asking anybody. A lease may be over in
/// between if threads are kept from running, so that may take several attempts.
fn learn(formation: &Formation, dir: Ino, prefix: &str) {
    let (client, home) = (&formation.clients[0], usize::from(formation.map.home(dir).unwrap().0));
    let mut number = 0;
    wait_until("the names are known", || {
        if !has_lease(client, dir) {
            return false;
        }
        number += 1;
        make(client, dir, &format!("{prefix}{number}"));
        let asked = formation.served(home, Op::Lookup);
        assert!(is_absent(client, dir, "missing"));
        formation.served(home, Op::Lookup) == asked
    });
    assert!(!is_absent(client, dir, &format!("{prefix}{number}")));
}

/// S64.
#[test]
fn who_makes_many_files_elsewhere_is_told_the_names() {
    let formation = Formation::spreading_at(2, 20_000);
    let dir = dir_at(&formation, 1);
    (0..3)
        .map(|number| format!("before{number}"))
        .for_each(|name| _ = make(&formation.clients[1], dir, &name));
    learn(&formation, dir, "f");
    assert!(formation.served(1, Op::ListHashes) > 0);
    assert!((0..3).all(|number| !is_absent(&formation.clients[0], dir, &format!("before{number}"))));
    // At home it is a look into memory.
    let dir = dir_at(&formation, 0);
    (0..100).map(|number| format!("f{number}")).for_each(|name| _ = make(&formation.clients[0], dir, &name));
    assert_eq!(formation.served(0, Op::ListHashes), 0);
}

/// S20, S64.
#[test]
fn what_another_makes_is_seen_although_the_names_were_known() {
    let formation = Formation::spreading_at(2, 2000);
    let (dir, [mine, other]) = (dir_at(&formation, 1), [0, 1].map(|i| &formation.clients[i]));
    let source = make(other, Ino::ROOT, "source");
    type Act<'a> = Box<dyn Fn(&str) + 'a>;
    let acts: [Act<'_>; 4] = [
        Box::new(|name| assert_ne!(make(other, dir, name), dir)),
        Box::new(|name| assert!(other.mknod(&op(other), dir, name.as_bytes(), &DIR).unwrap().is_dir())),
        Box::new(|name| assert!(other.link(&op(other), source, dir, name.as_bytes()).unwrap().nlink > 1)),
        Box::new(|name| {
            make(other, Ino::ROOT, name);
            other.rename(&op(other), Ino::ROOT, name.as_bytes(), dir, name.as_bytes(), 0).unwrap();
        }),
    ];
    for (round, act) in acts.iter().enumerate() {
        learn(&formation, dir, &format!("{round}."));
        let name = format!("new{round}");
        assert!(is_absent(mine, dir, &name));
        act(&name);
        assert!(!is_absent(mine, dir, &name), "{name}");
        wait_until("there is a lease again", || has_lease(mine, dir));
        assert!(!is_absent(mine, dir, &name), "{name} with another lease");
    }
    learn(&formation, dir, "last.");
    // Spread by the other one: from then on other nodes know of the names.
    (0..4000).map(|number| format!("many{number}")).for_each(|name| _ = make(other, dir, &name));
    wait_until("it is spread", || other.getattr(dir).unwrap().is_spread());
    make(other, dir, "behind");
    assert!(!is_absent(mine, dir, "behind"));
}

/// S20: everybody sees what anybody has finished, whoever knows names at the time.
#[test]
fn names_of_many_are_seen_by_all() {
    let formation = Formation::spreading_at(3, 600);
    let dir = dir_at(&formation, 2);
    let (finished, failed) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (who, client) in formation.clients.iter().enumerate() {
            let (finished, failed) = (&finished, &failed);
            scope.spawn(move || {
                for number in 0..300 {
                    let name = format!("{who}.{number}");
                    let fresh = is_absent(client, dir, &name);
                    make(client, dir, &name);
                    finished.lock().unwrap().push(name);
                    let seen = {
                        let finished = finished.lock().unwrap();
                        [finished[finished.len() - 1].clone(), finished[number * 7 % finished.len()].clone()]
                    };
                    if !fresh || seen.iter().any(|name| is_absent(client, dir, name)) {
                        failed.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(!failed.load(Ordering::Relaxed));
}
