//! Names that the program looks at: found by the homes on this machine, and what they said before, where the kernel
//! would ask the mount each time.
//!
//! Whether that is so is seen by how long the kernel takes. A program that lists directories first has a kernel that
//! knows all that it looks at; one that goes by a list of its own, or makes and tests many files, has not. What is not
//! sure here is the kernel's: links, `..`, rights that depend on groups, other file systems. Why it is right is in
//! docs/decisions/0017-local-direct-access.md.
#![allow(unsafe_code, reason = "paths of the program are pointers, and some calls have no safe interface")]

use std::ffi::{CString, c_char, c_int, c_long};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bivouac_client::{FileIdentity, FormationPlace, Looker};
use bivouac_types::{Attr, Errno, FsResult, Ino};
use libc::stat as status;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, makedev, openat, statx};

use crate::devices::{self, Mount};
use crate::known::MAPPED;
use crate::quiet::SignalBlock;
use crate::report::{self, Call, MountReason};
use crate::serving::{self, ServedCall};
use crate::thread::CallGuard;
use crate::{adopt, errno, hidden, members, real, settings, stack, thread};

/// Duration from which a lookup must have taken a request to the mount.
const SLOW: Duration = Duration::from_micros(5);
/// Slow looks, less twice the fast ones, from which on names are looked for here: joining costs as much as about so
/// many.
const SLOW_LOOKS: i32 = 32;
/// Of so many looks one is the kernel's, to see whether it knows by now.
const TRIED_EVERY: u32 = 256;
/// Looks in a row that came to nothing here, and slow ones after which it is tried once more.
const MISSES_MAX: u32 = 32;
const SLOW_LOOKS_AGAIN: i32 = 1024;
/// Longest path that is looked for here, in bytes.
const PATH_MAX: usize = 1024;
/// Rights of a process to search and read whatever the modes say.
const CAPABILITIES: u32 = 1 << 1 | 1 << 2;

/// Bits of a mode, for others.
const SEARCH: u32 = 0o1;
const READ: u32 = 0o4;

/// Value of `MISSING` if names are never looked up here again.
const NEVER: i32 = i32::MAX;

/// Slow lookups left until names are looked up here; at 0 they are.
static MISSING: AtomicI32 = AtomicI32::new(SLOW_LOOKS);
static LOOKS: AtomicU32 = AtomicU32::new(0);
static MISSES: AtomicU32 = AtomicU32::new(0);
/// The mount whose names are looked for here; never given back.
static MOUNTED: AtomicPtr<Mounted> = AtomicPtr::new(ptr::null_mut());

struct Mounted {
    device: u64,
    /// Its path, without a slash at the end.
    path: CString,
    place: Arc<FormationPlace>,
    block: u32,
    /// The kernel's list of mounts, which says once when it has changed; and what it said last, locked while it is
    /// asked.
    list: OwnedFd,
    mount: Mutex<Mount>,
}

/// Reason why a name is not looked up in this process.
enum LookupRefusal {
    /// It may succeed later.
    Now,
    Ever,
}

/// Result of a lookup.
pub struct FoundName {
    attr: Attr,
    block: u32,
    /// Attributes of the directory that the path began in; properties common to all files of a mount are taken from it.
    start: Statx,
}

/// Purpose of a lookup.
#[derive(Clone, Copy)]
pub enum NameQuery {
    /// Its attributes.
    Attributes,
    /// Existence, and permission to read if that is asked for.
    Access { read: bool },
}

/// A look-up that the kernel answers.
pub struct KernelLookup {
    call: Call,
    since: Option<Instant>,
}

/// Looks for a name; `None` if the kernel has to.
///
/// # Safety
/// `path` is such that the kernel may read it, or refuse to.
#[inline]
pub unsafe fn find(
    dir: c_int,
    path: *const c_char,
    follow: bool,
    wanted: NameQuery,
) -> Option<Result<FoundName, Errno>> {
    if MISSING.load(Ordering::Relaxed) > 0 || !serving::is_open() {
        return None;
    }
    // SAFETY: as the caller says.
    unsafe { find_here(dir, path, follow, wanted) }
}

