//! Files from their subfiles alone, when the records are gone: where a file's bytes are is in every header.
//! Names and attributes are not, nor is the size but for the lengths of the subfiles.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::path::PathBuf;

use bivouac_layout::{file_offset, file_size_from, seats_of};
use bivouac_store::{StoreError, SubfileId, Subfiles, VolumeFile};
use bivouac_types::{Errno, FsError, FsResult, Ino, Layout, NodeId, SeatIndex};
use bivouac_wire::SeatEntry;
use serde::Serialize;

use crate::offline::open_volumes;
use crate::repair::best_layout;
use crate::scrub::wrong_in_file;
use crate::source::Progress;

/// Bytes copied at once.
const CHUNK: usize = 1 << 20;
/// Most subfiles listed at once.
const PAGE: usize = 512;

/// Where rebuilt files go.
pub trait Destination {
    /// Makes an empty file with this name; it must not exist.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, name: &str) -> io::Result<Box<dyn RebuiltFile>>;
}

/// A file that is being rebuilt.
pub trait RebuiltFile {
    /// Writes bytes at their place.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Says how long the file is, and makes it outlive the host.
    ///
    /// # Errors
    /// The system's.
    fn finish(&mut self, size: u64) -> io::Result<()>;
}

/// What became of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    /// Its inode number, which is its name.
    pub inode: String,
    /// Bytes, as far as the lengths of the subfiles tell: a hole at the end is not seen.
    pub size: u64,
    /// Whether every volume that may hold a part of it was there.
    pub complete: bool,
    /// Seats whose volume was not given: their bytes are zeros here.
    pub missing_seats: Vec<u16>,
    /// Seats without a subfile although their volume was given: never written, or lost.
    pub empty_seats: Vec<u16>,
    /// What its headers disagree about.
    pub conflicts: Vec<String>,
    /// Bytes that are here as they were found, and are not what was written by their checksums: from and to.
    pub wrong: Vec<(u64, u64)>,
}

/// A subfile with a sound header.
struct Part {
    volume: usize,
    id: SubfileId,
    len: u64,
    /// Where data begins in the local file.
    data_at: u64,
    layout: Layout,
    epoch: u32,
    places: Vec<SeatEntry>,
}

