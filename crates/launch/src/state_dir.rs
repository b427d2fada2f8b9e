//! The directory of one formation on one machine: state, secret, lock, sockets, logs.
//!
//! ```text
//! BASE/NAME/                 0700
//! ├── lock                   held by every process of the formation: who gets it knows that none lives
//! ├── state.json             what there is, written whole by the supervisor
//! ├── secret                 32 random bytes
//! ├── map                    the formation's map, as docs/protocol.md has it: with the secret, all that a client needs
//! ├── control                socket of the supervisor
//! ├── nI                     socket of node I
//! ├── successor              held by the daemon that looks after the formation's end, once the supervisor is gone
//! ├── http.pem, http.key     certificate of the server for HTTP and its private key, if they were made here
//! ├── supervisor.log, nI.log, http.log, gateway.log
//! ├── stage/                 jobs that copy in and out
//! └── mnt/                   mount point unless another is chosen
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::{Errno, retry_on_intr};

use crate::environment::{Environment, make_private_dir};
use crate::name::FormationName;
use crate::random::random_bytes;
use crate::state::FormationState;
use crate::{Kind, LaunchError, LaunchResult};

/// The file with the certificate of the server for HTTP, and nothing secret.
const HTTP_CERTIFICATE: &str = "http.pem";
/// The file with the private key of that certificate.
const HTTP_KEY: &str = "http.key";
/// Name of the list of keepers of the whole.
const KEEPERS: &str = "keepers";
/// Length of a formation's secret, in bytes.
pub const SECRET_LEN: usize = 32;
/// Time that somebody may take who only looks whether a formation lives, in milliseconds.
const LOOK_MS: u64 = 20;
/// Longest path of a Unix socket, in bytes: what the kernel's address holds, without the NUL.
const SOCKET_PATH_MAX: usize = 107;

/// Suffix of the directory of a whole formation over several hosts, behind the name; no name has such a character.
pub(crate) const WHOLE: &str = "+hosts";

/// Suffix of files that were found in a mount point without its mount, behind the formation's name, before a number.
const LEFT: &str = "+left-";

/// Directory in which a formation keeps its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir {
    path: PathBuf,
}

/// The right to be the formation with a name: given by the lock, as long as any process has it open.
#[derive(Debug)]
pub struct Claim {
    /// The directory.
    pub dir: StateDir,
    /// The lock; to be handed on to every process of the formation.
    pub lock: OwnedFd,
    /// State of a formation that was killed as a whole; its remains are to be removed first.
    pub stale: Option<FormationState>,
    /// Locks on memory of a formation that is recovered: until its supervisor has them too, nobody may take it for
    /// abandoned.
    pub(crate) memory: Vec<OwnedFd>,
}

/// The right to end a formation, as long as this lives.
#[derive(Debug)]
pub struct TeardownLock {
    _file: File,
}

impl StateDir {
    /// Returns the directory at this path.
    #[must_use]
    pub fn at(path: PathBuf) -> StateDir {
        StateDir { path }
    }

    /// Takes a name for a new formation.
    ///
    /// # Errors
    /// `Running` when a formation with that name lives; otherwise what the system refused.
    pub fn claim(here: &Environment, name: &FormationName) -> LaunchResult<Claim> {
        StateDir::claim_dir(here, name, name.as_str())
    }

    /// Takes a name for a new formation over several hosts, of which this one may be one: the directory of the whole
    /// is beside that of this host's part.
    ///
    /// # Errors
    /// As [`StateDir::claim`].
    pub fn claim_whole(here: &Environment, name: &FormationName) -> LaunchResult<Claim> {
        StateDir::claim_dir(here, name, &whole(name))
    }

    fn claim_dir(here: &Environment, name: &FormationName, entry: &str) -> LaunchResult<Claim> {
        let dir = StateDir::at(here.base()?.join(entry));
        dir.check_length()?;
        // The lock before the state: what is read under it is nobody’s who lives, and nobody else begins with this
        // name meanwhile.
        let lock = dir.lock_for_ever(name)?;
        let stale = dir.read()?;
        Ok(Claim { dir, lock, stale, memory: Vec::new() })
    }

    /// Returns the formations of this user that have a directory, by name.
    #[must_use]
    pub fn list(here: &Environment) -> Vec<(FormationName, StateDir)> {
        here.existing_base().map(|base| StateDir::list_in(&base)).unwrap_or_default()
    }

