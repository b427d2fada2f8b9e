//! Removes what formations of this user left on this host whose processes were all killed: nothing else would.
//!
//! Only what is provably dead is touched. Of a formation with a state that is told by its lock, which every process of
//! it holds; of memory without a state by the locks of its directory and volumes; of a mount by the kernel, which
//! says that nobody can serve it any more. What holds data that is to be kept is only shown.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use bivouac_types::mount_table::FORMATION_SOURCE;

use crate::environment::Environment;
use crate::grant_tables::{UnusedGrantTable, remove_unused, unused};
use crate::memory_root::{Abandoned, abandoned};
use crate::mount_table::MountEntry;
use crate::mounts::{WhenBusy, is_dead, mounted, unmount};
use crate::recoverable::recoverable;
use crate::runtime_dirs::{gone_on, states_elsewhere, way_to};
use crate::start::ways_on;
use crate::state::FormationState;
use crate::state_dir::{Claim, StateDir, WHOLE};
use crate::teardown::remove_leftovers;
use crate::{FormationName, LaunchError, LaunchResult};

/// Time that it may take to look at all processes.
const LIVING_WAIT: Duration = Duration::from_secs(10);

/// Something that a crash left.
#[derive(Debug)]
pub struct Leftover {
    what: What,
}

#[derive(Debug)]
enum What {
    /// Locked meanwhile, so that no new one begins.
    Formation(FormationName, Claim, Box<FormationState>),
    /// The directory of one that was killed before it had a state.
    Unfinished(FormationName, Claim),
    Memory(Abandoned),
    Mount(PathBuf),
    /// Memory for direct access to volumes of a formation that is not here.
    GrantTable(PathBuf),
}

/// The findings.
#[derive(Debug, Default)]
pub struct Leftovers {
    /// Leftovers that can be removed.
    pub dead: Vec<Leftover>,
    /// Leftovers that have to stay, with the reasons.
    pub kept: Vec<String>,
}

/// Looks for what dead formations left.
///
/// # Errors
/// What the system refused.
pub fn find_leftovers(here: &Environment) -> LaunchResult<Leftovers> {
    let mut found = Leftovers::default();
    for (name, claim) in formations(here) {
        look_at(here, name, claim, &mut found);
    }
    let memory = abandoned(here, &mut |doubt| found.kept.push(doubt));
    found.dead.extend(memory.into_iter().map(|memory| Leftover { what: What::Memory(memory) }));
    let tables = grant_tables_of_nobody(here, &mut |doubt| found.kept.push(doubt));
    found.dead.extend(tables.into_iter().map(|path| Leftover { what: What::GrantTable(path) }));
    found.kept.extend(dead_elsewhere(here));
    let elsewhere = states_elsewhere(here);
    // A mount that a state tells of goes with that.
    let told = |dir: &Path| {
        let of_state = |left: &Leftover| match &left.what {
            What::Formation(_, _, state) => state.mounts.iter().any(|mount| mount.dir == dir),
            _ => false,
        };
        let has = |state: &FormationState| state.mounts.iter().any(|mount| mount.dir == dir);
        found.dead.iter().any(of_state) || elsewhere.iter().any(|(_, state)| has(state))
    };
    let mounts: Vec<PathBuf> = dead_mounts(here).into_iter().filter(|dir| !told(dir)).collect();
    found.dead.extend(mounts.into_iter().map(|dir| Leftover { what: What::Mount(dir) }));
    Ok(found)
}

/// Returns the grant tables of formations that neither live nor could be recovered, here or in any other place. What
/// cannot be told is left out, and said to `doubt`, once for each formation.
fn grant_tables_of_nobody(here: &Environment, doubt: &mut dyn FnMut(String)) -> Vec<PathBuf> {
    let unused = unused(here.uid);
    if unused.is_empty() {
        return Vec::new();
    }
    let states = StateDir::list(here).into_iter().filter_map(|(_, dir)| Some(dir.read().ok()??.formation));
    let others = states_elsewhere(here).into_iter().map(|(_, state)| state.formation);
    let mut known: BTreeSet<String> =
        states.chain(others).chain(recoverable(here).into_iter().map(|found| found.formation)).collect();
    let (mut doubtful, mut of_nobody) = (BTreeSet::new(), Vec::new());
    for table in unused {
        match &table.owner {
            _ if known.contains(&table.formation) => {}
            Some(owner) if owner.has_state_of(&table.formation) => drop(known.insert(table.formation)),
            Some(owner) if owner.is_seen() => of_nobody.push(table.path),
            _ if doubtful.insert(table.formation.clone()) => doubt(doubt_of(&table)),
            _ => {}
        }
    }
    of_nobody
}

