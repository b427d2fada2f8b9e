//! Random operations by several clients against a model in memory; also with lost messages between
//! the nodes and with all nodes killed in the middle of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use crate::formation::{Formation, op, wait_until};
use bivouac_client::{Client, NewInode, OpCtx};
use bivouac_types::{Attr, Errno, FsResult, Ino, SetAttr, mode};
use proptest::prelude::*;

/// A path of up to three names out of a few, so that operations meet.
type Path = Vec<u8>;

#[derive(Clone, Debug)]
enum Step {
    Make(Path),
    Dir(Path),
    Write(Path, u16, u16, u8),
    Append(Path, u16, u8),
    Resize(Path, u16),
    Read(Path),
    Unlink(Path),
    Rmdir(Path),
    Rename(Path, Path),
    Exchange(Path, Path),
    Link(Path, Path),
    List(Path),
    Restart,
}

#[derive(Clone, Debug, Default)]
struct Model {
    files: BTreeMap<usize, Vec<u8>>,
    /// Every path that exists: `None` is a directory, otherwise the number of the file.
    paths: BTreeMap<Path, Option<usize>>,
    next: usize,
}

impl Model {
    fn parent(path: &[u8]) -> &[u8] {
        &path[..path.len() - 1]
    }

    fn entry(&self, path: &[u8]) -> Result<Option<usize>, Errno> {
        if path.is_empty() {
            return Ok(None);
        }
        match self.entry(Model::parent(path))? {
            Some(_) => Err(Errno::ENOTDIR),
            None => self.paths.get(path).copied().ok_or(Errno::ENOENT),
        }
    }

    fn room_for(&self, path: &[u8]) -> Result<(), Errno> {
        match self.entry(Model::parent(path))? {
            Some(_) => Err(Errno::ENOTDIR),
            None if self.paths.contains_key(path) => Err(Errno::EEXIST),
            None => Ok(()),
        }
    }

    fn file(&mut self, path: &[u8]) -> Result<&mut Vec<u8>, Errno> {
        let number = self.entry(path)?.ok_or(Errno::EISDIR)?;
        Ok(self.files.entry(number).or_default())
    }

    fn children(&self, path: &[u8]) -> BTreeSet<u8> {
        let below = |p: &&Path| p.len() == path.len() + 1 && p.starts_with(path);
        self.paths.keys().filter(below).map(|p| p[path.len()]).collect()
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        let source = self.entry(from)?;
        if self.entry(Model::parent(to))?.is_some() {
            return Err(Errno::ENOTDIR);
        }
        if source.is_none() && to.starts_with(from) && to != from {
            return Err(Errno::EINVAL);
        }
        if let Ok(target) = self.entry(to) {
            match (source, target) {
                (a, b) if to == from || (a.is_some() && a == b) => return Ok(()),
                (None, Some(_)) => return Err(Errno::ENOTDIR),
                (Some(_), None) => return Err(Errno::EISDIR),
                (None, None) if !self.children(to).is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
            self.paths.remove(to);
        }
        let moved: Vec<(Path, Option<usize>)> =
            self.paths.iter().filter(|(p, _)| p.starts_with(from)).map(|(p, e)| (p.clone(), *e)).collect();
        for (path, entry) in moved {
            self.paths.remove(&path);
            self.paths.insert([to, &path[from.len()..]].concat(), entry);
        }
        Ok(())
    }
}

/// Runs one operation until its outcome is known, as the network layer of a real client does.
fn surely<R>(client: &Client, mut act: impl FnMut(&OpCtx) -> FsResult<R>) -> Result<R, Errno> {
    let mut ctx = op(client);
    for _ in 0..1000 {
        match act(&ctx) {
            Err(error) if error.errno() == Errno::EIO => ctx.retry = true,
            outcome => return outcome.map_err(|error| error.errno()),
        }
    }
    panic!("an operation does not come to an end");
}

struct Real<'a> {
    client: &'a Client,
}

