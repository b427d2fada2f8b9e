//! Kills of all daemons at every request of a flush to site storage: the next ones know what they had put there, throw
//! away what was not finished, and name no change that nobody made.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bivouac_client::NewInode;
use bivouac_objects::{ACCESS_KEY, SECRET_KEY, Server};
use bivouac_source::{
    Attrs, Cause, Entry, Environment, Meta, Piece, Precondition, PutOutcome, Source, SourceError,
    SourceResult, Upload, Version,
};
use bivouac_types::{Errno, Ino, SetAttr, SetTime, TargetIndex, Timestamp, mode};
use bivouac_wire::Op;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::at_site::{Camp, DIR, STRIPE, bind_with, bytes};
use crate::formation::{Formation, Switchboard, copy_all, op, wait_until};

const LINK: NewInode<'static> = NewInode { mode: mode::LINK | 0o777, rdev: 0, target: b"../there" };
const LEN: usize = 2 * STRIPE + 77;

/// When everything is killed: at a request to the source that changes something, before or after it is carried out.
#[derive(Clone, Copy, Debug)]
enum Kill {
    Before(u32),
    After(u32),
    /// When targets are to hear that it is there.
    Behind,
}

/// At the moment of a kill all volumes are copied, and nothing reaches the source any more.
struct Guillotine {
    switchboard: Arc<Switchboard>,
    volumes: std::path::PathBuf,
    copy: TempDir,
    state: Mutex<State>,
    /// Uploads that were planned: token and size.
    planned: Mutex<Vec<(String, u64)>>,
    /// Uploads that were asked for again with another size.
    misjudged: Mutex<Vec<Upload>>,
    /// Time that the source takes to say what became of an upload.
    thinks: Mutex<Duration>,
}

#[derive(Default)]
struct State {
    kill: Option<Kill>,
    requests: u32,
    has_fallen: bool,
}

enum Turn {
    Go,
    FallBefore,
    FallAfter,
    Gone,
}

impl Guillotine {
    fn set(&self, kill: Kill) {
        *self.state.lock() = State { kill: Some(kill), ..State::default() };
    }

    fn turn(&self) -> Turn {
        let mut state = self.state.lock();
        state.requests += 1;
        match state.kill {
            _ if state.has_fallen => Turn::Gone,
            Some(Kill::Before(at)) if state.requests == at => Turn::FallBefore,
            Some(Kill::After(at)) if state.requests == at => Turn::FallAfter,
            _ => Turn::Go,
        }
    }

    /// It has changed what is there: targets hear of that next.
    fn is_done(self: &Arc<Guillotine>) {
        if matches!(self.state.lock().kill, Some(Kill::Behind)) {
            let guillotine = Arc::clone(self);
            let fall = Box::new(move || guillotine.fall());
            *self.switchboard.before.lock() = Some((Op::MarkFlush as u16, fall));
        }
    }

    fn fall(&self) {
        copy_all(&self.volumes, self.copy.path());
        self.state.lock().has_fallen = true;
    }
}

fn gone<T>() -> SourceResult<T> {
    Err(SourceError::new(Cause::Lost, "killed"))
}

/// A source under it.
struct Under(Box<dyn Source>, Arc<Guillotine>);

impl Under {
    fn look(&self) -> SourceResult<&dyn Source> {
        if self.1.state.lock().has_fallen { gone() } else { Ok(&*self.0) }
    }

    fn change<T>(&self, change: impl FnOnce(&dyn Source) -> SourceResult<T>) -> SourceResult<T> {
        match self.1.turn() {
            Turn::Go => return change(&*self.0),
            Turn::FallBefore => self.1.fall(),
            Turn::FallAfter => {
                change(&*self.0).unwrap_or_else(|error| panic!("before the kill: {error}"));
                self.1.fall();
            }
            Turn::Gone => {}
        }
        gone()
    }
}

impl Source for Under {
    fn check(&self) -> SourceResult<()> {
        self.look()?.check()
    }

    fn list(&self, dir: &[u8]) -> SourceResult<Vec<Entry>> {
        self.look()?.list(dir)
    }

    fn stat(&self, path: &[u8]) -> SourceResult<Meta> {
        self.look()?.stat(path)
    }

    fn read(&self, path: &[u8], version: &Version, offset: u64, into: &mut [u8]) -> SourceResult<usize> {
        self.look()?.read(path, version, offset, into)
    }

    fn plan(&self, path: &[u8], size: u64) -> SourceResult<Upload> {
        let plan = self.look()?.plan(path, size)?;
        self.1.planned.lock().push((plan.token.clone(), size));
        Ok(plan)
    }

    fn start(&self, plan: Upload, attrs: &Attrs) -> SourceResult<Upload> {
        self.change(|source| source.start(plan, attrs))
    }

