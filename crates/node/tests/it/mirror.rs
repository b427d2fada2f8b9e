//! Deletions that go to site storage as well, where a partition says so.

use std::fs;
use std::path::Path;

use crate::at_site::{Camp, DIR, FILE, STRIPE, bind_with, bytes, tree, with_settings};
use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Removals, TreeEntry};
use bivouac_types::Errno;
use tempfile::TempDir;

fn remove(camp: &Camp, node: usize, path: &str) {
    let (client, (dir, name)) = (camp.client(node), path.rsplit_once('/').unwrap_or(("", path)));
    let dir = camp.ino(node, dir).unwrap();
    let found = client.lookup(dir, name.as_bytes()).unwrap();
    match found.is_dir() {
        true => {
            // On the peer lane nobody looks at the source.
            assert!(client.readdir(found.ino, 0, 1 << 20, false).unwrap().is_empty());
            client.rmdir(&op(client), dir, name.as_bytes()).unwrap();
        }
        false => client.unlink(&op(client), dir, name.as_bytes()).unwrap(),
    }
}

fn mirror(camp: &Camp) -> Removals {
    camp.client(0).site.mirror(camp.partition.id, b"").unwrap()
}

fn paths(removals: &[bivouac_client::Removal]) -> Vec<String> {
    let mut paths: Vec<_> = removals.iter().map(|one| String::from_utf8(one.path.clone()).unwrap()).collect();
    paths.sort();
    paths
}

/// What is at the source besides directories, with all below it.
fn names(dir: &Path) -> Vec<String> {
    let said = std::process::Command::new("find").args([".", "-mindepth", "1"]).current_dir(dir).output();
    let text = String::from_utf8(said.unwrap().stdout).unwrap();
    let mut names: Vec<_> = text.lines().map(|line| line.trim_start_matches("./").to_owned()).collect();
    names.sort();
    names
}

/// S174: nothing is deleted there unasked, and what is deleted here stays so.
#[test]
fn without_being_told_nothing_is_deleted_there() {
    let mut camp = Camp::new(tree);
    let before = names(camp.site.path());
    for path in ["top", "a/large", "a/link", "a/b/c/deep", "a/b/c", "a/b", "a", "empty"] {
        camp.ino(0, path).unwrap();
        remove(&camp, 1, path);
    }
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(mirror(&camp), Removals::default());
    camp.formation.restart();
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(names(camp.site.path()), before);
    for path in ["top", "a", "empty"] {
        assert_eq!(camp.ino(2, path).unwrap_err().errno(), Errno::ENOENT, "{path}");
    }
    assert!(camp.is_saved());
}

/// S175: with a flush, also after all daemons were killed in between.
#[test]
fn what_was_deleted_is_deleted_there_by_a_flush() {
    let mut camp = with_settings("mirror-deletes=yes", tree);
    let before = names(camp.site.path());
    for path in ["top", "a/large", "a/link", "a/b/c/deep", "a/b/c", "a/b"] {
        camp.ino(0, path).unwrap();
        remove(&camp, 1, path);
    }
    // What has never been there leaves no trace.
    camp.write(2, "scratch", b"x");
    remove(&camp, 2, "scratch");
    assert_eq!(names(camp.site.path()), before, "the policy says on flush");
    let told = camp.client(0).site.removals().unwrap();
    let expected = ["a/b", "a/b/c", "a/b/c/deep", "a/large", "a/link", "top"];
    assert_eq!(paths(&told.left), expected);
    camp.formation.restart();
    assert_eq!(paths(&camp.client(0).site.removals().unwrap().left), expected, "kill -9 forgets nothing");
    let removals = mirror(&camp);
    assert_eq!((removals.done, removals.kept, removals.left), (6, vec![], vec![]));
    assert_eq!(names(camp.site.path()), ["a", "empty", "nothing"]);
    assert_eq!(camp.client(0).site.removals().unwrap(), Removals::default());
    // Nothing of them is known any more: new ones of the same names are new.
    camp.write(1, "top", b"new");
    let client = camp.client(1);
    client.mknod(&op(client), camp.ino(1, "a").unwrap(), b"b", &DIR).unwrap();
    camp.write(3, "a/b/file", b"new too");
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"new");
    assert_eq!(fs::read(camp.at("a/b/file")).unwrap(), b"new too");
    camp.check_same(2);
}

