//! Random changes with mishaps at every message: what was acknowledged is at the backup, and in the end both have the
//! same.

use super::*;
use crate::{FailingVolume, Operation, OperationKind, Places, VolumeFault, VolumeFile};
use bivouac_wire::VolumeChange;
use proptest::prelude::*;

const NAMES: [&str; 5] = ["00/a", "00/b", "records/log", "records/log.tmp", "bivouac-subfiles"];

#[derive(Clone, Debug)]
enum Step {
    Write(usize, u16, Vec<u8>),
    Places(usize, u16, Vec<u8>),
    SetLen(usize, u16),
    Grow(usize, u16),
    Allocate(usize, u16, u16),
    Punch(usize, u16, u16),
    Sync(usize),
    /// A write that is made later, and by `MakeDeferred` at the latest.
    Defer(usize, u16, Vec<u8>),
    MakeDeferred,
    Rename(usize, usize),
    Remove(usize),
    /// The primary is killed, and another daemon begins, which changes something before it has a session.
    Restart(usize, u8),
    /// The backup makes a truncation, another daemon of it begins a session with the primary, and the primary is
    /// killed.
    KillBoth(usize, u16),
    /// Another backup, which gets a copy while changes are made.
    Move,
    /// Some work of the mirror's thread.
    Tend(u8),
}

