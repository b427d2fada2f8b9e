//! Walking over all subfiles of a volume: to count them at the start, and to check them.

use std::collections::{BTreeSet, HashSet, VecDeque};

use bivouac_types::limits::{SUBFILE_HEADER_LEN, SUMMED_DATA_AT};
use bivouac_types::{Errno, FormationId};
use bivouac_wire::subfile::{SubfileError, SubfileHeader, VERSION};

use super::lent::LentVolume;
use super::subfile::read_header;
use super::summed::has_sums;
use super::table::Table;
use super::{SubfileId, names};
use crate::{Entry, FileStat, OpenMode, StoreError, StoreResult, Volume};

/// A subfile as it is found on a volume.
#[derive(Debug)]
pub struct ListedSubfile {
    /// Its id, by its name.
    pub id: SubfileId,
    /// Bytes of the local file, header included.
    pub file_len: u64,
    /// Bytes of data, holes included.
    pub len: u64,
    /// Bytes on the volume, header included.
    pub allocated: u64,
    /// Its header, or the damage.
    pub header: StoreResult<SubfileHeader>,
}

/// Counts what is on a volume, removes what a kill left of subfiles that were being made, and compares with the table:
/// those without a slot get one, and slots without a subfile are lost.
pub(super) fn take_stock(lent: &LentVolume) -> StoreResult<()> {
    let dirs = dirs(&*lent.volume)?;
    for dir in &dirs {
        let there = take_stock_of(lent, dir)?;
        compare(lent, dir, &there)?;
    }
    // What is known of those that are gone altogether.
    let all = (0..=u8::MAX).map(|dir| format!("{dir:02x}"));
    all.filter(|dir| !dirs.contains(dir)).try_for_each(|dir| compare(lent, &dir, &HashSet::new()))?;
    let (count, volume) = (lent.table.lost_count(), lent.volume.path().display());
    if let Some(first) = lent.table.lost().first() {
        let name = names::name_of(*first);
        log::error!("volume {volume}: {count} subfiles that were made are not there any more, {name} first");
    }
    Ok(())
}

fn take_stock_of(lent: &LentVolume, dir: &str) -> StoreResult<HashSet<SubfileId>> {
    let volume = &*lent.volume;
    let mut there = HashSet::new();
    for entry in list(volume, dir)? {
        let Some(id) = names::parse(lent.table.volume(), dir, &entry.name) else {
            log::warn!("{}/{dir}/{}: not a subfile, left alone", volume.path().display(), entry.name);
            continue;
        };
        if entry.stat.len < SUBFILE_HEADER_LEN {
            let name = format!("{dir}/{}", entry.name);
            let what = format!("{}/{name}: remove unfinished subfile", volume.path().display());
            // It was never acknowledged, and would take room that nobody counts.
            volume.remove(&name).map_err(StoreError::io(what))?;
        } else {
            let room = lent.room_of(id.target.partition());
            // Also beyond the limit: what is there was acknowledged under an earlier one.
            room.correct(0, entry.stat.allocated);
            room.file_made();
            there.insert(id);
        }
    }
    Ok(there)
}

fn compare(lent: &LentVolume, dir: &str, there: &HashSet<SubfileId>) -> StoreResult<()> {
    let known = u8::from_str_radix(dir, 16).map(|dir| lent.table.in_dir(dir)).unwrap_or_default();
    for id in known.iter().filter(|id| !there.contains(id)) {
        lent.table.note_lost(*id);
    }
    let what = || format!("{}: note what is there", lent.volume.path().display());
    let add = |id: &SubfileId| lent.table.add(*id).map_err(|error| StoreError::io(what())(error));
    there.iter().try_for_each(add)
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

/// Returns the subfiles of a volume by their names, one directory at a time. A directory that cannot be listed has
/// none.
pub(super) fn ids(volume: &dyn Volume, index: u16) -> StoreResult<impl Iterator<Item = SubfileId>> {
    let in_dir = move |dir: String| {
        let entries = list(volume, &dir).unwrap_or_else(|error| {
            log::warn!(error:%; "{error}");
            Vec::new()
        });
        entries.into_iter().filter_map(move |entry| names::parse(index, &dir, &entry.name))
    };
    Ok(dirs(volume)?.into_iter().flat_map(in_dir))
}

/// The subfiles of a volume, one directory at a time.
#[derive(Debug)]
pub(super) struct SubfileWalk<'a> {
    volume: &'a dyn Volume,
    index: u16,
    formation: FormationId,
    dirs: VecDeque<String>,
    found: VecDeque<(SubfileId, Entry)>,
}

