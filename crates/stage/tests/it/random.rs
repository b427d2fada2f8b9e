//! Random trees: what was copied equals its source, into nothing and over an older copy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is test code")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::trees::{copy, describe};
use proptest::prelude::*;

/// One object of a tree. Names come from a small set, so that trees overlap.
#[derive(Clone, Debug)]
struct Object {
    dir: u8,
    name: u8,
    kind: Kind,
    mode: u32,
}

#[derive(Clone, Debug)]
enum Kind {
    File {
        byte: u8,
        len: usize,
    },
    Link(u8),
    Dir,
    /// Another name of the file in the same directory with the next name, if there is one.
    Again,
}

fn object() -> impl Strategy<Value = Object> {
    let kind = prop_oneof![
        4 => (any::<u8>(), 0usize..100_000).prop_map(|(byte, len)| Kind::File { byte, len }),
        1 => any::<u8>().prop_map(Kind::Link),
        1 => Just(Kind::Dir),
        1 => Just(Kind::Again),
    ];
    (0u8..4, 0u8..6, kind, 0u32..0o10000).prop_map(|(dir, name, kind, mode)| Object {
        dir,
        name,
        kind,
        mode: mode | 0o700,
    })
}

fn make(root: &Path, objects: &[Object]) {
    fs::create_dir_all(root.join("d1/d2")).unwrap();
    fs::create_dir_all(root.join("d3")).unwrap();
    for object in objects {
        let dir = root.join(["", "d1", "d1/d2", "d3"][usize::from(object.dir)]);
        let path = dir.join(format!(
            "{}{}",
            if matches!(object.kind, Kind::Dir) { "sub" } else { "n" },
            object.name
        ));
        // An object whose name is taken is not made.
        let _ = match &object.kind {
            _ if path.symlink_metadata().is_ok() => continue,
            Kind::File { byte, len } => fs::write(&path, vec![*byte; *len]),
            Kind::Link(to) => {
                symlink(format!("to{to}"), &path).unwrap();
                continue;
            }
            Kind::Dir => fs::create_dir(&path),
            Kind::Again => fs::hard_link(dir.join(format!("n{}", object.name + 1)), &path),
        };
        if !path.is_symlink() && path.exists() {
            fs::set_permissions(&path, Permissions::from_mode(object.mode)).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_equals_its_source(
        older in prop::collection::vec(object(), 0..12),
        newer in prop::collection::vec(object(), 0..25),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let [old, new, fresh, merged] = ["old", "new", "fresh", "merged"].map(|name| dir.path().join(name));
        make(&old, &older);
        make(&new, &newer);

        let summary = copy(&new, &fresh).unwrap();
        let expected = describe(&new);
        prop_assert_eq!(&describe(&fresh), &expected);
        let (dirs, links) = (summary.dirs, summary.links + summary.hard_links);
        prop_assert_eq!((summary.files + dirs + links) as usize, expected.len());

        copy(&old, &merged).unwrap();
        let before = describe(&merged);
        prop_assert_eq!(copy(&new, &merged).unwrap().digest, summary.digest);
        let after = describe(&merged);
        let is_dir = |line: &str| line.starts_with("mode 4");
        for (name, line) in &expected {
            // A directory that was there keeps its own mode and gets new times.
            let kept = is_dir(line) && before.contains_key(name);
            prop_assert!(kept || after.get(name) == Some(line), "{}", name.escape_ascii());
        }
        for (name, line) in before.iter().filter(|(name, line)| !expected.contains_key(*name) && !is_dir(line)) {
            // The number of names may have changed, as others of the file were replaced.
            let contents = |line: &str| line.rsplit_once(' ').map(|(_, last)| last.to_owned());
            prop_assert_eq!(after.get(name).map(|line| contents(line)), Some(contents(line)));
        }
    }
}
