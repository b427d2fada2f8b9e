//! The file of a volume that has a slot for each of its subfiles, without these slots: name, header, an empty one.
//! Byte by byte in docs/format.md.

use std::io::{self, IoSlice, IoSliceMut};
use std::path::PathBuf;

use bivouac_types::Errno;

use super::transfer::{read_full_at, write_all_at};
use super::{OpenMode, Volume, VolumeFile};
use crate::crc::crc32c;
use crate::{StoreError, StoreResult};

/// Name of the table in a volume's directory.
pub(crate) const TABLE_NAME: &str = "bivouac-subfiles";

const MAGIC: &[u8; 8] = b"BVKTABL1";
const VERSION: u16 = 1;
/// Bytes in front of the slots.
pub(crate) const HEADER_LEN: usize = 64;

/// Returns the bytes of a table without subfiles.
pub(crate) fn empty_table() -> [u8; HEADER_LEN] {
    let mut out = [0u8; HEADER_LEN];
    out[..8].copy_from_slice(MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32c(&out[..HEADER_LEN - 4]);
    out[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Checks that a volume has a table that can be used.
///
/// # Errors
/// `NoTable`, `Corrupt`, `NewerFormat`, `Io`.
pub(crate) fn check_table(volume: &dyn Volume) -> StoreResult<()> {
    let path = volume.path().join(TABLE_NAME);
    let file = match volume.open(TABLE_NAME, OpenMode::Existing) {
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT.code()) => {
            return Err(StoreError::NoTable { path: volume.path().to_owned() });
        }
        file => file.map_err(StoreError::io(format!("{}: open", path.display())))?,
    };
    check_header(&*file, path)
}

/// Replaces the table by an empty one: the volume's next start adds the subfiles that it finds.
///
/// # Errors
/// `Io`.
pub(crate) fn renew_table(volume: &dyn Volume) -> StoreResult<()> {
    let renew = || -> io::Result<()> {
        let file = volume.open(TABLE_NAME, OpenMode::Create)?;
        file.set_len(0)?;
        write_all_at(&*file, &[IoSlice::new(&empty_table())], 0)?;
        file.sync()?;
        volume.sync_dir("")
    };
    let path = volume.path().join(TABLE_NAME);
    renew().map_err(StoreError::io(format!("{}: make anew", path.display())))
}

/// Checks the header of a table.
///
/// # Errors
/// `Corrupt`, `NewerFormat`, `Io`.
pub(crate) fn check_header(file: &dyn VolumeFile, path: PathBuf) -> StoreResult<()> {
    let mut header = [0u8; HEADER_LEN];
    let what = format!("{}: read", path.display());
    let len = read_full_at(file, &mut [IoSliceMut::new(&mut header)], 0, HEADER_LEN as u64)
        .map_err(StoreError::io(what))?;
    let damaged = |cause: &str| StoreError::Corrupt { path: path.clone(), offset: 0, cause: cause.into() };
    let version = u16::from_le_bytes([header[8], header[9]]);
    if len < HEADER_LEN || !header.starts_with(MAGIC) {
        return Err(damaged("this is no table of subfiles"));
    }
    if version > VERSION {
        return Err(StoreError::NewerFormat { path, found: version, supported: VERSION });
    }
    if header[HEADER_LEN - 4..] != crc32c(&header[..HEADER_LEN - 4]).to_le_bytes() {
        return Err(damaged("wrong checksum"));
    }
    Ok(())
}