/// The table of a volume, and a function that tells whether a subfile that is not listed is lost.
pub(super) type Expected<'a> = (&'a Table, &'a dyn Fn(SubfileId) -> bool);

/// Returns some subfiles behind `after`, and true if they were the last. Unfinished ones count as absent, missing ones
/// are `LostSubfile`.
pub(super) fn page(
    (volume, index, formation): (&dyn Volume, u16, FormationId),
    expected: Option<Expected<'_>>,
    after: Option<SubfileId>,
    max: usize,
) -> StoreResult<(Vec<ListedSubfile>, bool)> {
    let mut page = Vec::new();
    let on_volume = dirs(volume)?;
    let first = after.map(names::dir_of).unwrap_or_default();
    // All directories that there may be, not those that there are: the table may have subfiles of one that was lost.
    for dir in 0..=u8::MAX {
        let name = format!("{dir:02x}");
        if name < first {
            continue;
        }
        // Before it is looked at: what is made meanwhile is not missed.
        let mut missed: BTreeSet<SubfileId> =
            expected.map(|(table, _)| table.in_dir(dir)).unwrap_or_default().into_iter().collect();
        let entries = if on_volume.contains(&name) { list(volume, &name)? } else { Vec::new() };
        let known = |entry: Entry| names::parse(index, &name, &entry.name).map(|id| (id, Some(entry)));
        let mut found: Vec<_> = entries.into_iter().filter_map(known).collect();
        for (id, _) in found.iter().filter(|(_, entry)| is_finished(entry)) {
            missed.remove(id);
        }
        found.retain(|(id, _)| !missed.contains(id));
        found.extend(missed.into_iter().map(|id| (id, None)));
        found.retain(|(id, _)| name != first || Some(*id) > after);
        found.sort_unstable_by_key(|(id, _)| *id);
        for (id, entry) in found {
            if page.len() >= max.max(1) {
                return Ok((page, false));
            }
            match entry {
                Some(entry) => {
                    page.extend(look(volume, formation, id, &entry).filter(ListedSubfile::is_finished));
                }
                // Asked again under the subfile's lock: it may have been made or removed since the directory was
                // listed.
                None if expected.is_some_and(|(_, is_lost)| is_lost(id)) => page.push(lost(volume, id)),
                None => {}
            }
        }
    }
    Ok((page, true))
}

fn is_finished(entry: &Option<Entry>) -> bool {
    entry.as_ref().is_some_and(|entry| entry.stat.len >= SUBFILE_HEADER_LEN)
}

fn lost(volume: &dyn Volume, id: SubfileId) -> ListedSubfile {
    let error = StoreError::LostSubfile { volume: volume.path().to_owned(), name: names::name_of(id) };
    ListedSubfile { id, file_len: 0, len: 0, allocated: 0, header: Err(error) }
}

impl<'a> SubfileWalk<'a> {
    pub(super) fn begin(
        volume: &'a dyn Volume,
        index: u16,
        formation: FormationId,
    ) -> StoreResult<SubfileWalk<'a>> {
        Ok(SubfileWalk { volume, index, formation, dirs: dirs(volume)?.into(), found: VecDeque::new() })
    }
}

/// Returns a subfile by its name; `None` if it is gone, or was never finished.
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
        // With the header lost, the data of one with checksums would otherwise seem to begin with 4 GiB of entries.
        Err(_) if volume.open(&name, OpenMode::Existing).is_ok_and(|file| has_sums(&*file)) => SUMMED_DATA_AT,
        Err(_) => SUBFILE_HEADER_LEN,
    };
    let len = entry.stat.len.saturating_sub(data_at);
    let FileStat { len: file_len, allocated } = entry.stat;
    Some(ListedSubfile { id, file_len, len, allocated, header })
}

impl Iterator for SubfileWalk<'_> {
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
                Err(error) => log::warn!(error:%; "{error}"),
            }
        }
    }
}

/// Checks that a header is that of the subfile with this name.
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
        Ok(header) if header.ino != id.ino || header.target != id.target => {
            Err(damaged(format!("header is of inode {} target {}", header.ino, header.target)))
        }
        Ok(header) => Ok(header),
    }
}
