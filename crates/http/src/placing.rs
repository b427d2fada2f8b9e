//! What takes the place of something else: names change in one step, and only what was replaced is removed.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use bivouac_client::{Attr, Place};
use bivouac_types::{Errno, FsError, FsResult, Ino};

use crate::target::{RESERVED, is_reserved};
use crate::tree::{READ, Tree, WRITE};

/// `RENAME_NOREPLACE` of the kernel.
const NOREPLACE: u32 = 1;
/// `RENAME_EXCHANGE` of the kernel.
const EXCHANGE: u32 = 2;
/// How often another temporary name is drawn.
const NAMES_TRIED: usize = 8;

/// Where a copy or a move ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// Where nothing was.
    New,
    /// In place of a file, and a file it is.
    OnFile,
    /// In place of something else.
    OnTree,
}

/// How a tree was when it was looked at: what is in it, and in which state. The top's own name does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State(HashSet<u64>);

impl State {
    /// Of a tree of which only the top was seen. Another name changes its time of change.
    pub(crate) fn of(top: &Attr) -> State {
        let content = (!top.is_dir()).then_some((top.size, top.mtime, top.epoch));
        State(HashSet::from([sum_of((top.ino, top.mode, content))]))
    }

    /// With something that is in one of its directories.
    pub(crate) fn see(&mut self, parent: Ino, name: &[u8], attr: &Attr) {
        self.0.insert(State::sum(parent, name, attr));
    }

    /// Whether this was seen in one of its directories, as it is.
    pub(crate) fn has(&self, parent: Ino, name: &[u8], attr: &Attr) -> bool {
        self.0.contains(&State::sum(parent, name, attr))
    }

    fn sum(parent: Ino, name: &[u8], attr: &Attr) -> u64 {
        let content = (!attr.is_dir()).then_some((attr.size, attr.mtime, attr.ctime, attr.epoch));
        sum_of((parent, name, attr.ino, attr.mode, content))
    }
}

fn sum_of(seen: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    seen.hash(&mut hasher);
    hasher.finish()
}

impl Tree {
    /// Moves what is at a place to another one, in place of what is there only if `replace` says so. Files take the
    /// place of files in one step. Where a directory is involved the two change places, and what was replaced is
    /// removed behind that: nothing that was there is gone before what comes is there.
    ///
    /// # Errors
    /// `EEXIST`; `EXDEV` between partitions; `EINVAL` for two paths of one place; `EACCES` if what is to be replaced
    /// could not be removed; what the formation says. Nothing has changed then.
    pub fn put_in_place(&self, from: &Place, to: &Place, replace: bool) -> FsResult<Landed> {
        if (from.parent, &from.name) == (to.parent, &to.name) {
            return Err(Errno::EINVAL.into());
        }
        // Before the names are held: this may take long.
        let seen = if replace { self.at(to)?.filter(Attr::is_dir) } else { None };
        seen.map_or(Ok(()), |dir| self.may_remove(&dir))?;
        let alone = self.names.of_both(from, to);
        match self.move_name(from, to, NOREPLACE) {
            Err(error) if error.errno() == Errno::EEXIST && replace => {}
            moved => return moved.map(|()| Landed::New),
        }
        let moving = self.at(from)?.ok_or(Errno::ENOENT)?;
        let Some(found) = self.at(to)? else {
            return self.move_name(from, to, NOREPLACE).map(|()| Landed::New);
        };
        if found.ino == moving.ino {
            return self.drop_name(from, to).map(|()| Landed::OnFile);
        }
        if !found.is_dir() && !moving.is_dir() {
            return self.move_name(from, to, 0).map(|()| Landed::OnFile);
        }
        if seen.is_none_or(|seen| seen.ino != found.ino) {
            self.may_remove(&found)?;
        }
        self.move_name(from, to, EXCHANGE)?;
        // From here on it has moved, and that is what is answered.
        let replaced = self.set_aside(from, found.ino);
        drop(alone);
        match replaced {
            Ok(Some(aside)) => self.discard_aside(&aside),
            Ok(None) => {}
            Err(error) => log::warn!(why:% = error; "what was replaced is left where the new one was"),
        }
        Ok(Landed::OnTree)
    }

    /// Takes the first of two names away from a file. What anybody has put under it meanwhile is moved, and not
    /// removed.
    fn drop_name(&self, from: &Place, to: &Place) -> FsResult<()> {
        let aside = self.hide(from)?;
        // Of two names of one file a rename leaves both.
        if let Err(error) = self.move_name(&aside, to, 0) {
            self.give_back(&aside, from)?;
            return Err(error);
        }
        match self.unlink(aside.parent, &aside.name) {
            Err(error) if error.errno() == Errno::ENOENT => Ok(()),
            removed => removed,
        }
    }

    /// Gives an inode a name that nobody is shown, in place of that at which it is; `None` if something else has that
    /// by now.
    pub(crate) fn set_aside(&self, from: &Place, ino: Ino) -> FsResult<Option<Place>> {
        if self.at(from)?.is_none_or(|there| there.ino != ino) {
            return Ok(None);
        }
        let aside = match self.hide(from) {
            Err(error) if error.errno() == Errno::ENOENT => return Ok(None),
            aside => aside?,
        };
        // Somebody may have been faster between the two.
        match self.at(&aside)? {
            Some(got) if got.ino == ino => Ok(Some(aside)),
            Some(_) => self.give_back(&aside, from).map(|()| None),
            None => Ok(None),
        }
    }

