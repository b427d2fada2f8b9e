//! `Rename`: driven by the node of the source entry.

use bivouac_types::{Errno, ExpectedFile, FsError, FsResult, Ino, Name, NodeId, PartitionId, Slot, mode};
use bivouac_wire::{EntryName, Found, InoOnly, RenameRequest, op};

use crate::directory::EntryPlace;
use crate::intent_record::{Intent, Move};
use crate::locks::LockTarget;
use crate::namespace::Change;
use crate::node::Node;
use crate::peers::StepContext;
use crate::reaper::Pause;
use crate::record::{Dentry, Inode};
use crate::session::Ctx;
use crate::step::Handle;
use bivouac_session::Item;

/// `RENAME_NOREPLACE` of the kernel.
const NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE` of the kernel.
const EXCHANGE: u32 = 2;
/// Another directory has got the name, so that another turn at moving directories is needed. Never sent to clients.
const OTHER_DIR: Errno = Errno::EDEADLK;
/// Depth at which a walk to the root is taken for a cycle, which is damage.
const DEPTH_MAX: usize = 100_000;

/// A rename with checked names.
struct CheckedRename<'a> {
    request: &'a RenameRequest<'a>,
    name: Name,
    new_name: Name,
    /// The turn at moving directories, and the directory that it was checked for.
    turn: Option<(u64, Ino)>,
}

impl Handle for op::Rename {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: RenameRequest<'_>) -> FsResult<()> {
        if request.flags & !(NOREPLACE | EXCHANGE) != 0 || request.flags == NOREPLACE | EXCHANGE {
            return Err(Errno::EINVAL.into());
        }
        if request.flags != 0 && request.expect.is_some() {
            return Err(Errno::EINVAL.into());
        }
        let (name, new_name) = (Name::new(request.name)?, Name::new(request.new_name)?);
        node.bring_entries(request.parent)?;
        node.bring_entries(request.new_parent)?;
        let mut wanted = CheckedRename { request: &request, name, new_name, turn: None };
        let mut pause = node.pause();
        loop {
            match node.with_room_for_names(ctx, || node.rename(ctx, &mut wanted)) {
                Err(error) if error.errno() == OTHER_DIR => {
                    if !pause.wait() {
                        return Err(Errno::EBUSY.into());
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

impl Node {
    /// Renames, within a turn at moving directories if it moves one. Returns [`OTHER_DIR`] if that is another directory
    /// than the one checked.
    fn rename(&self, ctx: &Ctx<'_>, wanted: &mut CheckedRename<'_>) -> FsResult<()> {
        let request = wanted.request;
        // The turn of an earlier attempt has been given back: an intent must not keep it.
        wanted.turn = None;
        let Some(source) = self.rename_source(ctx, wanted)? else { return Ok(()) };
        if let Some(dir) = source.filter(|source| source.kind == mode::DIR) {
            self.check_movable(dir.ino)?;
        }
        // Only a directory that changes its parent can become its own ancestor; an exchange may move one in either
        // direction.
        let across = source.is_some_and(|d| d.kind == mode::DIR) && request.parent != request.new_parent;
        if !across && request.flags & EXCHANGE == 0 {
            return self.patiently(|| self.rename_locked(ctx, wanted));
        }
        self.with_moves_lock(|ticket| {
            let Some(source) = self.rename_source(ctx, wanted)? else { return Ok(()) };
            // Within the turn: no other directory changes its parent while the way to the root is walked.
            self.check_no_loop(ctx, source, request.new_parent)?;
            wanted.turn = source.map(|source| (ticket, source.ino));
            self.patiently(|| self.rename_locked(ctx, wanted))
        })
    }
}

impl Node {
    /// Returns the entry to be moved, if it exists; `None` if the rename was carried out before.
    fn rename_source(&self, ctx: &Ctx<'_>, wanted: &CheckedRename<'_>) -> FsResult<Option<Option<Dentry>>> {
        let (dir, name) = (wanted.request.parent, &wanted.name);
        // A spreading between the two looks would move what the second one looks for.
        let _dir = self.owns(dir.slot()).then(|| self.locks.lock(LockTarget::Dir(dir))).transpose()?;
        match self.entry_done_before(ctx, dir, name)? {
            Some(_) => {
                self.tell_again(ctx, wanted.request.new_parent);
                Ok(None)
            }
            None => Ok(Some(self.look_up(dir, name)?.0)),
        }
    }

    /// Repeats `act` while other requests interfere between its checks and its change, up to the grace time.
    ///
    /// # Errors
    /// `EBUSY` after that time.
    pub(super) fn patiently<T>(&self, act: impl Fn() -> FsResult<T>) -> FsResult<T> {
        let mut pause = None;
        loop {
            match act() {
                Err(error) if is_overtaken(&error) => {
                    if !pause.get_or_insert_with(|| self.pause()).wait() {
                        return Err(FsError::with(Errno::EBUSY, error.to_string()));
                    }
                }
                outcome => return outcome,
            }
        }
    }

    pub(super) fn pause(&self) -> Pause {
        Pause::new(self.reaper.grace(), u32::from(self.id.0))
    }

    fn rename_locked(&self, ctx: &Ctx<'_>, wanted: &CheckedRename<'_>) -> FsResult<()> {
        let request = wanted.request;
        let (parent, new_parent) = (request.parent, request.new_parent);
        let _entries = self.lock_entries(&[(parent, &wanted.name), (new_parent, &wanted.new_name)])?;
        if self.entry_done_before(ctx, parent, &wanted.name)?.is_some() {
            self.tell_again(ctx, new_parent);
            return Ok(());
        }
        let place = self.place(parent, &wanted.name)?;
        let source = self.dentry(&place)?.ok_or(Errno::ENOENT)?;
        // Checked under the locks: the name may lead to another directory than when the turn was taken.
        let moves = source.kind == mode::DIR && parent != new_parent;
        if moves && wanted.turn.is_none_or(|(_, checked)| checked != source.ino) {
            return Err(OTHER_DIR.into());
        }
        let (target, node) = self.look_up_anywhere(ctx, new_parent, &wanted.new_name)?;
        let exchange = request.flags & EXCHANGE != 0;
        if exchange && let Some(dir) = Some(target.ok_or(Errno::ENOENT)?).filter(|dir| dir.kind == mode::DIR)
        {
            // Before anything is moved: the way back would have it forget what its source has.
            self.check_movable(dir.ino)?;
            self.check_no_loop(ctx, target, parent)?;
        }
        if let Some(expected) = request.expect {
            self.check_expected(ctx, target, &expected)?;
        }
        if !may_replace(source, target, request.flags)? {
            return Ok(());
        }
        if let Some(replaced) = target.filter(|target| !exchange && target.kind == mode::FILE) {
            self.check_replaceable(ctx, replaced)?;
        }
        if node == self.id && self.all_here([Some(source), target]) {
            let new_place = self.place(new_parent, &wanted.new_name)?;
            match self.rename_here(ctx, wanted, (&place, source), (&new_place, target)) {
                // A spread directory is to be replaced, which all nodes have shards of.
                Err(error) if error.errno() == Errno::EREMOTE => {}
                outcome => return outcome,
            }
        }
        let partition = self.inherited(&place)?.layout.partition();
        self.carry_out(ctx, place.slot, Intent::Rename(wanted.to_move(source, target, partition)))
    }

    /// Renames in one transaction, where all records are this node's.
    fn rename_here(
        &self,
        ctx: &Ctx<'_>,
        wanted: &CheckedRename<'_>,
        (place, source): (&EntryPlace, Dentry),
        (new_place, target): (&EntryPlace, Option<Dentry>),
    ) -> FsResult<()> {
        let request = wanted.request;
        let mut slots: Vec<Slot> = [place.slots(), new_place.slots()].concat();
        slots.push(source.ino.slot());
        slots.extend(target.map(|target| target.ino.slot()));
        let mut items = [place.items(), new_place.items()].concat();
        items.push(Item::Attrs(source.ino));
        items.extend(target.map(|target| Item::Attrs(target.ino)));
        let mut change = self.change_at(&slots, &items)?;
        self.callbacks.moves_to(ctx.origin, new_place.name_item());
        if request.flags & EXCHANGE != 0 {
            self.callbacks.moves_to(ctx.origin, place.name_item());
        }
        // Looked up before the slots were locked: both names may lead elsewhere by now.
        if change.dentry(place)? != Some(source) || change.dentry(new_place)? != target {
            return Err(Errno::EBUSY.into());
        }
        if change.directory(place)?.partition() != change.directory(new_place)?.partition() {
            return Err(Errno::EXDEV.into());
        }
        if let Some(expected) = request.expect {
            self.check_expected_in(&change, target, &expected)?;
        }
        if let Some(replaced) = target.filter(|_| request.flags & EXCHANGE == 0) {
            change.inode(replaced.ino)?.attr.check_changeable()?;
        }
        // Not `must_fit`: moves have to succeed where there is no memory to create anything.
        change.txn.bound_growth();
        match target {
            Some(target) if request.flags & EXCHANGE != 0 => {
                change.exchange((place, source), (new_place, target))?;
            }
            _ => change.move_over((place, source), (new_place, target))?,
        }
        if let Some(target) = target.filter(|_| request.flags & EXCHANGE != 0) {
            change.moved_to(target.ino, request.parent, request.name, false)?;
            change.note_name_gone(target.ino, request.new_parent, request.new_name)?;
        }
        change.moved_to(source.ino, request.new_parent, request.new_name, false)?;
        change.note_name_gone(source.ino, request.parent, request.name)?;
        change.commit_for(ctx, place.slot, 0)
    }

    /// Refuses to replace a laminated file: its readers under that name would get other content.
    fn check_replaceable(&self, ctx: &Ctx<'_>, replaced: Dentry) -> FsResult<()> {
        match self.attr_of(ctx, replaced.ino) {
            Ok(attr) => attr.check_changeable(),
            // It is being removed; what its name leads to then is compared with what was found here.
            Err(error) if error.errno() == Errno::ENOENT => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Refuses a change whose condition is not met by what the name leads to. If that file's home is here, it is
    /// checked again in the transaction that replaces or removes it.
    pub(super) fn check_expected(
        &self,
        ctx: &Ctx<'_>,
        target: Option<Dentry>,
        expected: &ExpectedFile,
    ) -> FsResult<()> {
        let Some(target) = target.filter(|target| target.ino == expected.ino) else {
            return Err(unexpected());
        };
        match self.attr_of(ctx, target.ino) {
            Ok(found) if expected.is_met_by(&found) => Ok(()),
            Ok(_) => Err(unexpected()),
            Err(error) if error.errno() == Errno::ENOENT => Err(unexpected()),
            Err(error) => Err(error),
        }
    }

    /// Like [`Node::check_expected`], for a file of this node, in the transaction that replaces or removes it.
    pub(super) fn check_expected_in(
        &self,
        change: &Change<'_>,
        target: Option<Dentry>,
        expected: &ExpectedFile,
    ) -> FsResult<()> {
        // A client may have written to it since, or may write without a message from now on.
        if expected.data_version.is_some() && self.may_be_written(expected.ino) {
            return Err(unexpected());
        }
        met(expected, target.map(|target| change.inode(target.ino)).transpose()?)
    }

    fn all_here(&self, dentries: [Option<Dentry>; 2]) -> bool {
        dentries.into_iter().flatten().all(|dentry| self.map.home(dentry.ino) == Some(self.id))
    }

    /// Looks up an entry in any node's directory, and returns the node that the entry is on as well.
    fn look_up_anywhere(&self, ctx: &Ctx<'_>, dir: Ino, name: &Name) -> FsResult<(Option<Dentry>, NodeId)> {
        self.at_entry(dir, name, |node| {
            let question = EntryName { parent: dir, name: name.as_bytes() };
            match self.step::<op::Lookup>(node, StepContext::question(ctx.origin), 0, question) {
                Ok(Found { ino, kind, .. }) => Ok((Some(Dentry { ino, kind }), node)),
                Err(error) if error.errno() == Errno::ENOENT => Ok((None, node)),
                Err(error) => Err(error),
            }
        })
    }

    /// Refuses to move a directory into itself or below it.
    fn check_no_loop(&self, ctx: &Ctx<'_>, source: Option<Dentry>, new_parent: Ino) -> FsResult<()> {
        let Some(source) = source else { return Ok(()) };
        let mut ino = new_parent;
        for _ in 0..DEPTH_MAX {
            if ino == source.ino {
                return Err(Errno::EINVAL.into());
            }
            if ino == Ino::ROOT {
                return Ok(());
            }
            ino = self.step::<op::Parent>(
                self.home_of(ino)?,
                StepContext::question(ctx.origin),
                0,
                InoOnly { ino },
            )?;
        }
        Err(FsError::with(
            Errno::EIO,
            format!("directory {new_parent} has no way to the root: the namespace is damaged"),
        ))
    }
}

impl Change<'_> {
    /// Makes the new name lead to the inode of the old name, which is removed.
    fn move_over(
        &mut self,
        (place, source): (&EntryPlace, Dentry),
        (new_place, target): (&EntryPlace, Option<Dentry>),
    ) -> FsResult<()> {
        match target {
            Some(target) if target.kind == mode::DIR => drop(self.remove_dir(target.ino, false)?),
            Some(target) => {
                self.note_name_gone(target.ino, new_place.dir, new_place.name())?;
                self.replace_link(target.ino, -1)?;
            }
            None => {}
        }
        let mut new_parent = self.directory(new_place)?;
        match target {
            Some(target) => self.replace_entry(&mut new_parent, new_place, target, source),
            None => self.add_entry(&mut new_parent, new_place, source),
        }
        // Read only now: both names may be in one directory, whose record has just been changed.
        let mut parent = self.directory(place)?;
        self.remove_entry(&mut parent, place, source);
        Ok(())
    }

    /// Exchanges the inodes that two names lead to.
    fn exchange(
        &mut self,
        (place, source): (&EntryPlace, Dentry),
        (new_place, target): (&EntryPlace, Dentry),
    ) -> FsResult<()> {
        let mut new_parent = self.directory(new_place)?;
        self.replace_entry(&mut new_parent, new_place, target, source);
        // Read only now, as in `move_over`.
        let mut parent = self.directory(place)?;
        self.replace_entry(&mut parent, place, source, target);
        Ok(())
    }
}

impl CheckedRename<'_> {
    fn to_move(&self, source: Dentry, target: Option<Dentry>, partition: PartitionId) -> Move {
        Move {
            parent: self.request.parent,
            name: self.name.as_bytes().to_vec(),
            new_parent: self.request.new_parent,
            new_name: self.new_name.as_bytes().to_vec(),
            ino: source.ino,
            kind: source.kind,
            replaced: target.map(|target| target.ino),
            replaced_kind: target.map_or(0, |target| target.kind),
            expect_version: self.request.expect.and_then(|expected| expected.data_version),
            exchange: self.request.flags & EXCHANGE != 0,
            turn: self.turn.map_or(0, |(ticket, _)| ticket),
            partition,
        }
    }
}

/// Refuses any file but the expected one.
fn met(expected: &ExpectedFile, found: Option<Inode>) -> FsResult<()> {
    match found {
        Some(found) if expected.is_met_by(&found.attr) => Ok(()),
        _ => Err(unexpected()),
    }
}

/// Returns the error of a rename or an unlink whose condition does not hold.
pub(super) fn unexpected() -> FsError {
    FsError::with(
        Errno::ECANCELED,
        "the name leads to another file than expected, or its content has changed",
    )
}

/// Returns true if another request was at the same entries.
fn is_overtaken(error: &FsError) -> bool {
    matches!(error.errno(), Errno::EBUSY | Errno::EAGAIN)
}

/// Returns true if there is anything to do, by POSIX's rules for what may replace what.
fn may_replace(source: Dentry, target: Option<Dentry>, flags: u32) -> FsResult<bool> {
    let Some(target) = target else { return Ok(true) };
    if flags & NOREPLACE != 0 {
        return Err(Errno::EEXIST.into());
    }
    // Two names of one inode: POSIX has rename do nothing, and succeed.
    if source.ino == target.ino {
        return Ok(false);
    }
    if flags & EXCHANGE != 0 {
        return Ok(true);
    }
    match (source.kind == mode::DIR, target.kind == mode::DIR) {
        (true, false) => Err(Errno::ENOTDIR.into()),
        (false, true) => Err(Errno::EISDIR.into()),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_replace_what() {
        let dir = |ino| Dentry { ino: Ino(ino), kind: mode::DIR };
        let file = |ino| Dentry { ino: Ino(ino), kind: mode::FILE };
        let ask = |s, t, flags| may_replace(s, t, flags).map_err(|e| e.errno());
        assert_eq!(ask(file(1), None, NOREPLACE), Ok(true));
        assert_eq!(ask(file(1), Some(file(2)), 0), Ok(true));
        assert_eq!(ask(file(1), Some(file(1)), 0), Ok(false));
        assert_eq!(ask(file(1), Some(file(2)), NOREPLACE), Err(Errno::EEXIST));
        assert_eq!(ask(dir(1), Some(file(2)), 0), Err(Errno::ENOTDIR));
        assert_eq!(ask(file(1), Some(dir(2)), 0), Err(Errno::EISDIR));
        assert_eq!(ask(dir(1), Some(dir(2)), 0), Ok(true));
    }
}