impl Real<'_> {
    fn find(&self, path: &[u8]) -> Result<Attr, Errno> {
        let mut attr = self.client.getattr(Ino::ROOT).map_err(|e| e.errno())?;
        for name in path {
            if !attr.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            attr = self.client.lookup(attr.ino, &[*name]).map_err(|e| e.errno())?;
        }
        Ok(attr)
    }

    fn place<'p>(&self, path: &'p [u8]) -> Result<(Ino, &'p [u8]), Errno> {
        let parent = self.find(Model::parent(path))?;
        if parent.is_dir() { Ok((parent.ino, &path[path.len() - 1..])) } else { Err(Errno::ENOTDIR) }
    }

    fn file(&self, path: &[u8]) -> Result<Attr, Errno> {
        let attr = self.find(path)?;
        if attr.is_dir() { Err(Errno::EISDIR) } else { Ok(attr) }
    }

    fn content(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let attr = self.file(path)?;
        let mut bytes = vec![0xee; attr.size as usize + 10];
        let len = self.client.read(attr.ino, 0, &mut bytes).map_err(|e| e.errno())?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn list(&self, path: &[u8]) -> Result<BTreeSet<u8>, Errno> {
        let attr = self.find(path)?;
        if !attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let (mut names, mut cookie) = (BTreeSet::new(), 0);
        loop {
            // A tiny answer each time, so that listings go on at cookies.
            let page = self.client.readdir(attr.ino, cookie, 60, false).map_err(|e| e.errno())?;
            let Some(last) = page.last() else { return Ok(names) };
            cookie = last.cookie;
            names.extend(page.iter().map(|entry| entry.name[0]));
        }
    }
}

/// Compares contents, without printing them whole.
fn assert_same(got: Result<Vec<u8>, Errno>, expected: Result<Vec<u8>, Errno>, path: &[u8]) {
    let (Ok(got), Ok(expected)) = (&got, &expected) else {
        assert_eq!(got.map(|bytes| bytes.len()), expected.map(|bytes| bytes.len()), "{path:?}");
        return;
    };
    assert_eq!(got.len(), expected.len(), "length of {path:?}");
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs.map(|at| (at, got[at], expected[at])), None, "content of {path:?}");
}

fn new(kind: u32) -> NewInode<'static> {
    NewInode { mode: kind | 0o755, rdev: 0, target: b"" }
}

