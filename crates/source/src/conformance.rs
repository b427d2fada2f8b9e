//! Conformance suite of [`Source`]: run it on each implementation; it panics where one differs.
#![allow(clippy::unwrap_used, reason = "a conformance suite is a test, wherever it is called from")]

use bivouac_types::{Timestamp, mode};

use crate::{Attrs, Cause, Meta, Precondition, PutOutcome, Source, SourceResult, Upload};

/// Runs the suite. Each call of `make` returns an empty source and a guard that must outlive it, such as its directory.
///
/// # Panics
/// Where the source does not do what the trait says.
pub fn source<S: Source, K>(make: impl Fn() -> (S, K)) {
    let (made, _keeper) = make();
    made.check().unwrap();
    assert_eq!(made.list(b"").unwrap(), []);
    paths_are_checked(&make().0);
    a_file_comes_back(&make().0);
    pieces_may_come_in_any_order(&make().0);
    nothing_is_seen_before_its_commit(&make().0);
    nothing_is_overwritten_unasked(&make().0);
    what_changed_is_not_read(&make().0);
    trees_come_back(&make().0);
    attributes_change_alone(&make().0);
    removing(&make().0);
    what_was_done_is_known_after_a_kill(&make().0);
}

fn cause<T>(outcome: SourceResult<T>) -> Option<Cause> {
    outcome.err().map(|error| error.cause())
}

fn attrs(perm: u32, secs: i64) -> Attrs {
    let time = Timestamp { secs, nanos: 0 };
    Attrs { perm, mtime: time, atime: time, ..Attrs::default() }
}

/// Returns a byte pattern in which every range is distinguishable.
fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 251 + seed * 7) % 255 + 1) as u8).collect()
}

/// Writes a file with the sequence of calls of a flush.
fn write(
    source: &dyn Source,
    path: &[u8],
    content: &[u8],
    attrs: &Attrs,
    expect: &Precondition,
) -> SourceResult<PutOutcome> {
    let upload = source.begin(path, content.len() as u64, attrs)?;
    let outcome = fill(source, &upload, content, attrs, expect);
    if outcome.is_err() {
        source.abort(&upload).unwrap();
    }
    outcome
}

fn fill(
    source: &dyn Source,
    upload: &Upload,
    content: &[u8],
    attrs: &Attrs,
    expect: &Precondition,
) -> SourceResult<PutOutcome> {
    let size = source.piece_size(upload.size).unwrap_or(1 << 20) as usize;
    let mut pieces = Vec::new();
    for (number, part) in content.chunks(size).enumerate() {
        pieces.push(source.put(upload, (number * size) as u64, part)?);
    }
    source.verify(upload, &pieces)?;
    source.commit(upload, &pieces, attrs, expect)
}

/// Creates a symbolic link with the sequence of calls of a flush.
fn link(source: &dyn Source, path: &[u8], target: &[u8], expect: &Precondition) -> SourceResult<PutOutcome> {
    let link = source.start_link(source.plan(path, target.len() as u64)?, target)?;
    let outcome = source.put_link(&link, target, &attrs(0o777, 80), expect);
    if outcome.is_err() {
        source.abort(&link).unwrap();
    }
    outcome
}

fn read(source: &dyn Source, path: &[u8], meta: &Meta, offset: u64, len: usize) -> SourceResult<Vec<u8>> {
    let mut into = vec![0xee; len];
    let read = source.read(path, &meta.version, offset, &mut into)?;
    into.truncate(read);
    Ok(into)
}

