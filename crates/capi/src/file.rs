//! Open files.
#![allow(unsafe_code, reason = "pointers of a program in C have no safe interface")]
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use bivouac_client::{Attr, Client, Member, NewInode, OpCtx, SetAttr};
use bivouac_types::{
    CONTRACT_XATTR, Contract, Errno, FsError, FsResult, Ino, mode, parse_contract, read_contract,
};

use crate::connection::Formation;
use crate::failure::answer;
use crate::flags::OpenFlags;
use crate::names::stat_of;
use crate::pointers;

/// An open file, as the header's `bivouac_file`.
pub struct File {
    pub(crate) shared: Arc<Member>,
    pub(crate) ino: Ino,
    pub(crate) flags: OpenFlags,
}

impl File {
    pub(crate) fn readable(&self) -> FsResult<&Client> {
        self.allowed(self.flags.read, "reading")
    }

    pub(crate) fn writable(&self) -> FsResult<&Client> {
        self.allowed(self.flags.write, "writing")
    }

    fn allowed(&self, allowed: bool, what: &str) -> FsResult<&Client> {
        let client = self.shared.client()?;
        if allowed {
            Ok(client)
        } else {
            Err(FsError::with(Errno::EBADF, format!("the file is not open for {what}")))
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_open(
    formation: *mut Formation,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> *mut File {
    answer(|| {
        // SAFETY: the header asks for an object and a text.
        let (formation, path) =
            unsafe { (pointers::object(formation, "formation")?, pointers::text(path, "path")?) };
        let flags = OpenFlags::from_bits(flags)?;
        let change = formation.0.change()?;
        let ino = open(formation.0.client()?, &change.ctx, path, flags, mode)?;
        drop(change);
        Ok(Box::into_raw(Box::new(File { shared: Arc::clone(&formation.0), ino, flags })))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_open_as(
    formation: *mut Formation,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
    contract: *const c_char,
) -> *mut File {
    answer(|| {
        // SAFETY: the header asks for an object and texts.
        let (formation, path, contract) = unsafe {
            let texts = (pointers::text(path, "path")?, pointers::text(contract, "contract")?);
            (pointers::object(formation, "formation")?, texts.0, texts.1)
        };
        let contract = std::str::from_utf8(contract).map_err(|_| Errno::EINVAL)?;
        let contract = parse_contract(contract).map_err(|text| FsError::with(Errno::EINVAL, text))?;
        let flags = OpenFlags::from_bits(flags)?;
        let change = formation.0.change()?;
        let ino = open_as(formation.0.client()?, &change.ctx, (path, mode), flags, contract)?;
        drop(change);
        Ok(Box::into_raw(Box::new(File { shared: Arc::clone(&formation.0), ino, flags })))
    })
}

/// Opens a file under a contract. It has it before it is opened: a change to session needs it closed.
fn open_as(
    client: &Client,
    ctx: &OpCtx,
    (path, mode): (&[u8], u32),
    flags: OpenFlags,
    contract: Option<Contract>,
) -> FsResult<Ino> {
    // Each change is an operation of its own.
    let next = || client.new_op(ctx.channel, ctx.uid, ctx.gid);
    let new = NewInode { mode: mode::FILE | mode & mode::PERM, rdev: 0, target: &[] };
    loop {
        match client.find(path, flags.follow) {
            Ok(_) if flags.exclusive => return Err(Errno::EEXIST.into()),
            Ok(attr) => {
                regular(&attr)?;
                flags.check_for(&attr, ctx)?;
                choose(client, &next(), attr.ino, contract)?;
                let attr = client.open(&next(), attr.ino, flags.access())?;
                return opened(client, &next(), attr, flags);
            }
            Err(error) if error.errno() == Errno::ENOENT && flags.create => {
                let place = client.place(path, flags.follow)?;
                if place.is_dir {
                    return Err(Errno::EISDIR.into());
                }
                match client.mknod(&next(), place.parent, &place.name, &new) {
                    Ok(attr) => {
                        choose(client, &next(), attr.ino, contract)?;
                        return client.open(&next(), attr.ino, flags.access()).map(|attr| attr.ino);
                    }
                    // Somebody else has made it meanwhile.
                    Err(error) if error.errno() == Errno::EEXIST && !flags.exclusive => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Changes the contract of a file, if another one holds.
fn choose(client: &Client, ctx: &OpCtx, ino: Ino, contract: Option<Contract>) -> FsResult<()> {
    let shown = client.getxattr(ino, CONTRACT_XATTR)?;
    let shown = std::str::from_utf8(&shown).ok().and_then(read_contract);
    let holds = match contract {
        Some(contract) => shown.is_some_and(|(other, _)| other == contract),
        None => shown.is_some_and(|(_, is_own)| !is_own),
    };
    if holds { Ok(()) } else { client.set_contract(ctx, ino, contract).map(drop) }
}

fn open(client: &Client, ctx: &OpCtx, path: &[u8], flags: OpenFlags, mode: u32) -> FsResult<Ino> {
    if flags.create {
        let place = client.place(path, flags.follow)?;
        if place.is_dir {
            return Err(Errno::EISDIR.into());
        }
        let new = NewInode { mode: mode::FILE | mode & mode::PERM, rdev: 0, target: &[] };
        let made =
            client.create_for(ctx, place.parent, &place.name, &new, flags.exclusive, flags.access())?;
        return if made.existed { opened(client, ctx, made.attr, flags) } else { Ok(made.attr.ino) };
    }
    let attr = client.find(path, flags.follow)?;
    regular(&attr)?;
    let attr = client.open(ctx, attr.ino, flags.access())?;
    opened(client, ctx, attr, flags)
}

/// Looks whether an open file may be used, and cuts it if asked; if not, it is closed.
fn opened(client: &Client, ctx: &OpCtx, attr: Attr, flags: OpenFlags) -> FsResult<Ino> {
    let usable = regular(&attr).and_then(|()| flags.check_for(&attr, ctx));
    let cut = usable.and_then(|()| {
        if !flags.truncate {
            return Ok(());
        }
        // Not by the first open: only its answer has the attributes that say whether this user may.
        let again = client.new_op(ctx.channel, ctx.uid, ctx.gid);
        let truncates = libc::O_TRUNC.cast_unsigned();
        client.open(&again, attr.ino, truncates)?;
        client.close_open(attr.ino, truncates);
        Ok(())
    });
    cut.map(|()| attr.ino).inspect_err(|_| client.close_open(attr.ino, flags.access()))
}

pub(crate) fn regular(attr: &Attr) -> FsResult<()> {
    match attr.mode & mode::TYPE {
        mode::FILE => Ok(()),
        mode::DIR => Err(Errno::EISDIR.into()),
        mode::LINK => Err(Errno::ELOOP.into()),
        _ => Err(FsError::with(Errno::EINVAL, "only regular files are opened by libbivouac")),
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_close(file: *mut File) -> c_int {
    if file.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: the header asks for an object that was not ended.
        let file = unsafe { Box::from_raw(file) };
        // In a child it is the parent's to close.
        let Ok(client) = file.shared.client() else { return Ok(0) };
        // Done before the open ends, as its home keeps an unnamed file only for those who have it open.
        let saved = client.sessions.send_unsent(file.ino).and_then(|()| client.site.save_at_close(file.ino));
        // A process that never took a lock is spared the message.
        if client.locks.is_used() {
            client.unlock_handle(file.ino, std::ptr::from_ref(&*file) as u64);
        }
        client.close_open(file.ino, file.flags.access());
        saved.map(|()| 0)
    })
}

pub(crate) fn offset_of(offset: libc::off_t) -> FsResult<u64> {
    u64::try_from(offset).map_err(|_| FsError::with(Errno::EINVAL, format!("offset {offset} is negative")))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_pread(
    file: *mut File,
    buffer: *mut u8,
    count: usize,
    offset: libc::off_t,
) -> isize {
    answer(|| {
        // SAFETY: the header asks for an object and room for so many bytes.
        let (file, into) = unsafe { (pointers::object(file, "file")?, pointers::bytes_mut(buffer, count)?) };
        let read = file.readable()?.read(file.ino, offset_of(offset)?, into)?;
        assert!(read <= count, "{read} bytes were read into room for {count}");
        Ok(read as isize)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_pwrite(
    file: *mut File,
    buffer: *const u8,
    count: usize,
    offset: libc::off_t,
) -> isize {
    answer(|| {
        // SAFETY: the header asks for an object and so many bytes.
        let (file, data) = unsafe { (pointers::object(file, "file")?, pointers::bytes(buffer, count)?) };
        let (client, change) = (file.writable()?, file.shared.change()?);
        let written = client.write(&change.ctx, file.ino, offset_of(offset)?, data, file.flags.append)?;
        assert!(written <= count, "{written} of {count} bytes were written");
        Ok(written as isize)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_fsync(file: *mut File) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        file.shared.client()?.fsync(file.ino, false).map(|()| 0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_ftruncate(file: *mut File, size: libc::off_t) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let set = SetAttr { size: Some(offset_of(size)?), ..SetAttr::default() };
        let (client, change) = (file.writable()?, file.shared.change()?);
        client.setattr(&change.ctx, file.ino, &set).map(|_| 0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_fstat(file: *mut File, attributes: *mut libc::stat) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let stat = stat_of(&file.shared.client()?.getattr(file.ino)?);
        // SAFETY: the header asks for room for one.
        unsafe { pointers::place(attributes, "attributes", stat)? };
        Ok(0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_allocate(file: *mut File, offset: libc::off_t, count: libc::off_t) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object.
        let file = unsafe { pointers::object(file, "file")? };
        let (client, change) = (file.writable()?, file.shared.change()?);
        client.fallocate(&change.ctx, file.ino, 0, offset_of(offset)?, offset_of(count)?).map(|()| 0)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_fgetxattr(
    file: *mut File,
    name: *const c_char,
    value: *mut u8,
    size: usize,
) -> isize {
    answer(|| {
        // SAFETY: the header asks for an object, a text, and room for so many bytes.
        let (file, name, into) = unsafe {
            (
                pointers::object(file, "file")?,
                pointers::text(name, "name")?,
                pointers::bytes_mut(value, size)?,
            )
        };
        let found = file.shared.client()?.getxattr(file.ino, name)?;
        if size > 0 {
            into.get_mut(..found.len()).ok_or(Errno::ERANGE)?.copy_from_slice(&found);
        }
        Ok(found.len() as isize)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bivouac_fsetxattr(
    file: *mut File,
    name: *const c_char,
    value: *const u8,
    size: usize,
    flags: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: the header asks for an object, a text, and so many bytes.
        let (file, name, value) = unsafe {
            (pointers::object(file, "file")?, pointers::text(name, "name")?, pointers::bytes(value, size)?)
        };
        let (client, change) = (file.shared.client()?, file.shared.change()?);
        let flags = u32::try_from(flags).map_err(|_| Errno::EINVAL)?;
        client.setxattr(&change.ctx, file.ino, name, value, flags).map(|()| 0)
    })
}
