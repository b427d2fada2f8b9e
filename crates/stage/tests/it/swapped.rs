//! Directories that somebody else swaps for links while they are copied: nothing goes through them.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bivouac_stage::{CopyOptions, NoProgress, copy_tree};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::trees::names;

/// Copies that are tried while names are exchanged.
const TRIES: usize = 40;
const FILES: usize = 60;

/// A tree with a directory of which all files say whose they are.
fn fill(dir: &Path, whose: &str) {
    fs::create_dir_all(dir.join("deep")).unwrap();
    for number in 0..FILES {
        fs::write(dir.join(format!("f{number}")), whose).unwrap();
        fs::write(dir.join(format!("deep/f{number}")), whose).unwrap();
    }
    std::os::unix::fs::symlink(whose, dir.join("link")).unwrap();
    // Large enough to be opened again by every worker.
    fs::write(dir.join("large"), whose.repeat((3 << 20) / whose.len())).unwrap();
}

/// Does something again and again while a directory is a link every other moment. Answers how often they were
/// exchanged.
fn while_exchanged(dir: &Path, link: &Path, mut run: impl FnMut()) -> u64 {
    let (is_over, exchanged) = (AtomicBool::new(false), AtomicU64::new(0));
    let exchange = || renameat_with(CWD, dir, CWD, link, RenameFlags::EXCHANGE).unwrap();
    std::thread::scope(|scope| {
        scopeguard::defer! { is_over.store(true, Ordering::Relaxed) }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                exchange();
                exchange();
                exchanged.fetch_add(2, Ordering::Relaxed);
            }
        });
        (0..TRIES).for_each(|_| run());
    });
    exchanged.into_inner()
}

fn options() -> CopyOptions {
    CopyOptions { jobs: 4, overwrite: true, ..CopyOptions::default() }
}

/// S594.
#[test]
fn nothing_is_made_or_removed_behind_a_link_at_the_target() {
    let root = tempfile::tempdir().unwrap();
    let (src, dst, theirs) = (root.path().join("src"), root.path().join("dst"), root.path().join("theirs"));
    fill(&src.join("dir"), "ours");
    fs::create_dir_all(dst.join("dir/deep")).unwrap();
    fill(&theirs, "theirs");
    let before = crate::trees::describe(&theirs);
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&theirs, &link).unwrap();
    let exchanged = while_exchanged(&dst.join("dir"), &link, || {
        // Whether it gets through is a matter of moments.
        let _either = copy_tree(&src, &dst, &options(), &NoProgress);
    });
    assert!(exchanged > 0);
    assert_eq!(crate::trees::describe(&theirs), before);
    copy_tree(&src, &dst, &options(), &NoProgress).unwrap();
    assert_eq!(fs::read(dst.join("dir/deep/f1")).unwrap(), b"ours");
    assert_eq!(
        names(&src),
        names(&dst).into_iter().filter(|name| !name.contains(".bivouac-")).collect::<Vec<_>>()
    );
}

/// S594.
#[test]
fn nothing_is_copied_from_behind_a_link_at_the_source() {
    let root = tempfile::tempdir().unwrap();
    let (src, theirs) = (root.path().join("src"), root.path().join("theirs"));
    fill(&src.join("dir"), "ours");
    fill(&theirs, "theirs");
    fs::write(theirs.join("more"), "theirs").unwrap();
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&theirs, &link).unwrap();
    let mut number = 0;
    let mut copied = Vec::new();
    let exchanged = while_exchanged(&src.join("dir"), &link, || {
        number += 1;
        let dst = root.path().join(format!("dst{number}"));
        let _either = copy_tree(&src, &dst, &options(), &NoProgress);
        copied.push(dst);
    });
    assert!(exchanged > 0);
    for dst in copied.into_iter().filter(|dst| dst.exists()) {
        for entry in walkdir::WalkDir::new(&dst).into_iter().map(Result::unwrap) {
            let content = match entry.file_type() {
                kind if kind.is_file() => fs::read(entry.path()).unwrap(),
                kind if kind.is_symlink() => {
                    fs::read_link(entry.path()).unwrap().into_os_string().into_encoded_bytes()
                }
                _ => continue,
            };
            // The directory itself, copied as the link that it was at that moment, is no content of theirs.
            let is_dir_as_link = entry.path() == dst.join("dir");
            assert!(is_dir_as_link || content.starts_with(b"ours"), "{}", entry.path().display());
        }
    }
}
