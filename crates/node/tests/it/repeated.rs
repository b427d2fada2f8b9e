//! Changes that are sent again while the first try is still under way, as when a mount's daemon was killed: what was
//! done must be found, also by who has looked for it before it was done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode, OpCtx};
use bivouac_node::Cache;
use bivouac_types::{ClientId, FsResult, Ino, NodeId, mode};
use bivouac_wire::Invalidation;
use parking_lot::Mutex;

const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o644, rdev: 0, target: b"" };
const NOTE: &[u8] = b"user.note";
/// `XATTR_CREATE` of the kernel.
const CREATE: u32 = 1;

/// A kernel that is asked by each try to forget a file, and answers when it is told to.
struct Reluctant {
    asked: AtomicUsize,
    /// What each of those that ask waits for, the first at the end.
    words: Mutex<Vec<Receiver<()>>>,
}

impl Reluctant {
    /// The senders are for the first that asks, and for the second.
    fn new() -> (Arc<Reluctant>, [Sender<()>; 2]) {
        let ((first, of_first), (second, of_second)) = (channel(), channel());
        let words = Mutex::new(vec![of_second, of_first]);
        (Arc::new(Reluctant { asked: AtomicUsize::new(0), words }), [first, second])
    }
}

impl Cache for Reluctant {
    fn invalidate(&self, _: &[Invalidation]) -> Duration {
        let word = self.words.lock().pop();
        self.asked.fetch_add(1, Ordering::SeqCst);
        let _or_the_sender_is_gone = word.map(|word| word.recv());
        Duration::ZERO
    }
}

/// Has a mount make a file, and does a change of it twice, as one operation: the repetition comes while the first try
/// waits for the mount, and goes on when the first is over. `None` where a lease was over before it was in the way.
fn repeat(
    formation: &Formation,
    make: impl Fn(&Client) -> Ino,
    change: impl Fn(&Client, &OpCtx, Ino) -> FsResult<()> + Sync,
) -> Option<(Ino, [FsResult<()>; 2])> {
    let id = ClientId::of_mount(formation.map.formation, NodeId(0), 7);
    let (kernel, [first, second]) = Reluctant::new();
    formation.nodes[0].serve_cache(id, Some(kernel.clone()));
    let ino = make(&formation.client_as(0, id.0 - 1));
    let client = formation.client(0);
    let ctx = op(&client);
    // By another thread, of the next daemon.
    let again = OpCtx { channel: ctx.channel + 1, retry: true, ..ctx };
    std::thread::scope(|scope| {
        let is_asked = |count, by: &ScopedJoinHandle<'_, _>| {
            let asked = || kernel.asked.load(Ordering::SeqCst) == count;
            wait_until("it asks, or is done", || by.is_finished() || asked());
            asked()
        };
        let one = scope.spawn(|| change(&client, &ctx, ino));
        let first_asks = is_asked(1, &one);
        let other = scope.spawn(|| change(&client, &again, ino));
        let both_ask = first_asks && is_asked(2, &other);
        drop(first);
        let one = one.join().unwrap();
        drop(second);
        let outcomes = [one, other.join().unwrap()];
        both_ask.then_some((ino, outcomes))
    })
}

/// A file with a name that it has not had before.
fn file(client: &Client) -> Ino {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let name = format!("f{}", MADE.fetch_add(1, Ordering::SeqCst));
    client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &FILE).unwrap().ino
}

/// S43.
#[test]
fn an_attribute_is_removed_once() {
    let formation = Formation::new(1, 4096);
    let make = |mount: &Client| {
        let ino = file(mount);
        mount.setxattr(&op(mount), ino, NOTE, &[7; 184], 0).unwrap();
        mount.getattr(ino).unwrap();
        ino
    };
    let remove = |client: &Client, ctx: &OpCtx, ino: Ino| client.removexattr(ctx, ino, NOTE);
    let (ino, outcomes) =
        std::iter::from_fn(|| Some(repeat(&formation, make, remove))).flatten().next().unwrap();
    assert_eq!(outcomes, [Ok(()), Ok(())]);
    assert_eq!(formation.clients[0].listxattr(ino).unwrap(), b"");
}

/// S43.
#[test]
fn an_attribute_is_made_once() {
    let formation = Formation::new(1, 4096);
    let set = |client: &Client, ctx: &OpCtx, ino: Ino| client.setxattr(ctx, ino, NOTE, b"new", CREATE);
    let (ino, outcomes) =
        std::iter::from_fn(|| Some(repeat(&formation, file, set))).flatten().next().unwrap();
    assert_eq!(outcomes, [Ok(()), Ok(())]);
    assert_eq!(formation.clients[0].getxattr(ino, NOTE).unwrap(), b"new");
}
