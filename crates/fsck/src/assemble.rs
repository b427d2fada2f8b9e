//! Reconstruction of files from subfiles alone, when the records are lost: each header has the layout. Names and
//! attributes are lost, and the size is known only from the lengths of the subfiles.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::path::PathBuf;

use bivouac_layout::{file_offset, file_size_from, targets_of};
use bivouac_store::{StoreError, SubfileId, Subfiles, VolumeFile};
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, NodeId, TargetIndex};
use bivouac_wire::TargetEntry;
use serde::Serialize;

use crate::repair::best_layout;
use crate::scrub::wrong_in_file;
use crate::source::Progress;
use crate::volumes::open_volumes;

/// Size of a read.
const CHUNK: usize = 1 << 20;
/// Subfiles per page of a listing.
const PAGE: usize = 512;

/// Receiver of rebuilt files.
pub trait Destination {
    /// Creates an empty file with this name, which must not exist.
    fn create(&self, name: &str) -> io::Result<Box<dyn RebuiltFile>>;
}

/// A file that is being rebuilt.
pub trait RebuiltFile {
    /// Writes bytes at an offset.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Sets the size of the file and syncs it.
    fn finish(&mut self, size: u64) -> io::Result<()>;
}

/// Result of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RebuildResult {
    /// Inode number, which is the file's name.
    pub inode: String,
    /// Size in bytes by the lengths of the subfiles; a hole at the end is lost.
    pub size: u64,
    /// True if every volume that may hold a part of the file was given.
    pub complete: bool,
    /// Targets whose volume was not given: their bytes are zeros in the rebuilt file.
    pub missing_targets: Vec<u16>,
    /// Targets without a subfile although their volume was given: never written, or lost.
    pub empty_targets: Vec<u16>,
    /// Contradictions between the headers.
    pub conflicts: Vec<String>,
    /// Byte ranges that do not match their checksums, copied as they are.
    pub wrong: Vec<(u64, u64)>,
}

/// A subfile with a valid header.
struct SubfilePart {
    volume: usize,
    id: SubfileId,
    len: u64,
    /// Offset of the data in the local file.
    data_at: u64,
    layout: Layout,
    epoch: u32,
    places: Vec<TargetEntry>,
}

/// Rebuilds every file with subfiles on these volumes. Returns the results, and subfiles that cannot be used.
///
/// # Errors
/// A volume that is missing, in use or another formation's; what cannot be written.
pub fn rebuild_files(
    paths: &[PathBuf],
    out: &dyn Destination,
    progress: &dyn Progress,
) -> FsResult<(Vec<RebuildResult>, Vec<String>)> {
    let (opened, _) = open_volumes(paths, false)?;
    let here: Vec<(NodeId, u16)> = opened.iter().map(|one| (one.identity.node, one.identity.index)).collect();
    let volumes: Vec<Subfiles> = opened
        .iter()
        .map(|one| Subfiles::new(one.volume.clone(), one.identity.index, one.identity.formation))
        .collect();
    let (files, unusable) = collect(&volumes, progress)?;
    let mut rebuilt = Vec::with_capacity(files.len());
    for (ino, parts) in files {
        rebuilt.push(rebuild(ino, &parts, &volumes, &here, out)?);
        progress.at("files", rebuilt.len() as u64);
    }
    Ok((rebuilt, unusable))
}

type Parts = BTreeMap<Ino, Vec<SubfilePart>>;

fn collect(volumes: &[Subfiles], progress: &dyn Progress) -> FsResult<(Parts, Vec<String>)> {
    let (mut files, mut unusable) = (Parts::new(), Vec::new());
    for (volume, subfiles) in volumes.iter().enumerate() {
        let mut after = None;
        loop {
            let (page, end) = subfiles.page(after, PAGE)?;
            after = page.last().map(|found| found.id);
            for found in page {
                match found.header {
                    Ok(header) => files.entry(found.id.ino).or_default().push(SubfilePart {
                        volume,
                        id: found.id,
                        len: found.len,
                        data_at: header.data_at(),
                        layout: header.layout,
                        epoch: header.trim_epoch,
                        places: header.places,
                    }),
                    Err(StoreError::Corrupt { path, cause, .. }) => {
                        unusable.push(format!("{}: {cause}", path.display()));
                    }
                    Err(error) => unusable.push(error.to_string()),
                }
            }
            progress.at("subfiles", files.len() as u64);
            if end || after.is_none() {
                break;
            }
        }
    }
    Ok((files, unusable))
}

