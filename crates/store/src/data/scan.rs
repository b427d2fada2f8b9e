//! Walking over all subfiles of a volume: to count them at the start, and to check them.

use std::collections::VecDeque;

use bivouac_types::limits::{SUBFILE_HEADER_LEN, SUMMED_DATA_AT};
use bivouac_types::{Errno, FormationId};
use bivouac_wire::subfile::{SubfileError, SubfileHeader, VERSION};

use super::lent::Lent;
use super::subfile::read_header;
use super::summed::has_sums;
use super::{SubfileId, names};
use crate::{Entry, FileStat, OpenMode, StoreError, StoreResult, Volume};

/// A subfile as it is found on a volume.
#[derive(Debug)]
pub struct ListedSubfile {
    /// Which one, by its name.
    pub id: SubfileId,
    /// Bytes of the local file, header included.
    pub file_len: u64,
    /// Bytes of data, holes included.
    pub len: u64,
    /// Bytes on the volume, header included.
    pub allocated: u64,
    /// Its header, or what is wrong with it.
    pub header: StoreResult<SubfileHeader>,
}

/// Counts what is on a volume, and removes what a kill left of subfiles that were being made.
pub(super) fn take_stock(lent: &Lent) -> StoreResult<()> {
    let volume = &*lent.volume;
    for dir in dirs(volume)? {
        for entry in list(volume, &dir)? {
            let Some(id) = names::parse(0, &dir, &entry.name) else {
                log::warn!("{}/{dir}/{}: not a subfile, left alone", volume.path().display(), entry.name);
                continue;
            };
            if entry.stat.len < SUBFILE_HEADER_LEN {
                let name = format!("{dir}/{}", entry.name);
                let what = format!("{}/{name}: remove unfinished subfile", volume.path().display());
                volume.remove(&name).map_err(StoreError::io(what))?;
            } else {
                let room = lent.room_of(id.seat.partition());
                room.correct(0, entry.stat.allocated);
                room.file_made();
            }
        }
    }
    Ok(())
}

fn dirs(volume: &dyn Volume) -> StoreResult<Vec<String>> {
    let entries = list(volume, "")?.into_iter();
    Ok(entries
        .filter(|entry| entry.is_dir && names::is_dir_name(&entry.name))
        .map(|entry| entry.name)
        .collect())
}

fn list(volume: &dyn Volume, dir: &str) -> StoreResult<Vec<Entry>> {
    volume
        .list(dir)
        .map_err(|error| StoreError::io(format!("{}/{dir}: list", volume.path().display()))(error))
}

/// The subfiles of a volume by their names, one directory at a time. A directory that cannot be listed has none.
pub(super) fn ids(volume: &dyn Volume, index: u16) -> StoreResult<impl Iterator<Item = SubfileId>> {
    let in_dir = move |dir: String| {
        let entries = list(volume, &dir).unwrap_or_else(|error| {
            log::warn!("{error}");
            Vec::new()
        });
        entries.into_iter().filter_map(move |entry| names::parse(index, &dir, &entry.name))
    };
    Ok(dirs(volume)?.into_iter().flat_map(in_dir))
}

/// The subfiles of a volume, one directory at a time.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    volume: &'a dyn Volume,
    index: u16,
    formation: FormationId,
    dirs: VecDeque<String>,
    found: VecDeque<(SubfileId, Entry)>,
}

/// Some subfiles behind `after`, and whether they were the last. Those that were never finished count as absent.
pub(super) fn page(
    volume: &dyn Volume,
    index: u16,
    formation: FormationId,
    after: Option<SubfileId>,
    max: usize,
) -> StoreResult<(Vec<ListedSubfile>, bool)> {
    let mut page = Vec::new();
    let mut names = dirs(volume)?;
    names.sort_unstable();
    let first = after.map(names::dir_of).unwrap_or_default();
    for dir in names.into_iter().filter(|dir| *dir >= first) {
        let known = |entry: Entry| names::parse(index, &dir, &entry.name).map(|id| (id, entry));
        let mut found: Vec<_> = list(volume, &dir)?.into_iter().filter_map(known).collect();
        if dir == first {
            found.retain(|(id, _)| Some(*id) > after);
        }
        found.sort_unstable_by_key(|(id, _)| *id);
        for (id, entry) in found {
            if page.len() >= max.max(1) {
                return Ok((page, false));
            }
            page.extend(look(volume, formation, id, &entry).filter(ListedSubfile::is_finished));
        }
    }
    Ok((page, true))
}

impl<'a> Walk<'a> {
    pub(super) fn begin(volume: &'a dyn Volume, index: u16, formation: FormationId) -> StoreResult<Walk<'a>> {
        Ok(Walk { volume, index, formation, dirs: dirs(volume)?.into(), found: VecDeque::new() })
    }
}

/// A subfile by its name; `None` if it is gone, or was never finished.
fn look(volume: &dyn Volume, formation: FormationId, id: SubfileId, entry: &Entry) -> Option<ListedSubfile> {
    let name = names::name_of(id);
    let file = match volume.open(&name, OpenMode::Existing) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT.code()) => return None,
        file => file,
    };
    let what = || format!("{}/{name}: read header", volume.path().display());
    let header = file
        .and_then(|file| read_header(&*file))
        .map_err(|error| StoreError::io(what())(error))
        .and_then(|header| check_header(header, volume, id, formation));
    let data_at = match &header {
        Ok(header) => header.data_at(),
        Err(_) if volume.open(&name, OpenMode::Existing).is_ok_and(|file| has_sums(&*file)) => SUMMED_DATA_AT,
        Err(_) => SUBFILE_HEADER_LEN,
    };
    let len = entry.stat.len.saturating_sub(data_at);
    let FileStat { len: file_len, allocated } = entry.stat;
    Some(ListedSubfile { id, file_len, len, allocated, header })
}

impl Iterator for Walk<'_> {
    type Item = ListedSubfile;

    fn next(&mut self) -> Option<ListedSubfile> {
        loop {
            while let Some((id, entry)) = self.found.pop_front() {
                if let Some(listed) = look(self.volume, self.formation, id, &entry) {
                    return Some(listed);
                }
            }
            let dir = self.dirs.pop_front()?;
            match list(self.volume, &dir) {
                Ok(entries) => {
                    let known =
                        |entry: Entry| names::parse(self.index, &dir, &entry.name).map(|id| (id, entry));
                    self.found.extend(entries.into_iter().filter_map(known));
                }
                Err(error) => log::warn!("{error}"),
            }
        }
    }
}

/// Whether a header is that of the subfile with this name.
pub(super) fn check_header(
    header: Result<SubfileHeader, SubfileError>,
    volume: &dyn Volume,
    id: SubfileId,
    formation: FormationId,
) -> StoreResult<SubfileHeader> {
    let path = volume.path().join(names::name_of(id));
    let damaged = |cause: String| StoreError::Corrupt { path: path.clone(), offset: 0, cause };
    match header {
        Err(SubfileError::Version(found)) => Err(StoreError::NewerFormat { path, found, supported: VERSION }),
        Err(error) => Err(damaged(error.to_string())),
        Ok(header) if header.formation != formation => {
            Err(StoreError::WrongFormation { path, found: header.formation, expected: formation })
        }
        Ok(header) if header.ino != id.ino || header.seat != id.seat => {
            Err(damaged(format!("header is of inode {} seat {}", header.ino, header.seat)))
        }
        Ok(header) => Ok(header),
    }
}
