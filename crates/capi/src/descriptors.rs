//! Files of a mount, reached without it.
#![allow(unsafe_code, reason = "an ioctl has no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bivouac_client::{FileIdentity, IDENTIFY, IDENTITY_LEN, Member};
use bivouac_types::{Errno, FsError, FsResult, Ino};
use rustix::fs::OFlags;

use crate::connection::{self, Formation};
use crate::failure::answer;
use crate::file::{File, regular};
use crate::flags::OpenFlags;
use crate::pointers;

/// Returns whose file a descriptor is of, by the mount that it was opened through.
fn identify(fd: c_int) -> FsResult<FileIdentity> {
    let mut bytes = MaybeUninit::<[u8; IDENTITY_LEN]>::zeroed();
    // SAFETY: the number says how many bytes are written, and there is room for as many.
    let asked = unsafe { libc::ioctl(fd, libc::c_ulong::from(IDENTIFY), bytes.as_mut_ptr()) };
    if asked != 0 {
        let error = std::io::Error::last_os_error();
        return Err(FsError::from_io(
            &error,
            &format!("descriptor {fd} is not of a file that a mount gives away"),
        ));
    }
    // SAFETY: the caller's descriptor, which is used during this call only.
    let kind = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) });
    if kind.is_ok_and(|kind| !rustix::fs::FileType::from_raw_mode(kind.st_mode).is_file()) {
        let text = format!("descriptor {fd} is a directory's; open a file of the mount instead");
        return Err(FsError::with(Errno::ENOTTY, text));
    }
    // SAFETY: zeros at first, and any bytes are a value.
    FileIdentity::from_bytes(&unsafe { bytes.assume_init() }).ok_or_else(|| {
        FsError::with(Errno::ENOTTY, format!("descriptor {fd} is not of a mount of bivouac's"))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_connect_descriptor(fd: c_int) -> *mut Formation {
    answer(|| {
        let place = identify(fd)?.formation;
        let member = connection::connect(&place.directory, place.wait_ms)?;
        // The directory is named by the mount, and another formation may have been started there since.
        let found = member.client()?.map().formation;
        if found != place.id {
            let text = format!("{} is by now another formation's", place.directory.display());
            return Err(FsError::with(Errno::ESTALE, text));
        }
        Ok(Box::into_raw(Box::new(Formation(Arc::new(member)))))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_open_descriptor(formation: *mut Formation, fd: c_int) -> *mut File {
    answer(|| {
        // SAFETY: the header asks for an object.
        let formation = unsafe { pointers::object(formation, "formation")? };
        let identity = identify(fd)?;
        if identity.formation.id != formation.0.client()?.map().formation {
            return Err(FsError::with(
                Errno::EXDEV,
                format!("descriptor {fd} is of another formation's file"),
            ));
        }
        // SAFETY: the caller's descriptor, which is used during this call only.
        let flags = rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) });
        let flags =
            flags.map_err(|error| FsError::from_io(&error.into(), &format!("flags of descriptor {fd}")))?;
        let flags = OpenFlags::from_bits((flags & (OFlags::ACCMODE | OFlags::APPEND)).bits() as c_int)?;
        open_number(&formation.0, identity.ino, flags)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_open_number(formation: *mut Formation, ino: u64, flags: c_int) -> *mut File {
    answer(|| {
        // SAFETY: the header asks for an object.
        let formation = unsafe { pointers::object(formation, "formation")? };
        let flags = OpenFlags::from_bits(flags)?;
        if flags.create || flags.truncate {
            return Err(FsError::with(
                Errno::EINVAL,
                "a file that is named by its number is there, and is not cut",
            ));
        }
        open_number(&formation.0, Ino(ino), flags)
    })
}

/// Opens what the caller may open: a descriptor of it is at hand, or its number was told.
fn open_number(member: &Arc<Member>, ino: Ino, flags: OpenFlags) -> FsResult<*mut File> {
    let (client, change) = (member.client()?, member.change()?);
    let attr = client.open(&change.ctx, ino, flags.access())?;
    // Only the open tells the type, so it may have to be ended again.
    regular(&attr).inspect_err(|_| client.close_open(ino, flags.access()))?;
    drop(change);
    Ok(Box::into_raw(Box::new(File { shared: Arc::clone(member), ino, flags })))
}