/// Writes every file whose subfiles are on these volumes to `out`; answers what became of each, and subfiles that
/// cannot be used.
///
/// # Errors
/// A volume that is missing, in use or another formation's; what cannot be written.
pub fn rebuild_files(
    paths: &[PathBuf],
    out: &dyn Destination,
    progress: &dyn Progress,
) -> FsResult<(Vec<Rebuilt>, Vec<String>)> {
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

type Parts = BTreeMap<Ino, Vec<Part>>;

fn collect(volumes: &[Subfiles], progress: &dyn Progress) -> FsResult<(Parts, Vec<String>)> {
    let (mut files, mut unusable) = (Parts::new(), Vec::new());
    for (volume, subfiles) in volumes.iter().enumerate() {
        let mut after = None;
        loop {
            let (page, end) = subfiles.page(after, PAGE)?;
            after = page.last().map(|found| found.id);
            for found in page {
                match found.header {
                    Ok(header) => files.entry(found.id.ino).or_default().push(Part {
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
    parts: &[Part],
    volumes: &[Subfiles],
    here: &[(NodeId, u16)],
    out: &dyn Destination,
) -> FsResult<Rebuilt> {
    let mut rebuilt = Rebuilt { inode: ino.to_string(), ..Rebuilt::default() };
    let Some((layout, epoch)) = best_layout(parts.iter().map(|part| (part.layout, part.epoch, part.len)))
    else {
        return Ok(rebuilt);
    };
    let used = choose(parts, layout, epoch, &mut rebuilt);
    let lens: Vec<u64> = used.iter().map(|part| part.map_or(0, |part| part.len)).collect();
    rebuilt.size = file_size_from(&layout, &lens).ok_or(Errno::EFBIG)?;
    let places = parts.iter().find(|part| part.layout == layout).map(|part| part.places.as_slice());
    note_absent(&used, layout, places.unwrap_or_default(), here, &mut rebuilt);
    let what = format!("file {ino} that is rebuilt");
    let mut file = out.create(&rebuilt.inode).map_err(|error| failed(&what, &error))?;
    for (column, part) in used.iter().enumerate() {
        if let Some(part) = part {
            let volume = volumes.get(part.volume).ok_or(Errno::EIO)?;
            copy(&*volume.open(part.id)?, &layout, column as u16, part, &mut *file)?;
            let wrong = volume.scrub(part.id, |_| ())?.wrong;
            let in_file = wrong
                .into_iter()
                .flat_map(|range| wrong_in_file(&layout, part.id.ino, part.id.seat, NodeId(0), range));
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

/// The subfile of each column, and what does not fit.
fn choose<'a>(parts: &'a [Part], layout: Layout, epoch: u32, rebuilt: &mut Rebuilt) -> Vec<Option<&'a Part>> {
    for part in parts {
        let seat = part.id.seat;
        if part.layout != layout && part.len > 0 {
            let text = format!(
                "seat {seat} has {} bytes in layout {}, left out; the others say {layout}",
                part.len, part.layout
            );
            rebuilt.conflicts.push(text);
        } else if part.layout == layout && part.epoch < epoch {
            let text = format!(
                "seat {seat} has epoch {}, others {epoch}: it may hold bytes that were cut off",
                part.epoch
            );
            rebuilt.conflicts.push(text);
        }
    }
    let on = |seat: SeatIndex| parts.iter().filter(move |part| part.id.seat == seat && part.layout == layout);
    let chosen = |seat| {
        let best = on(seat).max_by_key(|part| (part.epoch, part.len));
        (best, on(seat).count())
    };
    let columns = seats_of(&layout).map(|seat| (seat, chosen(seat)));
    columns
        .map(|(seat, (best, count))| {
            if count > 1 {
                rebuilt.conflicts.push(format!("seat {seat} was given {count} times, the newest is taken"));
            }
            best
        })
        .collect()
}

/// Says which seats have nothing, and whether that is because nobody gave their volume.
fn note_absent(
    used: &[Option<&Part>],
    layout: Layout,
    places: &[SeatEntry],
    here: &[(NodeId, u16)],
    rebuilt: &mut Rebuilt,
) {
    for (column, seat) in
        seats_of(&layout).enumerate().filter(|(column, _)| used.get(*column).is_some_and(Option::is_none))
    {
        let given = places.get(column).is_some_and(|place| here.contains(&(place.node, place.volume)));
        if given {
            rebuilt.empty_seats.push(seat.position())
        } else {
            rebuilt.missing_seats.push(seat.position())
        }
    }
    rebuilt.complete = rebuilt.missing_seats.is_empty() && rebuilt.conflicts.is_empty();
}

/// Copies what a subfile has, hole by hole and stripe by stripe.
fn copy(
    source: &dyn VolumeFile,
    layout: &Layout,
    column: u16,
    part: &Part,
    out: &mut dyn RebuiltFile,
) -> FsResult<()> {
    let Part { len, data_at, .. } = *part;
    let stripe = u64::from(layout.stripe.max(1));
    let mut buffer = vec![0u8; CHUNK];
    let mut at = 0;
    while at < len {
        let data = source.next_data(data_at + at).map_err(|error| failed("subfile", &error))?;
        let Some(data) = data else { return Ok(()) };
        at = data.start.saturating_sub(data_at).max(at);
        let end = data.end.saturating_sub(data_at).min(len);
        while at < end {
            let run = (end - at).min(stripe - at % stripe).min(CHUNK as u64) as usize;
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
        at = at.max(end);
    }
    Ok(())
}