fn doubt_of(table: &UnusedGrantTable) -> String {
    let cause = match &table.owner {
        Some(owner) => format!("its state was in {}, which is not seen here", owner.home.display()),
        None => "it does not say of which one".to_owned(),
    };
    let text = "nobody uses it here, but a formation of another place may need it to be recovered";
    format!("{}: {text}: {cause}", table.path.display())
}

/// Formations of this user that were killed, and are for who looks from their own place.
fn dead_elsewhere(here: &Environment) -> Vec<String> {
    let dead = states_elsewhere(here).into_iter().filter(|(dir, _)| !dir.is_held());
    let text = |(dir, state): (StateDir, FormationState)| {
        let (name, way) = (&state.name, way_to(here, &dir, "reap"));
        format!("formation {name}: its state is in {}; look from there: {way}", dir.path().display())
    };
    dead.map(text).collect()
}

/// Way in which a formation's directory is taken: that of one on this host, or of a host's part, or that of the whole.
type ClaimOf = fn(&Environment, &FormationName) -> LaunchResult<Claim>;

/// Returns all names that have a directory, also without a state.
fn formations(here: &Environment) -> Vec<(FormationName, ClaimOf)> {
    let Some(base) = here.existing_base() else { return Vec::new() };
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let text = entry.file_name().into_string().ok()?;
        match text.strip_suffix(WHOLE) {
            Some(name) => Some((name.parse().ok()?, StateDir::claim_whole as ClaimOf)),
            None => Some((text.parse().ok()?, StateDir::claim as ClaimOf)),
        }
    });
    let mut names: Vec<(FormationName, ClaimOf)> = named.collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    names
}

fn look_at(here: &Environment, name: FormationName, claim: ClaimOf, found: &mut Leftovers) {
    // Taken by whoever lives, or by another one that looks.
    let mut claim = match claim(here, &name) {
        Ok(claim) => claim,
        Err(error) if error.kind() == crate::Kind::Running => return,
        Err(error) => return found.kept.push(error.to_string()),
    };
    let what = match claim.stale.take() {
        None => What::Unfinished(name, claim),
        // What has gone on elsewhere has its data there; only an old state is left here.
        Some(state) => match why_kept(here, &state).filter(|_| gone_on(&state).is_none()) {
            Some(why) => return found.kept.push(why),
            None => What::Formation(name, claim, Box::new(state)),
        },
    };
    found.dead.push(Leftover { what });
}

fn why_kept(here: &Environment, state: &FormationState) -> Option<String> {
    let name = &state.name;
    if let Some(reason) = state.why_kept() {
        let remedy = ways_on(state);
        return Some(format!("formation {name}: holds data that is nowhere else: {reason}; {remedy}"));
    }
    // The lock of a directory that several hosts see proves nothing about the others.
    let mut hosts = match &state.kept_on {
        Some(host) => vec![host],
        None => state.nodes.iter().map(|node| &node.host).collect(),
    };
    hosts.retain(|host| **host != here.host);
    Some(format!("formation {name}: ran on host {}; look there", hosts.first()?))
}

/// Returns the mounts of this user that nobody can serve any more.
fn dead_mounts(here: &Environment) -> Vec<PathBuf> {
    let Some(living) = living_in_time() else { return Vec::new() };
    let ours = |entry: &MountEntry| {
        let name = entry.source.strip_prefix(FORMATION_SOURCE);
        name.is_some_and(|name| !living.contains(name)) && entry.user == Some(here.uid)
    };
    // The latest first: one may be inside another.
    let mounts = mounted().into_iter().rev().filter(ours);
    mounts.map(|entry| entry.dir).filter(|dir| is_dead(dir)).collect()
}

