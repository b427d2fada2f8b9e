//! `Rename`: driven by the node of the source entry.

use bivouac_layout::entry_hash;
use bivouac_types::{Errno, FsError, FsResult, Ino, Name, Slot, mode};
use bivouac_wire::{EntryName, Found, InoOnly, RenameRequest, op};

use crate::dispatch::Handle;
use crate::intent::{Intent, Move};
use crate::locks::Target;
use crate::namespace::entry_slot;
use crate::node::Node;
use crate::peers::Steps;
use crate::reaper::Pause;
use crate::record::Dentry;
use crate::session::Ctx;

/// `RENAME_NOREPLACE` of the kernel.
const NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE` of the kernel.
const EXCHANGE: u32 = 2;
/// How deep a tree may be before a walk to the root is taken for damage.
const DEPTH_MAX: usize = 100_000;

/// A rename with checked names.
struct Wanted<'a> {
    request: &'a RenameRequest<'a>,
    name: Name,
    new_name: Name,
    /// The turn at moving directories, and the directory that may be moved in it.
    turn: Option<(u64, Ino)>,
}

impl Handle for op::Rename {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: RenameRequest<'_>) -> FsResult<()> {
        if request.flags & !(NOREPLACE | EXCHANGE) != 0 || request.flags == NOREPLACE | EXCHANGE {
            return Err(Errno::EINVAL.into());
        }
        let (name, new_name) = (Name::new(request.name)?, Name::new(request.new_name)?);
        let mut wanted = Wanted { request: &request, name, new_name, turn: None };
        node.check_slot(entry_slot(request.parent))?;
        let mut pause = node.pause();
        loop {
            match node.rename(ctx, &mut wanted) {
                // Another directory has come to the name meanwhile.
                Err(error) if error.errno() == Errno::EXDEV && pause.wait() => {}
                outcome => return outcome,
            }
        }
    }
}

impl Node {
    /// Renames, in a turn at moving directories if it moves one; `EXDEV` if that is another one than it was.
    fn rename(&self, ctx: &Ctx<'_>, wanted: &mut Wanted<'_>) -> FsResult<()> {
        let request = wanted.request;
        let source = self.dentry(request.parent, &wanted.name)?;
        let across = source.is_some_and(|d| d.kind == mode::DIR) && request.parent != request.new_parent;
        if !across && request.flags & EXCHANGE == 0 {
            return self.rename_patiently(ctx, wanted);
        }
        self.with_moves_lock(|ticket| {
            let source = self.dentry(request.parent, &wanted.name)?;
            self.check_no_loop(ctx, source, request.new_parent)?;
            wanted.turn = source.map(|source| (ticket, source.ino));
            self.rename_patiently(ctx, wanted)
        })
    }
}

impl Node {
    /// Steps of other nodes may change the target between a look and the change; then the look is repeated.
    fn rename_patiently(&self, ctx: &Ctx<'_>, wanted: &Wanted<'_>) -> FsResult<()> {
        let mut pause = self.pause();
        loop {
            match self.rename_locked(ctx, wanted) {
                Err(error) if is_overtaken(&error) && pause.wait() => {}
                outcome => return outcome,
            }
        }
    }

    pub(super) fn pause(&self) -> Pause {
        Pause::new(self.reaper.grace(), u32::from(self.id.0))
    }

    fn rename_locked(&self, ctx: &Ctx<'_>, wanted: &Wanted<'_>) -> FsResult<()> {
        let request = wanted.request;
        let entry = |parent: Ino, name: &Name| Target::Entry(parent, entry_hash(parent, name.as_bytes()));
        let targets = [entry(request.parent, &wanted.name), entry(request.new_parent, &wanted.new_name)];
        let _entries = self.locks.lock_all(&targets)?;
        if ctx.done_before(&self.records, entry_slot(request.parent))?.is_some() {
            return Ok(());
        }
        let source = self.dentry(request.parent, &wanted.name)?.ok_or(Errno::ENOENT)?;
        let moves = source.kind == mode::DIR && request.parent != request.new_parent;
        if moves && wanted.turn.is_none_or(|(_, checked)| checked != source.ino) {
            return Err(Errno::EXDEV.into());
        }
        let target = self.look_up_anywhere(ctx, request.new_parent, &wanted.new_name)?;
        if request.flags & EXCHANGE != 0 {
            return self.exchange(ctx, wanted, source, target.ok_or(Errno::ENOENT)?);
        }
        if !may_replace(source, target, request.flags)? {
            return Ok(());
        }
        let mut inodes = vec![request.parent, request.new_parent, source.ino];
        inodes.extend(target.map(|target| target.ino));
        if self.all_here(&inodes) {
            return self.rename_here(ctx, wanted, &inodes, source, target);
        }
        self.carry_out(ctx, Intent::Rename(wanted.to_move(source, target)))
    }

    /// All records are this node's: one transaction.
    fn rename_here(
        &self,
        ctx: &Ctx<'_>,
        wanted: &Wanted<'_>,
        inodes: &[Ino],
        source: Dentry,
        target: Option<Dentry>,
    ) -> FsResult<()> {
        let request = wanted.request;
        let slots: Vec<Slot> = inodes.iter().map(|ino| ino.slot()).collect();
        let mut change = self.change(&slots)?;
        if change.dentry(request.parent, &wanted.name)? != Some(source)
            || change.dentry(request.new_parent, &wanted.new_name)? != target
        {
            return Err(Errno::EBUSY.into());
        }
        match target {
            Some(target) if target.kind == mode::DIR => drop(change.remove_dir(target.ino)?),
            Some(target) => drop(change.replace_link(target.ino, -1)?),
            None => {}
        }
        let mut new_parent = change.directory(request.new_parent)?;
        match target {
            Some(target) => change.replace_entry(&mut new_parent, &wanted.new_name, target, source),
            None => change.add_entry(&mut new_parent, &wanted.new_name, source),
        }
        let mut parent = change.directory(request.parent)?;
        change.remove_entry(&mut parent, &wanted.name, source);
        change.moved_to(source.ino, request.new_parent)?;
        change.commit_for(ctx, entry_slot(request.parent), 0)
    }

    /// Swaps two entries whose records are all this node's.
    fn exchange(&self, ctx: &Ctx<'_>, wanted: &Wanted<'_>, source: Dentry, target: Dentry) -> FsResult<()> {
        let request = wanted.request;
        let inodes = [request.parent, request.new_parent, source.ino, target.ino];
        if !self.all_here(&inodes) {
            return Err(FsError::with(
                Errno::EINVAL,
                "exchange of entries on different nodes: rename by three steps",
            ));
        }
        if target.kind == mode::DIR {
            self.check_no_loop(ctx, Some(target), request.parent)?;
        }
        let slots: Vec<Slot> = inodes.iter().map(|ino| ino.slot()).collect();
        let mut change = self.change(&slots)?;
        if change.dentry(request.parent, &wanted.name)? != Some(source)
            || change.dentry(request.new_parent, &wanted.new_name)? != Some(target)
        {
            return Err(Errno::EBUSY.into());
        }
        let mut new_parent = change.directory(request.new_parent)?;
        change.replace_entry(&mut new_parent, &wanted.new_name, target, source);
        let mut parent = change.directory(request.parent)?;
        change.replace_entry(&mut parent, &wanted.name, source, target);
        change.moved_to(source.ino, request.new_parent)?;
        change.moved_to(target.ino, request.parent)?;
        change.commit_for(ctx, entry_slot(request.parent), 0)
    }

    fn all_here(&self, inodes: &[Ino]) -> bool {
        inodes.iter().all(|ino| self.map.home(*ino) == Some(self.id))
    }

    /// An entry of any node's directory.
    fn look_up_anywhere(&self, ctx: &Ctx<'_>, parent: Ino, name: &Name) -> FsResult<Option<Dentry>> {
        let home = self.home_of(parent)?;
        if home == self.id {
            return self.dentry(parent, name);
        }
        let question = EntryName { parent, name: name.as_bytes() };
        match self.step::<op::Lookup>(home, Steps::question(ctx.origin), 0, question) {
            Ok(Found { ino, kind, .. }) => Ok(Some(Dentry { ino, kind })),
            Err(error) if error.errno() == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Refuses to move a directory into itself or below.
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
            ino =
                self.step::<op::Parent>(self.home_of(ino)?, Steps::question(ctx.origin), 0, InoOnly { ino })?;
        }
        Err(FsError::with(
            Errno::EIO,
            format!("directory {new_parent} has no way to the root: the namespace is damaged"),
        ))
    }
}

impl Wanted<'_> {
    fn to_move(&self, source: Dentry, target: Option<Dentry>) -> Move {
        Move {
            parent: self.request.parent,
            name: self.name.as_bytes().to_vec(),
            new_parent: self.request.new_parent,
            new_name: self.new_name.as_bytes().to_vec(),
            ino: source.ino,
            kind: source.kind,
            replaced: target.map(|target| target.ino),
            replaced_kind: target.map_or(0, |target| target.kind),
            turn: self.turn.map_or(0, |(ticket, _)| ticket),
        }
    }
}

/// Whether somebody else is at the same entries, or was faster.
fn is_overtaken(error: &FsError) -> bool {
    matches!(error.errno(), Errno::EBUSY | Errno::EAGAIN)
}

/// Whether there is anything to do, by POSIX's rules for what may replace what.
fn may_replace(source: Dentry, target: Option<Dentry>, flags: u32) -> FsResult<bool> {
    let Some(target) = target else { return Ok(true) };
    if flags & NOREPLACE != 0 {
        return Err(Errno::EEXIST.into());
    }
    if source.ino == target.ino {
        return Ok(false);
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