fn names(source: &dyn Source, dir: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = source.list(dir).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

fn paths_are_checked(source: &dyn Source) {
    for path in [&b"/"[..], b"a/", b"/a", b"a//b", b"..", b"a/../b", b".", b"a\0b"] {
        assert_eq!(cause(source.stat(path)), Some(Cause::BadName), "{path:?}");
        assert_eq!(cause(source.begin(path, 0, &attrs(0o600, 1))), Some(Cause::BadName), "{path:?}");
        assert_eq!(cause(source.remove(path, None)), Some(Cause::BadName), "{path:?}");
    }
    assert_eq!(cause(source.stat(b"none")), Some(Cause::NotFound));
    assert_eq!(cause(source.list(b"none")), Some(Cause::NotFound));
    let long = vec![b'n'; 2000];
    assert_eq!(
        cause(write(source, &long, b"x", &attrs(0o600, 1), &Precondition::Absent)),
        Some(Cause::BadName)
    );
}

fn a_file_comes_back(source: &dyn Source) {
    let content = bytes(3_000_000, 1);
    let given = attrs(0o640, 1_234_567_890);
    let kept = write(source, b"name \xe2\x82\xac", &content, &given, &Precondition::Absent).unwrap();
    let meta = source.stat(b"name \xe2\x82\xac").unwrap();
    assert_eq!((meta.kind, meta.version.clone()), (mode::FILE, kept.version));
    assert_eq!((meta.version.size, meta.attrs.perm), (3_000_000, 0o640));
    assert_eq!(meta.attrs.mtime, given.mtime);
    assert_eq!(read(source, b"name \xe2\x82\xac", &meta, 0, 4_000_000).unwrap(), content);
    assert_eq!(
        read(source, b"name \xe2\x82\xac", &meta, 1_000_001, 77).unwrap(),
        content[1_000_001..1_000_078]
    );
    assert_eq!(read(source, b"name \xe2\x82\xac", &meta, 3_000_000, 9).unwrap(), b"");
    let entry = source.list(b"").unwrap().remove(0);
    assert_eq!((entry.name, entry.meta.version), (b"name \xe2\x82\xac".to_vec(), meta.version));
    write(source, b"empty", b"", &given, &Precondition::Absent).unwrap();
    assert_eq!(source.stat(b"empty").unwrap().version.size, 0);
}

fn pieces_may_come_in_any_order(source: &dyn Source) {
    let whole = source.piece_size(12 << 20).unwrap_or(4 << 20);
    let content = bytes((2 * whole + 5) as usize, 2);
    let upload = source.begin(b"f", content.len() as u64, &attrs(0o600, 1)).unwrap();
    let put = |number: u64| {
        let from = (number * whole) as usize;
        let part = &content[from..content.len().min(from + whole as usize)];
        source.put(&upload, from as u64, part).unwrap()
    };
    source.put(&upload, whole, &vec![9; whole as usize]).unwrap();
    let mut pieces: Vec<_> = [2, 0, 1].map(put).into();
    source.verify(&upload, &pieces).unwrap();
    pieces.sort_by_key(|piece| piece.offset);
    source.commit(&upload, &pieces, &attrs(0o600, 1), &Precondition::Absent).unwrap();
    let meta = source.stat(b"f").unwrap();
    assert_eq!(read(source, b"f", &meta, 0, content.len()).unwrap(), content);
}

fn nothing_is_seen_before_its_commit(source: &dyn Source) {
    let upload = source.begin(b"f", 3, &attrs(0o600, 1)).unwrap();
    source.put(&upload, 0, b"abc").unwrap();
    assert_eq!(names(source, b""), Vec::<Vec<u8>>::new());
    assert_eq!(cause(source.stat(b"f")), Some(Cause::NotFound));
    source.abort(&upload).unwrap();
    source.abort(&upload).unwrap();
    assert!(source.put(&upload, 0, b"abc").is_err(), "it was thrown away");
}

fn nothing_is_overwritten_unasked(source: &dyn Source) {
    let given = attrs(0o600, 1);
    let first = write(source, b"f", b"first", &given, &Precondition::Absent).unwrap();
    assert_eq!(cause(write(source, b"f", b"other", &given, &Precondition::Absent)), Some(Cause::Changed));
    let second =
        write(source, b"f", b"second", &given, &Precondition::Version(first.version.clone())).unwrap();
    let stale = Precondition::Version(first.version);
    assert_eq!(cause(write(source, b"f", b"third", &given, &stale)), Some(Cause::Changed));
    let meta = source.stat(b"f").unwrap();
    assert_eq!(meta.version, second.version);
    assert_eq!(read(source, b"f", &meta, 0, 10).unwrap(), b"second");
    write(source, b"f", b"forced", &given, &Precondition::Anything).unwrap();
    let meta = source.stat(b"f").unwrap();
    assert_eq!(read(source, b"f", &meta, 0, 10).unwrap(), b"forced");
    assert_eq!(names(source, b""), [b"f"]);
}

fn what_changed_is_not_read(source: &dyn Source) {
    write(source, b"f", b"first", &attrs(0o600, 1), &Precondition::Absent).unwrap();
    let old = source.stat(b"f").unwrap();
    write(source, b"f", b"again", &attrs(0o600, 2), &Precondition::Anything).unwrap();
    assert_eq!(cause(read(source, b"f", &old, 0, 5)), Some(Cause::Changed));
}

fn trees_come_back(source: &dyn Source) {
    source.put_dir(b"d", &attrs(0o750, 50)).unwrap();
    source.put_dir(b"d/empty", &attrs(0o700, 60)).unwrap();
    write(source, b"d/f", b"x", &attrs(0o604, 70), &Precondition::Absent).unwrap();
    link(source, b"d/l", b"../no/where", &Precondition::Absent).unwrap();
    source.put_dir(b"d", &attrs(0o750, 50)).unwrap();
    assert_eq!(names(source, b""), [b"d"]);
    assert_eq!(names(source, b"d"), [&b"empty"[..], b"f", b"l"]);
    assert_eq!(names(source, b"d/empty"), Vec::<Vec<u8>>::new());
    let dir = source.stat(b"d").unwrap();
    assert_eq!((dir.kind, dir.attrs.perm, dir.attrs.mtime.secs), (mode::DIR, 0o750, 50));
    let found = source.stat(b"d/l").unwrap();
    assert_eq!(
        (found.kind, &found.target[..], found.attrs.mtime.secs),
        (mode::LINK, &b"../no/where"[..], 80)
    );
    assert_eq!(cause(link(source, b"d/l", b"elsewhere", &Precondition::Absent)), Some(Cause::Changed));
    link(source, b"d/l", b"elsewhere", &Precondition::Version(found.version)).unwrap();
    assert_eq!(source.stat(b"d/l").unwrap().target, b"elsewhere");
    assert_eq!(cause(source.put_dir(b"d/f", &attrs(0o700, 1))), Some(Cause::WrongKind));
}

fn attributes_change_alone(source: &dyn Source) {
    write(source, b"f", b"content", &attrs(0o600, 10), &Precondition::Absent).unwrap();
    let old = source.stat(b"f").unwrap();
    let xattrs = vec![(b"user.note".to_vec(), b"\x00value".to_vec())];
    let new = Attrs { xattrs, ..attrs(0o444, 20) };
    match source.set_attrs(b"f", &old.version, &new) {
        // The caller writes the whole file again in this case.
        Err(error) => assert_eq!(error.cause(), Cause::Unsupported),
        Ok(kept) => {
            let meta = source.stat(b"f").unwrap();
            assert_eq!((meta.attrs.perm, meta.attrs.mtime.secs), (0o444, 20));
            assert!(
                meta.attrs.xattrs == new.xattrs || kept.lost.iter().any(|lost| lost.contains("user.note"))
            );
            assert_eq!(meta.version, kept.version);
            assert_eq!(read(source, b"f", &meta, 0, 10).unwrap(), b"content");
            assert_eq!(cause(source.set_attrs(b"f", &old.version, &new)), Some(Cause::Changed));
        }
    }
}

fn removing(source: &dyn Source) {
    source.put_dir(b"d", &attrs(0o700, 1)).unwrap();
    let first = write(source, b"d/f", b"x", &attrs(0o600, 1), &Precondition::Absent).unwrap();
    assert_eq!(cause(source.remove(b"d", None)), Some(Cause::NotEmpty));
    let second = write(source, b"d/f", b"longer", &attrs(0o600, 2), &Precondition::Anything).unwrap();
    assert_eq!(cause(source.remove(b"d/f", Some(&first.version))), Some(Cause::Changed));
    source.remove(b"d/f", Some(&second.version)).unwrap();
    source.remove(b"d/f", None).unwrap();
    source.remove(b"d", None).unwrap();
    assert_eq!(names(source, b""), Vec::<Vec<u8>>::new());
}

/// Resumes after a crash at each step of a flush, from the upload record as it was last persisted.
fn what_was_done_is_known_after_a_kill(source: &dyn Source) {
    let content = bytes(1000, 3);
    for steps in 0..4 {
        let path = format!("f{steps}").into_bytes();
        let mut upload = source.plan(&path, content.len() as u64).unwrap();
        let mut written_down = upload.clone();
        let mut kept = None;
        if steps > 0 {
            upload = source.start(upload, &attrs(0o640, 7)).unwrap();
        }
        if steps > 1 {
            written_down = upload.clone();
        }
        if steps > 2 {
            kept = Some(
                fill(source, &upload, &content, &attrs(0o640, 7), &Precondition::Absent).unwrap().version,
            );
        }
        for _ in 0..2 {
            assert_eq!(
                source.resume(&written_down, &Precondition::Absent).unwrap(),
                kept,
                "after {steps} steps"
            );
        }
        assert_eq!(cause(source.stat(&path)), kept.is_none().then_some(Cause::NotFound));
    }
    let target = &b"to"[..];
    let made = source.start_link(source.plan(b"l", 2).unwrap(), target).unwrap();
    let version = source.put_link(&made, target, &attrs(0o777, 80), &Precondition::Absent).unwrap().version;
    assert_eq!(source.resume(&made, &Precondition::Absent).unwrap(), Some(version));
    let other = source.start_link(source.plan(b"l", 2).unwrap(), target).unwrap();
    assert_eq!(source.resume(&other, &Precondition::Absent).unwrap(), None);
    let (was, given) = (source.stat(b"f3").unwrap().version, attrs(0o600, 99));
    assert!(!source.has_attrs_applied(&source.stat(b"f3").unwrap(), &was, &given));
    source.set_attrs(b"f3", &was, &given).unwrap();
    assert!(source.has_attrs_applied(&source.stat(b"f3").unwrap(), &was, &given));
    write(source, b"f3", &bytes(1000, 4), &given, &Precondition::Anything).unwrap();
    assert!(!source.has_attrs_applied(&source.stat(b"f3").unwrap(), &was, &given), "of another upload");
}