unsafe fn find_here(
    dir: c_int,
    path: *const c_char,
    follow: bool,
    wanted: NameQuery,
) -> Option<Result<FoundName, Errno>> {
    let is_trial = settings::after_calls() > 0
        && LOOKS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).is_multiple_of(TRIED_EVERY);
    if is_trial {
        return None;
    }
    let found = quietly(|| {
        // SAFETY: as the caller says.
        unsafe { look(dir, path, follow, wanted) }
    });
    let call = call_of(wanted);
    match &found {
        Some(_) => {
            MISSES.store(0, Ordering::Relaxed);
            report::direct(call, 0);
        }
        None if MISSES.fetch_add(1, Ordering::Relaxed) + 1 >= MISSES_MAX && settings::after_calls() > 0 => {
            MISSES.store(0, Ordering::Relaxed);
            update(|missing| (missing == 0).then_some(SLOW_LOOKS_AGAIN));
        }
        None => {}
    }
    found
}

/// Does what takes locks and memory.
fn quietly<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    let _quiet = SignalBlock::enter(CallGuard::enter()?)?;
    let _call = ServedCall::begin()?;
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(None)
}

/// Changes how many are missing, unless it is never; whether it did.
fn update(change: impl Fn(i32) -> Option<i32>) -> bool {
    let change = |missing| if missing == NEVER { None } else { change(missing) };
    MISSING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
}

/// Ends lookups here, since names may mean something else to this process from now on.
pub fn stop() {
    MISSING.store(NEVER, Ordering::Relaxed);
}

fn call_of(wanted: NameQuery) -> Call {
    match wanted {
        NameQuery::Attributes => Call::Stat,
        NameQuery::Access { .. } => Call::Access,
    }
}

/// Notes that the kernel is about to be asked.
pub fn begin(wanted: NameQuery) -> KernelLookup {
    let counts = serving::is_open() && thread::is_idle() && MISSING.load(Ordering::Relaxed) != NEVER;
    KernelLookup { call: call_of(wanted), since: counts.then(Instant::now) }
}

impl KernelLookup {
    /// Notes that the kernel has found a name on this device.
    pub fn found(&self, device: u64) {
        let Some(since) = self.since else { return };
        let is_slow = since.elapsed() >= SLOW || settings::after_calls() == 0;
        // Most lookups are fast, on whatever file system.
        if is_slow || MISSING.load(Ordering::Relaxed) != SLOW_LOOKS || settings::reports() {
            self.count(device, is_slow);
        }
    }

    #[inline(never)]
    fn count(&self, device: u64, is_slow: bool) {
        if !devices::is_formation(device) {
            return;
        }
        report::mount(self.call, 0, MountReason::First);
        if !is_slow {
            // Above that it was tried in vain, and is to take its time.
            update(|missing| (missing < SLOW_LOOKS).then(|| (missing + 2).min(SLOW_LOOKS)));
            return;
        }
        let known = MOUNTED.load(Ordering::Acquire);
        // SAFETY: null, or never given back.
        if unsafe { known.as_ref() }.is_some_and(|mounted| mounted.device != device) {
            return;
        }
        // One thread does it; the others go on asking the kernel.
        let at_once = settings::after_calls() == 0;
        if update(|missing| (missing == 1 || at_once && missing > 0).then_some(SLOW_LOOKS_AGAIN)) {
            match if known.is_null() { take(device) } else { Ok(()) } {
                Ok(()) => drop(update(|_| Some(0))),
                Err(LookupRefusal::Now) => {}
                Err(LookupRefusal::Ever) => stop(),
            }
        } else {
            update(|missing| (missing > 1).then(|| missing - 1));
        }
    }
}

/// Resets the state in the child after a fork.
pub fn renew() {
    MOUNTED.store(ptr::null_mut(), Ordering::Release);
    update(|_| Some(SLOW_LOOKS));
}

