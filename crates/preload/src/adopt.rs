//! A file that calls are done on here: found out by asking the descriptor, and opened as a client of its formation.
#![allow(unsafe_code, reason = "an ioctl has no safe interface")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use bivouac_client::{Client, FileIdentity, IDENTIFY, IDENTITY_LEN, Member};
use bivouac_types::{Errno, FsResult, Ino};
use parking_lot::Mutex;
use rustix::fs::FileType;
use rustix::io::Errno as SystemErrno;

use crate::file::State;
use crate::known::{MAPPED, WRITTEN};
use crate::{devices, members, pending};

/// A file, open at its home.
pub struct Direct {
    member: Arc<Member>,
    /// The inode.
    pub ino: Ino,
    /// One call at a time uses the position, as in the kernel. Where the last one left it.
    pub position: Mutex<Option<u64>>,
    untold: AtomicBool,
    written: AtomicBool,
    /// The next one that was given up.
    pub next: AtomicPtr<Direct>,
}

impl Direct {
    /// The client that has it open.
    pub fn client(&self) -> FsResult<&Client> {
        self.member.client()
    }

    /// Something was written, and the home may not have heard when.
    pub fn is_untold(&self) {
        if !self.written.load(Ordering::Relaxed) {
            self.written.store(true, Ordering::Relaxed);
            WRITTEN.add(0, self.ino.0);
        }
        if !self.untold.load(Ordering::Relaxed) {
            self.untold.store(true, Ordering::Release);
        }
        pending::is_untold();
    }

    /// Tells the home when it was written; whether it has heard.
    pub fn tell(&self) -> bool {
        if !self.untold.swap(false, Ordering::AcqRel) {
            return true;
        }
        let told = self.client().and_then(|client| client.homes.tell_times(self.ino)).is_ok();
        if !told {
            self.untold.store(true, Ordering::Release);
        }
        told
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        if let Ok(client) = self.member.client() {
            // Nothing can be lost any more.
            let _ = catch_unwind(AssertUnwindSafe(|| client.close(self.ino)));
        }
    }
}

/// Finds out whose file a descriptor is, without opening it anywhere.
pub fn identify(fd: c_int) -> Result<FileIdentity, State> {
    // SAFETY: the caller's descriptor, which is used during this call only.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(file).map_err(|_| State::Alien)?;
    if !devices::is_formation(stat.st_dev) || !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(State::Alien);
    }
    if MAPPED.has(stat.st_dev, stat.st_ino) {
        return Err(State::Mount);
    }
    let identity = ask(file).map_err(|_| State::Mount)?;
    if identity.ino.0 == stat.st_ino { Ok(identity) } else { Err(State::Mount) }
}

/// Has the kernel look at a file, whose size may be another than it knows. Its number, if it is one that a formation can have.
pub fn look_at(fd: c_int) -> Option<u64> {
    if fd < 0 {
        return None;
    }
    // SAFETY: as above.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(file).ok()?;
    (FileType::from_raw_mode(stat.st_mode).is_file() && rustix::fs::major(stat.st_dev) == 0)
        .then_some(stat.st_ino)
}

/// Asks a file, or a directory, of a formation.
pub fn ask(file: BorrowedFd<'_>) -> Result<FileIdentity, SystemErrno> {
    let mut bytes = MaybeUninit::<[u8; IDENTITY_LEN]>::zeroed();
    // SAFETY: the number says how many bytes are written, and there is room for as many.
    let asked = unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(IDENTIFY), bytes.as_mut_ptr()) };
    if asked != 0 {
        return Err(SystemErrno::NOTTY);
    }
    // SAFETY: zeros at first, and any bytes are a value.
    FileIdentity::from_bytes(&unsafe { bytes.assume_init() }).ok_or(SystemErrno::INVAL)
}

/// Opens the file of a descriptor as a client; otherwise, what it is instead.
pub fn adopt(fd: c_int) -> Result<Box<Direct>, State> {
    let identity = identify(fd)?;
    let member = members::of(&identity.formation).ok_or(State::Mount)?;
    open(&member, identity.ino).map_err(|_| State::Mount)?;
    let direct = Direct {
        member,
        ino: identity.ino,
        position: Mutex::new(None),
        untold: AtomicBool::new(false),
        written: AtomicBool::new(false),
        next: AtomicPtr::new(ptr::null_mut()),
    };
    Ok(Box::new(direct))
}

fn open(member: &Member, ino: Ino) -> FsResult<()> {
    let change = member.change()?;
    let client = member.client()?;
    let attr = client.open(&change.ctx, ino, 0)?;
    // The mount hears of closes, and has written before they return.
    if attr.is_file() && !client.site.saved_at_close(ino) {
        return Ok(());
    }
    client.close(ino);
    Err(Errno::EINVAL.into())
}

/// The program maps the file of a descriptor: what is read and written has to agree with that.
pub fn is_mapped(fd: c_int) {
    // SAFETY: as above.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let Ok(stat) = rustix::fs::fstat(file) else { return };
    if !devices::is_formation(stat.st_dev) {
        return;
    }
    MAPPED.add(stat.st_dev, stat.st_ino);
    let Some(_inside) = pending::Inside::enter() else { return };
    for held in crate::file::held() {
        if held.direct().is_some_and(|direct| direct.ino.0 == stat.st_ino) {
            held.leave_to_mount();
        }
    }
}
