//! Names and attributes.

use std::io::IoSlice;
use std::time::Duration;

use bivouac_layout::entry_hash;
use bivouac_types::limits::{READDIR_BYTES_MAX, STRIPE_MIN};
use bivouac_types::put::NewFile;
use bivouac_types::{
    Attr, ByteRange, CONTRACT_XATTR, Errno, ExpectedFile, FsError, FsResult, Ino, Layout, NodeId, OpenId,
    POINT_XATTR, Refresh, SetAttr, Slot, TargetIndex, Timestamp, mode, parse_contract, parse_point,
};
use bivouac_wire::{
    DirEntry, EntryName, Found, InoOnly, LinkRequest, Made, MakeRequest, MakeUnnamedRequest, PutRequest,
    ReadDirRequest, RenameRequest, Seen, SetAttrRequest, SetXattrRequest, UnlinkRequest, XattrName, op,
};

use super::{Client, NewInode, O_RDWR, O_TRUNC, OpCtx, Opened};
use crate::connections::retry_in_progress;
use crate::homes::leases::ClientTime;
use crate::tokens::CallRange;

/// Most lookups of an entry whose inode was removed meanwhile.
const OVERTAKEN_MAX: usize = 64;
/// Lookups without a pause between; further ones are made with growing pauses.
const AT_ONCE: u32 = 4;
/// First and longest pause before an entry is looked at again. All together they are about half a second: what
/// replaces an entry takes a few messages.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));

/// Permissions to write.
const WRITABLE: u32 = 0o222;