fn rebuild(
    ino: Ino,
    parts: &[SubfilePart],
    volumes: &[Subfiles],
    here: &[(NodeId, u16)],
    out: &dyn Destination,
) -> FsResult<RebuildResult> {
    let mut rebuilt = RebuildResult { inode: ino.to_string(), ..RebuildResult::default() };
    let Some((layout, epoch)) = best_layout(parts.iter().map(|part| (part.layout, part.epoch, part.len)))
    else {
        return Ok(rebuilt);
    };
    let used = choose(parts, layout, epoch, &mut rebuilt);
    let lens: Vec<u64> = used.iter().map(|part| part.map_or(0, |part| part.len)).collect();
    rebuilt.size = file_size_from(&layout, &lens).ok_or(Errno::EFBIG)?;
    // Headers of another layout name the places of other columns.
    let places = parts.iter().find(|part| part.layout == layout).map(|part| part.places.as_slice());
    note_absent(&used, layout, places.unwrap_or_default(), here, &mut rebuilt);
    let what = format!("file {ino} that is rebuilt");
    let mut file = out.create(&rebuilt.inode).map_err(|error| failed(&what, &error))?;
    for (column, part) in used.iter().enumerate() {
        if let Some(part) = part {
            let volume = volumes.get(part.volume).ok_or(Errno::EIO)?;
            copy(&*volume.open(part.id)?, &layout, column as u16, part, &mut *file)?;
            // Corrupt bytes are copied and reported: the user decides what they are worth.
            let wrong = volume.scrub(part.id, |_| ())?.wrong;
            let in_file = wrong
                .into_iter()
                .flat_map(|range| wrong_in_file(&layout, part.id.ino, part.id.target, NodeId(0), range));
            // The last block with a checksum may reach beyond the end of the file.
            rebuilt.wrong.extend(in_file.map(|wrong| (wrong.from, wrong.to.min(rebuilt.size))));
        }
    }
    rebuilt.complete &= rebuilt.wrong.is_empty();
    file.finish(rebuilt.size).map_err(|error| failed(&what, &error))?;
    Ok(rebuilt)
}

fn failed(what: &str, error: &io::Error) -> FsError {
    let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_code);
    FsError::with(errno, format!("{what}: {error}"))
}

/// Returns the subfile of each column; contradictions are recorded in `rebuilt`.
fn choose<'a>(
    parts: &'a [SubfilePart],
    layout: Layout,
    epoch: u32,
    rebuilt: &mut RebuildResult,
) -> Vec<Option<&'a SubfilePart>> {
    for part in parts {
        let target = part.id.target;
        // Data in another layout cannot be placed in this file.
        if part.layout != layout && part.len > 0 {
            let text = format!(
                "target {target} has {} bytes in layout {}, left out; the others say {layout}",
                part.len, part.layout
            );
            rebuilt.conflicts.push(text);
        } else if part.layout == layout && part.epoch < epoch {
            let text = format!(
                "target {target} has epoch {}, others {epoch}: it may hold bytes that were cut off",
                part.epoch
            );
            rebuilt.conflicts.push(text);
        }
    }
    let on = |target: TargetIndex| {
        parts.iter().filter(move |part| part.id.target == target && part.layout == layout)
    };
    let chosen = |target| {
        // After a failed node a target may exist twice; the later epoch and the longer file win.
        let best = on(target).max_by_key(|part| (part.epoch, part.len));
        (best, on(target).count())
    };
    let columns = targets_of(&layout).map(|target| (target, chosen(target)));
    let used: Vec<Option<&SubfilePart>> = columns
        .map(|(target, (best, count))| {
            if count > 1 {
                rebuilt
                    .conflicts
                    .push(format!("target {target} was given {count} times, the newest is taken"));
            }
            best
        })
        .collect();
    assert_eq!(used.len(), usize::from(layout.width), "each column of {layout} has one subfile at most");
    used
}

/// Records the targets without a subfile, and whether their volume was given.
fn note_absent(
    used: &[Option<&SubfilePart>],
    layout: Layout,
    places: &[TargetEntry],
    here: &[(NodeId, u16)],
    rebuilt: &mut RebuildResult,
) {
    for (column, target) in
        targets_of(&layout).enumerate().filter(|(column, _)| used.get(*column).is_some_and(Option::is_none))
    {
        let given = places.get(column).is_some_and(|place| here.contains(&(place.node, place.volume)));
        if given {
            rebuilt.empty_targets.push(target.position())
        } else {
            rebuilt.missing_targets.push(target.position())
        }
    }
    assert_eq!(
        rebuilt.empty_targets.len() + rebuilt.missing_targets.len(),
        used.iter().filter(|part| part.is_none()).count(),
        "a column without a subfile was not reported"
    );
    rebuilt.complete = rebuilt.missing_targets.is_empty() && rebuilt.conflicts.is_empty();
}

/// Copies the data of a subfile stripe by stripe; holes are skipped.
fn copy(
    source: &dyn VolumeFile,
    layout: &Layout,
    column: u16,
    part: &SubfilePart,
    out: &mut dyn RebuiltFile,
) -> FsResult<()> {
    let SubfilePart { len, data_at, .. } = *part;
    let stripe = u64::from(layout.stripe.max(1));
    let mut buffer = vec![0u8; CHUNK];
    let mut at = 0;
    while at < len {
        let data = source.next_data(data_at + at).map_err(|error| failed("subfile", &error))?;
        let Some(data) = data else { return Ok(()) };
        at = data.start.saturating_sub(data_at).max(at);
        let end = data.end.saturating_sub(data_at).min(len);
        while at < end {
            // Not beyond the stripe, behind which the file goes on with another subfile.
            let run = (end - at).min(stripe - at % stripe).min(CHUNK as u64) as usize;
            assert!(run > 0, "a piece of no bytes would be copied for ever");
            let piece = buffer.get_mut(..run).unwrap_or_default();
            let read = source.read_vectored_at(&mut [IoSliceMut::new(piece)], data_at + at);
            let read = read.map_err(|error| failed("subfile", &error))?;
            if read == 0 {
                return Ok(());
            }
            let offset = file_offset(layout, column, at).ok_or(Errno::EFBIG)?;
            let written = out.write_at(buffer.get(..read).unwrap_or_default(), offset);
            written.map_err(|error| failed("file that is rebuilt", &error))?;
            at += read as u64;
        }
        // A hole ends where the next data begins.
        at = at.max(end);
    }
    Ok(())
}
