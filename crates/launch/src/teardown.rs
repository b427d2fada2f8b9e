//! Takes a formation down and makes sure that nothing is left.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bivouac_store::{IDENTITY_NAME, StoreError, remove_volume};
use bivouac_types::FormationId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::process::Signal;

use crate::control::{Request, ask};
use crate::environment::Environment;
use crate::memory_root;
use crate::polling::wait_readable;
use crate::process::{ProcessId, daemons_with};
use crate::runtime_dirs::gone_on;
use crate::standby::settled;
use crate::state::{FormationState, VolumeState};
use crate::state_dir::StateDir;
use crate::unmounting::{abort_all, mounts_of, unmount_all};
use crate::{Kind, LaunchError, LaunchResult, grant_tables, recovery_notes};

/// Longest wait for the supervisor to end its daemons and itself, in milliseconds; longer than its own limit.
const STOP_MS_MAX: u64 = 5000;
/// Most takeovers that are followed while supervisors are ended.
const SUPERVISORS_MAX: usize = 3;
/// Time for a daemon without supervisor to end before it is killed, in milliseconds.
const TERM_MS: u64 = 2000;
/// Time for the kernel to end what was killed, in milliseconds.
const KILL_MS: u64 = 5000;
/// Time for processes to end that are not in the state, in milliseconds: those that a killed supervisor was about to
/// start find out by themselves that it is gone.
const ORPHANS_MS: u64 = 30_000;

/// Remains of a formation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftoverCounts {
    /// Processes.
    pub processes: usize,
    /// Mounts.
    pub mounts: usize,
    /// Files and directories: state, volumes.
    pub files: usize,
    /// Sockets, Unix ones and listening ports.
    pub sockets: usize,
}

impl LeftoverCounts {
    /// Returns whether there is nothing.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == LeftoverCounts::default()
    }
}

impl fmt::Display for LeftoverCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_nothing() { "nothing left" } else { "left" };
        let LeftoverCounts { processes, mounts, files, sockets } = self;
        write!(f, "{verdict}: {processes} processes, {mounts} mounts, {files} files, {sockets} sockets")
    }
}