    /// Returns the formations of one place; see [`other_bases`](crate::other_bases).
    #[must_use]
    pub fn list_in(base: &Path) -> Vec<(FormationName, StateDir)> {
        let entries = fs::read_dir(base).into_iter().flatten().flatten();
        let named =
            entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
        let mut found: Vec<(FormationName, StateDir)> = named
            .map(|(name, path)| (name, StateDir::at(path)))
            .filter(|(_, dir)| dir.state_path().exists())
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// Returns the formations over several hosts that were started here, by name.
    #[must_use]
    pub fn wholes(here: &Environment) -> Vec<(FormationName, StateDir)> {
        here.existing_base().map(|base| StateDir::wholes_in(&base)).unwrap_or_default()
    }

    /// Returns the formations over several hosts, but for those that another host's keeper may go on with: the keeper
    /// here is dead, and this host's part lives and has others that it can turn to.
    #[must_use]
    pub fn wholes_kept_here(here: &Environment) -> Vec<(FormationName, StateDir)> {
        let parts = StateDir::list(here);
        let goes_on = |name: &FormationName| {
            let mut own = parts.iter().filter(|(known, _)| known == name);
            own.any(|(_, part)| part.is_held() && !part.keepers().is_empty())
        };
        let mut wholes = StateDir::wholes(here);
        wholes.retain(|(name, dir)| dir.is_held() || !goes_on(name));
        wholes
    }

    /// Like [`StateDir::wholes`], in one directory.
    #[must_use]
    pub fn wholes_in(base: &Path) -> Vec<(FormationName, StateDir)> {
        let entries = fs::read_dir(base).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| {
            let name = entry.file_name().to_str()?.strip_suffix(WHOLE)?.parse().ok()?;
            Some((name, StateDir::at(entry.path())))
        });
        named.filter(|(_, dir)| dir.state_path().exists()).collect()
    }