impl Client {
    /// Returns the attributes of an entry.
    ///
    /// # Errors
    /// `ENOENT`, `ENAMETOOLONG`, `EIO` when a node cannot be reached.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.saw_name((parent, name), self.look_up(parent, name, |ino| self.getattr(ino)))
    }

    /// Like [`Client::lookup`], for a kernel: attributes that do not come with the entry are those of
    /// [`Client::getattr_cached`].
    pub fn lookup_cached(&self, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.saw_name((parent, name), self.look_up(parent, name, |ino| self.getattr_cached(ino)))
    }

    fn look_up(&self, parent: Ino, name: &[u8], ask: impl Fn(Ino) -> FsResult<Attr>) -> FsResult<Attr> {
        // No lease comes with it for the kernel: the thread has got none for this name.
        if self.names.lacks(parent, name) {
            return Err(Errno::ENOENT.into());
        }
        self.until_stable(|| {
            // From before the question: here the lease must not end later than at the node.
            let asked = self.homes.leases.now();
            let found = self.homes.at_entry(parent, name, false, |node, slot| {
                let found = self.connections.ask::<op::Lookup>(node, &EntryName { parent, name })?;
                self.found(slot, (parent, name), asked, &found);
                if found.is_there() { Ok(found) } else { Err(Errno::ENOENT.into()) }
            })?;
            // Times that this client has still to send are missing in these attributes.
            unless_gone(match found.attr {
                Some(attr) if !self.has_unsent_times(attr.ino) => {
                    self.partitions.note(&attr);
                    Ok(attr)
                }
                _ => ask(found.ino),
            })
        })
    }

    /// Looks at an entry again as long as it leads elsewhere by the time that its inode is asked for.
    fn until_stable<T>(&self, look: impl Fn() -> FsResult<Option<T>>) -> FsResult<T> {
        for turn in 0..OVERTAKEN_MAX as u32 {
            if let Some(stable) = look()? {
                return Ok(stable);
            }
            if let Some(doubled) = turn.checked_sub(AT_ONCE) {
                bivouac_net::pause((PAUSES.0 * (1 << doubled.min(16))).min(PAUSES.1));
            }
        }
        Err(FsError::with(
            Errno::EIO,
            format!(
                "an entry led to an inode that is not there {OVERTAKEN_MAX} times: the namespace is damaged"
            ),
        ))
    }

    /// Takes in the leases that come with an entry of a slot.
    fn found(&self, slot: Slot, (dir, name): (Ino, &[u8]), asked: ClientTime, found: &Found) {
        self.homes.leases.of_name(slot, (dir, entry_hash(dir, name)), asked, found.lease_ms);
        self.homes.leases.of_attrs(found.ino, asked, found.attr_lease_ms);
    }

    fn attr_of(&self, found: Found) -> FsResult<Attr> {
        match found.attr {
            Some(attr) if !self.has_unsent_times(attr.ino) => Ok(attr),
            _ => self.getattr(found.ino),
        }
    }

    /// Like [`Client::getattr`], for a kernel: attributes of a spread directory may be up to [`SPREAD_ATTR_MS`] old.
    pub fn getattr_cached(&self, ino: Ino) -> FsResult<Attr> {
        self.names.getattr_cached(ino, |ino| self.getattr(ino))
    }

    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// `ENOENT`, `EIO` when its home cannot be reached.
    pub fn getattr(&self, ino: Ino) -> FsResult<Attr> {
        self.sessions.try_send_unsent(ino);
        let attr = self.homes.attr(ino)?;
        Ok(Attr { size: attr.size.max(self.sessions.unsent_end(ino)), ..attr })
    }

    /// Changes attributes; cuts or extends a file.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL`, `EFBIG` for a size that cannot be; `ENOENT`, `EIO`.
    pub fn setattr(&self, ctx: &OpCtx, ino: Ino, set: &SetAttr) -> FsResult<Attr> {
        let _fenced = set.size.map(|_| self.locks.guard(ino)).transpose()?;
        // Before the change, of which the answer says the new size.
        let heard = set.size.and_then(|_| self.homes.size_heard(ino));
        let change = || {
            let (home, mut was_dirty) = (self.connections.home(ino)?, false);
            if set.mtime.is_some() {
                // The time that is set now is later than what the home has not heard of yet, or is hearing just now.
                was_dirty = self.known.take_dirty(ino);
                self.known.mtime_updates.wait(ino);
                // Again if that has failed.
                was_dirty |= self.known.take_dirty(ino);
            }
            let request = SetAttrRequest { ino, set: *set };
            let asked = self.homes.leases.now();
            let seen = self
                .homes
                .changing(ino, || self.connections.change::<op::SetAttr>(home, ctx, &request, &[]))
                .inspect_err(|error| {
                    // No time was set, so that of what was written has yet to be told. Without an answer it may have
                    // been set, and is not to become that of the close.
                    if was_dirty && error.errno() != Errno::EIO {
                        self.known.mark_dirty(ino);
                    }
                })?;
            Ok((asked, seen))
        };
        let changed = match set.size {
            Some(size) => {
                // From the smaller of both sizes on: what lies behind it is cut off, or becomes a part of the file.
                let behind = ByteRange::from(heard.map_or(size, |heard| heard.min(size)));
                self.tokens.covered(CallRange::write(ino, behind).of(ctx), |_| match size {
                    // Nothing that was written need arrive first, so a volume that is full does not keep a file from
                    // being emptied.
                    0 => self.sessions.cut_to_nothing(ino, change),
                    _ => self.sessions.past_pages(ino, change),
                })
            }
            None if set.mtime.is_some() => self.sessions.send_unsent(ino).and_then(|()| change()),
            None => change(),
        };
        let (asked, seen) = changed?;
        // One that makes the file longer changes no bytes.
        if let Some(size) = set.size.filter(|size| heard.is_none_or(|heard| heard > *size)) {
            self.changed_at_once(ino, ByteRange::from(size));
        }
        self.names.spread_dirs.forget(ino);
        let attr = self.homes.saw(asked, seen);
        if attr.is_file() {
            self.site.save_seen(&attr)?;
        }
        self.site.save_unopened(&attr)?;
        if set.mode.is_some_and(|mode| mode & WRITABLE == 0) {
            return Ok(self.laminate_unwritable(ctx, attr));
        }
        Ok(attr)
    }

    /// Makes and opens a regular file, or opens the one that is there.
    ///
    /// # Errors
    /// `EEXIST` if it exists and `exclusive`; `EISDIR`; `ENOENT`, `ENOTDIR`, `EIO`, also for a file that an earlier
    /// transmission made and another client has removed since.
    pub fn create(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        exclusive: bool,
        truncate: bool,
    ) -> FsResult<Opened> {
        let flags = if truncate { O_RDWR | O_TRUNC } else { O_RDWR };
        self.create_for(ctx, parent, name, new, exclusive, flags)
    }

    /// Like [`Client::create`], of a file that is opened with these flags if it is there; a new one is open for
    /// writing.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn create_for(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        exclusive: bool,
        flags: u32,
    ) -> FsResult<Opened> {
        let created = self.until_stable(|| {
            let opening = self.known.under_way.begin(true);
            let made = self.make(ctx, parent, name, new, Some(opening.id), exclusive)?;
            if made.existed {
                drop(opening);
                // Before a truncation by the open is reported: who gave the file this name came first.
                self.saw_name((parent, name), Ok(()))?;
                // A truncation is remembered: sent again, the `Make` would take that for what it has made.
                let opened = unless_gone(self.open(&ctx.further(1), made.found.ino, flags))?;
                return Ok(opened.map(|attr| Opened { attr, existed: true }));
            }
            let attr = self.attr_of(made.found).map_err(removed_before_its_open)?;
            self.known.add(attr.ino, opening.id);
            self.known.changed(&attr);
            self.refreshed(attr.ino, Refresh::Open);
            self.site.save_seen(&attr)?;
            Ok(Some(Opened { attr, existed: false }))
        });
        self.saw_name((parent, name), created)
    }

    /// Makes an inode of any kind, without opening it.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`, `EIO`.
    pub fn mknod(&self, ctx: &OpCtx, parent: Ino, name: &[u8], new: &NewInode<'_>) -> FsResult<Attr> {
        let made = self.saw_name((parent, name), self.make(ctx, parent, name, new, None, true))?;
        let ino = made.found.ino;
        let attr = match self.attr_of(made.found) {
            // An earlier try made it, and somebody has removed it since: it was made all the same.
            Err(error) if error.errno() == Errno::ENOENT => {
                return Ok(removed_since(ctx, ino, new));
            }
            found => found?,
        };
        self.site.save_seen(&attr)?;
        self.site.save_unopened(&attr).map(|()| attr)
    }

    fn make(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        open: Option<OpenId>,
        exclusive: bool,
    ) -> FsResult<Made> {
        let NewInode { mode, rdev, target } = *new;
        let near = if mode & mode::TYPE == mode::FILE { self.names.near_target() } else { None };
        let (uid, gid) = (ctx.uid, ctx.gid);
        let request = MakeRequest { parent, name, mode, uid, gid, rdev, target, open, exclusive, near };
        let asked = self.homes.leases.now();
        self.changing_names(&[(parent, name)]);
        let made = self.names.making(ctx, parent, name, |ctx| {
            self.homes.at_entry(parent, name, ctx.retry, |node, slot| {
                if open.is_some() {
                    self.opens.watch(node);
                }
                let made = self.connections.change::<op::Make>(node, ctx, &request, &[])?;
                self.found(slot, (parent, name), asked, &made.found);
                Ok(made)
            })
        })?;
        if !made.existed {
            self.names.spread_dirs.changed(parent, 1, i32::from(made.found.kind == mode::DIR));
        }
        Ok(made)
    }

    /// Makes a file with its content, permissions and time; who asks owns it. It is not open afterwards.
    ///
    /// # Errors
    /// `EEXIST`; `EACCES` for a directory that is not theirs; `EOPNOTSUPP` where it has to be made in steps: in large
    /// directories, those that pass on their group, and in front of site storage. `ENOENT`, `ENOSPC`, `EIO`: then there
    /// may be an empty file.
    pub fn put(&self, ctx: &OpCtx, parent: Ino, file: &NewFile<'_>) -> FsResult<Attr> {
        let NewFile { name, mode, mtime, content } = *file;
        let (uid, gid, near) = (ctx.uid, ctx.gid, self.names.near_target());
        let request = PutRequest { parent, name, mode, uid, gid, mtime, near };
        let asked = self.homes.leases.now();
        self.changing_names(&[(parent, name)]);
        let seen = self.names.making(ctx, parent, name, |ctx| {
            let payload = [IoSlice::new(content)];
            self.homes.at_entry(parent, name, ctx.retry, |node, _| {
                self.connections.change::<op::Put>(node, ctx, &request, &payload)
            })
        })?;
        self.names.spread_dirs.changed(parent, 1, 0);
        Ok(self.homes.saw(asked, seen))
    }

    /// Removes an entry that is not a directory.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EIO`.
    pub fn unlink(&self, ctx: &OpCtx, parent: Ino, name: &[u8]) -> FsResult<()> {
        self.unlink_entry(ctx, &UnlinkRequest { parent, name, expect: None })
    }

    /// Removes an entry that leads to a certain file, with a certain content if one is given. The home compares and
    /// removes in one step.
    ///
    /// # Errors
    /// `ECANCELED` if it leads to another file, or the content has changed; otherwise as [`Client::unlink`].
    pub fn unlink_expected(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        expected: ExpectedFile,
    ) -> FsResult<()> {
        self.unlink_entry(ctx, &UnlinkRequest { parent, name, expect: Some(expected) })
    }

    fn unlink_entry(&self, ctx: &OpCtx, request: &UnlinkRequest<'_>) -> FsResult<()> {
        self.remove(ctx, request.parent, request.name, 0, |node| {
            // Its node would keep the content of what this client has closed, and not told yet.
            self.opens.send(Some(node));
            self.connections.change::<op::Unlink>(node, ctx, request, &[])
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EIO`.
    pub fn rmdir(&self, ctx: &OpCtx, parent: Ino, name: &[u8]) -> FsResult<()> {
        let change = |node| self.connections.change::<op::Rmdir>(node, ctx, &EntryName { parent, name }, &[]);
        self.remove(ctx, parent, name, -1, change)
    }

    fn remove(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        subdirs: i32,
        change: impl Fn(NodeId) -> FsResult<()>,
    ) -> FsResult<()> {
        let remove = || self.homes.at_entry(parent, name, ctx.retry, |node, _| change(node));
        self.changing_names(&[(parent, name)]);
        self.saw_name((parent, name), self.names.removing(ctx, parent, name, remove))?;
        self.names.spread_dirs.changed(parent, -1, subdirs);
        self.site.save_removed(parent, name)
    }

    /// Moves an entry. `flags` are the kernel's.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`, `EINVAL` for a directory into itself, `EIO`.
    pub fn rename(
        &self,
        ctx: &OpCtx,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        flags: u32,
    ) -> FsResult<()> {
        self.move_entry(ctx, &RenameRequest { parent, name, new_parent, new_name, flags, expect: None })
    }

    /// Moves a file over another one, if that is the expected one: its home compares and replaces in one step.
    ///
    /// # Errors
    /// `ECANCELED` if the new name leads to another file or to nothing, or to a content that is not known to be the
    /// expected one; nothing has changed then. Otherwise as [`Client::rename`].
    pub fn rename_over(
        &self,
        ctx: &OpCtx,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        expected: ExpectedFile,
    ) -> FsResult<()> {
        let (flags, expect) = (0, Some(expected));
        self.move_entry(ctx, &RenameRequest { parent, name, new_parent, new_name, flags, expect })
    }

    fn move_entry(&self, ctx: &OpCtx, request: &RenameRequest<'_>) -> FsResult<()> {
        let RenameRequest { parent, name, new_parent, new_name, .. } = *request;
        // Before it is asked for: who sees a new name must find that reported already.
        self.changing_names(&[(parent, name), (new_parent, new_name)]);
        let moved = self.names.making(ctx, new_parent, new_name, |ctx| {
            self.homes.at_entry(parent, name, ctx.retry, |node, _| {
                self.opens.send(Some(node));
                self.connections.change::<op::Rename>(node, ctx, request, &[])
            })
        });
        self.saw_name((parent, name), self.saw_name((new_parent, new_name), moved))?;
        // What it replaced is not known here.
        self.names.spread_dirs.forget(parent);
        self.names.spread_dirs.forget(new_parent);
        self.site.save_named(new_parent, || self.lookup(new_parent, new_name))?;
        self.site.save_removed(parent, name)
    }

    /// Makes one more name for an inode.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a directory, `EMLINK`, `ENOENT`, `EIO`.
    pub fn link(&self, ctx: &OpCtx, ino: Ino, new_parent: Ino, new_name: &[u8]) -> FsResult<Attr> {
        let request = LinkRequest { ino, parent: new_parent, name: new_name };
        let (home, asked) = (self.connections.home(ino)?, self.homes.leases.now());
        self.changing_names(&[(new_parent, new_name)]);
        let linked = self.names.making(ctx, new_parent, new_name, |ctx| {
            self.homes.at_entry(new_parent, new_name, ctx.retry, |node, _| {
                let seen = self.connections.change::<op::Link>(node, ctx, &request, &[])?;
                // Only the inode's home can promise anything of its attributes.
                Ok(if node == home { seen } else { Seen { lease_ms: 0, ..seen } })
            })
        });
        let seen = self.saw_name((new_parent, new_name), linked)?;
        self.names.spread_dirs.changed(new_parent, 1, 0);
        let attr = self.homes.saw(asked, seen);
        self.site.save_named(new_parent, || Ok(attr))?;
        Ok(attr)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` for anything else; `ENOENT`, `EIO`.
    pub fn readlink(&self, ino: Ino) -> FsResult<Vec<u8>> {
        Ok(self.connections.ask::<op::ReadLink>(self.connections.home(ino)?, &InoOnly { ino })?.bytes)
    }

    /// Makes and opens a regular file without a name; `linkable` says whether it may get one later.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOSPC`, `EIO`.
    pub fn tmpfile(&self, ctx: &OpCtx, parent: Ino, new: &NewInode<'_>, linkable: bool) -> FsResult<Attr> {
        let (mode, uid, gid, near) = (new.mode, ctx.uid, ctx.gid, self.names.near_target());
        let (home, asked) = (self.connections.home(parent)?, self.homes.leases.now());
        self.opens.watch(home);
        let opening = self.known.under_way.begin(true);
        let open = opening.id;
        let request = MakeUnnamedRequest { parent, mode, uid, gid, linkable, open, near };
        let make = |ctx: &OpCtx| self.connections.change::<op::MakeUnnamed>(home, ctx, &request, &[]);
        let seen = self.names.reclaimer.retry_after_reclaim(ctx.repeatable(make))?;
        self.known.add(seen.attr.ino, open);
        self.refreshed(seen.attr.ino, Refresh::Open);
        Ok(self.homes.saw(asked, seen))
    }

    /// Returns the entries behind a cookie (0: from the start), without `.` and `..`; none at the end. An entry's own
    /// cookie is where to go on behind it.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOENT`, `EIO`.
    pub fn readdir(&self, ino: Ino, cookie: u64, max_bytes: usize, attrs: bool) -> FsResult<Vec<DirEntry>> {
        let max_bytes = max_bytes.min(READDIR_BYTES_MAX) as u32;
        let request =
            ReadDirRequest { ino, cookie, max_bytes, attrs, shard: false, here: false, each: false };
        let entries = self.list(&request)?;
        self.saw_names(ino);
        Ok(entries)
    }

    /// Like [`Client::readdir`], without entries that exist at site storage only.
    pub fn readdir_here(&self, ino: Ino, cookie: u64) -> FsResult<Vec<DirEntry>> {
        let max_bytes = READDIR_BYTES_MAX as u32;
        self.list(&ReadDirRequest {
            ino,
            cookie,
            max_bytes,
            attrs: true,
            shard: false,
            here: true,
            each: false,
        })
    }

    fn list(&self, request: &ReadDirRequest) -> FsResult<Vec<DirEntry>> {
        let mut page = retry_in_progress(|| self.homes.dir_page(request))?;
        for entry in &mut page.entries {
            // Without attributes a kernel asks for them, and gets what this client has yet to send.
            entry.attr = entry.attr.filter(|attr| !self.has_unsent_times(attr.ino));
        }
        Ok(page.entries)
    }

    /// Returns the value of an attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EOPNOTSUPP` for access control lists, `ENOENT`, `EIO`.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        Ok(self.connections.ask::<op::GetXattr>(self.connections.home(ino)?, &XattrName { ino, name })?.bytes)
    }

    /// Returns the names of all attributes, each with a NUL behind it.
    ///
    /// # Errors
    /// `ENOENT`, `EIO`.
    pub fn listxattr(&self, ino: Ino) -> FsResult<Vec<u8>> {
        Ok(self.connections.ask::<op::ListXattr>(self.connections.home(ino)?, &InoOnly { ino })?.bytes)
    }

    /// Sets an attribute; `flags` are the kernel's.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA` as the flags ask; `E2BIG`, `ENOSPC`, `EINVAL` for a layout that cannot be, `EIO`.
    pub fn setxattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8], value: &[u8], flags: u32) -> FsResult<()> {
        if name == CONTRACT_XATTR {
            let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
            let contract = parse_contract(text).map_err(|text| FsError::with(Errno::EINVAL, text))?;
            return self.choose_contract(ctx, ino, contract, flags).map(drop);
        }
        if name == POINT_XATTR {
            let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
            let event = parse_point(text).map_err(|text| FsError::with(Errno::EINVAL, text))?;
            self.report([event]);
            return Ok(());
        }
        let request = SetXattrRequest { ino, name, value, flags };
        let home = self.connections.home(ino)?;
        let set = |ctx: &OpCtx| self.connections.change::<op::SetXattr>(home, ctx, &request, &[]);
        self.names.reclaimer.retry_after_reclaim(ctx.repeatable(set))
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `ENODATA`, `ENOENT`, `EIO`.
    pub fn removexattr(&self, ctx: &OpCtx, ino: Ino, name: &[u8]) -> FsResult<()> {
        if name == CONTRACT_XATTR {
            return self.set_contract(ctx, ino, None).map(drop);
        }
        self.connections.change::<op::RemoveXattr>(
            self.connections.home(ino)?,
            ctx,
            &XattrName { ino, name },
            &[],
        )
    }

    /// Returns the directory that holds a directory.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENOENT`, `EIO`.
    pub fn parent(&self, ino: Ino) -> FsResult<Ino> {
        self.connections.ask::<op::Parent>(self.connections.home(ino)?, &InoOnly { ino })
    }

    /// Returns the inode at a path below the root; symbolic links are not followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EIO`.
    pub fn resolve(&self, path: &[u8]) -> FsResult<Attr> {
        let mut attr = self.getattr(Ino::ROOT)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            if !attr.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            attr = self.lookup(attr.ino, name)?;
        }
        Ok(attr)
    }
}

/// Turns `ENOENT` into `None`.
fn unless_gone<T>(outcome: FsResult<T>) -> FsResult<Option<T>> {
    match outcome {
        Err(error) if error.errno() == Errno::ENOENT => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Returns the error of an opening create whose file is gone: there is nothing to open, and ENOENT would speak of the
/// directory.
fn removed_before_its_open(error: FsError) -> FsError {
    match error.errno() {
        Errno::ENOENT => FsError::with(
            Errno::EIO,
            "the file was made, and another client has removed it before it could be opened",
        ),
        _ => error,
    }
}

/// Returns attributes for an inode that was made and has been removed since.
fn removed_since(ctx: &OpCtx, ino: Ino, new: &NewInode<'_>) -> Attr {
    let NewInode { mode, rdev, target } = *new;
    let layout = Layout { stripe: STRIPE_MIN, width: 1, base: TargetIndex(0), targets: 1 };
    Attr {
        nlink: 0,
        uid: ctx.uid,
        gid: ctx.gid,
        rdev,
        size: target.len() as u64,
        ..Attr::new(ino, mode, layout, Timestamp::default())
    }
}