/// Joins the formation of a mount, if its names can be looked for here.
#[cold]
#[inline(never)]
fn take(device: u64) -> Result<(), LookupRefusal> {
    let taken = quietly(|| {
        Some(Mounted::at(device).map(|mounted| {
            let new = Box::into_raw(Box::new(mounted));
            if MOUNTED.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                // One that another thread has made meanwhile is as good.
                // SAFETY: just made, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }))
    });
    taken.unwrap_or(Err(LookupRefusal::Now))
}

impl Mounted {
    /// Creates it, unless names can mean something else than to a client of the formation: by other owners in a user
    /// namespace, or file systems mounted below it.
    fn at(device: u64) -> Result<Mounted, LookupRefusal> {
        if !["uid_map", "gid_map"].into_iter().all(maps_all) {
            return Err(LookupRefusal::Ever);
        }
        let (mount, list) = devices::mount_of(device).ok_or(LookupRefusal::Now)?;
        if mount.has_others_below {
            return Err(LookupRefusal::Ever);
        }
        let path = CString::new(mount.path.clone()).map_err(|_| LookupRefusal::Ever)?;
        let now = |_| LookupRefusal::Now;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root = openat(rustix::fs::CWD, &path, flags, Mode::empty()).map_err(now)?;
        let seen = statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(now)?;
        let FileIdentity { ino, formation } = adopt::ask(root.as_fd()).map_err(|_| LookupRefusal::Ever)?;
        let member = members::of(&formation).ok_or(LookupRefusal::Now)?;
        let attr = member.client().and_then(|client| client.getattr(ino)).map_err(|_| LookupRefusal::Now)?;
        let same = (seen.stx_uid, seen.stx_gid, u32::from(seen.stx_mode)) == (attr.uid, attr.gid, attr.mode);
        if !same || ino != Ino::ROOT || device_of(&seen) != device {
            return Err(LookupRefusal::Ever);
        }
        let (list, block, mount) = (hidden::keep(list), seen.stx_blksize, Mutex::new(mount));
        Ok(Mounted { device, path, place: formation, block, list, mount })
    }

    /// Returns whether a mount is one of this formation's, below which there are no others; `None` if the kernel does
    /// not say. Each look asks whether the list has changed.
    fn has(&self, id: u64) -> Option<bool> {
        let mut mount = self.mount.lock();
        let mut list = [PollFd::new(&self.list, PollFlags::PRI)];
        match poll(&mut list, Some(&Timespec::default())) {
            Ok(0) => {}
            Err(rustix::io::Errno::INTR) => return None,
            _ => match devices::mount_by(&self.list, self.device) {
                Some(now) => *mount = now,
                None => mount.has_others_below = true,
            },
        }
        if mount.has_others_below {
            stop();
        }
        Some(!mount.has_others_below && mount.ids.contains(&id))
    }

    /// Returns the directory that a path begins in, and the rest of it.
    fn start<'p>(&self, dir: c_int, path: &'p [u8]) -> Option<(Statx, &'p [u8])> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        if path.first() == Some(&b'/') {
            let rest = path.strip_prefix(self.path.as_bytes())?;
            // The place itself may be a link, seen from another root.
            if rest.first() != Some(&b'/') {
                return None;
            }
            return Some((statx(rustix::fs::CWD, &self.path, flags, wanted).ok()?, rest));
        }
        if path.is_empty() || dir == -1 {
            return None;
        }
        // SAFETY: the program's descriptor, or none, which is used during this call only.
        let dir = unsafe { std::os::fd::BorrowedFd::borrow_raw(dir) };
        Some((statx(dir, c"", flags | AtFlags::EMPTY_PATH, wanted).ok()?, path))
    }
}

fn device_of(seen: &Statx) -> u64 {
    makedev(seen.stx_dev_major, seen.stx_dev_minor)
}

/// Returns whether users, or groups, have the same numbers here as everywhere.
fn maps_all(which: &str) -> bool {
    let text = std::fs::read_to_string(format!("/proc/self/{which}")).unwrap_or_default();
    text.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Looks for a name; `None` if the kernel has to.
///
/// # Safety
/// As [`find`].
unsafe fn look(
    dir: c_int,
    path: *const c_char,
    follow: bool,
    wanted: NameQuery,
) -> Option<Result<FoundName, Errno>> {
    // SAFETY: null, or never given back.
    let mounted = unsafe { MOUNTED.load(Ordering::Acquire).as_ref() }?;
    let mut room = [0; PATH_MAX];
    // SAFETY: as the caller says.
    let path = unsafe { copy(path, &mut room) }?;
    let (start, path) = mounted.start(dir, path)?;
    // In another namespace the same device is another mount, below which there may be others.
    let has_id = start.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if device_of(&start) != mounted.device || !has_id || !mounted.has(start.stx_mnt_id)? {
        return None;
    }
    let who = Caller::now();
    // That is a question about who runs the program.
    if matches!(wanted, NameQuery::Access { .. }) && rustix::process::getuid().as_raw() != who.uid {
        return None;
    }
    let member = members::of(&mounted.place)?;
    let may_search = |attr: &Attr| who.may(attr, SEARCH);
    let looker = Looker { node: mounted.place.node, follow, may_search: &may_search };
    let attr: FsResult<Attr> = member.client().ok()?.find_as_kernel(Ino(start.stx_ino), path, &looker)?;
    match attr {
        // What else the kernel says of it is where it is mounted.
        Ok(attr) if attr.ino == Ino::ROOT => None,
        // The kernel knows when the program wrote to its mapping.
        Ok(attr) if MAPPED.has(mounted.device, attr.ino.0) => None,
        Ok(attr) if matches!(wanted, NameQuery::Access { read: true }) && !who.may(&attr, READ) => None,
        Ok(attr) => Some(Ok(FoundName { attr, block: mounted.block, start })),
        Err(error) => Some(Err(error.errno())),
    }
}

/// Whose rights count for a look.
struct Caller {
    uid: u32,
}

impl Caller {
    /// Returns the rights of the calling thread. One that has other rights to files than that is noticed when it takes
    /// them.
    fn now() -> Caller {
        Caller { uid: rustix::process::geteuid().as_raw() }
    }

    /// Returns whether it surely may do with an inode what this bit says for others. Where its groups decide it is not
    /// sure.
    fn may(&self, attr: &Attr, for_others: u32) -> bool {
        let all = for_others | for_others << 3;
        let bits = if self.uid == attr.uid { for_others << 6 } else { all };
        attr.mode & bits == bits || self.uid == 0 && has_capabilities()
    }
}

/// Returns whether this thread may search and read everything.
fn has_capabilities() -> bool {
    // Version 3, of the calling thread.
    let (header, mut sets) = ([0x2008_0522_u32, 0], [[0_u32; 3]; 2]);
    // SAFETY: both are as long as this version says.
    let asked = unsafe {
        real::syscall(libc::SYS_capget, header.as_ptr() as c_long, sets.as_mut_ptr() as c_long, 0, 0, 0, 0)
    };
    asked == 0 && sets[0][0] & CAPABILITIES == CAPABILITIES
}

/// Copies a path. `None` if it is too long, or cannot be read, which the kernel is to say.
///
/// # Safety
/// As [`find`].
unsafe fn copy(path: *const c_char, room: &mut [u8; PATH_MAX]) -> Option<&[u8]> {
    // A call that does nothing else: it looks at the path first, and makes nothing in a directory that there is not.
    let nowhere = c"x".as_ptr() as c_long;
    // SAFETY: the kernel reads both, or refuses to.
    let outcome = unsafe { real::syscall(libc::SYS_symlinkat, path as c_long, -1, nowhere, 0, 0, 0) };
    if outcome != -1 || errno::get() != libc::EBADF {
        return None;
    }
    for (at, place) in room.iter_mut().enumerate() {
        // SAFETY: the kernel has just read as far as the path goes.
        match unsafe { path.add(at).read_volatile() } {
            0 => return room.get(..at),
            byte => *place = byte.cast_unsigned(),
        }
    }
    None
}

/// Returns whether there is room for attributes: on the stack of this thread, or by the kernel, which writes some
/// there.
///
/// # Safety
/// `into` is such that the kernel may write to it, or refuse to.
pub unsafe fn has_room(into: *mut status) -> bool {
    // SAFETY: null, or never given back.
    let Some(mounted) = (unsafe { MOUNTED.load(Ordering::Acquire).as_ref() }) else { return false };
    let _errno = errno::ErrnoGuard::new();
    // SAFETY: as the caller says.
    stack::holds(into) || unsafe { real::fstat(mounted.list.as_raw_fd(), into) == 0 }
}

/// Returns true if there is room for attributes as `statx` has them.
///
/// # Safety
/// As [`has_room`].
pub unsafe fn has_room_for_statx(into: *mut libc::statx) -> bool {
    // SAFETY: null, or never given back.
    let Some(mounted) = (unsafe { MOUNTED.load(Ordering::Acquire).as_ref() }) else { return false };
    let _errno = errno::ErrnoGuard::new();
    let (list, basic) = (mounted.list.as_raw_fd(), libc::STATX_BASIC_STATS);
    // SAFETY: as the caller says.
    stack::holds(into) || unsafe { real::statx(list, c"".as_ptr(), libc::AT_EMPTY_PATH, basic, into) == 0 }
}

impl FoundName {
    /// Returns the attributes as `stat` has them.
    pub fn status(&self) -> status {
        let attr = &self.attr;
        // SAFETY: zeros are a value.
        let mut status: status = unsafe { std::mem::zeroed() };
        status.st_dev = device_of(&self.start);
        status.st_ino = attr.ino.0;
        status.st_mode = attr.mode;
        status.st_nlink = attr.nlink.into();
        (status.st_uid, status.st_gid) = (attr.uid, attr.gid);
        let (major, minor) = self.numbers();
        status.st_rdev = makedev(major, minor);
        status.st_size = attr.size.cast_signed();
        status.st_blksize = self.block as libc::blksize_t;
        status.st_blocks = attr.blocks().cast_signed();
        (status.st_atime, status.st_atime_nsec) = (attr.atime.secs, attr.atime.nanos.into());
        (status.st_mtime, status.st_mtime_nsec) = (attr.mtime.secs, attr.mtime.nanos.into());
        (status.st_ctime, status.st_ctime_nsec) = (attr.ctime.secs, attr.ctime.nanos.into());
        status
    }

    /// Returns the attributes as `statx` has them.
    pub fn statx(&self) -> libc::statx {
        let attr = &self.attr;
        // SAFETY: zeros are a value.
        let mut statx: libc::statx = unsafe { std::mem::zeroed() };
        statx.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
        statx.stx_mnt_id = self.start.stx_mnt_id;
        statx.stx_attributes_mask = self.start.stx_attributes_mask.bits();
        statx.stx_blksize = self.block;
        statx.stx_nlink = attr.nlink;
        (statx.stx_uid, statx.stx_gid) = (attr.uid, attr.gid);
        statx.stx_mode = attr.mode as u16;
        statx.stx_ino = attr.ino.0;
        statx.stx_size = attr.size;
        statx.stx_blocks = attr.blocks();
        let times = [
            (&mut statx.stx_atime, attr.atime),
            (&mut statx.stx_mtime, attr.mtime),
            (&mut statx.stx_ctime, attr.ctime),
        ];
        times.into_iter().for_each(|(to, time)| (to.tv_sec, to.tv_nsec) = (time.secs, time.nanos));
        (statx.stx_rdev_major, statx.stx_rdev_minor) = self.numbers();
        (statx.stx_dev_major, statx.stx_dev_minor) = (self.start.stx_dev_major, self.start.stx_dev_minor);
        statx
    }

    /// Returns the major and minor number of a device, as the kernel packs them for file systems.
    fn numbers(&self) -> (u32, u32) {
        let packed = self.attr.rdev;
        ((packed & 0x000f_ff00) >> 8, packed & 0xff | (packed >> 12 & 0x000f_ff00))
    }
}