    fn piece_size(&self, size: u64) -> Option<u64> {
        self.0.piece_size(size)
    }

    fn put(&self, upload: &Upload, offset: u64, data: &[u8]) -> SourceResult<Piece> {
        self.change(|source| source.put(upload, offset, data))
    }

    fn verify(&self, upload: &Upload, pieces: &[Piece]) -> SourceResult<()> {
        self.look()?.verify(upload, pieces)
    }

    fn commit(
        &self,
        upload: &Upload,
        pieces: &[Piece],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        let kept = self.change(|source| source.commit(upload, pieces, attrs, expect))?;
        self.1.is_done();
        Ok(kept)
    }

    fn abort(&self, upload: &Upload) -> SourceResult<()> {
        self.look()?.abort(upload)
    }

    fn is_made_by(&self, found: &Version, tag: &str) -> bool {
        self.0.is_made_by(found, tag)
    }

    fn resume(&self, upload: &Upload, expect: &Precondition) -> SourceResult<Option<Version>> {
        let is_other = |(token, size): &(String, u64)| *token == upload.token && *size != upload.size;
        if self.1.planned.lock().iter().any(is_other) {
            self.1.misjudged.lock().push(upload.clone());
        }
        std::thread::sleep(*self.1.thinks.lock());
        self.look()?.resume(upload, expect)
    }

    fn put_dir(&self, path: &[u8], attrs: &Attrs) -> SourceResult<PutOutcome> {
        self.look()?.put_dir(path, attrs)
    }

    fn start_link(&self, plan: Upload, target: &[u8]) -> SourceResult<Upload> {
        self.change(|source| source.start_link(plan, target))
    }

    fn put_link(
        &self,
        link: &Upload,
        target: &[u8],
        attrs: &Attrs,
        expect: &Precondition,
    ) -> SourceResult<PutOutcome> {
        self.change(|source| source.put_link(link, target, attrs, expect))
    }

    fn set_attrs(&self, path: &[u8], version: &Version, attrs: &Attrs) -> SourceResult<PutOutcome> {
        let kept = self.change(|source| source.set_attrs(path, version, attrs))?;
        self.1.is_done();
        Ok(kept)
    }

    fn has_attrs_applied(&self, found: &Meta, was: &Version, attrs: &Attrs) -> bool {
        self.0.has_attrs_applied(found, was, attrs)
    }

    fn finish_removal(&self, path: &[u8], version: &Version) -> SourceResult<()> {
        self.look()?.finish_removal(path, version)
    }

    fn remove(&self, path: &[u8], version: Option<&Version>) -> SourceResult<()> {
        self.change(|source| source.remove(path, version))
    }
}

/// A camp whose daemons can be killed at any request to the source.
struct Scaffold {
    camp: Camp,
    guillotine: Arc<Guillotine>,
}

impl Scaffold {
    fn new(settings: &str) -> Scaffold {
        let (formation, guillotine) = under(Environment::default());
        let site = TempDir::new().unwrap();
        fs::write(site.path().join("old"), bytes(LEN, 1)).unwrap();
        let partition = bind_with(&formation, "part", site.path(), settings).unwrap();
        Scaffold { camp: Camp { formation, partition, site }, guillotine }
    }

    /// Flushes and is killed meanwhile; whether it came to that.
    fn flush_killed(&mut self, kill: Kill) -> bool {
        // What is known of the source is known before.
        self.camp.client(0).site.seen_names(self.camp.partition.dir).unwrap();
        self.guillotine.set(kill);
        self.camp.flush(0, false);
        self.camp.client(0).site.mirror(self.camp.partition.id, b"").unwrap();
        *self.camp.formation.switchboard.before.lock() = None;
        let has_fallen = self.guillotine.state.lock().has_fallen;
        *self.guillotine.state.lock() = State::default();
        if has_fallen {
            self.camp.formation.go_on_from(self.guillotine.copy.path());
        }
        has_fallen
    }

