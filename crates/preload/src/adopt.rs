//! The formation and inode of a descriptor, asked of the mount, and its file opened as a client.
#![allow(unsafe_code, reason = "an ioctl has no safe interface")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use bivouac_client::{FileIdentity, IDENTIFY, IDENTITY_LEN, Member};
use bivouac_types::{Errno, FsResult, Ino};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno as SystemErrno;

use crate::direct_file::DirectFile;
use crate::file::{self, CallRoute};
use crate::known::MAPPED;
use crate::serving::ServedCall;
use crate::{devices, members};

/// Finds out whose file a descriptor is, without opening it anywhere.
pub fn identify(fd: c_int) -> Result<FileIdentity, CallRoute> {
    // SAFETY: the caller's descriptor, which is used during this call only.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(file).map_err(|_| CallRoute::Alien)?;
    if !devices::is_formation(stat.st_dev) || !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(CallRoute::Alien);
    }
    if MAPPED.has(stat.st_dev, stat.st_ino) {
        return Err(CallRoute::Mount);
    }
    let identity = ask(file).map_err(|_| CallRoute::Mount)?;
    if identity.ino.0 == stat.st_ino { Ok(identity) } else { Err(CallRoute::Mount) }
}

/// Makes the kernel refresh a file, whose size it may not know. Returns its inode number, if it is one of a formation.
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
pub fn adopt(fd: c_int) -> Result<Box<DirectFile>, CallRoute> {
    let identity = identify(fd)?;
    let member = members::of(&identity.formation).ok_or(CallRoute::Mount)?;
    // SAFETY: the program's descriptor, which is used during this call only.
    let flags = rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) });
    let access = (flags.map_err(|_| CallRoute::Mount)? & OFlags::ACCMODE).bits();
    open(&member, identity.ino, access).map_err(|_| CallRoute::Mount)?;
    Ok(Box::new(DirectFile::new(member, identity.ino, access)))
}

fn open(member: &Member, ino: Ino, access: u32) -> FsResult<()> {
    let change = member.change()?;
    let client = member.client()?;
    let attr = client.open(&change.ctx, ino, access)?;
    // The mount hears of closes, and has written before they return.
    if attr.is_file() && !client.site.saved_at_close(ino) {
        return Ok(());
    }
    client.close_open(ino, access);
    Err(Errno::EINVAL.into())
}

/// Leaves the file of a descriptor to the mount, as the program maps it: reads and writes have to agree with the
/// mapping.
pub fn leave_mapped_to_mount(fd: c_int) {
    // SAFETY: as above.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let Ok(stat) = rustix::fs::fstat(file) else { return };
    if !devices::is_formation(stat.st_dev) {
        return;
    }
    MAPPED.add(stat.st_dev, stat.st_ino);
    let Some(_call) = ServedCall::begin() else { return };
    for held in file::held() {
        if held.direct().is_some_and(|direct| direct.ino.0 == stat.st_ino) {
            held.leave_to_mount();
        }
    }
}