/// Returns the formations that live, unless that cannot be told in time: what a process is called may have to wait for
/// a mount that hangs.
fn living_in_time() -> Option<BTreeSet<String>> {
    let (sender, answer) = mpsc::channel();
    // Left behind if it has to wait for a mount that hangs: nothing ends that.
    std::thread::Builder::new().spawn(move || sender.send(living())).ok()?;
    answer.recv_timeout(LIVING_WAIT).ok()
}

/// Returns the names of formations that have a process, whatever runtime directory they live in: their processes have
/// them among their arguments.
fn living() -> BTreeSet<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| name_of(&std::fs::read(process.path().join("cmdline")).ok()?)).collect()
}

/// Returns the formation that a process belongs to, by its arguments.
fn name_of(arguments: &[u8]) -> Option<String> {
    let arguments = String::from_utf8_lossy(arguments);
    let mut arguments = arguments.split('\0').skip(1);
    match (arguments.next()?, arguments.next()?) {
        ("node", label) => Some(label.rsplit_once(':')?.0.into()),
        ("supervise", dir) => Some(Path::new(dir).file_name()?.to_str()?.into()),
        _ => None,
    }
}

impl Leftover {
    /// Returns its description, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.what {
            What::Formation(name, claim, state) if state.is_over_hosts() => {
                let dir = claim.dir.path().display();
                format!("formation {name}, the whole of {} hosts: {dir}", state.hosts.len())
            }
            What::Formation(name, claim, state) => {
                if let Some(now) = gone_on(state) {
                    let (dir, now) = (claim.dir.path().display(), now.path().display());
                    return format!(
                        "formation {name}: {dir}, an old state of what went on in {now}; that stays"
                    );
                }
                let volumes: usize = state.nodes.iter().map(|node| node.volumes.len()).sum();
                let mounts = state.mounts.len();
                let dir = claim.dir.path().display();
                format!("formation {name}: {dir}, {volumes} volume(s), {mounts} mount(s)")
            }
            What::Unfinished(name, claim) => {
                format!("formation {name}, killed while it started: {}", claim.dir.path().display())
            }
            What::Memory(memory) => {
                format!(
                    "memory of a dead formation: {}, {} volume(s)",
                    memory.path().display(),
                    memory.volumes()
                )
            }
            What::Mount(dir) => format!("dead mount: {}", dir.display()),
            What::GrantTable(path) => {
                format!("memory for direct access of a dead formation: {}", path.display())
            }
        }
    }

    /// Removes it.
    ///
    /// # Errors
    /// What could not be removed; it can be tried again.
    pub fn remove(&self, here: &Environment, notice: &mut dyn FnMut(&str)) -> LaunchResult<()> {
        match &self.what {
            What::Formation(_, claim, state) => remove_leftovers(here, &claim.dir, state, notice),
            What::Unfinished(_, claim) => claim.dir.remove(),
            What::Memory(memory) => memory.remove(),
            What::GrantTable(path) => {
                remove_unused(path, here.uid).map_err(|error| LaunchError::path(path, "remove it", error))
            }
            What::Mount(dir) => match unmount(here, dir, WhenBusy::Detach, true) {
                // It went with its formation, whose state did not have it yet, or with another one that reaps.
                Err(error) if error.kind() == crate::Kind::Refused && !is_mount(dir) => Ok(()),
                unmounted => unmounted.map(drop),
            },
        }
    }
}