    /// Returns the directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether it is of the whole of a formation over several hosts.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.path.to_str().is_some_and(|path| path.ends_with(WHOLE))
    }

    /// Returns the supervisor's socket.
    #[must_use]
    pub fn control_path(&self) -> PathBuf {
        self.path.join("control")
    }

    /// Returns the mount point unless another is chosen.
    #[must_use]
    pub fn default_mount(&self) -> PathBuf {
        self.path.join("mnt")
    }

    /// Returns the path of the list of jobs that copy in and out.
    #[must_use]
    pub fn stage_path(&self) -> PathBuf {
        self.path.join("stage")
    }

    /// Returns the Unix socket of a node.
    #[must_use]
    pub fn node_socket(&self, node: u16) -> PathBuf {
        self.path.join(format!("n{node}"))
    }

    /// Returns the log of a node's daemons.
    #[must_use]
    pub fn node_log(&self, node: u16) -> PathBuf {
        self.path.join(format!("n{node}.log"))
    }

    /// Returns the log of the server for HTTP.
    #[must_use]
    pub fn http_log(&self) -> PathBuf {
        self.path.join("http.log")
    }

    /// Returns the log of the gateway of links.
    #[must_use]
    pub fn gateway_log(&self) -> PathBuf {
        self.path.join("gateway.log")
    }

    /// Returns the certificate of the server for HTTP and its private key, as PEM; what `make` makes if there is none
    /// yet. They have a file each: clients are pointed to the certificate's.
    ///
    /// # Errors
    /// What the system refused, or `make` said.
    pub fn http_certificate(
        &self,
        make: impl FnOnce() -> io::Result<(String, String)>,
    ) -> LaunchResult<(String, String)> {
        let read = |file: &str| {
            let path = self.path.join(file);
            match fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(LaunchError::path(&path, "read it", error)),
            }
        };
        if let (Some(certificate), Some(key)) = (read(HTTP_CERTIFICATE)?, read(HTTP_KEY)?) {
            return Ok((certificate, key));
        }
        let (certificate, key) = make().map_err(|e| LaunchError::system("a certificate", e))?;
        // In its own file, mode 0600: the certificate’s is given to others.
        self.write_file(HTTP_KEY, key.as_bytes())?;
        // Last: whoever finds the certificate finds its key.
        self.write_file(HTTP_CERTIFICATE, certificate.as_bytes())?;
        Ok((certificate, key))
    }

    /// Returns the log of the supervisor.
    #[must_use]
    pub fn supervisor_log(&self) -> PathBuf {
        self.path.join("supervisor.log")
    }

    /// Returns the path of the lock of the daemon that looks after the formation's end in place of its supervisor.
    #[must_use]
    pub fn successor_path(&self) -> PathBuf {
        self.path.join("successor")
    }

    /// Reads the state; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read or is of another version.
    pub fn read(&self) -> LaunchResult<Option<FormationState>> {
        let path = self.state_path();
        match fs::read(&path) {
            Ok(text) => FormationState::parse(&text, &path).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(LaunchError::path(&path, "read the state", error)),
        }
    }

    /// Returns the state of a formation of which at least one process lives.
    ///
    /// # Errors
    /// That it was taken down or killed.
    pub fn read_living(&self) -> LaunchResult<FormationState> {
        let gone = || LaunchError::said(Kind::NotRunning, "the formation was taken down meanwhile");
        let state = self.read()?.ok_or_else(gone)?;
        // Looked at after the state was read: a formation that ends in between is one that ended, and not one that
        // was killed.
        if self.is_held() {
            return Ok(state);
        }
        let cause = "was killed: none of its processes lives";
        let remedy = format!(
            "have it back: bivouac recover {0}; look at what it left: bivouac fsck --offline {0}; remove it: bivouac down --name {0}",
            state.name
        );
        Err(LaunchError::new(Kind::NotRunning, format_args!("formation {}", state.name), cause, &remedy))
    }

    /// Writes it down, whole or not at all.
    ///
    /// # Errors
    /// What the system refused.
    pub fn write(&self, state: &FormationState) -> LaunchResult<()> {
        let text = serde_json::to_vec_pretty(state).map_err(|e| LaunchError::system("state", e))?;
        self.write_file("state.json", &text)
    }

    /// Writes the formation's map down, for clients that know this directory.
    ///
    /// # Errors
    /// When the state has none; what the system refused.
    pub fn write_map(&self, state: &FormationState) -> LaunchResult<()> {
        let bytes = crate::hex::from_hex(&state.map).ok_or_else(|| {
            let remedy = "take the formation down and up again";
            LaunchError::new(Kind::Refused, self.path.display(), "has no usable map", remedy)
        })?;
        self.write_file("map", &bytes)
    }

    /// Draws the formation's secret and writes it down.
    ///
    /// # Errors
    /// What the system refused.
    pub fn make_secret(&self) -> LaunchResult<()> {
        self.write_secret(&random_bytes()?)
    }

    /// Writes the formation's secret down.
    ///
    /// # Errors
    /// What the system refused.
    pub fn write_secret(&self, secret: &[u8; SECRET_LEN]) -> LaunchResult<()> {
        self.write_file("secret", secret)
    }

    /// Returns the formation's secret.
    ///
    /// # Errors
    /// When it cannot be read, or has not the right length.
    pub fn secret(&self) -> LaunchResult<[u8; SECRET_LEN]> {
        let path = self.path.join("secret");
        let bytes = fs::read(&path).map_err(|e| {
            LaunchError::new(
                Kind::Refused,
                format_args!("secret {}", path.display()),
                e,
                "run this as the user who started the formation",
            )
        })?;
        let len = bytes.len();
        bytes.try_into().map_err(|_| {
            let cause = format!("has {len} bytes instead of {SECRET_LEN}");
            LaunchError::new(
                Kind::Refused,
                format_args!("secret {}", path.display()),
                cause,
                "take the formation down and up again",
            )
        })
    }

    /// Writes down where the keepers of the whole can be reached, of which this is one host's part.
    ///
    /// # Errors
    /// What the system refused.
    pub fn write_keepers(&self, addresses: &[String]) -> LaunchResult<()> {
        self.write_file(KEEPERS, addresses.join("\n").as_bytes())
    }

    /// Addresses of the keepers of the whole; none if this part was not told of any.
    #[must_use]
    pub fn keepers(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path.join(KEEPERS)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns a log, to be appended to.
    ///
    /// # Errors
    /// What the system refused.
    pub fn open_log(path: &Path) -> LaunchResult<File> {
        let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        opened.map_err(|e| LaunchError::path(path, "open the log", e))
    }

    /// Returns whether a process of the formation lives, here or in another container.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let opened = File::open(self.path.join("lock"));
        // Shared: several who look must not take each other for a process of the formation.
        opened.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
    }

    /// Shows, as long as this is open here or in a copy of this process, that somebody waits to take the supervisor's
    /// place.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn sign_succession(&self) -> std::io::Result<File> {
        let file = File::open(self.supervisor_log())?;
        // A lock goes with the process, however it ends; a file that says so would outlive it.
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(file)
    }

    /// Returns whether somebody does.
    #[must_use]
    pub fn has_standby(&self) -> bool {
        let opened = File::open(self.supervisor_log());
        opened.is_ok_and(|file| {
            flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        })
    }

    /// Waits until nobody does, `ms` milliseconds at most. Whether that is so.
    pub(crate) fn wait_succeeded(&self, ms: u64) -> bool {
        let file = File::open(self.supervisor_log());
        file.map_or(true, |file| wait_locked(file, ms, true))
    }

    /// Takes the turn to replace a supervisor that was killed; nobody else does meanwhile.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn take_turn(&self) -> LaunchResult<File> {
        let path = self.path.join("secret");
        let refused = |e: std::io::Error| LaunchError::path(&path, "lock it", e);
        let file = File::open(&path).map_err(refused)?;
        retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).map_err(|e| refused(e.into()))?;
        Ok(file)
    }

    /// Waits until no process of the formation lives, `ms` milliseconds at most: one that was killed, or that was about
    /// to be started by one that was, takes a moment to end. Whether none does.
    #[must_use]
    pub fn wait_released(&self, ms: u64) -> bool {
        File::open(self.path.join("lock")).map_or(true, |file| wait_locked(file, ms, false))
    }

    /// Takes the right to end the formation, of which one command at a time has it; `waits` hears that another one has.
    /// Nothing when that formation is gone.
    ///
    /// # Errors
    /// What the system refused.
    pub fn begin_end(&self, formation: &str, waits: impl FnOnce()) -> LaunchResult<Option<TeardownLock>> {
        let Some(ending) = self.take_end(waits)? else { return Ok(None) };
        let state = self.read()?;
        // Another formation may have got the name while this waited, and is not to be ended for the one before.
        Ok(state.is_some_and(|state| state.formation == formation).then_some(ending))
    }

    /// Returns whether the formation with this name, of which hardly anything is left, is being ended by another
    /// command; then it has been by now.
    ///
    /// # Errors
    /// What the system refused.
    pub fn was_being_ended(here: &Environment, name: &FormationName) -> LaunchResult<bool> {
        let Some(base) = here.existing_base() else { return Ok(false) };
        for entry in [name.as_str().to_owned(), whole(name)] {
            let mut waited = false;
            StateDir::at(base.join(entry)).take_end(|| waited = true)?;
            if waited {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn take_end(&self, waits: impl FnOnce()) -> LaunchResult<Option<TeardownLock>> {
        let refused = |e: io::Error| LaunchError::path(&self.path, "lock it", e);
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(refused)?,
        };
        // The directory itself: nothing may be made in it while it is being removed.
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                waits();
                let locked = retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
                locked.map_err(|error| refused(error.into()))?;
            }
            locked => locked.map_err(|error| refused(error.into()))?,
        }
        Ok(Some(TeardownLock { _file: file }))
    }

    /// Removes the directory with all that is ours in it, the lock last. A mount point that still has something mounted
    /// is left, and the directory with it. One that holds files, which were written while nothing was mounted there, is
    /// moved beside the directory, so that they are kept and the name is free. A copy that still writes down how far it
    /// is does not hold this up: it finds its directory gone.
    ///
    /// # Errors
    /// What the system refused; and where such files are now, once all else is removed.
    pub fn remove(&self) -> LaunchResult<()> {
        let stage = self.stage_path();
        remove_growing(&stage).map_err(|e| LaunchError::path(&stage, "remove it", e))?;
        let entries = fs::read_dir(&self.path).map_err(|e| LaunchError::path(&self.path, "list it", e))?;
        let lock = self.path.join("lock");
        let mut kept = Ok(());
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| *path != lock && *path != stage)
        {
            let removed = if path.is_symlink() || !path.is_dir() {
                fs::remove_file(&path)
            } else {
                match fs::remove_dir(&path) {
                    Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                        self.move_beside(&path).map(|now| kept = Err(left_files(&path, &now)))
                    }
                    removed => removed,
                }
            };
            removed.map_err(|e| LaunchError::path(&path, "remove it", e))?;
        }
        fs::remove_file(&lock).map_err(|e| LaunchError::path(&lock, "remove it", e))?;
        self.remove_itself().map_err(|e| LaunchError::path(&self.path, "remove it", e))?;
        // The directory of all formations goes with the last of them.
        if let Some(base) = self.path.parent() {
            let _others_are_there = fs::remove_dir(base);
        }
        kept
    }

    /// Moves a directory out of this one, to a name that no formation has. Answers where it is.
    fn move_beside(&self, dir: &Path) -> io::Result<PathBuf> {
        let mut number = 1_u32;
        loop {
            let mut name = self.path.clone().into_os_string();
            name.push(format!("{LEFT}{number}"));
            match renameat_with(CWD, dir, CWD, &name, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(name.into()),
                Err(Errno::EXIST) => number += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes the directory, after its lock: what is in it again is a job's that has just begun to copy, or a new
    /// formation's of that name, which then has it.
    fn remove_itself(&self) -> io::Result<()> {
        loop {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() != ErrorKind::DirectoryNotEmpty => return Err(error),
                Err(_) if self.stage_path().exists() => remove_growing(&self.stage_path())?,
                Err(_) if self.path.join("lock").exists() => return Ok(()),
                ended => return ended,
            }
        }
    }

    /// Removes the sockets of processes that are dead. The caller has the lock.
    ///
    /// # Errors
    /// What the system refused.
    pub fn remove_sockets(&self) -> LaunchResult<()> {
        let entries = fs::read_dir(&self.path).map_err(|e| LaunchError::path(&self.path, "list it", e))?;
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
                let path = entry.path();
                fs::remove_file(&path).map_err(|e| LaunchError::path(&path, "remove the socket", e))?;
            }
        }
        Ok(())
    }

    fn state_path(&self) -> PathBuf {
        self.path.join("state.json")
    }

    fn write_file(&self, name: &str, content: &[u8]) -> LaunchResult<()> {
        let (temporary, path) = (self.path.join(format!("{name}.tmp")), self.path.join(name));
        let refused = |e| LaunchError::path(&path, "write it", e);
        let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let mut file = open.map_err(refused)?;
        file.write_all(content).map_err(refused)?;
        // Not synchronised: a power failure ends the processes as well, and what outlives them is noted on volumes.
        fs::rename(&temporary, &path).map_err(refused)
    }

    fn check_length(&self) -> LaunchResult<()> {
        let longest = self.path.join("control").as_os_str().len();
        if longest <= SOCKET_PATH_MAX {
            return Ok(());
        }
        let cause = format!("is too long by {} bytes to hold Unix sockets", longest - SOCKET_PATH_MAX);
        let remedy = "choose a shorter --name, or set XDG_RUNTIME_DIR to a shorter path";
        Err(LaunchError::usage(self.path.display(), cause, remedy))
    }

    /// Makes the directory and takes its lock. Another one may be removing the same directory meanwhile, so a lock
    /// counts only if it is still the one that the path leads to.
    fn lock_for_ever(&self, name: &FormationName) -> LaunchResult<OwnedFd> {
        let path = self.path.join("lock");
        let base = self.path.parent().unwrap_or(&self.path);
        let mut looked_at = 0;
        for _ in 0..1000 {
            make_private_dir(base)?;
            match make_private_dir(&self.path) {
                // The last formation that ended has taken it along.
                Err(_) if !base.exists() => continue,
                made => made?,
            }
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path);
            let file = match opened {
                // The directory was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                opened => opened.map_err(|e| LaunchError::path(&path, "open the lock", e))?,
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_still(&file, &path) => return Ok(file.into()),
                Ok(()) => {}
                // Who only looks whether it is held has it for a moment.
                Err(Errno::WOULDBLOCK) if looked_at < 2 && self.wait_released(LOOK_MS) => looked_at += 1,
                Err(Errno::WOULDBLOCK) => return Err(running(name)),
                Err(error) => return Err(LaunchError::path(&path, "lock it", error)),
            }
        }
        Err(running(name))
    }
}