fn steps() -> impl Strategy<Value = Vec<(Step, Option<Errno>)>> {
    let name = || 0..NAMES.len();
    let bytes = || proptest::collection::vec(1u8.., 1..40);
    let at = || 0u16..20_000;
    let step = prop_oneof![
        6 => (name(), at(), bytes()).prop_map(|(name, at, bytes)| Step::Write(name, at, bytes)),
        2 => (name(), at(), bytes()).prop_map(|(name, at, bytes)| Step::Places(name, at, bytes)),
        2 => (name(), at()).prop_map(|(name, len)| Step::SetLen(name, len)),
        1 => (name(), at()).prop_map(|(name, len)| Step::Grow(name, len)),
        1 => (name(), at(), at()).prop_map(|(name, a, b)| Step::Allocate(name, a.min(b), a.max(b))),
        2 => (name(), at(), at()).prop_map(|(name, a, b)| Step::Punch(name, a.min(b), a.max(b))),
        1 => name().prop_map(Step::Sync),
        4 => (name(), at(), bytes()).prop_map(|(name, at, bytes)| Step::Defer(name, at, bytes)),
        2 => Just(Step::MakeDeferred),
        2 => (name(), name()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => name().prop_map(Step::Remove),
        1 => (name(), any::<u8>()).prop_map(|(name, byte)| Step::Restart(name, byte)),
        1 => (name(), at()).prop_map(|(name, len)| Step::KillBoth(name, len)),
        1 => Just(Step::Move),
        4 => (0u8..6).prop_map(Step::Tend),
    ];
    let fault = proptest::option::weighted(0.08, prop_oneof![Just(Errno::EIO), Just(Errno::ENOSPC)]);
    proptest::collection::vec((step, fault), 1..60)
}

fn mishaps() -> impl Strategy<Value = Vec<Mishap>> {
    let mishap = prop_oneof![
        30 => Just(Mishap::None),
        1 => Just(Mishap::RequestLost),
        1 => Just(Mishap::AnswerLost),
        1 => Just(Mishap::Restarted),
        1 => Just(Mishap::Full),
        2 => Just(Mishap::Doubled),
    ];
    proptest::collection::vec(mishap, 0..300)
}

struct World {
    link: Arc<TestLink>,
    own: Vec<Arc<dyn Volume>>,
    /// The next change of the primary's own volume fails so.
    fault: Arc<Mutex<Option<Errno>>>,
    mirror: Arc<MirroredVolumes>,
    epoch: u32,
    backup: NodeId,
    /// Of each file, the last write that was deferred, if nothing else was done to it since.
    deferred: BTreeMap<usize, (u16, Vec<u8>)>,
}

fn change(volume: &dyn Volume, step: &Step) -> io::Result<Vec<usize>> {
    let open = |name: usize| volume.open(NAMES[name], OpenMode::Create);
    let at = |at: u16| u64::from(at);
    match step {
        Step::Write(name, offset, bytes) => {
            write(volume, NAMES[*name], at(*offset), bytes)?;
            Ok(vec![*name])
        }
        Step::Places(name, base, bytes) => {
            let extents: Vec<(u64, u32)> = (0..bytes.len() as u64).map(|index| (index * 3, 1)).collect();
            let slices = [IoSlice::new(bytes)];
            open(*name)?.write_places(at(*base), &Places::new(&extents, &slices).unwrap())?;
            Ok(vec![*name])
        }
        Step::SetLen(name, len) => open(*name)?.set_len(at(*len)).map(|()| vec![*name]),
        Step::Grow(name, len) => open(*name)?.grow(at(*len)).map(|()| vec![*name]),
        Step::Allocate(name, from, to) => open(*name)?.allocate(at(*from)..at(*to)).map(|()| vec![*name]),
        Step::Punch(name, from, to) => open(*name)?.punch(at(*from)..at(*to)).map(|()| vec![*name]),
        Step::Sync(name) => open(*name)?.sync().map(|()| vec![*name]),
        // Nothing is changed then, so nothing that failed before is settled either.
        Step::Rename(from, to) if from == to => Ok(Vec::new()),
        Step::Rename(from, to) => volume.rename(NAMES[*from], NAMES[*to]).map(|()| vec![*from, *to]),
        Step::Remove(name) => volume.remove(NAMES[*name]).map(|()| vec![*name]),
        // Nothing is acknowledged yet, nor is what failed before settled.
        Step::Defer(name, offset, bytes) => {
            let file = open(*name)?;
            with_deferred_writes(true, || file.write_deferred(bytes, at(*offset))).map(|()| Vec::new())
        }
        Step::MakeDeferred | Step::Restart(..) | Step::KillBoth(..) | Step::Move | Step::Tend(_) => {
            Ok(Vec::new())
        }
    }
}

fn named(volume: &dyn Volume, name: &str) -> Option<Vec<u8>> {
    let file: Arc<dyn VolumeFile> = volume.open(name, OpenMode::Existing).ok()?;
    Some(read_all(&*file).unwrap())
}

impl Step {
    /// The file that it is done to.
    fn touched(&self) -> Option<usize> {
        match self {
            Step::Write(name, ..)
            | Step::Places(name, ..)
            | Step::Defer(name, ..)
            | Step::SetLen(name, _)
            | Step::Grow(name, _)
            | Step::Allocate(name, ..)
            | Step::Punch(name, ..)
            | Step::Sync(name)
            | Step::Remove(name) => Some(*name),
            _ => None,
        }
    }
}

impl World {
    fn new(mishaps: Vec<Mishap>, answers_early: bool) -> World {
        let dirs = || {
            let volume = MemVolume::default();
            ["00", "records"].iter().for_each(|dir| volume.make_dir(dir).unwrap());
            vec![Arc::new(volume) as Arc<dyn Volume>]
        };
        let link = TestLink::answering(dirs, answers_early);
        link.mishaps.lock().extend(mishaps);
        let fault = Arc::<Mutex<Option<Errno>>>::default();
        let armed = Arc::clone(&fault);
        let changes = |op: &Operation<'_>| {
            use OperationKind::{Allocate, Create, Punch, Remove, Rename, SetLen, Sync, Write};
            matches!(op.kind, Write | SetLen | Punch | Create | Rename | Remove | Allocate | Sync)
        };
        let decide = move |op: &Operation<'_>| match armed.lock().take_if(|_| changes(op)) {
            Some(errno) => VolumeFault::Fail(errno),
            None => VolumeFault::Pass,
        };
        let own: Vec<Arc<dyn Volume>> = vec![Arc::new(FailingVolume::new(dirs().remove(0), decide))];
        let mirror = mirror(&own, &link, options(1));
        World { link, own, fault, mirror, epoch: 1, backup: BACKUP, deferred: BTreeMap::new() }
    }

    fn step(&mut self, step: &Step, fault: Option<Errno>) {
        match step {
            Step::Tend(count) => {
                for _ in 0..*count {
                    self.mirror.tend();
                }
            }
            Step::Move => {
                self.epoch += 1;
                self.backup = if self.backup == BACKUP { OTHER } else { BACKUP };
                self.mirror.set_backup(self.epoch, Some(self.backup)).unwrap();
            }
            Step::KillBoth(name, len) => {
                let ReplicaEpoch { epoch, session, .. } = self.link.replica(self.backup).epoch();
                let change = VolumeChange::SetLen { name: NAMES[*name].into(), len: u64::from(*len) };
                let (channel, sequence, changes) = (31, 1, vec![(0, change)]);
                let request = ApplyChangesRequest { epoch, session, channel, sequence, changes };
                self.link.replica(self.backup).apply(&request, &[]);
                self.link.restart(self.backup);
                let (continues, epoch) = (Some(session), self.epoch);
                let request = BeginReplicaRequest { epoch, volumes: 1, lease_ms: 1, continues, anew: false };
                self.link.replica(self.backup).begin(&request);
                self.step(&Step::Restart(*name, 1), None);
            }
            Step::Restart(name, byte) => {
                self.deferred.clear();
                let options = MirrorOptions { backup: Some(self.backup), ..options(self.epoch) };
                self.mirror = mirror(&self.own, &self.link, options);
                let volume = mirrored_volumes(&self.mirror).remove(0);
                write(&*volume, NAMES[*name], 0, &[*byte]).unwrap();
                // A second kill in this state is what the note is for.
                while self.mirror.serve_state() == ServeState::Waits {
                    self.mirror.tend();
                }
            }
            Step::MakeDeferred => {
                *self.fault.lock() = fault;
                let made = self.mirror.make_deferred();
                *self.fault.lock() = None;
                if made.is_ok() {
                    self.check_deferred();
                }
            }
            change => {
                *self.fault.lock() = fault;
                let volume = mirrored_volumes(&self.mirror).remove(0);
                let changed = self::change(&*volume, change);
                *self.fault.lock() = None;
                match (change, &changed) {
                    (Step::Defer(name, at, bytes), Ok(_)) => {
                        self.deferred.insert(*name, (*at, bytes.clone()));
                    }
                    (Step::Rename(from, to), _) => self.deferred.retain(|name, _| name != from && name != to),
                    _ => {
                        let touched = change.touched();
                        self.deferred.retain(|name, _| Some(*name) != touched);
                    }
                }
                if let Ok(names) = changed {
                    self.check_acknowledged(&names, change);
                }
            }
        }
    }

    /// What was deferred is here, and at the backup if that has everything. Of other parts of the files something may
    /// have failed since, and nobody has looked after it.
    fn check_deferred(&mut self) {
        let epoch = self.link.replica(self.backup).epoch();
        let is_complete = epoch.is_complete && epoch.epoch == self.epoch;
        let replica = self.link.volumes(self.backup).remove(0);
        for (name, (at, bytes)) in std::mem::take(&mut self.deferred) {
            let place = usize::from(at)..usize::from(at) + bytes.len();
            for volume in [&self.own[0]].into_iter().chain(is_complete.then_some(&replica)) {
                let content = named(&**volume, NAMES[name]).unwrap();
                assert!(content.get(place.clone()) == Some(&bytes), "{} has no deferred write", NAMES[name]);
            }
        }
    }

    /// Whoever takes over from a replica that is complete has what was acknowledged.
    fn check_acknowledged(&self, names: &[usize], step: &Step) {
        if !self.link.replica(self.backup).epoch().is_complete {
            return;
        }
        let replica = &self.link.volumes(self.backup)[0];
        for name in names {
            let name = NAMES[*name];
            assert!(named(&**replica, name) == named(&*self.own[0], name), "{name} differs after {step:?}");
        }
    }

    fn end(&mut self) {
        self.link.mishaps.lock().clear();
        complete(&self.mirror);
        self.mirror.make_deferred().unwrap();
        // The last message may have been the first one to tell that the backup's daemon is another one by now.
        complete(&self.mirror);
        self.check_deferred();
        assert!(self.link.replica(self.backup).epoch().is_complete);
        let (there, here) = (content(&*self.link.volumes(self.backup)[0]), content(&*self.own[0]));
        assert!(there == here, "{:?} and {:?}", there.keys(), here.keys());
    }
}

fn run(steps: &[(Step, Option<Errno>)], mishaps: Vec<Mishap>, answers_early: bool) {
    let mut world = World::new(mishaps, answers_early);
    for (step, fault) in steps {
        world.step(step, *fault);
    }
    world.end();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// S800.
    #[test]
    fn what_was_acknowledged_is_at_the_backup(steps in steps(), mishaps in mishaps()) {
        run(&steps, mishaps, false);
    }
}

/// A mirror that answers before its backup has the change is found.
#[test]
fn an_answer_before_the_backups_is_found() {
    let write = |byte| (Step::Write(0, 0, vec![byte]), None);
    let steps = [(Step::Tend(6), None), write(1), write(2)];
    let mishaps = || vec![Mishap::None; 12].into_iter().chain([Mishap::RequestLost; 3]).collect();
    run(&steps, mishaps(), false);
    let lied = std::panic::catch_unwind(|| {
        for lost in 0..12 {
            let mishaps = (0..12).map(|at| if at == lost { Mishap::RequestLost } else { Mishap::None });
            run(&steps, mishaps.collect(), true);
        }
    });
    assert!(lied.is_err(), "an acknowledged change was missing at the backup, and nobody noticed");
}