/// S176: what somebody else has put there meanwhile stays.
#[test]
fn what_has_changed_there_is_not_deleted() {
    let camp = with_settings("mirror-deletes=yes", tree);
    for path in ["top", "empty", "nothing"] {
        camp.ino(0, path).unwrap();
        remove(&camp, 1, path);
    }
    fs::write(camp.at("top"), "theirs").unwrap();
    fs::write(camp.at("empty/theirs"), "in it").unwrap();
    let removals = mirror(&camp);
    assert_eq!((removals.done, paths(&removals.kept)), (1, vec!["empty".to_owned(), "top".to_owned()]));
    assert!(removals.kept.iter().any(|kept| kept.why.contains("top: changed at the source")), "{removals:?}");
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"theirs");
    assert_eq!(fs::read(camp.at("empty/theirs")).unwrap(), b"in it");
    assert_eq!(camp.client(0).site.removals().unwrap(), Removals::default(), "it was said once");
    assert_eq!(camp.ino(1, "top").unwrap_err().errno(), Errno::ENOENT);
    // A new file of the name does not overwrite theirs.
    camp.write(1, "top", b"ours");
    assert_eq!(camp.flush(0, false)[0].1, Errno::ESTALE);
    assert_eq!(fs::read(camp.at("top")).unwrap(), b"theirs");
}

/// S175, S176: what somebody else has put there and was seen here, since it was opened, is what was deleted.
#[test]
fn what_has_changed_there_and_was_opened_is_deleted() {
    let camp = with_settings("mirror-deletes=yes", tree);
    let (client, top) = (camp.client(0), camp.ino(0, "top").unwrap());
    fs::write(camp.at("new"), "theirs").unwrap();
    fs::rename(camp.at("new"), camp.at("top")).unwrap();
    client.open(&op(client), top, 0).unwrap();
    client.close(top);
    assert_eq!(camp.read(1, "top").unwrap(), b"theirs");
    remove(&camp, 1, "top");
    let removals = mirror(&camp);
    assert_eq!((removals.done, paths(&removals.kept)), (1, vec![]), "{removals:?}");
    assert!(!camp.at("top").exists());
}

/// S175: a name that is used again takes the place of what was there, also where it is of another kind.
#[test]
fn a_name_that_is_used_again_is_not_deleted() {
    let camp = with_settings("mirror-deletes=yes", tree);
    camp.ino(0, "a/b").unwrap();
    for path in ["top", "nothing", "empty", "a/b/c/deep", "a/b/c"] {
        camp.ino(0, path).unwrap();
        remove(&camp, 1, path);
    }
    let client = camp.client(1);
    camp.write(1, "top", b"again");
    client.mknod(&op(client), camp.partition.dir, b"nothing", &DIR).unwrap();
    camp.write(2, "nothing/file", b"in a directory now");
    camp.write(3, "empty", b"a file now");
    client.mknod(&op(client), camp.ino(1, "a/b").unwrap(), b"c", &DIR).unwrap();
    camp.write(1, "a/b/c/deep", b"in a new directory");
    let removals = mirror(&camp);
    assert_eq!((removals.done, &removals.kept, &removals.left), (3, &vec![], &vec![]));
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(mirror(&camp), Removals::default());
    camp.check_same(2);
    assert_eq!(fs::read(camp.at("a/b/c/deep")).unwrap(), b"in a new directory");
}

/// S175: a name may be used once more, and go once more, before what it led to first is deleted there.
#[test]
fn what_was_deleted_first_goes_whatever_had_its_name_since() {
    let camp = with_settings("mirror-deletes=yes", tree);
    let (client, dir) = (camp.client(1), camp.partition.dir);
    camp.ino(0, "top").unwrap();
    remove(&camp, 1, "top");
    client.mknod(&op(client), dir, b"top", &DIR).unwrap();
    client.rename(&op(client), dir, b"top", dir, b"elsewhere", 0).unwrap();
    client.mknod(&op(client), dir, b"top", &DIR).unwrap();
    camp.write(2, "top/file", b"in a directory now");
    // What was renamed still needs what is there under the name, whoever had that since.
    let a = camp.ino(1, "a").unwrap();
    camp.ino(0, "a/large").unwrap();
    client.rename(&op(client), a, b"large", dir, b"moved", 0).unwrap();
    camp.write(2, "a/large", b"short");
    remove(&camp, 2, "a/large");
    let removals = mirror(&camp);
    assert_eq!((removals.done, paths(&removals.left)), (1, vec!["a/large".to_owned()]));
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(mirror(&camp).done, 1);
    assert!(camp.read(3, "moved").unwrap() == bytes(10 * STRIPE + 77, 2));
    assert!(!camp.at("a/large").exists());
    for path in ["moved", "top", "top/file", "elsewhere"] {
        camp.check_same_at(2, path);
    }
}

