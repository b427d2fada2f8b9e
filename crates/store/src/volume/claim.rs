//! Taking hold of a directory as a volume, and giving it back.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use bivouac_types::FormationId;
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::{Errno as SystemError, retry_on_intr};

use super::dir::entries;
use super::identity::{IDENTITY_LEN, IDENTITY_NAME, IdentityError, VERSION, VolumeIdentity};
use super::note::{
    LIVES_NAME, LIVES_UNFINISHED_NAME, MIRROR_NOTE_NAME, MIRROR_NOTE_UNFINISHED_NAME, NOTE_NAME,
    NOTE_UNFINISHED_NAME, REPLICA_DIR_PREFIX,
};
use super::subfile_table::{TABLE_NAME, empty_table};
use crate::{StoreError, StoreResult};

const UNFINISHED_NAME: &str = "bivouac-volume.tmp";
/// The mode that the directory had before, as octal digits; not there if it had ours.
const MODE_NAME: &str = "bivouac-mode";
/// Ours.
const MODE: u32 = 0o700;
/// Directories of ours besides the two-digit ones.
const RECORDS_DIR: &str = "records";

/// Maximum wait of a daemon, or of a removal, for a volume in use: a command that lists what could be recovered has it
/// for a moment.
const LOOK_WAIT: Duration = Duration::from_millis(1000);

/// Opens a directory, locks it and checks or writes its identity.
pub(super) fn claim(path: &Path, identity: VolumeIdentity, create: bool) -> StoreResult<OwnedFd> {
    if create {
        make_dir(path)?;
    }
    let root = open_root(path)?;
    lock_within(path, &root, LOOK_WAIT)?;
    match read_version(path, root.as_fd())? {
        Some((found, version)) => {
            check_identity(path, found, identity)?;
            check_table(path, root.as_fd(), identity, version)?;
        }
        None => initialise(path, root.as_fd(), identity)?,
    }
    Ok(root)
}

/// Checks that a volume has its table: one of this release has a table of its subfiles; an older one gets it, empty,
/// before it says that it has one.
fn check_table(path: &Path, root: BorrowedFd<'_>, identity: VolumeIdentity, version: u16) -> StoreResult<()> {
    if version < VERSION {
        begin_table(path, root)?;
        return write_identity(path, root, identity);
    }
    match rustix::fs::accessat(root, TABLE_NAME, Access::EXISTS, AtFlags::empty()) {
        Err(SystemError::NOENT) => Err(StoreError::NoTable { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Returns whether a volume is of a format that has a table of subfiles.
pub(super) fn has_table(path: &Path, root: BorrowedFd<'_>) -> StoreResult<bool> {
    Ok(read_version(path, root)?.is_some_and(|(_, version)| version >= VERSION))
}

fn begin_table(path: &Path, root: BorrowedFd<'_>) -> StoreResult<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(root, TABLE_NAME, flags, Mode::from_raw_mode(0o600))
        .map_err(|error| not_writable(path, error))?;
    let mut file = std::fs::File::from(file);
    file.write_all(&empty_table())
        .and_then(|()| file.sync_all())
        .map_err(StoreError::io(format!("{}: write table of subfiles", path.display())))
}

/// Opens and locks a directory that is a volume already, whosever it is, as long as the descriptor is open.
///
/// # Errors
/// When it is none, is in use, or cannot be opened.
pub fn claim_existing(path: &Path) -> StoreResult<(OwnedFd, VolumeIdentity)> {
    claim_existing_within(path, Duration::ZERO)
}

/// Like [`claim_existing`], but waits for processes that only read the volume.
///
/// # Errors
/// As [`claim_existing`].
pub fn claim_existing_within(path: &Path, patience: Duration) -> StoreResult<(OwnedFd, VolumeIdentity)> {
    let root = open_root(path)?;
    lock_within(path, &root, patience)?;
    let identity = read_identity(path, root.as_fd())?;
    let none = || StoreError::BadIdentity { path: path.to_owned(), cause: "there is none" };
    Ok((root, identity.ok_or_else(none)?))
}

/// Returns the identity of the volume in a directory; `None` if it is none or is missing. Takes no lock: its daemon may
/// be running.
///
/// # Errors
/// It cannot be read, or is damaged.
pub fn identity_of(path: &Path) -> StoreResult<Option<VolumeIdentity>> {
    // A read-only directory is no error: other places are searched as well.
    match open_dir(path) {
        Err(StoreError::Missing { .. } | StoreError::NotADirectory { .. }) => Ok(None),
        root => read_identity(path, root?.as_fd()),
    }
}

/// Removes what a formation kept in a volume, and with `remove_dir` the directory itself. One that is not there, or is
/// empty, needs nothing. The identity goes last, so that a removal that was killed can be repeated.
///
/// # Errors
/// Refuses a volume of another formation, one in use, and a directory without identity that is not empty.
/// Files that are not bivouac's are left, and then it is [`StoreError::Alien`].
pub fn remove_volume(path: &Path, formation: FormationId, remove_dir: bool) -> StoreResult<()> {
    let root = match open_root(path) {
        Err(StoreError::Missing { .. }) => return Ok(()),
        root => root?,
    };
    lock_within(path, &root, LOOK_WAIT)?;
    match read_identity(path, root.as_fd())? {
        Some(found) if found.formation != formation => {
            let path = path.to_owned();
            return Err(StoreError::WrongFormation { path, found: found.formation, expected: formation });
        }
        Some(_) => remove_content(path, root.as_fd())?,
        None => refuse_alien(path, root.as_fd())?,
    }
    if remove_dir {
        rustix::fs::rmdir(path).map_err(|e| failed(path, "remove directory", e))?;
    }
    Ok(())
}

fn make_dir(path: &Path) -> StoreResult<()> {
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(_) if path.exists() => Ok(()),
        Err(source) => Err(StoreError::NotWritable { path: path.to_owned(), source }),
    }
}

fn open_dir(path: &Path) -> StoreResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        SystemError::NOENT => StoreError::Missing { path: path.to_owned() },
        SystemError::NOTDIR => StoreError::NotADirectory { path: path.to_owned() },
        other => not_writable(path, other),
    })
}

