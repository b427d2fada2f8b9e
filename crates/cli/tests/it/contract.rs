//! Rows of the contract that are about several programs at once, or about numbers that no standard fixes.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::library::{far_library, messages};
use crate::harness::{Camp, wait_until, wait_within};

/// How long hundreds of looks may take beside as many changes.
const LOOKS_MAX: Duration = Duration::from_secs(600);

/// Runs `work` until `look`, at every other mount, has been done `looks` times in all.
fn looked_at(camp: &Camp, looks: usize, mut work: impl FnMut(usize), look: impl Fn(&Path) + Sync) {
    let (stop, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    let watch = |mount: &Path| {
        while !stop.load(Ordering::Relaxed) {
            look(mount);
            seen.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scopeguard::defer! { stop.store(true, Ordering::Relaxed) }
        let lookers: Vec<_> = camp.mounts()[1..].iter().map(|mount| scope.spawn(|| watch(mount))).collect();
        let mut round = 0;
        wait_within(LOOKS_MAX, "it is looked at", || {
            work(round);
            round += 1;
            seen.load(Ordering::Relaxed) >= looks || lookers.iter().any(|looker| looker.is_finished())
        });
    });
}

/// S2.
#[test]
fn nobody_sees_a_size_whose_bytes_are_not_there() {
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--stripe", "4k"]) else { return };
    let file = File::create(camp.mount().join("log")).unwrap();
    let grow = |round: usize| file.write_all_at(&[b'x'; 1000], round as u64 * 1000).unwrap();
    let look = |mount: &Path| {
        let file = File::open(mount.join("log")).unwrap();
        let size = file.metadata().unwrap().len();
        let at = size.saturating_sub(20_000);
        let mut tail = vec![0; (size - at) as usize];
        file.read_exact_at(&mut tail, at).unwrap();
        assert!(tail.iter().all(|byte| *byte == b'x'), "size {size}");
    };
    looked_at(&camp, 500, grow, look);
    camp.down();
}

/// S1, S650: of what every mount has been promised that nobody changes, through files that are open and others.
#[test]
fn a_read_to_the_end_has_every_write_and_cut_that_was_over_before() {
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--stripe", "4k"]) else { return };
    let asking = far_library(&camp.dir());
    let asked = || messages(&asking, &["GetAttr"]);
    let paths: Vec<PathBuf> = camp.mounts().iter().map(|mount| mount.join("log")).collect();
    File::create(&paths[0]).unwrap();
    let files: Vec<File> = paths.iter().map(|path| open(path)).collect();
    let content_of = |file: &File| {
        let mut back = vec![0; 64 << 10];
        let read = file.read_at(&mut back, 0).unwrap();
        // This one is told of the end.
        assert_eq!(file.read_at(&mut back[read..], read as u64).unwrap(), 0);
        back.truncate(read);
        back
    };
    let mut content = Vec::new();
    for round in 0..12_usize {
        wait_until("every mount is promised that the size stays", || {
            files.iter().all(|file| {
                assert!(content_of(file) == content);
                let before = asked();
                content_of(file) == content && asked() == before
            })
        });
        let writer = &files[round % 3];
        if round % 4 == 3 {
            content.truncate(round * 37 % content.len());
            writer.set_len(content.len() as u64).unwrap();
        } else {
            let piece = vec![b'a' + round as u8; 1 + round * 731 % 5000];
            writer.write_all_at(&piece, content.len() as u64).unwrap();
            content.extend(piece);
        }
        for (reader, path) in files.iter().zip(&paths) {
            assert!(content_of(reader) == content, "round {round}, {}", path.display());
            assert!(content_of(&File::open(path).unwrap()) == content, "round {round}, {}", path.display());
        }
    }
    drop(asking);
    camp.down();
}

/// S3, S4.
#[test]
fn within_a_stripe_a_write_is_seen_whole_or_not_at_all() {
    const STRIPE: usize = 16_384;
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--stripe", "16k"]) else { return };
    fs::write(camp.mount().join("f"), vec![b'a'; 3 * STRIPE]).unwrap();
    let writers: Vec<File> = camp.mounts().iter().map(|mount| open(&mount.join("f"))).collect();
    let write = |round: usize| {
        // Two at once, over all of the three stripes.
        std::thread::scope(|scope| {
            for (n, writer) in writers[..2].iter().enumerate() {
                let fill = b'a' + (2 * round + n) as u8 % 26;
                scope.spawn(move || writer.write_all_at(&vec![fill; 3 * STRIPE], 0).unwrap());
            }
        });
    };
    let look = |mount: &Path| {
        let content = fs::read(mount.join("f")).unwrap();
        assert_eq!(content.len(), 3 * STRIPE);
        for stripe in content.chunks(STRIPE) {
            assert!(stripe.iter().all(|byte| *byte == stripe[0]), "two writes in one stripe");
        }
    };
    looked_at(&camp, 300, write, look);
    camp.down();
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Makes a name in one of the ways; whether it did, or was told that the name is taken.
fn make(way: usize, path: &Path) -> bool {
    let made = match way {
        0 => OpenOptions::new().write(true).create_new(true).open(path).map(drop),
        1 => fs::create_dir(path),
        2 => symlink("target", path),
        _ => fs::hard_link(path.with_file_name("file"), path),
    };
    match made {
        Ok(()) => true,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
        Err(error) => panic!("way {way}: {error}"),
    }
}

/// S21.
#[test]
fn of_several_who_make_a_name_one_does() {
    let Some(camp) = Camp::start_each(&["--nodes", "4"]) else { return };
    fs::write(camp.mount().join("file"), "x").unwrap();
    let start = Barrier::new(4);
    let race = |player: usize, mount: &PathBuf| -> Vec<bool> {
        let round = |round: usize| {
            start.wait();
            make((player + round) % 4, &mount.join(format!("name{round}")))
        };
        (0..100).map(round).collect()
    };
    let made: Vec<Vec<bool>> = std::thread::scope(|scope| {
        let race = &race;
        let players: Vec<_> =
            camp.mounts().iter().enumerate().map(|(n, mount)| scope.spawn(move || race(n, mount))).collect();
        players.into_iter().map(|player| player.join().unwrap()).collect()
    });
    for round in 0..100 {
        assert_eq!(made.iter().filter(|made| made[round]).count(), 1, "round {round}: {made:?}");
    }
    assert_eq!(fs::read_dir(camp.mount()).unwrap().count(), 101);
    camp.down();
}

/// S26, S27, S28.
#[test]
fn numbers_are_as_the_contract_says() {
    let Some(camp) = Camp::start_each(&["--nodes", "3"]) else { return };
    let mut numbers = BTreeSet::new();
    for n in 0..20 {
        let (dir, mount) = (format!("d{n}"), &camp.mounts()[n % 3]);
        fs::create_dir(mount.join(&dir)).unwrap();
        fs::write(mount.join(&dir).join("f"), vec![1; 1000 * n]).unwrap();
        for mount in camp.mounts() {
            let (dir, file) = (mount.join(&dir), mount.join(&dir).join("f"));
            let (dir, file) = (fs::metadata(dir).unwrap(), fs::metadata(file).unwrap());
            assert_eq!(dir.size(), 1, "entries");
            assert_eq!((file.blocks(), file.blksize()), ((1000 * n as u64).div_ceil(512), 65_536));
            numbers.extend([dir.ino(), file.ino()]);
        }
        fs::remove_file(mount.join(&dir).join("f")).unwrap();
        assert_eq!(fs::metadata(mount.join(&dir)).unwrap().size(), 0, "entries");
    }
    assert_eq!(numbers.len(), 40, "the same through every mount, and none a second time");
    camp.down();
}

/// S42.
#[test]
fn an_empty_directory_that_is_replaced_is_never_missing() {
    let Some(camp) = Camp::start_each(&["--nodes", "4"]) else { return };
    for dir in ["one", "two", "two/target"] {
        fs::create_dir(camp.mount().join(dir)).unwrap();
    }
    let replace = |round: usize| {
        let mount = &camp.mounts()[round % 4];
        // Another name each time, so that the new directory is now on this node, now on that one.
        let new = mount.join(format!("one/new{round}"));
        fs::create_dir(&new).unwrap();
        fs::rename(&new, mount.join("two/target")).unwrap();
    };
    let look = |mount: &Path| assert!(fs::metadata(mount.join("two/target")).unwrap().is_dir());
    looked_at(&camp, 500, replace, look);
    assert_eq!(fs::read_dir(camp.mount().join("one")).unwrap().count(), 0);
    camp.down();
}

/// What another user reads in a file, and how it is refused.
fn read_by_another(path: &Path) -> Result<String, String> {
    let said = Command::new("cat").arg(path).uid(65_534).gid(65_534).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if said.status.success() { Ok(text(&said.stdout)) } else { Err(text(&said.stderr)) }
}

/// S29.
#[test]
fn others_enter_only_a_mount_that_is_open_to_them() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    // A place that everybody can reach.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (open, closed) = (place.path().join("open"), place.path().join("closed"));
    for dir in [&open, &closed] {
        fs::create_dir(dir).unwrap();
    }
    let Some(camp) = Camp::start(&["--mount", open.to_str().unwrap(), "--allow-other"]) else { return };
    assert_eq!(camp.run("mount", &[closed.to_str().unwrap()]).code, 0);
    fs::write(open.join("all"), "for all").unwrap();
    fs::write(open.join("mine"), "for me").unwrap();
    fs::set_permissions(open.join("mine"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(read_by_another(&open.join("all")), Ok("for all".into()));
    for refused in [open.join("mine"), closed.join("all")] {
        let text = read_by_another(&refused).unwrap_err();
        assert!(text.contains("Permission denied"), "{text}");
    }
    camp.down();
}