fn apply(formation: &Formation, model: &mut Model, step: &Step, turn: usize) {
    let client = &formation.clients[turn % formation.clients.len()];
    let real = Real { client };
    match step {
        Step::Make(path) => {
            let got = real.place(path).and_then(|(parent, name)| {
                surely(client, |ctx| client.create(ctx, parent, name, &new(mode::FILE), true, false))
            });
            if let Ok(opened) = &got {
                client.close(opened.attr.ino);
            }
            let expected = model.room_for(path);
            assert_eq!(got.map(drop), expected);
            if expected.is_ok() {
                model.next += 1;
                model.paths.insert(path.clone(), Some(model.next));
            }
        }
        Step::Dir(path) => {
            let got = real.place(path).and_then(|(parent, name)| {
                surely(client, |ctx| client.mknod(ctx, parent, name, &new(mode::DIR)))
            });
            let expected = model.room_for(path);
            assert_eq!(got.map(drop), expected);
            if expected.is_ok() {
                model.paths.insert(path.clone(), None);
            }
        }
        Step::Write(path, offset, len, fill) => {
            let data = vec![*fill; usize::from(*len)];
            let got = real.file(path).and_then(|attr| {
                surely(client, |ctx| client.write(ctx, attr.ino, u64::from(*offset), &data, false))
            });
            let expected = model.file(path).map(|file| {
                let end = usize::from(*offset) + data.len();
                if !data.is_empty() {
                    file.resize(file.len().max(end), 0);
                    file[usize::from(*offset)..end].copy_from_slice(&data);
                }
                data.len()
            });
            assert_eq!(got, expected);
        }
        Step::Append(path, len, fill) => {
            let data = vec![*fill; usize::from(*len)];
            let got = real
                .file(path)
                .and_then(|attr| surely(client, |ctx| client.write(ctx, attr.ino, 0, &data, true)));
            let expected = model.file(path).map(|file| {
                file.extend_from_slice(&data);
                data.len()
            });
            assert_eq!(got, expected);
        }
        Step::Resize(path, size) => {
            let set = SetAttr { size: Some(u64::from(*size)), ..SetAttr::default() };
            let got =
                real.file(path).and_then(|attr| surely(client, |ctx| client.setattr(ctx, attr.ino, &set)));
            let expected = model.file(path).map(|file| file.resize(usize::from(*size), 0));
            assert_eq!(got.map(drop), expected);
        }
        Step::Read(path) => assert_same(real.content(path), model.file(path).cloned(), path),
        Step::Unlink(path) => {
            let got = real
                .place(path)
                .and_then(|(parent, name)| surely(client, |ctx| client.unlink(ctx, parent, name)));
            let expected = model.entry(path).and_then(|entry| entry.map(drop).ok_or(Errno::EISDIR));
            assert_eq!(got, expected);
            if expected.is_ok() {
                model.paths.remove(path);
            }
        }
        Step::Rmdir(path) => {
            let got = real
                .place(path)
                .and_then(|(parent, name)| surely(client, |ctx| client.rmdir(ctx, parent, name)));
            let expected = match model.entry(path) {
                Ok(Some(_)) => Err(Errno::ENOTDIR),
                Ok(None) if !model.children(path).is_empty() => Err(Errno::ENOTEMPTY),
                other => other.map(drop),
            };
            assert_eq!(got, expected);
            if expected.is_ok() {
                model.paths.remove(path);
            }
        }
        Step::Rename(from, to) => {
            let places = real.place(from).and_then(|(p, n)| {
                real.find(from)?;
                Ok(((p, n), real.place(to)?))
            });
            let got =
                places.and_then(|((p, n), (q, m))| surely(client, |ctx| client.rename(ctx, p, n, q, m, 0)));
            let expected = model.rename(from, to);
            assert_eq!(got, expected, "rename {from:?} {to:?}");
        }
        Step::Exchange(from, to) => exchange(&real, model, from, to),
        Step::Link(from, to) => {
            let got = real.file(from).and_then(|attr| {
                let (parent, name) = real.place(to)?;
                surely(client, |ctx| client.link(ctx, attr.ino, parent, name))
            });
            let expected = model.entry(from).and_then(|entry| {
                let number = entry.ok_or(Errno::EISDIR)?;
                model.room_for(to).map(|()| number)
            });
            assert_eq!(got.map(drop), expected.map(drop));
            if let Ok(number) = expected {
                model.paths.insert(to.clone(), Some(number));
            }
        }
        Step::List(path) => {
            let expected = match model.entry(path) {
                Ok(None) => Ok(model.children(path)),
                Ok(Some(_)) => Err(Errno::ENOTDIR),
                Err(errno) => Err(errno),
            };
            assert_eq!(real.list(path), expected);
        }
        Step::Restart => {}
    }
}

/// Two entries that both exist are swapped, with all that is below them.
fn exchange(real: &Real<'_>, model: &mut Model, from: &[u8], to: &[u8]) {
    if model.entry(from).is_err() || model.entry(to).is_err() || from == to {
        return;
    }
    let ((p, n), (q, m)) = (real.place(from).unwrap(), real.place(to).unwrap());
    let got = surely(real.client, |ctx| real.client.rename(ctx, p, n, q, m, 2));
    if from.starts_with(to) || to.starts_with(from) {
        assert_eq!(got, Err(Errno::EINVAL), "exchange {from:?} {to:?}");
        return;
    }
    assert_eq!(got, Ok(()), "exchange {from:?} {to:?}");
    let swap = |path: Path| match (path.strip_prefix(from), path.strip_prefix(to)) {
        (Some(rest), _) => [to, rest].concat(),
        (_, Some(rest)) => [from, rest].concat(),
        _ => path,
    };
    model.paths = std::mem::take(&mut model.paths).into_iter().map(|(path, e)| (swap(path), e)).collect();
}

/// Waits until a directory counts what it has: where a message was lost, a node tells the home later of what it
/// changed.
fn await_count(real: &Real<'_>, dir: &[u8], expected: (u64, usize)) {
    let count = || {
        let attr = real.find(dir).unwrap();
        (attr.size, attr.nlink as usize)
    };
    wait_until(&format!("{dir:?} has {expected:?}"), || count() == expected);
}

