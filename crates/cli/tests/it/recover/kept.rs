//! Volumes that earlier releases left, kept in `kept/`, where a script makes them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use bivouac_launch::hex::to_hex;
use sha2::{Digest, Sha256};

use crate::harness::{Place, can_mount};

/// One line of a listing, as `kept/make` writes it: kind, mode, size, time, names, path, and content's sum or target.
fn described(root: &Path, path: &str) -> String {
    let full = root.join(path);
    let meta = full.symlink_metadata().unwrap();
    let kind = meta.file_type();
    let (kind, content) = match () {
        () if kind.is_symlink() => ("symbolic link", fs::read_link(&full).unwrap().display().to_string()),
        () if kind.is_dir() => ("directory", "-".to_owned()),
        () if kind.is_fifo() => ("fifo", "-".to_owned()),
        () => {
            let content = fs::read(&full).unwrap();
            let kind = if content.is_empty() { "regular empty file" } else { "regular file" };
            (kind, to_hex(&Sha256::digest(&content)))
        }
    };
    let (mode, size, names) = (meta.mode() & 0o7777, meta.size(), meta.nlink());
    format!("{kind}|{mode:o}|{size}|{}.{:09}|{names}|{path}|{content}", meta.mtime(), meta.mtime_nsec())
}

#[test]
fn volumes_of_every_release_are_recovered_with_all_that_they_have() {
    // The files in the archives are root's.
    if !rustix::process::getuid().is_root() || !can_mount() {
        return;
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recover/kept");
    let archives: Vec<_> = fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path()).collect();
    let archives = archives.iter().filter(|path| path.extension().is_some_and(|end| end == "gz"));
    let mut count = 0;
    for archive in archives {
        let (place, scratch) = (Place::new(), tempfile::tempdir().unwrap());
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(archive).arg("-C").arg(scratch.path());
        assert!(unpack.status().unwrap().success(), "{}", archive.display());
        let (volumes, mount) = (scratch.path().join("kept/volumes"), scratch.path().join("mnt"));
        let owner = std::process::id().to_string();
        let (volumes, mounted) = (volumes.to_str().unwrap(), mount.to_str().unwrap());
        place.ok(&["recover", "--owner", &owner, "--volume", volumes, "--mount", mounted, "kept"]);
        let listing = fs::read_to_string(scratch.path().join("kept/listing")).unwrap();
        assert!(listing.lines().count() > 100, "{}", archive.display());
        for line in listing.lines() {
            let path = line.split('|').nth(5).unwrap();
            assert_eq!(described(&mount, path), line, "{}", archive.display());
        }
        let mut note = [0; 8];
        let len = rustix::fs::getxattr(mount.join("one"), "user.note", &mut note).unwrap();
        assert_eq!(&note[..len], b"kept");
        let contracts = [
            ("own", "strict"),
            ("own/strict", "strict"),
            ("own/session", "session"),
            ("one", "coherent partition"),
        ];
        for (path, expected) in contracts {
            let mut contract = [0; 32];
            let len = rustix::fs::getxattr(mount.join(path), "user.bivouac.contract", &mut contract).unwrap();
            assert_eq!(&contract[..len], expected.as_bytes(), "{path}");
        }
        fs::write(mount.join("many/new"), "later").unwrap();
        place.ok(&["fsck", "--name", "kept"]);
        place.ok(&["down", "--name", "kept", "--yes"]);
        count += 1;
    }
    assert!(count > 0, "an archive is kept");
}