    fn temporaries(&self) -> Vec<String> {
        let names = fs::read_dir(self.camp.site.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        names.filter(|name| name.starts_with(".bivouac")).collect()
    }

    /// All is at the source, nothing else is, and nothing is still to be found out.
    fn check(&mut self, what: &str) {
        let camp = &mut self.camp;
        assert_eq!(camp.flush(1, false), [], "{what}");
        assert_eq!(camp.client(1).site.mirror(camp.partition.id, b"").unwrap().left, [], "{what}");
        assert_eq!(self.temporaries(), [""; 0], "{what}");
        wait_until(what, || !self.camp.formation.census().contains_key(&'J'));
    }
}

fn under(objects: Environment) -> (Formation, Arc<Guillotine>) {
    let mut formation = Formation::new(2, 4096);
    formation.objects = objects;
    let (volumes, copy) = (formation.volumes(), TempDir::new().unwrap());
    let switchboard = Arc::clone(&formation.switchboard);
    let (state, planned, misjudged, thinks) = Default::default();
    let guillotine = Arc::new(Guillotine { switchboard, volumes, copy, state, planned, misjudged, thinks });
    let over = Arc::clone(&guillotine);
    formation.around = Some(Arc::new(move |source| Box::new(Under(source, Arc::clone(&over)))));
    formation.restart();
    (formation, guillotine)
}

/// What is to be flushed.
#[derive(Clone, Copy, Debug)]
enum Case {
    New,
    Overwritten,
    Attributes,
    Link,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Case::New => "new",
            Case::Link => "link",
            Case::Overwritten | Case::Attributes => "old",
        }
    }

    fn make(self, camp: &Camp) {
        let (client, dir) = (camp.client(0), camp.partition.dir);
        match self {
            Case::New | Case::Overwritten => drop(camp.write(0, self.name(), &bytes(LEN, 2))),
            Case::Link => drop(client.mknod(&op(client), dir, b"link", &LINK).unwrap()),
            Case::Attributes => {
                let ino = camp.ino(0, "old").unwrap();
                camp.read(0, "old").unwrap();
                let mtime = Some(SetTime::At(Timestamp { secs: 77, nanos: 123_456_789 }));
                let set = SetAttr { mode: Some(0o600), mtime, ..SetAttr::default() };
                client.setattr(&op(client), ino, &set).unwrap();
            }
        }
    }
}

fn rename(camp: &Camp, from: &str, to: &str) {
    let (client, dir) = (camp.client(0), camp.partition.dir);
    client.rename(&op(client), dir, from.as_bytes(), dir, to.as_bytes(), 0).unwrap();
}

fn unlink(camp: &Camp, name: &str) {
    let client = camp.client(0);
    client.unlink(&op(client), camp.partition.dir, name.as_bytes()).unwrap();
}

/// Every moment at which a flush of this can be killed, until it is not killed any more.
fn each_kill(mut killed: impl FnMut(Kill) -> bool) {
    killed(Kill::Behind);
    for at in 1.. {
        let [before, after] = [Kill::Before(at), Kill::After(at)].map(&mut killed);
        assert_eq!(before, after);
        if !before {
            assert!(at > 1, "nothing was killed");
            return;
        }
    }
}

/// What is done after a kill, by the next daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Flush,
    Replace,
    Rename,
    Remove,
}

/// Kills a flush of this at each of its requests; what is done then takes turns.
fn kill_each(case: Case, turns: &[Then]) {
    let mut turn = turns.iter().cycle();
    each_kill(|kill| {
        let Some(then) = turn.next().copied() else { return false };
        let mut at = Scaffold::new("");
        case.make(&at.camp);
        let is_killed = at.flush_killed(kill);
        let (what, name) = (format!("{case:?}, {kill:?}, then {then:?}"), case.name());
        match then {
            Then::Flush => {}
            Then::Replace => {
                unlink(&at.camp, name);
                at.camp.write(1, name, &bytes(LEN, 9));
            }
            Then::Rename => {
                rename(&at.camp, name, "moved");
                at.camp.write(1, name, &bytes(LEN, 9));
            }
            Then::Remove => {
                unlink(&at.camp, name);
                wait_until("what was left is thrown away", || at.temporaries().is_empty());
            }
        }
        at.check(&what);
        assert_eq!(*at.guillotine.misjudged.lock(), [], "{what}");
        if then != Then::Remove {
            at.camp.check_same_at(0, name);
        }
        if then == Then::Rename {
            at.camp.check_same_at(1, "moved");
        }
        is_killed
    });
}

/// S648.
#[test]
fn who_was_killed_in_a_flush_of_a_new_file_knows_it_at_the_source() {
    kill_each(Case::New, &[Then::Replace, Then::Rename, Then::Remove]);
}

/// S648.
#[test]
fn who_was_killed_in_a_flush_over_an_old_file_knows_it_at_the_source() {
    kill_each(Case::Overwritten, &[Then::Flush, Then::Replace, Then::Rename]);
}

/// S648.
#[test]
fn who_was_killed_while_attributes_were_given_knows_that_at_the_source() {
    for then in [Then::Flush, Then::Replace, Then::Rename] {
        kill_each(Case::Attributes, &[then]);
    }
}

/// S648.
#[test]
fn who_was_killed_in_a_flush_of_a_link_knows_it_at_the_source() {
    kill_each(Case::Link, &[Then::Replace, Then::Flush, Then::Remove]);
}