/// Everything that exists is there, and nothing else; link counts and entry counts agree.
fn check(formation: &Formation, model: &mut Model, were_lost: bool) {
    for client in &formation.clients {
        let real = Real { client };
        let dirs: Vec<Path> = std::iter::once(Vec::new())
            .chain(model.paths.iter().filter(|(_, e)| e.is_none()).map(|(p, _)| p.clone()))
            .collect();
        for dir in dirs {
            let children = model.children(&dir);
            assert_eq!(real.list(&dir), Ok(children.clone()), "{dir:?}");
            let subdirs =
                children.iter().filter(|c| model.paths[&[&dir[..], &[**c]].concat()].is_none()).count();
            let expected = (children.len() as u64, 2 + subdirs);
            if were_lost {
                await_count(&real, &dir, expected);
            }
            let attr = real.find(&dir).unwrap();
            assert_eq!((attr.size, attr.nlink as usize), expected, "{dir:?}");
            if let Some(name) = dir.last() {
                let parent = real.client.parent(attr.ino).unwrap();
                assert_eq!(real.client.lookup(parent, &[*name]).unwrap().ino, attr.ino);
            }
        }
        for (path, entry) in model.paths.clone() {
            let Some(number) = entry else { continue };
            let names = model.paths.values().filter(|e| **e == Some(number)).count();
            assert_eq!(real.find(&path).unwrap().nlink as usize, names, "{path:?}");
            assert_same(real.content(&path), model.file(&path).cloned(), &path);
        }
    }
}

fn path() -> impl Strategy<Value = Path> {
    proptest::collection::vec(prop::sample::select(vec![b'a', b'b', b'c', b'd']), 1..=3)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => path().prop_map(Step::Make),
        4 => path().prop_map(Step::Dir),
        3 => (path(), 0..40_000u16, 0..20_000u16, 1u8..).prop_map(|(p, o, l, f)| Step::Write(p, o, l, f)),
        2 => (path(), 0..10_000u16, 1u8..).prop_map(|(p, l, f)| Step::Append(p, l, f)),
        2 => (path(), 0..40_000u16).prop_map(|(p, s)| Step::Resize(p, s)),
        3 => path().prop_map(Step::Read),
        2 => path().prop_map(Step::Unlink),
        2 => path().prop_map(Step::Rmdir),
        4 => (path(), path()).prop_map(|(a, b)| Step::Rename(a, b)),
        1 => (path(), path()).prop_map(|(a, b)| Step::Exchange(a, b)),
        2 => (path(), path()).prop_map(|(a, b)| Step::Link(a, b)),
        1 => path().prop_map(Step::List),
        1 => Just(Step::Restart),
    ]
}

fn run(nodes: u16, lose_every: u32, steps: &[Step]) {
    run_on(Formation::new(nodes, 4096), lose_every, steps);
}

fn run_on(mut formation: Formation, lose_every: u32, steps: &[Step]) {
    let mut model = Model::default();
    formation.switchboard.lose_every.store(lose_every, Ordering::Relaxed);
    for (turn, step) in steps.iter().enumerate() {
        if matches!(step, Step::Restart) {
            formation.restart();
        }
        apply(&formation, &mut model, step, turn);
    }
    formation.switchboard.lose_every.store(0, Ordering::Relaxed);
    check(&formation, &mut model, lose_every > 0);
    formation.restart();
    check(&formation, &mut model, false);
}

fn config() -> ProptestConfig {
    let cases =
        if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { 48 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// S40.
    #[test]
    fn three_nodes_behave_like_the_model(steps in proptest::collection::vec(step(), 1..80)) {
        run(3, 0, &steps);
    }

    /// S43.
    #[test]
    fn so_they_do_when_messages_are_lost(steps in proptest::collection::vec(step(), 1..60), every in 2u32..6) {
        run(3, every, &steps);
    }

    #[test]
    fn spread_directories_behave_like_the_model(steps in proptest::collection::vec(step(), 1..100)) {
        run_on(Formation::spreading(3), 0, &steps);
    }

    #[test]
    fn so_they_do_when_messages_are_lost_too(
        steps in proptest::collection::vec(step(), 1..60),
        every in 2u32..6,
    ) {
        run_on(Formation::spreading(3), every, &steps);
    }

    #[test]
    fn one_node_behaves_like_the_model(steps in proptest::collection::vec(step(), 1..60)) {
        run(1, 0, &steps);
    }
}

/// Once found by chance, kept for good.
#[test]
fn a_write_into_a_hole_that_a_resize_made() {
    let c = vec![b'c'];
    run(3, 0, &[Step::Make(c.clone()), Step::Resize(c.clone(), 35_385), Step::Write(c, 9972, 2317, 1)]);
}