/// Waits until a file can be locked, shared or by nobody else at all, `ms` milliseconds at most. Whether it could; it
/// is not any more.
fn wait_locked(file: File, ms: u64, alone: bool) -> bool {
    let (at_once, patiently) = match alone {
        true => (FlockOperation::NonBlockingLockExclusive, FlockOperation::LockExclusive),
        false => (FlockOperation::NonBlockingLockShared, FlockOperation::LockShared),
    };
    if flock(&file, at_once).is_ok() {
        return true;
    }
    let (sender, released) = std::sync::mpsc::channel();
    // If it waits for longer it is left behind, until the lock is given up or this process ends.
    let waiting = std::thread::Builder::new().spawn(move || {
        let is_released = flock(&file, patiently).is_ok();
        // Before anybody hears of it: who does may want the lock.
        drop(file);
        let _nobody_listens_any_more = sender.send(is_released);
    });
    waiting.is_ok() && released.recv_timeout(std::time::Duration::from_millis(ms)).unwrap_or(false)
}

/// Removes a directory to which others add, who stop when they find it gone: moved aside, it does not grow.
fn remove_growing(path: &Path) -> io::Result<()> {
    let aside = set_aside(path);
    loop {
        match fs::remove_dir_all(&aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::rename(path, &aside) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(()) => {}
        }
    }
}

