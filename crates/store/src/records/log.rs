//! The log that commits are appended to, and how files of records are named and made.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use bivouac_types::Errno;

use super::format::{FileHeader, FileKind, HEAD_LEN, HEADER_LEN, Head};
use crate::volume::transfer::write_all_at;
use crate::{OpenMode, StoreError, StoreResult, Volume, VolumeFile};

/// Directory of the records on their volume.
pub(super) const DIR: &str = "records";

pub(super) fn file_name(kind: FileKind, generation: u64) -> String {
    format!("{DIR}/{}-{generation:016x}", prefix(kind))
}

/// Returns the name of a file that is not finished.
pub(super) fn unfinished_name(kind: FileKind) -> String {
    format!("{DIR}/{}.tmp", prefix(kind))
}

fn prefix(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Log => "log",
        FileKind::Snapshot => "snapshot",
    }
}

/// Returns the generation in a file's name.
pub(super) fn parse_name(name: &str) -> Option<(FileKind, u64)> {
    let (prefix, digits) = name.rsplit_once('-')?;
    let kind = match prefix {
        "log" => FileKind::Log,
        "snapshot" => FileKind::Snapshot,
        _ => return None,
    };
    let generation = u64::from_str_radix(digits, 16).ok()?;
    (digits.len() == 16 && !digits.starts_with('+')).then_some((kind, generation))
}

/// Returns the path of a file of the volume, for messages.
pub(super) fn path_of(volume: &dyn Volume, name: &str) -> PathBuf {
    volume.path().join(name)
}

/// Opens a new, unfinished file with its header in it.
pub(super) fn begin_file(volume: &dyn Volume, header: FileHeader) -> StoreResult<Arc<dyn VolumeFile>> {
    let name = unfinished_name(header.kind);
    let make = || {
        let file = volume.open(&name, OpenMode::Create)?;
        // An earlier try may have been killed, or have failed for want of space.
        file.set_len(0)?;
        // Before the file has its name, so that one with a name and a damaged header is damage, and not the rest of
        // a kill.
        write_all_at(&*file, &[IoSlice::new(&header.to_bytes())], 0)?;
        Ok(file)
    };
    make().map_err(StoreError::io(format!("{}: make", path_of(volume, &name).display())))
}

/// Gives a file its name once it is complete.
pub(super) fn finish_file(volume: &dyn Volume, file: &dyn VolumeFile, header: FileHeader) -> StoreResult<()> {
    let (from, to) = (unfinished_name(header.kind), file_name(header.kind, header.generation));
    let finish = || {
        // In this order: after a loss of power a file with its final name is whole.
        file.sync()?;
        volume.rename(&from, &to)?;
        volume.sync_dir(DIR)
    };
    finish().map_err(StoreError::io(format!("{}: complete", path_of(volume, &to).display())))
}

/// Removes a file; one that is not there is fine.
pub(super) fn remove_file(volume: &dyn Volume, name: &str) -> StoreResult<()> {
    match volume.remove(name) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT.code()) => Ok(()),
        result => result.map_err(StoreError::io(format!("{}: remove", path_of(volume, name).display()))),
    }
}

/// Returns the generation behind this one.
///
/// # Errors
/// `Corrupt`: the files on the volume have the last one that there is, which no node reaches by itself.
pub(super) fn next_generation(volume: &dyn Volume, generation: u64) -> StoreResult<u64> {
    let none_left = || StoreError::Corrupt {
        path: path_of(volume, DIR),
        offset: 0,
        cause: "no generation is left".to_owned(),
    };
    generation.checked_add(1).ok_or_else(none_left)
}

/// The end of the newest log.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) file: Arc<dyn VolumeFile>,
    pub(super) generation: u64,
    /// Length of the log up to its last whole entry.
    pub(super) end: u64,
    /// Sequence of the last commit.
    pub(super) sequence: u64,
    /// True if the file may be longer than `end`.
    pub(super) unclean: bool,
}

impl Tail {
    pub(super) fn of_new(file: Arc<dyn VolumeFile>, generation: u64, sequence: u64) -> Tail {
        assert!(generation > 0, "generations are counted from 1");
        Tail { file, generation, end: HEADER_LEN as u64, sequence, unclean: false }
    }

    /// Appends an entry, whose first [`HEAD_LEN`] bytes are still free, by one write. If that fails, the log
    /// is as it was before.
    pub(super) fn append(&mut self, entry: &mut [u8], body_crc: u32) -> io::Result<()> {
        assert!(entry.len() > HEAD_LEN, "an entry without operations in log {}", self.generation);
        self.clean()?;
        // Nothing may be written behind the rest of half an entry: a reader takes that for the end of the log, and what
        // follows would be acknowledged and lost.
        assert!(!self.unclean, "log {} was not cut back to byte {}", self.generation, self.end);
        let none_left = || io::Error::other("no sequence number is left for a commit");
        let sequence = self.sequence.checked_add(1).ok_or_else(none_left)?;
        let len = (entry.len() - HEAD_LEN) as u32;
        let head = Head { len, body_crc, sequence }.to_bytes(self.generation);
        entry[..HEAD_LEN].copy_from_slice(&head);
        // One write for head and body: a kill leaves a prefix of it, which recovery can tell from damage.
        if let Err(error) = self.file.write_deferred(entry, self.end) {
            self.unclean = true;
            // What fails here is tried again before the next entry, which is refused until it succeeds.
            let _ = self.clean();
            return Err(error);
        }
        self.end += entry.len() as u64;
        self.sequence = sequence;
        Ok(())
    }

    /// Cuts off what a failed write may have left.
    pub(super) fn clean(&mut self) -> io::Result<()> {
        if self.unclean {
            self.file.set_len(self.end)?;
            self.unclean = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let name = file_name(FileKind::Log, 0x2a);
        assert_eq!(name, "records/log-000000000000002a");
        assert_eq!(parse_name("log-000000000000002a"), Some((FileKind::Log, 42)));
        assert_eq!(parse_name("snapshot-ffffffffffffffff"), Some((FileKind::Snapshot, u64::MAX)));
        for alien in ["log", "log-", "log-2a", "log-+00000000000002a", "log.tmp", "x-0000000000000001"] {
            assert_eq!(parse_name(alien), None, "{alien}");
        }
    }
}
