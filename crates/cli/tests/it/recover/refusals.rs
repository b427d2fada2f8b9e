//! What is not recovered, and that nothing is lost by asking.

use std::fs;

use crate::harness::{Place, assert_contains, wait_until};
use crate::recover::dead::Dead;

/// S296.
#[test]
fn a_missing_volume_is_named_and_nothing_is_changed() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    dead.kill();
    let (there, aside) = (dead.disk.path().join("n1"), dead.disk.path().join("aside"));
    for reboot in [false, true] {
        if reboot {
            dead.reboot();
        }
        fs::rename(&there, &aside).unwrap();
        let before = dead.on_disk();
        let said = dead.run(&[dead.camp.name()]);
        let says = format!("missing: volume 0 of node 1 ({})", there.display());
        assert!(said.code == 1 && said.err.contains(&says), "{}", said.err);
        assert_contains(&said.err, &["all names, attributes and sizes that node 1 keeps, and 1 of 2 parts"]);
        assert_eq!(dead.listed()["state"], "incomplete");
        assert_eq!(dead.on_disk(), before);
        fs::rename(&aside, &there).unwrap();
    }
    // A copy that was interrupted: the volume says whose it is, and has none of the names.
    let (records, gone) = (there.join("records"), dead.disk.path().join("gone"));
    fs::rename(&records, &gone).unwrap();
    let said = dead.run(&[dead.camp.name()]);
    let says = format!("volume 0 of node 1 ({}: its records are gone", there.display());
    assert!(said.code == 1 && said.err.contains(&says), "{}", said.err);
    fs::rename(&gone, &records).unwrap();
    // It may be elsewhere now.
    fs::rename(&there, &aside).unwrap();
    dead.recover(&["--volume", aside.to_str().unwrap()]);
    dead.check();
    dead.down();
}

/// S296.
#[test]
fn volumes_of_two_formations_are_not_mixed() {
    let Some(mut one) = Dead::start(&["--nodes", "2"]) else { return };
    let Some(mut other) = Dead::start(&["--nodes", "2"]) else { return };
    one.fill();
    other.fill();
    one.kill();
    other.kill();
    let (a, b) = (one.disk.path().to_str().unwrap(), other.disk.path().to_str().unwrap());
    one.run(&["--volume", a, "--volume", b]).fails(2, &["volumes of several formations"]);
    one.run(&[one.camp.name(), "--volume", b]).fails(2, &[other.camp.name()]);
    one.run(&["--volume", "/"]).fails(2, &["is no volume"]);
    one.recover(&[]);
    one.check();
    one.down();
    other.recover(&[]);
    other.check();
    other.down();
}

/// S297.
#[test]
fn what_lives_or_was_taken_down_is_not_recovered() {
    let Some(mut dead) = Dead::start(&["--nodes", "2"]) else { return };
    dead.fill();
    let name = dead.camp.name().to_owned();
    dead.run(&[&name]).fails(1, &["is running"]);
    assert_eq!(dead.listed()["state"], "running");
    let disk = dead.disk.path().to_str().unwrap().to_owned();
    dead.run(&["--volume", &disk]).fails(1, &["running"]);
    dead.camp.kill_supervisor();
    wait_until("that is seen", || dead.listed()["state"] == "degraded");
    let pid = dead.camp.status()["nodes"][0]["pid"].to_string();
    dead.run(&[&name]).fails(1, &["daemons of it still serve", &pid]);
    dead.check();
    dead.kill();
    dead.recover(&[]);
    dead.check();
    let Dead { camp, disk, .. } = dead;
    camp.run("down", &["--yes"]).succeeds();
    camp.place().run(&["recover", &name]).fails(1, &["nothing is known here that could be recovered"]);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0);
    let said = camp.place().run(&["list"]);
    assert!(!said.out.contains(&name), "{}", said.out);
}

/// S296: what is not a note, a record or a state that this program wrote.
#[test]
fn garbage_on_a_volume_is_refused_and_nothing_is_lost() {
    let Some(mut dead) = Dead::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    dead.fill();
    dead.kill();
    let notes = ["n0", "n1"].map(|node| dead.disk.path().join(node).join("bivouac-formation"));
    let good = fs::read(&notes[0]).unwrap();
    let mut bad: Vec<Vec<u8>> = vec![b"".into(), b"garbage".into(), good[..good.len() / 2].into()];
    let text = String::from_utf8(good.clone()).unwrap();
    bad.push(text.replace("\"nodes\":[", "\"nodes\":[{},").into());
    bad.push(text.replace("\"formation\":\"", "\"formation\":\"zz").into());
    bad.push(text.replacen("\"version\":1", "\"version\":7", 2).into());
    dead.reboot();
    for bad in bad {
        notes.iter().for_each(|note| fs::write(note, &bad).unwrap());
        let said = dead.run(&[dead.camp.name()]);
        assert!(said.code == 1 && !said.err.contains("panic"), "{}", said.err);
        dead.run(&["--volume", dead.disk.path().to_str().unwrap()]).fails(1, &["says what it is part of"]);
        assert_eq!(dead.camp.place().run(&["list"]).code, 0);
    }
    // One that can be read is enough.
    fs::write(&notes[1], &good).unwrap();
    let log = fs::read_dir(dead.disk.path().join("n0/records")).unwrap().next().unwrap().unwrap().path();
    let sound = fs::read(&log).unwrap();
    let mut broken = sound.clone();
    broken[100] ^= 0xff;
    fs::write(&log, &broken).unwrap();
    dead.run(&[dead.camp.name()]).fails(1, &["damaged", "the volumes are as they were"]);
    assert_eq!(fs::read(&log).unwrap(), broken);
    dead.camp.run("up", &["--no-mount"]).fails(3, &["cannot be read"]);
    fs::write(&log, &sound).unwrap();
    dead.recover(&[]);
    dead.check();
    dead.down();
}

/// S298.
#[test]
fn empty_leftovers_are_removed_by_up_and_others_thrown_away_on_demand() {
    let Some(dead) = Dead::start(&["--nodes", "2"]) else { return };
    dead.kill();
    let said = dead.camp.run("up", &["--owner", &std::process::id().to_string()]).succeeds();
    assert!(said.err.contains("was killed earlier"), "{}", said.err);
    dead.camp.down();
    let Some(mut dead) = Dead::start(&["--nodes", "2"]) else { return };
    dead.fill();
    dead.kill();
    dead.reboot();
    // Another name on the same directory does not take it either.
    let volume = format!("{}:256m", dead.disk.path().display());
    let before = dead.on_disk();
    let said =
        dead.camp.place().run(&["up", "--name", &Place::unique_name(), "--nodes", "2", "--volume", &volume]);
    assert_ne!(said.code, 0);
    assert!(said.err.contains("have it back: bivouac recover --volume DIR"), "{}", said.err);
    assert_eq!(dead.on_disk(), before);
    dead.camp.run("down", &["--discard"]).succeeds().prints(&["is thrown away; it held"]);
    assert_eq!(fs::read_dir(dead.disk.path()).unwrap().count(), 0);
}