/// S177: the old name of what was renamed goes when its content is there under the new one.
#[test]
fn what_was_renamed_is_deleted_under_its_old_name_when_it_has_the_new_one() {
    let camp = with_settings("mirror-deletes=yes", tree);
    let (client, a) = (camp.client(1), camp.ino(1, "a").unwrap());
    camp.ino(0, "a/large").unwrap();
    client.rename(&op(client), a, b"large", camp.partition.dir, b"moved", 0).unwrap();
    let first = mirror(&camp);
    assert_eq!((first.done, paths(&first.left)), (0, vec!["a/large".to_owned()]));
    assert!(camp.at("a/large").exists(), "its content is only there");
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(mirror(&camp).done, 1);
    assert!(!camp.at("a/large").exists());
    assert!(fs::read(camp.at("moved")).unwrap() == bytes(10 * STRIPE + 77, 2));
    assert!(camp.read(3, "moved").unwrap() == bytes(10 * STRIPE + 77, 2));
}

/// A file that is open and has no name any more is read to its end.
#[test]
fn what_is_open_is_deleted_there_when_it_is_closed() {
    let camp = with_settings("mirror-deletes=yes", tree);
    let (client, large) = (camp.client(1), camp.ino(1, "a/large").unwrap());
    client.open(&op(client), large, 0).unwrap();
    remove(&camp, 2, "a/large");
    assert_eq!(paths(&mirror(&camp).left), ["a/large"]);
    let mut content = vec![0; 10 * STRIPE + 77];
    client.read(large, 0, &mut content).unwrap();
    assert!(content == bytes(10 * STRIPE + 77, 2));
    client.close(large);
    wait_until("it is gone", || mirror(&camp).done == 1);
    assert!(!camp.at("a/large").exists());
}

/// S175: at once where the write policy is through or on-close, and the error is the call's.
#[test]
fn through_deletes_before_it_is_acknowledged() {
    for policy in ["through", "on-close"] {
        let camp =
            with_settings(&format!("mirror-deletes=yes\nwrite={policy}\nrule=*.tmp: write=on-flush"), tree);
        let (client, dir) = (camp.client(1), camp.partition.dir);
        fs::write(camp.at("later.tmp"), "x").unwrap();
        client.lookup(dir, b"later.tmp").unwrap();
        for path in ["a/large", "a/b/c/deep", "a/b/c", "empty", "later.tmp"] {
            camp.ino(1, path).unwrap();
            remove(&camp, 1, path);
            assert_eq!(camp.at(path).exists(), path == "later.tmp", "{path}");
        }
        client.rename(&op(client), dir, b"top", dir, b"renamed", 0).unwrap();
        assert!(!camp.at("top").exists() && fs::read(camp.at("renamed")).unwrap() == bytes(10, 1));
        fs::write(camp.at("nothing"), "theirs").unwrap();
        let refused = client.unlink(&op(client), dir, b"nothing").unwrap_err();
        assert_eq!(refused.errno(), Errno::ESTALE);
        assert_eq!(fs::read(camp.at("nothing")).unwrap(), b"theirs");
        assert_eq!(client.lookup(dir, b"nothing").unwrap_err().errno(), Errno::ENOENT);
        assert_eq!(mirror(&camp).done, 1);
        assert!(!camp.at("later.tmp").exists());
    }
}

