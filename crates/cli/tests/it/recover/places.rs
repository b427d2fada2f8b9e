//! A user's formations are in several places: a login has another runtime directory than a batch job. What one place was
//! killed with is not nobody's for who looks from another.

use serde_json::Value;

use crate::harness::library::{create, ctx, library};
use crate::harness::{Place, Said, reaping, said};
use crate::recover::dead::{Dead, bytes};

const BLOCK: usize = 4096;
const BLOCKS: usize = 300;

/// S78, S293, S295.
#[test]
fn reaping_elsewhere_leaves_what_a_recovery_needs() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "16k"]) else { return };
    dead.fill();
    let writer = library(&dead.camp.dir());
    let ino = create(&writer, "grown");
    for number in 0..BLOCKS {
        let content = bytes(BLOCK, number);
        writer.write(&ctx(&writer), ino, (number * BLOCK) as u64, &content, false).unwrap();
    }
    dead.kill();
    drop(writer);
    look_from_elsewhere(&dead);
    dead.recover(&[]);
    dead.check();
    let content = std::fs::read(dead.mount().join("grown")).unwrap();
    assert_eq!(content.len(), BLOCKS * BLOCK, "sizes that were told are lost");
    assert!((0..BLOCKS).all(|number| content[number * BLOCK..][..BLOCK] == bytes(BLOCK, number)));
    dead.down();
}

/// S78, S293.
#[test]
fn reaping_elsewhere_leaves_memory_and_what_lives() {
    let Some(mut dead) = Dead::in_memory(&["--nodes", "2"]) else { return };
    dead.fill();
    let other = Place::new();
    let reaped = {
        let _alone = reaping();
        other.run(&["reap"])
    };
    assert!(reaped.code == 0 && !reaped.out.contains(dead.camp.name()), "it lives: {}", reaped.out);
    let listed = listed(&other, &dead);
    assert_eq!((&listed["state"], &listed["nodes"]), (&"running".into(), &2.into()), "{listed}");
    dead.check();
    dead.kill();
    look_from_elsewhere(&dead);
    dead.recover(&[]);
    dead.check();
    dead.down();
}

/// Another place removes nothing, says where everything is, and how it is reached.
fn look_from_elsewhere(dead: &Dead) {
    let (other, name) = (Place::new(), dead.camp.name());
    let runtime = dead.camp.place().path().canonicalize().unwrap();
    let way = format!("BIVOUAC_RUNTIME_DIR={} bivouac", runtime.display());
    let _alone = reaping();
    // Without any, only looked: what is there is not this test's.
    let mut unset = other.command(&["reap", "--dry-run"]);
    let unset = said(&unset.env_remove("XDG_RUNTIME_DIR").output().unwrap());
    for reaped in [other.run(&["reap"]), unset] {
        let kept = format!("left formation {name}: its state is in {}", runtime.join("bivouac").display());
        let line = reaped.out.lines().find(|line| line.starts_with(&kept));
        assert!(line.is_some_and(|line| line.ends_with(&format!("{way} reap"))), "{}", reaped.out);
        let taken = |line: &&str| line.contains("remove") && line.contains(name);
        assert_eq!(reaped.out.lines().find(taken), None);
    }
    let listed = listed(&other, dead);
    let dir = runtime.join("bivouac").join(name);
    assert_eq!((&listed["state"], &listed["left"]), (&"dead".into(), &Value::Null), "{listed}");
    let paths = [&listed["directory"], &listed["runtime_dir"]].map(|path| path.as_str().unwrap());
    assert_eq!(paths, [&*dir.to_string_lossy(), &*runtime.to_string_lossy()]);
    let text = other.run(&["list"]).out;
    assert!(text.contains(&format!("its state is in {}", dir.display())) && text.contains(&way), "{text}");
    let volumes = dead.disk.path().to_str().unwrap();
    let refused: [&[&str]; 4] = [
        &["recover", name],
        &["recover", "--volume", volumes],
        &["status", "--name", name],
        &["down", "--discard", "--name", name],
    ];
    for command in refused {
        // One in memory has nothing there.
        let Said { code, err, .. } = other.run(command);
        let is_empty = std::fs::read_dir(volumes).unwrap().next().is_none();
        let is_told = err.contains(&way) || is_empty && command.contains(&"--volume");
        assert!(code != 0 && is_told, "{command:?}: {err}");
    }
    assert!(other.is_empty(), "nothing is left of what was refused");
}

fn listed(other: &Place, dead: &Dead) -> Value {
    let said = other.run(&["list", "--json"]).succeeds();
    let all: Value = serde_json::from_str(&said.out).unwrap();
    let ours = all.as_array().unwrap().iter().find(|one| one["name"] == dead.camp.name());
    ours.cloned().unwrap_or_else(|| panic!("{all}"))
}