/// Returns the path of a directory while it is removed.
fn set_aside(path: &Path) -> PathBuf {
    path.with_extension("gone")
}

/// Returns whether an open file or directory is still the one at its place.
pub(crate) fn is_still(open: impl AsFd, path: &Path) -> bool {
    match (rustix::fs::fstat(open), rustix::fs::lstat(path)) {
        (Ok(open), Ok(named)) => (open.st_dev, open.st_ino) == (named.st_dev, named.st_ino),
        _ => false,
    }
}

fn whole(name: &FormationName) -> String {
    format!("{name}{WHOLE}")
}

fn running(name: &FormationName) -> LaunchError {
    let remedy = format!("choose another with --name, or end it: bivouac down --name {name}");
    LaunchError::new(Kind::Running, format_args!("formation {name}"), "is running already", &remedy)
}

fn left_files(dir: &Path, now: &Path) -> LaunchError {
    let cause = "holds files that were written while nothing was mounted there";
    let remedy = format!("they are kept in {}: save them, then remove that directory", now.display());
    LaunchError::new(Kind::Refused, dir.display(), cause, &remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;
    use std::os::unix::fs::PermissionsExt;

    struct Place {
        here: Environment,
        _dir: tempfile::TempDir,
    }

    fn place() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let here = Environment {
            runtime_dir: Some(dir.path().into()),
            search_path: None,
            log_level: None,
            state_home: None,
            uid: rustix::process::geteuid().as_raw(),
            host: "h".into(),
            program: "/bin/false".into(),
            batch: crate::environment::Batch::default(),
            around: crate::environment::EnclosingFormation::default(),
        };
        Place { here, _dir: dir }
    }

    fn name(text: &str) -> FormationName {
        text.parse().unwrap()
    }

    /// Takes a name that was given up. A process that another test was forking then has a copy of the lock until it
    /// executes a program.
    fn claimed(here: &Environment, wanted: &str) -> Claim {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            match StateDir::claim(here, &name(wanted)) {
                Ok(claim) => return claim,
                Err(error) => assert!(std::time::Instant::now() < until, "{error}"),
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_name_is_taken_as_long_as_anybody_holds_it() {
        let place = place();
        let claim = StateDir::claim(&place.here, &name("a")).unwrap();
        assert!(claim.stale.is_none() && claim.dir.is_held());
        let other = claim.lock.try_clone().unwrap();
        drop(claim.lock);
        let error = StateDir::claim(&place.here, &name("a")).unwrap_err();
        assert_eq!(error.kind(), Kind::Running);
        assert!(error.to_string().contains("bivouac down --name a"), "{error}");
        drop(other);
        assert!(claim.dir.wait_released(60_000) && !claim.dir.is_held());
        drop(claimed(&place.here, "a"));
    }

    #[test]
    fn what_a_killed_formation_left_is_found() {
        let place = place();
        let claim = StateDir::claim(&place.here, &name("a")).unwrap();
        claim.dir.write(&sample()).unwrap();
        drop(claim);
        assert_eq!(claimed(&place.here, "a").stale, Some(sample()));
    }

    #[test]
    fn everything_is_for_this_user_only_and_goes_away() {
        let place = place();
        let claim = StateDir::claim(&place.here, &name("a")).unwrap();
        claim.dir.write(&sample()).unwrap();
        claim.dir.make_secret().unwrap();
        StateDir::open_log(&claim.dir.node_log(0)).unwrap();
        fs::create_dir(claim.dir.default_mount()).unwrap();
        for entry in fs::read_dir(claim.dir.path()).unwrap().map(Result::unwrap) {
            let mode = entry.metadata().unwrap().permissions().mode();
            assert!(mode & 0o077 == 0 || entry.file_name() == "mnt", "{entry:?}");
        }
        assert_ne!(claim.dir.secret().unwrap(), [0; SECRET_LEN]);
        let other = StateDir::claim(&place.here, &name("b")).unwrap();
        claim.dir.remove().unwrap();
        assert!(!claim.dir.path().exists() && other.dir.path().exists());
        other.dir.remove().unwrap();
        assert_eq!(place.here.existing_base(), None, "the last one takes the base with it");
    }

    #[test]
    fn files_in_a_mount_point_without_its_mount_are_kept_and_block_no_name() {
        let place = place();
        for number in 1..3 {
            let claim = StateDir::claim(&place.here, &name("a")).unwrap();
            fs::create_dir(claim.dir.default_mount()).unwrap();
            fs::write(claim.dir.default_mount().join("thesis"), format!("{number}")).unwrap();
            let said = claim.dir.remove().unwrap_err().to_string();
            let kept = place.here.base().unwrap().join(format!("a+left-{number}"));
            assert!(said.contains(&kept.display().to_string()), "{said}");
            assert_eq!(fs::read_to_string(kept.join("thesis")).unwrap(), format!("{number}"));
            assert!(!claim.dir.path().exists() && StateDir::list(&place.here).is_empty());
        }
    }

    #[test]
    fn a_job_that_is_writing_keeps_nothing() {
        let place = place();
        let claim = StateDir::claim(&place.here, &name("a")).unwrap();
        let (stage, gone) = (claim.dir.stage_path(), claim.dir.path().to_owned());
        let writes = std::thread::spawn(move || {
            // As a job does: its directory in one that has to be there, and what it notes in that.
            for number in 0.. {
                let made = match fs::create_dir(&stage) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => break,
                    _ => fs::create_dir(stage.join(format!("{number}"))),
                };
                let _gone = made.and_then(|()| fs::write(stage.join(format!("{number}/log")), b"line"));
                std::thread::yield_now();
            }
        });
        while !claim.dir.stage_path().join("1").exists() {
            std::thread::yield_now();
        }
        claim.dir.remove().unwrap();
        writes.join().unwrap();
        assert!(!gone.exists());
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_said() {
        let place = place();
        let claim = StateDir::claim(&place.here, &name("a")).unwrap();
        assert!(claim.dir.secret().unwrap_err().to_string().contains("as the user who started"));
        fs::write(claim.dir.path().join("secret"), b"short").unwrap();
        assert!(claim.dir.secret().unwrap_err().to_string().contains("has 5 bytes instead of 32"));
    }

    #[test]
    fn the_file_that_clients_are_pointed_to_has_no_private_key() {
        let place = place();
        let dir = StateDir::claim(&place.here, &name("a")).unwrap().dir;
        let made = |certificate: &str, key: &str| {
            let pair = (certificate.to_owned(), key.to_owned());
            dir.http_certificate(|| Ok(pair)).unwrap()
        };
        assert_eq!(made("CERTIFICATE", "KEY"), ("CERTIFICATE".into(), "KEY".into()));
        assert_eq!(made("another", "another"), ("CERTIFICATE".into(), "KEY".into()), "it is made once");
        assert_eq!(fs::read_to_string(dir.path().join("http.pem")).unwrap(), "CERTIFICATE");
        let mode = dir.path().join("http.key").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        // A start that was interrupted between the two.
        fs::remove_file(dir.path().join("http.pem")).unwrap();
        assert_eq!(made("new", "new key"), ("new".into(), "new key".into()));
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused() {
        let dir = StateDir::at(Path::new("/").join("x".repeat(100)));
        let error = dir.check_length().unwrap_err();
        assert!(error.to_string().contains("too long by 2 bytes"), "{error}");
    }
}