/// S175: a policy that delays has it done by itself, also what an earlier daemon left.
#[test]
fn delayed_deletions_are_made_by_themselves() {
    let mut camp = with_settings("mirror-deletes=yes\nwrite=delayed=1h", tree);
    camp.ino(0, "top").unwrap();
    remove(&camp, 1, "top");
    let client = camp.client(0);
    let partition = client.partitions.now(camp.partition.id).unwrap();
    let mut settings = partition.settings.clone();
    settings.assign("write", "delayed=10ms").unwrap();
    client.partitions.set(&op(client), partition.id, partition.version, settings).unwrap();
    camp.formation.restart();
    wait_until("it is deleted", || !camp.at("top").exists());
    camp.ino(0, "empty").unwrap();
    remove(&camp, 2, "empty");
    wait_until("it is deleted", || !camp.at("empty").exists());
    wait_until("it is known", || camp.client(0).site.removals().unwrap() == Removals::default());
}

/// S178: a source that is away loses no deletion, and says why.
#[test]
fn a_source_that_is_away_has_it_deleted_later() {
    let camp = with_settings("mirror-deletes=yes\nwrite=through", tree);
    camp.ino(1, "top").unwrap();
    let away = camp.site.path().with_extension("away");
    fs::rename(camp.site.path(), &away).unwrap();
    let (client, dir) = (camp.client(1), camp.partition.dir);
    let refused = client.unlink(&op(client), dir, b"top").unwrap_err();
    assert_eq!(refused.errno(), Errno::EIO);
    assert_eq!(client.lookup(dir, b"top").unwrap_err().errno(), Errno::ENOENT, "it is deleted here");
    let left = client.site.removals().unwrap().left;
    assert_eq!(paths(&left), ["top"]);
    assert!(left[0].why.contains("still mounted"), "{left:?}");
    fs::rename(&away, camp.site.path()).unwrap();
    // Tried again without anybody asking.
    wait_until("it is deleted", || !camp.at("top").exists());
    wait_until("it is known", || client.site.removals().unwrap() == Removals::default());
}

/// The names of a spread directory are on all nodes.
#[test]
fn a_spread_directory_goes_with_all_that_was_in_it() {
    let (formation, site) = (Formation::spreading(4), TempDir::new().unwrap());
    let partition = bind_with(&formation, "part", site.path(), "mirror-deletes=yes").unwrap();
    let camp = Camp { formation, partition, site };
    let client = camp.client(0);
    client.mknod(&op(client), camp.partition.dir, b"many", &DIR).unwrap();
    for file in 0..40 {
        camp.write(file % 4, &format!("many/{file}"), b"x");
    }
    assert_eq!(camp.flush(0, false), []);
    assert_eq!(names(camp.site.path()).len(), 41);
    assert!(camp.client(0).getattr(camp.ino(0, "many").unwrap()).unwrap().is_spread());
    (0..40).for_each(|file| remove(&camp, file % 4, &format!("many/{file}")));
    remove(&camp, 2, "many");
    // Closes are told in passing; what was not told yet is needed until then.
    let mut done = 0;
    wait_until("all are deleted", || {
        let removals = mirror(&camp);
        assert_eq!(removals.kept, []);
        done += removals.done;
        removals.left.is_empty()
    });
    assert_eq!(done, 41);
    assert_eq!(names(camp.site.path()), [""; 0]);
}

/// A file that is deleted while it is being flushed does not stay there.
#[test]
fn what_is_deleted_during_its_flush_is_deleted_there() {
    let camp = with_settings("mirror-deletes=yes", tree);
    let client = camp.client(0);
    let dir = camp.partition.dir;
    let made = client.create(&op(client), dir, b"new", &FILE, false, false).unwrap().attr;
    client.write(&op(client), made.ino, 0, &bytes(2 * STRIPE, 5), false).unwrap();
    // Open, so that it is not gone when its flush goes on.
    let found = TreeEntry { attr: made, dir, path: b"new".to_vec() };
    let other = camp.formation.client_as(1, 77);
    let unlink = Box::new(move || other.unlink(&op(&other), dir, b"new").unwrap());
    *camp.formation.switchboard.after.lock() = Some((bivouac_wire::Op::FlushParts as u16, unlink));
    client.site.flush(&found, None, false).unwrap();
    assert!(camp.at("new").exists(), "it was begun before");
    client.close(made.ino);
    wait_until("it is deleted", || mirror(&camp).done == 1);
    assert!(!camp.at("new").exists());
}