/// S648: who takes the place of a file waits until it is known what a killed daemon had put there.
#[test]
fn what_a_killed_daemon_had_put_there_is_replaced_once_it_is_known() {
    for then in [Then::Replace, Then::Rename] {
        let mut at = Scaffold::new("");
        Case::Overwritten.make(&at.camp);
        *at.guillotine.thinks.lock() = Duration::from_millis(700);
        assert!(at.flush_killed(Kill::Behind));
        match then {
            Then::Rename => rename(&at.camp, "old", "moved"),
            _ => unlink(&at.camp, "old"),
        }
        at.camp.write(1, "old", &bytes(LEN, 9));
        at.check(&format!("{then:?}"));
        at.camp.check_same_at(0, "old");
        if then == Then::Rename {
            at.camp.check_same_at(1, "moved");
        }
    }
}

/// S648: what a removal that was cut off has done is done, also when the name is there again.
#[test]
fn who_was_killed_in_a_deletion_goes_on() {
    for is_there_again in [false, true] {
        for kill in [Kill::Before(1), Kill::After(1)] {
            let mut at = Scaffold::new("mirror-deletes=yes");
            at.camp.read(0, "old").unwrap();
            unlink(&at.camp, "old");
            assert!(at.flush_killed(kill));
            if is_there_again {
                at.camp.write(1, "old", &bytes(LEN, 9));
            }
            at.check(&format!("{kill:?}, {is_there_again}"));
            match is_there_again {
                true => at.camp.check_same_at(0, "old"),
                false => assert!(!at.camp.at("old").exists()),
            }
        }
    }
}

/// S648: what somebody else has put there meanwhile is a change all the same.
#[test]
fn what_others_put_there_is_not_taken_for_ones_own_after_a_kill() {
    each_kill(|kill| {
        let mut at = Scaffold::new("");
        Case::Overwritten.make(&at.camp);
        let is_killed = at.flush_killed(kill);
        fs::write(at.camp.at("theirs"), "theirs").unwrap();
        fs::rename(at.camp.at("theirs"), at.camp.at("old")).unwrap();
        if is_killed {
            let failed = at.camp.flush(0, false);
            assert_eq!(failed.len(), 1, "{kill:?}: {failed:?}");
            assert_eq!(failed[0].1, Errno::ESTALE);
            assert_eq!(fs::read(at.camp.at("old")).unwrap(), b"theirs");
            assert_eq!(at.camp.flush(0, true), []);
        }
        at.check(&format!("{kill:?}"));
        is_killed
    });
}

/// A camp in front of an object store.
struct Stall {
    at: Scaffold,
    server: Server,
}

impl Stall {
    fn new() -> Stall {
        let server = Server::start();
        server.put("p/old", &bytes(LEN, 1), &[("mode", "33152"), ("mtime", "1234567890.5")]);
        let objects = Environment::read(|name| match name {
            "AWS_ACCESS_KEY_ID" => Some(ACCESS_KEY.to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some(SECRET_KEY.to_owned()),
            _ => None,
        });
        let (formation, guillotine) = under(objects);
        let client = &formation.clients[0];
        let dir = client.mknod(&op(client), Ino::ROOT, b"part", &DIR).unwrap().ino;
        let targets =
            (0..formation.map().target_count()).map(|target| TargetIndex(u32::from(target))).collect();
        let settings = format!("stripe=5m\nsource=s3://bucket/p?endpoint={}", server.endpoint());
        let partition = client.partitions.make(&op(client), dir, targets, settings.parse().unwrap()).unwrap();
        let site = TempDir::new().unwrap();
        Stall { at: Scaffold { camp: Camp { formation, partition, site }, guillotine }, server }
    }
}

/// S648 of an object store: uploads have a number of their own there. One is left, where its number was not known yet.
#[test]
fn who_was_killed_in_a_flush_knows_its_own_objects() {
    let mut turns = [Then::Replace, Then::Flush, Then::Replace].into_iter().cycle();
    for case in [Case::New, Case::Overwritten, Case::Attributes, Case::Link] {
        each_kill(|kill| {
            let Some(then) = turns.next() else { return false };
            let mut stall = Stall::new();
            let (at, name) = (&mut stall.at, case.name());
            case.make(&at.camp);
            let is_killed = at.flush_killed(kill);
            let what = format!("{case:?}, {kill:?}, then {then:?}");
            if then == Then::Replace {
                unlink(&at.camp, name);
                at.camp.write(1, name, &bytes(LEN, 9));
            }
            at.check(&what);
            let object = stall.server.object(&format!("p/{name}")).unwrap();
            if matches!(case, Case::Link) && then == Then::Flush {
                assert_eq!(&object.bytes[..], LINK.target, "{what}");
            } else {
                assert!(object.bytes[..] == at.camp.read(1, name).unwrap(), "{what}");
            }
            let left = stall.server.contents().uploads.len();
            assert!(left == 0 || left == 1 && matches!(kill, Kill::After(1)), "{what}: {left} uploads");
            is_killed
        });
    }
}