fn is_mount(dir: &Path) -> bool {
    mounted().iter().any(|entry| entry.dir == dir && entry.source.starts_with(FORMATION_SOURCE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::grant_tables;
    use crate::memory::MEMORY_DIR;
    use crate::memory_root::{self, hold_all, make};
    use crate::state::tests::sample;
    use bivouac_store::DirVolume;
    use bivouac_types::{FormationId, NodeId};

    /// Serialises looks at memory: each locks it for a moment, and is taken for its owner by others who look.
    static LOOKING: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// The texts about formations whose directories are here. Memory and mounts are found wherever they are, also
    /// those that other tests have just then, or that were killed.
    fn texts(here: &Environment) -> (Vec<String>, Vec<String>) {
        let found = find_leftovers(here).unwrap();
        let dead = found.dead.iter().map(Leftover::describe).filter(|text| text.starts_with("formation"));
        let of_others = |text: &String| text.starts_with(MEMORY_DIR) || text.contains("its state is in");
        let kept = found.kept.into_iter().filter(|text| !of_others(text));
        (dead.collect(), kept.collect())
    }

    #[test]
    fn a_dead_mount_that_is_gone_by_then_is_no_failure() {
        let place = tempfile::tempdir().unwrap();
        let here = environment(Some(place.path()));
        Leftover { what: What::Mount(place.path().to_owned()) }
            .remove(&here, &mut |text| panic!("{text}"))
            .unwrap();
    }

    /// A formation that was killed, with this state.
    fn killed(here: &Environment, change: impl FnOnce(&mut FormationState)) -> StateDir {
        let claim = StateDir::claim(here, &"sample".parse().unwrap()).unwrap();
        let mut state = sample();
        state.nodes[0].host = here.host.clone();
        state.nodes[0].volumes.clear();
        change(&mut state);
        claim.dir.write(&state).unwrap();
        let dir = claim.dir.clone();
        drop(claim);
        released(&dir);
        dir
    }

    /// Waits for a lock of which a process that another test starts just then has a copy for a moment.
    fn released(dir: &StateDir) {
        assert!(dir.wait_released(60_000));
    }

    #[test]
    fn what_was_killed_is_shown_and_removed() {
        let _alone = LOOKING.lock();
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        assert_eq!(texts(&here).0, [""; 0]);
        let left = killed(&here, |_| {});
        let found = find_leftovers(&here).unwrap();
        assert!(found.dead[0].describe().starts_with("formation sample: /"), "{found:?}");
        found.dead[0].remove(&here, &mut |text| panic!("{text}")).unwrap();
        assert!(!left.path().exists());
    }

    #[test]
    fn one_that_never_had_a_state_is_found_too() {
        let _alone = LOOKING.lock();
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let claim = StateDir::claim(&here, &"sample".parse().unwrap()).unwrap();
        assert_eq!(texts(&here).0, [""; 0], "somebody lives");
        let path = claim.dir.path().to_owned();
        drop(claim);
        released(&StateDir::at(path.clone()));
        let found = find_leftovers(&here).unwrap();
        assert!(found.dead[0].describe().contains("killed while it started"));
        found.dead[0].remove(&here, &mut |_| {}).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn the_whole_of_several_hosts_is_found_where_its_keeper_ran() {
        let _alone = LOOKING.lock();
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let claim = StateDir::claim_whole(&here, &"sample".parse().unwrap()).unwrap();
        let mut state = sample();
        let host = |name: &str| crate::state::HostState {
            name: name.into(),
            life: crate::state::HostLife::Up,
            message: None,
            nodes: vec![0],
            mount: None,
        };
        (state.hosts, state.nodes[0].host) = (vec![host("n1"), host("n2")], "n1".into());
        state.kept_on = Some("another".into());
        claim.dir.write(&state).unwrap();
        let path = claim.dir.path().to_owned();
        assert_eq!(texts(&here), (vec![], vec![]), "its keeper lives");
        drop(claim);
        released(&StateDir::at(path.clone()));
        let (dead, kept) = texts(&here);
        assert!(dead.is_empty() && kept[0].contains("ran on host another"), "{kept:?}");
        state.kept_on = Some(here.host.clone());
        StateDir::at(path.clone()).write(&state).unwrap();
        let found = find_leftovers(&here).unwrap();
        assert!(
            found.dead[0].describe().starts_with("formation sample, the whole of 2 hosts: /"),
            "{found:?}"
        );
        found.dead[0].remove(&here, &mut |text| panic!("{text}")).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_to_be_kept_or_ran_elsewhere_stays() {
        let _alone = LOOKING.lock();
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let left = killed(&here, |state| state.keep = Some("results".into()));
        let (dead, kept) = texts(&here);
        assert!(dead.is_empty() && kept[0].contains("nowhere else: results"), "{kept:?}");
        let elsewhere = killed(&here, |state| state.nodes[0].host = "another".into());
        let (dead, kept) = texts(&here);
        assert!(dead.is_empty() && kept[0].contains("ran on host another"), "{kept:?}");
        assert!(left.path().exists() && elsewhere.path().exists());
        let written = killed(&here, |state| state.sources = Some("/part (/site)".into()));
        assert!(texts(&here).1.iter().any(|kept| kept.contains("not flushed in /part (/site)")));
        assert!(written.path().exists());
    }

    #[test]
    fn processes_say_whose_they_are() {
        assert_eq!(name_of(b"bivouac\0node\0my:name:3\0").as_deref(), Some("my:name"));
        assert_eq!(name_of(b"bivouac\0supervise\0/run/user/0/bivouac/x\0").as_deref(), Some("x"));
        for other in [&b"bivouac\0up\0--name\0x\0"[..], b"sh\0", b"", b"vi\0node\0", b"a\0node\0x\0"] {
            assert_eq!(name_of(other), None);
        }
    }

    #[test]
    fn memory_without_a_state_goes_when_nobody_holds_it() {
        let _alone = LOOKING.lock();
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let name = format!("reap{}", std::process::id()).parse().unwrap();
        let root = Path::new(MEMORY_DIR).join(memory_root::name_of(&here, &name, "0123456789"));
        let home = StateDir::at(dir.path().join("bivouac/x"));
        make(&root, &home).unwrap();
        let mut state = sample();
        state.own_dirs = vec![root.clone()];
        let identity =
            bivouac_store::VolumeIdentity { formation: FormationId([3; 16]), node: NodeId(0), index: 0 };
        let volume = DirVolume::open(&root.join("n0"), identity, true).unwrap();
        let ours = || abandoned(&here, &mut |_| {}).into_iter().find(|memory| memory.path() == root);
        assert!(ours().is_none(), "a daemon has a volume");
        drop(volume);
        let hold = || eventually(|| hold_all(&state).map_err(|error| error.to_string()));
        let found = || eventually(|| ours().ok_or_else(|| "somebody has it".to_owned()));
        let held = hold();
        assert!(held.len() == 1 && ours().is_none(), "a supervisor lives");
        drop(held);
        std::fs::create_dir_all(home.path()).unwrap();
        assert!(ours().is_none(), "there is a state");
        std::fs::remove_dir(home.path()).unwrap();
        let memory = found();
        assert_eq!(memory.volumes(), 1);
        assert!(hold_all(&state).is_err(), "nobody can begin meanwhile");
        let begin_until = |act: Box<dyn FnOnce() + '_>| {
            std::thread::scope(|scope| {
                let begins = scope.spawn(|| hold().len());
                std::thread::park_timeout(Duration::from_millis(50));
                act();
                begins.join().unwrap()
            })
        };
        assert_eq!(begin_until(Box::new(|| drop(memory))), 1);
        let memory = found();
        assert_eq!(begin_until(Box::new(|| memory.remove().unwrap())), 0, "it is gone");
        assert!(!root.exists());
    }

    /// Returns whether what is for direct access would be removed, and what is said instead, by who looks from this
    /// place.
    fn table_of(here: &Environment, formation: &str) -> (bool, Vec<String>) {
        let found = find_leftovers(here).unwrap();
        let is_it = |left: &Leftover| matches!(&left.what, What::GrantTable(path) if path.to_str().unwrap().contains(formation));
        let said = found.kept.into_iter().filter(|text| text.contains(formation)).collect();
        (found.dead.iter().any(is_it), said)
    }

    /// Looks again and again. Each look takes a lock for a moment, of which what another test starts just
    /// then has a copy: to the next one who looks that is somebody who lives.
    fn eventually<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            match look() {
                Ok(seen) => return seen,
                Err(why) => assert!(std::time::Instant::now() < until, "{why}"),
            }
            std::thread::yield_now();
        }
    }

    /// S78.
    #[test]
    fn memory_for_direct_access_stays_as_long_as_any_place_has_its_formation() {
        let _alone = LOOKING.lock();
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (here, there) = (environment(Some(a.path())), environment(Some(b.path())));
        let formation = crate::hex::to_hex(&crate::random::random_bytes::<16>().unwrap());
        let left = killed(&there, |state| state.formation.clone_from(&formation));
        drop(grant_tables::open(&formation, 0, left.path()).unwrap());
        let is_unused = || unused(here.uid).iter().any(|one| one.formation == formation);
        eventually(|| if is_unused() { Ok(()) } else { Err("somebody has it".into()) });
        assert_eq!(table_of(&here, &formation), (false, vec![]), "it can be recovered there");
        assert_eq!(table_of(&there, &formation), (false, vec![]));
        let says = format!("BIVOUAC_RUNTIME_DIR={} bivouac reap", b.path().canonicalize().unwrap().display());
        let is_said =
            |text: &String| text.contains("formation sample: its state is in") && text.ends_with(&says);
        eventually(|| {
            let kept = find_leftovers(&here).unwrap().kept;
            if kept.iter().any(is_said) { Ok(()) } else { Err(format!("{kept:?}")) }
        });
        // As for who has a private /tmp, or before the user's next login.
        let hidden = b.path().with_extension("hidden");
        std::fs::rename(b.path(), &hidden).unwrap();
        eventually(|| match table_of(&here, &formation) {
            (true, _) => panic!("its state is only hidden"),
            (false, said) if said.len() == 1 && said[0].contains("which is not seen here") => Ok(()),
            (false, said) => Err(format!("{said:?}")),
        });
        std::fs::rename(&hidden, b.path()).unwrap();
        std::fs::remove_dir_all(left.path()).unwrap();
        eventually(|| {
            let found = find_leftovers(&here).unwrap();
            let said = found.kept.iter().filter(|text| text.contains(&formation));
            assert_eq!(said.collect::<Vec<_>>(), [""; 0], "its state is gone");
            let ours = |left: &&Leftover| left.describe().contains(&formation);
            let table = found.dead.iter().find(ours).ok_or("somebody has it")?;
            table.remove(&here, &mut |text| panic!("{text}")).map_err(|error| error.to_string())
        });
        assert!(unused(here.uid).iter().all(|one| one.formation != formation));
    }

    /// S78.
    #[test]
    fn what_has_gone_on_in_another_place_is_not_removed_with_its_old_state() {
        let _alone = LOOKING.lock();
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (here, there) = (environment(Some(a.path())), environment(Some(b.path())));
        let volume = a.path().join("volume");
        let formation = FormationId(crate::random::random_bytes().unwrap());
        let identity = bivouac_store::VolumeIdentity { formation, node: NodeId(0), index: 0 };
        drop(DirVolume::open(&volume, identity, true).unwrap());
        let change = |recoveries: u32| {
            let volume = volume.clone();
            move |state: &mut FormationState| {
                let lent = crate::state::VolumeState { path: volume, ..sample().nodes[0].volumes[0].clone() };
                state.nodes[0].volumes = vec![lent];
                (state.formation, state.recoveries) = (crate::hex::to_hex(&formation.0), recoveries);
            }
        };
        let old = killed(&here, change(0));
        let now = killed(&there, change(1));
        let formation = crate::hex::to_hex(&formation.0);
        let table = grant_tables::open(&formation, 0, now.path()).unwrap();
        let found = find_leftovers(&here).unwrap();
        let ours = |left: &&Leftover| left.describe().starts_with("formation sample");
        let described = found.dead.iter().find(ours).unwrap().describe();
        assert!(
            described.contains("an old state of what went on in") && !described.contains("volume(s)"),
            "{described}"
        );
        let mut said = String::new();
        found.dead.iter().find(ours).unwrap().remove(&here, &mut |text| said.push_str(text)).unwrap();
        assert!(said.contains("has gone on in"), "{said}");
        assert!(!old.path().exists() && now.path().exists());
        assert_eq!(bivouac_store::identity_of(&volume).unwrap(), Some(identity));
        assert!(grant_tables::home_of(&formation, 0).is_some());
        drop(table);
        grant_tables::remove(&formation, 0);
    }

    #[test]
    fn memory_whose_home_is_not_seen_here_is_doubtful() {
        let _alone = LOOKING.lock();
        let here = environment(None);
        let name = format!("doubt{}", std::process::id()).parse().unwrap();
        let root = Path::new(MEMORY_DIR).join(memory_root::name_of(&here, &name, "0123456789"));
        make(&root, &StateDir::at("/nonexistent/bivouac/x".into())).unwrap();
        let mut doubts = String::new();
        let found = abandoned(&here, &mut |doubt| doubts.push_str(&doubt));
        assert!(!found.iter().any(|memory| memory.path() == root));
        assert!(doubts.contains(root.to_str().unwrap()) && doubts.contains("cannot be told"), "{doubts}");
        memory_root::remove(&root).unwrap();
        assert!(!root.exists());
    }
}