fn open_root(path: &Path) -> StoreResult<OwnedFd> {
    let root = open_dir(path)?;
    let access = Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::accessat(&root, ".", access, AtFlags::EACCESS).map_err(|error| not_writable(path, error))?;
    Ok(root)
}

/// Locks it as soon as nobody has it, if that is soon.
fn lock_within(path: &Path, root: &OwnedFd, patience: Duration) -> StoreResult<()> {
    match lock(path, root) {
        Err(StoreError::InUse { .. }) if !patience.is_zero() && locked_within(root, patience) => Ok(()),
        locked => locked,
    }
}

fn locked_within(root: &OwnedFd, patience: Duration) -> bool {
    let Ok(same) = root.try_clone() else { return false };
    let (sender, locked) = std::sync::mpsc::channel();
    // Left behind if it waits for longer. It locks the description that `root` has, which it lets go of in any case.
    std::thread::spawn(move || {
        let done = retry_on_intr(|| rustix::fs::flock(&same, FlockOperation::LockExclusive)).is_ok();
        drop(same);
        let _nobody_listens_any_more = sender.send(done);
    });
    locked.recv_timeout(patience).unwrap_or(false)
}

fn lock(path: &Path, root: &OwnedFd) -> StoreResult<()> {
    match rustix::fs::flock(root, FlockOperation::NonBlockingLockExclusive) {
        Err(SystemError::WOULDBLOCK) => Err(StoreError::InUse { path: path.to_owned() }),
        Err(error) => {
            log::debug!("volume {}: cannot be locked ({error}); going on without", path.display());
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn read_identity(path: &Path, root: BorrowedFd<'_>) -> StoreResult<Option<VolumeIdentity>> {
    Ok(read_version(path, root)?.map(|(identity, _)| identity))
}

fn read_version(path: &Path, root: BorrowedFd<'_>) -> StoreResult<Option<(VolumeIdentity, u16)>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::openat(root, IDENTITY_NAME, flags, Mode::empty()) {
        Err(SystemError::NOENT) => return Ok(None),
        file => file.map_err(|e| failed(path, "open identity file", e))?,
    };
    let mut bytes = Vec::with_capacity(IDENTITY_LEN);
    // Whatever somebody put under this name, no more of it is read than an identity has.
    let mut limited = std::fs::File::from(file).take(IDENTITY_LEN as u64);
    limited
        .read_to_end(&mut bytes)
        .map_err(StoreError::io(format!("{}: read identity file", path.display())))?;
    let version = VolumeIdentity::version_of(&bytes);
    VolumeIdentity::from_bytes(&bytes).map(|identity| Some((identity, version))).map_err(
        |error| match error {
            IdentityError::Damaged(cause) => StoreError::BadIdentity { path: path.to_owned(), cause },
            IdentityError::Newer(found) => {
                StoreError::NewerFormat { path: path.to_owned(), found, supported: VERSION }
            }
        },
    )
}

fn check_identity(path: &Path, found: VolumeIdentity, expected: VolumeIdentity) -> StoreResult<()> {
    let path = path.to_owned();
    if found.formation != expected.formation {
        let (found, expected) = (found.formation, expected.formation);
        return Err(StoreError::WrongFormation { path, found, expected });
    }
    if found != expected {
        let (found_node, found_index) = (found.node, found.index);
        let (node, index) = (expected.node, expected.index);
        return Err(StoreError::WrongNode { path, found_node, found_index, node, index });
    }
    Ok(())
}

fn initialise(path: &Path, root: BorrowedFd<'_>, identity: VolumeIdentity) -> StoreResult<()> {
    refuse_alien(path, root)?;
    let not_writable = |error| not_writable(path, error);
    keep_mode(path, root)?;
    rustix::fs::fchmod(root, Mode::from_raw_mode(MODE)).map_err(not_writable)?;
    begin_table(path, root)?;
    // Last: a directory that has an identity is a whole volume.
    write_identity(path, root, identity)
}

fn write_identity(path: &Path, root: BorrowedFd<'_>, identity: VolumeIdentity) -> StoreResult<()> {
    let not_writable = |error| not_writable(path, error);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file =
        rustix::fs::openat(root, UNFINISHED_NAME, flags, Mode::from_raw_mode(0o600)).map_err(not_writable)?;
    let mut file = std::fs::File::from(file);
    file.write_all(&identity.to_bytes())
        .and_then(|()| file.sync_all())
        .map_err(StoreError::io(format!("{}: write identity file", path.display())))?;
    // Renamed, so that after a kill there is a whole identity or none.
    rustix::fs::renameat(root, UNFINISHED_NAME, root, IDENTITY_NAME).map_err(not_writable)?;
    rustix::fs::fsync(root).map_err(|e| failed(path, "sync directory", e))
}

/// Writes down which mode the directory has, unless that was done by a start that did not get further.
fn keep_mode(path: &Path, root: BorrowedFd<'_>) -> StoreResult<()> {
    let seen = rustix::fs::fstat(root).map_err(|e| failed(path, "look at its mode", e))?;
    let mode = seen.st_mode & 0o7777;
    if mode == MODE {
        return Ok(());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(root, MODE_NAME, flags, Mode::from_raw_mode(0o600)) {
        Err(SystemError::EXIST) => Ok(()),
        Err(error) => Err(not_writable(path, error)),
        Ok(file) => {
            let mut file = std::fs::File::from(file);
            file.write_all(format!("{mode:o}\n").as_bytes())
                .map_err(StoreError::io(format!("{}: write down its mode", path.display())))
        }
    }
}

/// Gives the directory the mode that it had. One whose mode nobody can read keeps ours.
fn give_mode_back(path: &Path, root: BorrowedFd<'_>) -> StoreResult<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::openat(root, MODE_NAME, flags, Mode::empty()) else { return Ok(()) };
    let mut text = String::new();
    let read = std::fs::File::from(file).take(8).read_to_string(&mut text);
    let mode =
        read.ok().and_then(|_| u32::from_str_radix(text.trim_end(), 8).ok()).filter(|mode| *mode <= 0o7777);
    if let Some(mode) = mode {
        rustix::fs::fchmod(root, Mode::from_raw_mode(mode))
            .map_err(|e| failed(path, "give its mode back", e))?;
    }
    rustix::fs::unlinkat(root, MODE_NAME, AtFlags::empty())
        .map_err(|e| failed(path, "remove what kept its mode", e))
}

fn refuse_alien(path: &Path, root: BorrowedFd<'_>) -> StoreResult<()> {
    let found = entries(root).map_err(StoreError::io(format!("{}: list", path.display())))?;
    let alien = found.into_iter().find(|entry| {
        !matches!(entry.name.as_str(), UNFINISHED_NAME | MODE_NAME | TABLE_NAME | "lost+found")
    });
    match alien {
        Some(entry) => Err(StoreError::Alien { path: path.to_owned(), found: entry.name }),
        None => Ok(()),
    }
}

fn remove_content(path: &Path, root: BorrowedFd<'_>) -> StoreResult<()> {
    let found = entries(root).map_err(StoreError::io(format!("{}: list", path.display())))?;
    for entry in found.iter().filter(|entry| entry.is_dir && is_our_dir(&entry.name)) {
        remove_flat_dir(root, &entry.name).map_err(|e| failed(path, &entry.name, e))?;
    }
    for entry in found.iter().filter(|entry| entry.is_dir && entry.name.starts_with(REPLICA_DIR_PREFIX)) {
        remove_replica(path, root, &entry.name)?;
    }
    let mirror = [MIRROR_NOTE_NAME, MIRROR_NOTE_UNFINISHED_NAME];
    let files = [NOTE_NAME, NOTE_UNFINISHED_NAME, LIVES_NAME, LIVES_UNFINISHED_NAME, TABLE_NAME];
    for note in files.into_iter().chain(mirror) {
        match rustix::fs::unlinkat(root, note, AtFlags::empty()) {
            Ok(()) | Err(SystemError::NOENT) => {}
            Err(error) => return Err(failed(path, note, error)),
        }
    }
    // Before the identity goes: by that a removal that was killed is found and finished.
    give_mode_back(path, root)?;
    rustix::fs::unlinkat(root, IDENTITY_NAME, AtFlags::empty())
        .map_err(|e| failed(path, "remove identity file", e))?;
    let _ = rustix::fs::unlinkat(root, UNFINISHED_NAME, AtFlags::empty());
    refuse_alien(path, root)
}

/// Removes a replica of another node's volume, which is a volume in itself.
fn remove_replica(path: &Path, root: BorrowedFd<'_>, name: &str) -> StoreResult<()> {
    let path = path.join(name);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let dir = rustix::fs::openat(root, name, flags, Mode::empty()).map_err(|e| failed(&path, "open", e))?;
    lock_within(&path, &dir, LOOK_WAIT)?;
    if read_identity(&path, dir.as_fd())?.is_some() {
        remove_content(&path, dir.as_fd())?;
    }
    rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR).map_err(|e| failed(&path, "remove directory", e))
}

fn is_our_dir(name: &str) -> bool {
    let two_digits = name.len() == 2 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    two_digits || name == RECORDS_DIR
}

fn remove_flat_dir(root: BorrowedFd<'_>, name: &str) -> Result<(), SystemError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let dir = rustix::fs::openat(root, name, flags, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(&dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            rustix::fs::unlinkat(&dir, entry.file_name(), AtFlags::empty())?;
        }
    }
    rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR)
}