    /// Gives what was hidden its name again.
    ///
    /// # Errors
    /// Where it is, if something else has that name by now.
    pub(crate) fn give_back(&self, aside: &Place, to: &Place) -> FsResult<()> {
        self.move_name(aside, to, NOREPLACE).map_err(|error| {
            let (aside, name) = (String::from_utf8_lossy(&aside.name), String::from_utf8_lossy(&to.name));
            let why = error.detail().unwrap_or("the name is taken, or the formation refused");
            let error =
                FsError::with(error.errno(), format!("what was at {name} is in {aside} beside it: {why}"));
            log::error!(why:% = error; "a name could not be given back");
            error
        })
    }

    /// Gives what is at a place a name beside it that nobody is shown.
    fn hide(&self, from: &Place) -> FsResult<Place> {
        for _ in 0..NAMES_TRIED {
            let place = Place { parent: from.parent, name: hidden()?, is_dir: false };
            match self.move_name(from, &place, NOREPLACE) {
                Err(error) if error.errno() == Errno::EEXIST => {}
                moved => return moved.map(|()| place),
            }
        }
        Err(Errno::EEXIST.into())
    }

    /// Removes what has a hidden name. What of it cannot be removed is in nobody's way.
    pub(crate) fn discard_aside(&self, aside: &Place) {
        let removed = match self.at(aside) {
            Ok(Some(left)) => self.discard(aside, left).map_err(|stopped| stopped.error),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            let name = String::from_utf8_lossy(&aside.name);
            log::warn!(name:% = name, why:% = error; "what is not needed any more is left under a hidden name");
        }
    }

    /// Removes what is at a place, if it is still in this state. Whether it was: what has changed is at its name.
    ///
    /// # Errors
    /// What the formation says; where it is, if it has changed and something else has its name by now.
    pub fn remove_as_it_was(&self, place: &Place, ino: Ino, state: &State) -> FsResult<bool> {
        let alone = self.names.of(place).lock();
        let Some(aside) = self.set_aside(place, ino)? else { return Ok(false) };
        drop(alone);
        let removed = self.at(&aside).and_then(|top| match top {
            Some(top) if self.state(&top)? == *state => {
                // Who has begun to put something into it may still do so.
                self.remove_seen(&aside, top, state).map(|()| true).map_err(|stopped| stopped.error)
            }
            Some(_) => Ok(false),
            None => Ok(true),
        });
        match removed {
            Ok(true) => Ok(true),
            Ok(false) => self.give_back(&aside, place).map(|()| false),
            Err(error) => {
                self.give_back(&aside, place)?;
                if matches!(error.errno(), Errno::EBUSY | Errno::ENOTEMPTY) { Ok(false) } else { Err(error) }
            }
        }
    }

    /// In which state a tree is.
    ///
    /// # Errors
    /// What the formation says.
    pub fn state(&self, top: &Attr) -> FsResult<State> {
        let mut state = State::of(top);
        self.walk(top, |dir, name, attr| {
            state.see(dir, name, attr);
            Ok(())
        })?;
        Ok(state)
    }

    /// Whether a tree can be removed as far as its permissions go.
    ///
    /// # Errors
    /// `EACCES` if not.
    pub fn may_remove(&self, top: &Attr) -> FsResult<()> {
        let may = |attr: &Attr| if attr.is_dir() { self.may(attr, READ | WRITE) } else { Ok(()) };
        may(top)?;
        self.walk(top, |_, _, attr| may(attr))
    }

    /// Shows all that is in a directory, and in those in it, but for the server's own.
    fn walk(&self, top: &Attr, mut see: impl FnMut(Ino, &[u8], &Attr) -> FsResult<()>) -> FsResult<()> {
        let mut dirs: Vec<Ino> = top.is_dir().then_some(top.ino).into_iter().collect();
        while let Some(dir) = dirs.pop() {
            let seen = self.each_entry(dir, |entry| {
                let Some(attr) = entry.attr.filter(|_| !is_reserved(&entry.name)) else { return Ok(()) };
                dirs.extend(attr.is_dir().then_some(attr.ino));
                see(dir, &entry.name, &attr)
            });
            match seen {
                // It was removed meanwhile.
                Err(error) if error.errno() == Errno::ENOENT => {}
                seen => seen?,
            }
        }
        Ok(())
    }

    fn move_name(&self, from: &Place, to: &Place, flags: u32) -> FsResult<()> {
        let change = self.member().change()?;
        self.client()?.rename(&change.ctx, from.parent, &from.name, to.parent, &to.name, flags)
    }
}

/// A name that nobody is shown.
pub fn hidden() -> FsResult<Vec<u8>> {
    let drawn =
        getrandom::u64().map_err(|error| FsError::with(Errno::EIO, format!("draw random bytes: {error}")))?;
    Ok([RESERVED, format!("put-{drawn:016x}").as_bytes()].concat())
}