/// Ends all processes of a formation, unmounts it, removes all that is its, and looks what is left.
///
/// # Errors
/// `Keep` when its data was to be kept and `discard` is not set; otherwise what could not be ended or removed.
pub fn take_down(
    here: &Environment,
    dir: &StateDir,
    discard: bool,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<LeftoverCounts> {
    let Some(state) = dir.read()? else {
        return Err(LaunchError::said(Kind::NotRunning, "the formation is gone already"));
    };
    if !dir.is_held() && gone_on(&state).is_some() {
        return remove_leftovers(here, dir, &state, notice).map(|()| LeftoverCounts::default());
    }
    // Before anything is touched: after a refusal the formation runs on as before.
    refuse_kept(&state, discard)?;
    if state.leaves_volumes() && !discard {
        return leave(here, dir, notice).map(|()| LeftoverCounts::default());
    }
    // This very process must not be what keeps a mount busy.
    std::env::set_current_dir("/").map_err(|e| LaunchError::path(Path::new("/"), "enter it", e))?;
    unmount_all(here, &state, notice)?;
    end_processes(dir, &state)?;
    // Daemons may have been started again meanwhile, and a mount may have been made whose maker was killed.
    let state = dir.read()?.unwrap_or(state);
    remove_leftovers(here, dir, &state, notice)?;
    Ok(look(here, dir, &state))
}

/// Ends all processes of a host's part and unmounts it. Its volumes and its state stay as they are: it can be
/// recovered.
///
/// # Errors
/// What could not be ended or unmounted.
pub fn leave(here: &Environment, dir: &StateDir, notice: &mut dyn FnMut(&str)) -> LaunchResult<()> {
    let Some(state) = dir.read()? else { return Ok(()) };
    std::env::set_current_dir("/").map_err(|e| LaunchError::path(Path::new("/"), "enter it", e))?;
    unmount_all(here, &state, notice)?;
    end_processes(dir, &state)
}

/// Removes what a formation left whose processes have all ended.
///
/// # Errors
/// What could not be removed.
pub fn remove_leftovers(
    here: &Environment,
    dir: &StateDir,
    state: &FormationState,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<()> {
    if let Some(now) = gone_on(state) {
        let now = now.path().display();
        notice(&format!("formation {} has gone on in {now}: only its old state is removed here", state.name));
        return dir.remove();
    }
    unmount_all(here, state, notice)?;
    remove_all(here, dir, state, notice)
}

/// Checks that a formation may be taken down.
///
/// # Errors
/// `Keep` when its data was to be kept and `discard` is not set.
pub fn refuse_kept(state: &FormationState, discard: bool) -> LaunchResult<()> {
    match state.why_kept() {
        Some(reason) if !discard => {
            let cause = format!("holds data that is nowhere else: {reason}");
            let remedy = format!("copy it out, then: bivouac down --name {} --discard", state.name);
            Err(LaunchError::new(Kind::Keep, format_args!("formation {}", state.name), cause, &remedy))
        }
        _ => Ok(()),
    }
}

/// Ends the supervisor. One that has to be killed is followed by its standby, which ends when asked.
fn end_supervisors(dir: &StateDir) -> LaunchResult<()> {
    for _ in 0..SUPERVISORS_MAX {
        let Some(supervisor) = settled(dir)?.and_then(|state| state.supervisor) else { return Ok(()) };
        // By a descriptor: the process id may be another process's by the time it is waited for.
        let end = supervisor.try_watch().map_err(|e| LaunchError::system("the supervisor's process", e))?;
        let Some(end) = end else { return Ok(()) };
        let asked = ask(dir, &Request::Stop, &[], STOP_MS_MAX);
        if asked.is_ok() && wait_readable(end.as_fd(), STOP_MS_MAX) {
            return Ok(());
        }
        // Its standby follows, so there is one turn more; `SUPERVISORS_MAX` of them end what is followed for ever.
        supervisor.signal(Signal::KILL);
        let _ended = wait_readable(end.as_fd(), KILL_MS);
    }
    Ok(())
}

fn end_processes(dir: &StateDir, state: &FormationState) -> LaunchResult<()> {
    end_supervisors(dir)?;
    let last = dir.read()?;
    let processes: Vec<ProcessId> = last.as_ref().unwrap_or(state).processes().collect();
    // Who serves a mount has its device, as long as it has not begun to end.
    let devices = processes.iter().flat_map(ProcessId::fuse_devices).collect();
    end_all(&processes, Signal::TERM, TERM_MS);
    // The first thread of a process ends also when another one cannot.
    if processes.iter().any(ProcessId::is_alive) || dir.is_held() {
        // One that waits for itself, in a mount of ours, hears no signal.
        abort_all(last.as_ref().unwrap_or(state), devices);
    }
    end_all(&processes, Signal::KILL, KILL_MS);
    if let Some(stubborn) = processes.iter().find(|process| process.is_alive()) {
        let remedy = "it hangs in the kernel; look at its state in /proc, then repeat: bivouac down";
        return Err(LaunchError::new(
            Kind::Refused,
            format_args!("process {}", stubborn.pid),
            "cannot be ended",
            remedy,
        ));
    }
    if dir.is_held() {
        end_unknown(dir);
    }
    if !dir.wait_released(ORPHANS_MS) {
        let cause = "is still in use by a process that is not in its state";
        return Err(LaunchError::new(
            Kind::Refused,
            dir.path().display(),
            cause,
            "end it (fuser -v shows it), then repeat",
        ));
    }
    end_the_late(dir)
}

/// Ends a daemon that a killed supervisor may have started and not have written down.
fn end_unknown(dir: &StateDir) {
    let daemons = daemons_with(&dir.path().join("lock"));
    end_all(&daemons, Signal::TERM, TERM_MS);
    end_all(&daemons, Signal::KILL, KILL_MS);
}

/// Ends processes that began while others were being ended. They are in the state file by now, and release what they
/// hold a moment before they are gone.
fn end_the_late(dir: &StateDir) -> LaunchResult<()> {
    let late: Vec<ProcessId> = dir.read()?.iter().flat_map(FormationState::processes).collect();
    end_all(&late, Signal::KILL, KILL_MS);
    Ok(())
}

/// Sends a signal to those that live and waits for their end, but not longer than `ms` for all together.
fn end_all(processes: &[ProcessId], signal: Signal, ms: u64) {
    let ends: Vec<_> = processes.iter().filter_map(ProcessId::watch).collect();
    // All are asked before any is waited for: a daemon may need another one to end in order.
    processes.iter().for_each(|process| process.signal(signal));
    let deadline = Instant::now() + Duration::from_millis(ms);
    for end in &ends {
        let left = deadline.saturating_duration_since(Instant::now());
        let _ended = wait_readable(end.as_fd(), u64::try_from(left.as_millis()).unwrap_or(ms));
    }
}

/// Volumes first, the state last, so that a removal that fails can be repeated.
fn remove_all(
    here: &Environment,
    dir: &StateDir,
    state: &FormationState,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<()> {
    remove_volumes(here, state, notice)?;
    // While a mount is left the state stays, by which it is found again.
    if state.is_over_hosts() || mounts_of(here, state).is_empty() { dir.remove() } else { Ok(()) }
}

/// Removes what is on volumes and in memory, and where that is noted.
///
/// # Errors
/// What could not be removed.
pub(crate) fn remove_volumes(
    here: &Environment,
    state: &FormationState,
    notice: &mut dyn FnMut(&str),
) -> LaunchResult<()> {
    let damaged = || {
        let object = format!("state of formation {}", state.name);
        LaunchError::new(Kind::Refused, object, "has no formation id", "remove it by hand")
    };
    // Each volume says whose it is, and only those that say so are removed: a path in a state file may be somebody
    // else’s by now.
    let formation = state.formation_id().ok_or_else(damaged)?;
    // Those of other hosts are removed there.
    let here_too = state.nodes.iter().filter(|_| !state.is_over_hosts());
    let volumes = here_too.flat_map(|node| &node.volumes);
    let failed = volumes.filter(|volume| !remove_own(volume, formation, notice)).count();
    if failed > 0 {
        let cause = format!("{failed} are not removed");
        let remedy = format!("look at what is there, then repeat: bivouac down --name {}", state.name);
        return Err(LaunchError::new(Kind::Refused, "volumes", cause, &remedy));
    }
    state.own_dirs.iter().try_for_each(|path| memory_root::remove(path))?;
    if !state.is_over_hosts() {
        grant_tables::remove_all(state);
        recovery_notes::forget(here, &state.formation);
    }
    Ok(())
}

/// Removes what is the formation's in a directory; answers whether nothing of it is left there. What others put
/// there stays; so does a directory that never became the formation's, because something else is in it.
fn remove_own(volume: &VolumeState, formation: FormationId, notice: &mut dyn FnMut(&str)) -> bool {
    let was_volume = is_volume(volume);
    let path = volume.path.display();
    match remove_volume(&volume.path, formation, volume.own_dir) {
        Ok(()) | Err(StoreError::WrongFormation { .. }) => true,
        Err(error @ StoreError::Alien { .. }) => {
            if was_volume {
                notice(&format!("in volume {path} somebody else's files are left: {error}"));
            }
            true
        }
        Err(error) => {
            notice(&format!("volume {path} is not removed: {error}"));
            false
        }
    }
}

fn is_volume(volume: &VolumeState) -> bool {
    volume.path.join(IDENTITY_NAME).exists()
}

/// Counts what is left.
fn look(here: &Environment, dir: &StateDir, state: &FormationState) -> LeftoverCounts {
    let volumes = state.nodes.iter().flat_map(|node| &node.volumes);
    let files = volumes.filter(|volume| is_volume(volume)).map(|volume| &volume.path).chain(&state.own_dirs);
    let files = files.map(PathBuf::as_path).chain([dir.path()]).filter(|path| path.exists()).count();
    let addresses = state.nodes.iter().flat_map(|node| [&node.client_address, &node.peer_address]);
    let taken: Vec<SocketAddr> =
        addresses.filter_map(|address| address.parse().ok()).filter(|port| !is_free(*port)).collect();
    // The kernel lists the sockets of all processes, so that is only asked for when somebody has one of ours.
    let listening = if taken.is_empty() { Vec::new() } else { listeners() };
    let is_left =
        |socket: &Listener| taken.contains(&socket.address) && !is_anothers(socket, here.uid, dir.path());
    let left: Vec<Listener> = listening.into_iter().filter(is_left).collect();
    // Who had one may have ended while it was looked for, and with it the socket.
    let still = if left.is_empty() { Vec::new() } else { listeners() };
    let unix = state.nodes.iter().map(|node| node.unix_path.clone()).chain([dir.control_path()]);
    LeftoverCounts {
        processes: state.processes().filter(ProcessId::is_alive).count(),
        mounts: mounts_of(here, state).len(),
        files,
        sockets: left.iter().filter(|socket| still.contains(socket)).count()
            + unix.filter(|path| path.exists()).count(),
    }
}

/// Returns whether certainly nobody listens there: the address could be taken at once, beside connections that are
/// ending.
fn is_free(address: SocketAddr) -> bool {
    let take = || {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Connections that end linger for a minute, and are no listener.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)
    };
    take().is_ok()
}

/// A socket that somebody listens at.
#[derive(Debug, PartialEq, Eq)]
struct Listener {
    address: SocketAddr,
    user: u32,
    inode: u64,
}

/// Returns whether it is certainly not a formation's that was here: whoever starts takes ports that have just become
/// free.
fn is_anothers(socket: &Listener, user: u32, dir: &Path) -> bool {
    socket.user != user || crate::process::has_socket(socket.inode, dir)
}

/// Returns the TCP sockets of this machine that somebody listens at.
fn listeners() -> Vec<Listener> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let text = read("/proc/net/tcp") + &read("/proc/net/tcp6");
    text.lines().filter_map(listener).collect()
}

fn listener(line: &str) -> Option<Listener> {
    const LISTENING: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, LISTENING, _, _, _, user, _, inode, ..] = fields.as_slice() else { return None };
    Some(Listener { address: address(local)?, user: user.parse().ok()?, inode: inode.parse().ok()? })
}

fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.rsplit_once(':')?;
    // Words as the machine has them in memory, each written as a number.
    let words: Vec<u32> = (0..ip.len() / 8)
        .map(|word| u32::from_str_radix(ip.get(8 * word..8 * word + 8)?, 16).ok())
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(v4) => IpAddr::from(v4),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;
    use bivouac_store::{DirVolume, VolumeIdentity};
    use bivouac_types::NodeId;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn what_is_left_is_counted_in_words() {
        assert_eq!(
            LeftoverCounts::default().to_string(),
            "nothing left: 0 processes, 0 mounts, 0 files, 0 sockets"
        );
        let some = LeftoverCounts { mounts: 1, ..LeftoverCounts::default() };
        assert_eq!(some.to_string(), "left: 0 processes, 1 mounts, 0 files, 0 sockets");
    }

    #[test]
    fn listeners_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 7 0 123 1";
        let address = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(listener(line), Some(Listener { address, user: 7, inode: 123 }));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("sl local_address rem_address st"), None);
        let is_seen = |address| listeners().iter().any(|listener| listener.address == address);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(is_seen(socket.local_addr().unwrap()));
        if let Ok(socket) = std::net::TcpListener::bind("[::1]:0") {
            assert!(is_seen(socket.local_addr().unwrap()));
        }
    }

    #[test]
    fn a_port_that_another_one_has_taken_is_not_left() {
        let dir = tempfile::tempdir().unwrap();
        let here = crate::environment::tests::environment(Some(dir.path()));
        let place = StateDir::at(dir.path().join("sample"));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut state = sample();
        state.nodes[0].client_address = socket.local_addr().unwrap().to_string();
        assert_eq!(look(&here, &place, &state).sockets, 0);
        std::fs::create_dir(place.path()).unwrap();
        let _of_this_formation = std::fs::File::create(place.path().join("lock")).unwrap();
        assert_eq!(look(&here, &place, &state).sockets, 1);
    }

    /// Waits until nobody listens there: what another test starts just then has a copy of the socket for a moment.
    fn becomes_free(address: SocketAddr) -> bool {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_free(address) && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        std::time::Instant::now() < until
    }

    #[test]
    fn a_port_is_free_when_nobody_listens_there_any_more() {
        for place in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(place) else { continue };
            let address = listener.local_addr().unwrap();
            assert!(!is_free(address));
            let client = std::net::TcpStream::connect(address).unwrap();
            let (served, _) = listener.accept().unwrap();
            drop(listener);
            assert!(becomes_free(address), "connections do not count");
            drop((client, served));
            assert!(becomes_free(address));
        }
    }

    #[test]
    fn data_that_is_to_be_kept_is_not_thrown_away() {
        let mut state = sample();
        assert_eq!(refuse_kept(&state, false), Ok(()));
        state.keep = Some("results were not copied out".into());
        let error = refuse_kept(&state, false).unwrap_err();
        assert_eq!(error.kind(), Kind::Keep);
        assert!(
            error.to_string().ends_with("copy it out, then: bivouac down --name sample --discard"),
            "{error}"
        );
        assert_eq!(refuse_kept(&state, true), Ok(()));
        (state.keep, state.sources) = (None, Some("/a in front of /b".into()));
        assert!(refuse_kept(&state, false).unwrap_err().to_string().contains("/a in front of /b"));
    }

    #[test]
    fn a_formation_that_died_whole_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let here = crate::environment::tests::environment(Some(dir.path()));
        let claim = StateDir::claim(&here, &"sample".parse().unwrap()).unwrap();
        let mut state = sample();
        let root = dir.path().join("root");
        state.nodes[0].volumes[0].path = root.join("n0");
        state.own_dirs = vec![root.clone()];
        std::fs::create_dir_all(root.join("n0")).unwrap();
        claim.dir.write(&state).unwrap();
        drop(claim.lock);
        let remains = take_down(&here, &claim.dir, false, &mut |text| panic!("{text}")).unwrap();
        assert!(remains.is_nothing(), "{remains}");
        assert!(!root.exists() && !claim.dir.path().exists());
    }

    /// Returns whether somebody waits for the lock of a formation.
    fn is_waited_for(dir: &StateDir) -> bool {
        let number = std::fs::metadata(dir.path().join("lock")).unwrap().ino().to_string();
        let of_lock = |line: &str| line.split([' ', ':']).any(|word| word == number);
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("-> FLOCK") && of_lock(line))
    }

    /// `up` was killed: its supervisor, which ends for that reason, had not written itself down when others were ended.
    #[test]
    fn who_writes_itself_down_last_has_ended_too() {
        let dir = tempfile::tempdir().unwrap();
        let here = crate::environment::tests::environment(Some(dir.path()));
        let claim = StateDir::claim(&here, &"sample".parse().unwrap()).unwrap();
        let mut state = FormationState { supervisor: None, ..sample() };
        claim.dir.write(&state).unwrap();
        let mut supervisor = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        std::thread::scope(|scope| {
            let down = scope.spawn(|| take_down(&here, &claim.dir, false, &mut |text| panic!("{text}")));
            while !is_waited_for(&claim.dir) {
                std::thread::yield_now();
            }
            state.supervisor = ProcessId::of(supervisor.id());
            claim.dir.write(&state).unwrap();
            drop(claim.lock);
            let remains = down.join().unwrap().unwrap();
            assert!(remains.is_nothing(), "{remains}");
        });
        supervisor.wait().unwrap();
    }

    /// A formation that died whole, with one volume that is prepared by `prepare`.
    fn leftovers(prepare: impl Fn(&Path)) -> (LaunchResult<LeftoverCounts>, String, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let here = crate::environment::tests::environment(Some(dir.path()));
        let claim = StateDir::claim(&here, &"sample".parse().unwrap()).unwrap();
        let mut state = sample();
        let volume = dir.path().join("n0");
        state.nodes[0].volumes[0].path = volume.clone();
        std::fs::create_dir(&volume).unwrap();
        prepare(&volume);
        claim.dir.write(&state).unwrap();
        drop(claim.lock);
        let mut said = String::new();
        let result = take_down(&here, &claim.dir, false, &mut |text| said.push_str(text));
        (result, said, dir)
    }

    fn become_volume(path: &Path, formation: FormationId) {
        let identity = VolumeIdentity { formation, node: NodeId(0), index: 0 };
        drop(DirVolume::open(path, identity, false).unwrap());
    }

    #[test]
    fn alien_files_in_a_volume_stay_and_are_told() {
        let (result, said, dir) = leftovers(|volume| {
            become_volume(volume, FormationId([7; 16]));
            std::fs::write(volume.join("thesis"), "x").unwrap();
        });
        assert!(result.unwrap().is_nothing());
        assert!(said.contains("somebody else's files are left") && said.contains("thesis"), "{said}");
        assert_eq!(std::fs::read_dir(dir.path().join("n0")).unwrap().count(), 1);
    }

    #[test]
    fn a_volume_that_cannot_be_removed_can_be_tried_again() {
        let (result, said, dir) = leftovers(|volume| {
            std::fs::remove_dir(volume).unwrap();
            std::fs::write(volume, "a file in the way").unwrap();
        });
        assert!(result.unwrap_err().to_string().contains("1 are not removed"));
        assert!(said.contains("n0 is not removed"), "{said}");
        assert!(dir.path().join("bivouac/sample/state.json").exists());
    }

    #[test]
    fn a_directory_that_never_became_a_volume_is_left_alone() {
        let (result, said, dir) = leftovers(|volume| std::fs::write(volume.join("thesis"), "x").unwrap());
        assert!(result.unwrap().is_nothing() && said.is_empty(), "{said}");
        assert!(dir.path().join("n0/thesis").exists() && !dir.path().join("bivouac/sample").exists());
    }

    #[test]
    fn another_formations_volume_is_left_alone() {
        let other = FormationId([8; 16]);
        let (_, said, dir) = leftovers(|volume| become_volume(volume, other));
        assert!(said.is_empty(), "{said}");
        assert!(dir.path().join("n0").join(IDENTITY_NAME).exists());
    }
}