fn not_writable(path: &Path, error: SystemError) -> StoreError {
    StoreError::NotWritable { path: path.to_owned(), source: error.into() }
}

fn failed(path: &Path, what: &str, error: SystemError) -> StoreError {
    StoreError::Io { what: format!("{}: {what}", path.display()), source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DirVolume, OpenMode, Volume};
    use bivouac_types::{Errno, NodeId};
    use std::os::unix::fs::MetadataExt;

    const IDENTITY: VolumeIdentity =
        VolumeIdentity { formation: FormationId([7; 16]), node: NodeId(1), index: 2 };
    const OTHER: FormationId = FormationId([8; 16]);

    fn refusal(path: &Path, identity: VolumeIdentity) -> StoreError {
        DirVolume::open(path, identity, false).unwrap_err()
    }

    #[test]
    fn a_directory_gets_the_mode_back_that_it_had() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = || std::fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777;
        for given in [0o2775, 0o1777, 0o700, 0o755] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(given)).unwrap();
            drop(DirVolume::open(dir.path(), IDENTITY, true).unwrap());
            assert_eq!(mode(), MODE);
            drop(DirVolume::open(dir.path(), IDENTITY, false).unwrap());
            remove_volume(dir.path(), IDENTITY.formation, false).unwrap();
            assert_eq!((mode(), std::fs::read_dir(dir.path()).unwrap().count()), (given, 0));
        }
        // A start that was killed before there was an identity.
        std::fs::write(dir.path().join(MODE_NAME), "755\n").unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        drop(DirVolume::open(dir.path(), IDENTITY, true).unwrap());
        remove_volume(dir.path(), IDENTITY.formation, false).unwrap();
        assert_eq!(mode(), 0o755);
    }

    #[test]
    fn a_volume_is_known_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let volume = DirVolume::open(&path, IDENTITY, true).unwrap();
        volume.open("f", OpenMode::Create).unwrap();
        drop(volume);
        let volume = DirVolume::open(&path, IDENTITY, false).unwrap();
        assert!(volume.open("f", OpenMode::Existing).is_ok());
    }

    #[test]
    fn what_is_not_there_or_no_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = refusal(&dir.path().join("none"), IDENTITY);
        assert!(matches!(error, StoreError::Missing { .. }), "{error}");
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        for create in [false, true] {
            let error = DirVolume::open(&file, IDENTITY, create).unwrap_err();
            assert!(matches!(error, StoreError::NotADirectory { .. }), "{error}");
        }
    }

    #[test]
    fn alien_files_are_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let error = refusal(dir.path(), IDENTITY);
        assert!(matches!(&error, StoreError::Alien { found, .. } if found == "thesis.tex"), "{error}");
        let error = remove_volume(dir.path(), IDENTITY.formation, true).unwrap_err();
        assert_eq!(error.errno(), Errno::ENOTEMPTY);
        assert_eq!(std::fs::read(dir.path().join("thesis.tex")).unwrap(), b"x");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_fresh_file_system_and_a_killed_start_count_as_empty() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lost+found")).unwrap();
        std::fs::write(dir.path().join(UNFINISHED_NAME), "BVK").unwrap();
        DirVolume::open(dir.path(), IDENTITY, false).unwrap();
        assert!(!dir.path().join(UNFINISHED_NAME).exists());
    }

    #[test]
    fn other_owners_are_named() {
        let dir = tempfile::tempdir().unwrap();
        drop(DirVolume::open(dir.path(), IDENTITY, false).unwrap());
        let error = refusal(dir.path(), VolumeIdentity { formation: OTHER, ..IDENTITY });
        assert!(matches!(error, StoreError::WrongFormation { found: FormationId([7, ..]), .. }), "{error}");
        let error = refusal(dir.path(), VolumeIdentity { index: 0, ..IDENTITY });
        assert!(
            error.to_string().contains("belongs to node 1 as volume 2, not to node 1 as volume 0"),
            "{error}"
        );
        let error = refusal(dir.path(), VolumeIdentity { node: NodeId(0), ..IDENTITY });
        assert!(matches!(error, StoreError::WrongNode { found_node: NodeId(1), .. }), "{error}");
    }

    #[test]
    fn a_damaged_or_newer_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = IDENTITY.to_bytes();
        bytes[20] ^= 1;
        std::fs::write(dir.path().join(IDENTITY_NAME), bytes).unwrap();
        assert!(matches!(
            refusal(dir.path(), IDENTITY),
            StoreError::BadIdentity { cause: "wrong checksum", .. }
        ));
        bytes[8] = 3;
        std::fs::write(dir.path().join(IDENTITY_NAME), bytes).unwrap();
        assert!(matches!(refusal(dir.path(), IDENTITY), StoreError::NewerFormat { found: 3, .. }));
    }

    #[test]
    fn two_daemons_cannot_have_one_volume() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirVolume::open(dir.path(), IDENTITY, false).unwrap();
        assert_eq!(refusal(dir.path(), IDENTITY).errno(), Errno::EBUSY);
        assert_eq!(remove_volume(dir.path(), IDENTITY.formation, true).unwrap_err().errno(), Errno::EBUSY);
        drop(first);
        assert!(DirVolume::open(dir.path(), IDENTITY, false).is_ok());
    }

    #[test]
    fn a_removal_waits_for_a_process_that_only_looks() {
        let dir = tempfile::tempdir().unwrap();
        drop(DirVolume::open(dir.path(), IDENTITY, false).unwrap());
        let (looker, _) = claim_existing(dir.path()).unwrap();
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| remove_volume(dir.path(), IDENTITY.formation, false));
            let inode = std::fs::metadata(dir.path()).unwrap().ino();
            let waits = |line: &str| line.contains("->") && line.contains(&format!(":{inode} "));
            let is_waiting = || std::fs::read_to_string("/proc/locks").unwrap().lines().any(waits);
            while !is_waiting() && !removal.is_finished() {
                std::thread::yield_now();
            }
            drop(looker);
            removal.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_removed_volume_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        let volume = DirVolume::open(&path, IDENTITY, true).unwrap();
        for name in ["2f", RECORDS_DIR] {
            volume.make_dir(name).unwrap();
            volume.open(&format!("{name}/x"), OpenMode::Create).unwrap();
        }
        drop(volume);
        let error = remove_volume(&path, OTHER, true).unwrap_err();
        assert!(matches!(error, StoreError::WrongFormation { .. }), "{error}");
        remove_volume(&path, IDENTITY.formation, false).unwrap();
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        remove_volume(&path, IDENTITY.formation, true).unwrap();
        assert!(!path.exists());
        remove_volume(&path, IDENTITY.formation, true).unwrap();
    }

    #[test]
    fn files_of_others_survive_the_removal() {
        let dir = tempfile::tempdir().unwrap();
        drop(DirVolume::open(dir.path(), IDENTITY, false).unwrap());
        std::fs::write(dir.path().join("notes"), "mine").unwrap();
        let error = remove_volume(dir.path(), IDENTITY.formation, true).unwrap_err();
        assert!(matches!(&error, StoreError::Alien { found, .. } if found == "notes"), "{error}");
        assert_eq!(std::fs::read(dir.path().join("notes")).unwrap(), b"mine");
    }
}
