//! Directories that the nodes lend, and the space taken of each.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bivouac_types::TMPFS_MAGIC;
use bivouac_types::units::{format_size, parse_size};
use rustix::fs::{Access, AtFlags, CWD, accessat, statvfs};

use crate::memory::MEMORY_DIR;
use crate::state::VolumeState;
use crate::{Kind, LaunchError, LaunchResult};

/// The kind of a volume in memory, in a state.
pub(crate) const MEMORY_KIND: &str = "memory";

/// Smallest volume, in bytes: room for records and a few files.
pub const VOLUME_BYTES_MIN: u64 = 4 << 20;

/// `DIR[:CAPACITY]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeArg {
    /// The directory.
    pub dir: PathBuf,
    /// Limit per node, in bytes; by default a fair share of the free space.
    pub capacity: Option<u64>,
}

/// Reads `DIR[:CAPACITY]`. What follows the last colon is a capacity if it begins with a digit.
///
/// # Errors
/// A sentence that names what is wrong.
pub fn parse_volume(text: impl AsRef<OsStr>) -> Result<VolumeArg, String> {
    let bytes = text.as_ref().as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':');
    let split =
        colon.map(|at| (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..).unwrap_or_default()));
    let (dir, capacity) = match split {
        Some((dir, size)) if size.first().is_some_and(u8::is_ascii_digit) => {
            (dir, Some(parse_size(&String::from_utf8_lossy(size))?))
        }
        _ => (bytes, None),
    };
    if dir.is_empty() {
        return Err(format!(
            "'{}' names no directory; write DIR or DIR:CAPACITY",
            text.as_ref().to_string_lossy()
        ));
    }
    Ok(VolumeArg { dir: PathBuf::from(OsString::from_vec(dir.to_vec())), capacity })
}

/// Properties of a directory that is to be lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LendableDir {
    /// The directory, absolute.
    pub dir: PathBuf,
    /// True if it is in memory.
    pub memory: bool,
    /// Free bytes for this user.
    pub free: u64,
    /// The file system's number: places with one number share its space.
    pub device: u64,
}

impl LendableDir {
    /// Looks at a directory.
    ///
    /// # Errors
    /// When it is missing, no directory, or not writable for this user.
    pub fn look(dir: &Path) -> LaunchResult<LendableDir> {
        let object = format!("volume {}", dir.display());
        let refuse = |cause: &str, remedy: &str| LaunchError::new(Kind::Refused, &object, cause, remedy);
        let seen = std::fs::metadata(dir).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => refuse("is missing", "create the directory first"),
            _ => refuse(&error.to_string(), "check owner and permissions of the directories above it"),
        })?;
        if !seen.is_dir() {
            return Err(refuse("is not a directory", "name a directory"));
        }
        accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(|error| {
            refuse(
                &format!("is not writable ({})", std::io::Error::from(error)),
                "choose another, or change its owner or mode",
            )
        })?;
        let space = statvfs(dir).map_err(|e| LaunchError::path(dir, "look at its space", e))?;
        let kind = rustix::fs::statfs(dir).map_err(|e| LaunchError::path(dir, "look at its kind", e))?;
        Ok(LendableDir {
            // By its real path, so that one directory is not lent under two names.
            dir: dir.canonicalize().map_err(|e| LaunchError::path(dir, "resolve it", e))?,
            memory: kind.f_type as u64 == TMPFS_MAGIC,
            free: space.f_bavail.saturating_mul(space.f_frsize),
            device: seen.dev(),
        })
    }

    /// Returns the directory in which memory volumes are made.
    ///
    /// # Errors
    /// When this machine has no such place.
    pub fn memory() -> LaunchResult<LendableDir> {
        LendableDir::look(Path::new(MEMORY_DIR)).map_err(|error| {
            LaunchError::said(Kind::Refused, format!("{error}; or name a directory with --volume"))
        })
    }
}

/// Returns the volumes of `nodes` nodes in these places, per node. `memory` are the bytes that volumes in memory
/// without a given capacity share.
///
/// # Errors
/// When a place is given twice or a volume is too small or larger than what is free.
pub fn share_out(
    places: &[(LendableDir, Option<u64>)],
    nodes: u16,
    memory: u64,
) -> LaunchResult<Vec<Vec<VolumeState>>> {
    let mut devices: BTreeMap<u64, Device> = BTreeMap::new();
    for (index, (place, capacity)) in places.iter().enumerate() {
        if places.iter().take(index).any(|(earlier, _)| earlier.dir == place.dir) {
            let object = format_args!("volume {}", place.dir.display()).to_string();
            return Err(LaunchError::usage(object, "is given twice", "name each directory once"));
        }
        devices
            .entry(place.device)
            .or_insert(Device { free: place.free, given: 0, open: 0 })
            .add(*capacity, nodes);
    }
    let open_in_memory =
        places.iter().filter(|(place, capacity)| place.memory && capacity.is_none()).count() as u64;
    let memory_share = memory / (open_in_memory * u64::from(nodes)).max(1);
    let mut all = vec![Vec::new(); usize::from(nodes)];
    for (place, capacity) in places {
        let device = devices.get(&place.device).copied().unwrap_or_default();
        let capacity = device.capacity(place, *capacity, nodes, memory_share)?;
        for (node, volumes) in all.iter_mut().enumerate() {
            // A directory that one node has as a whole is the user's own, and stays.
            let own_dir = nodes > 1;
            let path = if own_dir { place.dir.join(format!("n{node}")) } else { place.dir.clone() };
            let kind = if place.memory { MEMORY_KIND } else { "disk" };
            volumes.push(VolumeState { path, kind: kind.into(), capacity_bytes: capacity, own_dir });
        }
    }
    let are_whole = all.iter().all(|volumes| volumes.len() == places.len());
    assert!(are_whole, "a node lacks one of {} volumes", places.len());
    Ok(all)
}

/// A file system and what is asked of it.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    free: u64,
    /// Sum of the given capacities.
    given: u64,
    /// Volumes without a given capacity.
    open: u64,
}

impl Device {
    fn add(&mut self, capacity: Option<u64>, nodes: u16) {
        match capacity {
            Some(bytes) => self.given = self.given.saturating_add(bytes.saturating_mul(u64::from(nodes))),
            None => self.open += u64::from(nodes),
        }
    }

    fn capacity(
        &self,
        place: &LendableDir,
        given: Option<u64>,
        nodes: u16,
        memory_share: u64,
    ) -> LaunchResult<u64> {
        let object = format!("volume {}", place.dir.display());
        let (free, wanted) = (format_size(self.free), format_size(self.given));
        if self.given > self.free {
            let cause = format!("{wanted} are wanted for {nodes} node(s), {free} are free there");
            return Err(LaunchError::new(
                Kind::Refused,
                object,
                cause,
                "give a smaller capacity, or free space",
            ));
        }
        // A tenth stays free: for others, and for what a file system needs for itself.
        let fair = (self.free - self.given) / 10 * 9 / self.open.max(1);
        let open = if place.memory { fair.min(memory_share) } else { fair };
        let capacity = given.unwrap_or(open);
        if capacity >= VOLUME_BYTES_MIN {
            return Ok(capacity);
        }
        let least = format_size(VOLUME_BYTES_MIN);
        let (cause, remedy) = match given {
            Some(bytes) => (format!("{} is too small", format_size(bytes)), format!("give at least {least}")),
            None if open < fair => (
                format!(
                    "leaves {} per volume of this machine's memory, of which others have the rest",
                    format_size(open)
                ),
                format!(
                    "{least} per volume and node are the least; take other formations down (bivouac list), give a capacity \
                         (--volume DIR:SIZE), or name a directory on a disk"
                ),
            ),
            None => (
                format!("is full: {free} free, {} per volume", format_size(open)),
                format!("free space there ({least} per volume and node are the least), or choose another"),
            ),
        };
        Err(LaunchError::new(Kind::Refused, object, cause, &remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(dir: &str, free: u64, device: u64) -> LendableDir {
        LendableDir { dir: dir.into(), memory: false, free, device }
    }

    #[test]
    fn arguments_are_read() {
        for (text, dir, capacity) in [
            ("/a", "/a", None),
            ("/a:10m", "/a", Some(10 << 20)),
            ("/a:b", "/a:b", None),
            ("/a:b:1k", "/a:b", Some(1024)),
            ("a:", "a:", None),
        ] {
            assert_eq!(parse_volume(text), Ok(VolumeArg { dir: dir.into(), capacity }), "{text}");
        }
        assert!(parse_volume("/a:1x").unwrap_err().contains("'1x' is not a size"));
        assert!(parse_volume(":1m").unwrap_err().contains("names no directory"));
        assert!(parse_volume("").is_err());
    }

    #[test]
    fn one_node_takes_the_directory_and_several_take_one_below_each() {
        let places = [(place("/d", 1 << 40, 1), Some(1 << 30)), (place("/e", 1 << 40, 1), None)];
        let one = share_out(&places, 1, 0).unwrap();
        assert_eq!((one[0][0].path.as_path(), one[0][0].own_dir), (Path::new("/d"), false));
        let two = share_out(&places, 2, 0).unwrap();
        assert_eq!((two[1][0].path.as_path(), two[1][0].own_dir), (Path::new("/d/n1"), true));
        assert_eq!((two[1][0].capacity_bytes, two[1][0].kind.as_str()), (1 << 30, "disk"));
        assert_eq!(two[1][1].path, Path::new("/e/n1"));
    }

    #[test]
    fn memory_is_shared_by_all_nodes() {
        let shm = LendableDir { memory: true, ..place("/dev/shm/x", 1 << 40, 1) };
        let all = share_out(&[(shm, None)], 4, 8 << 30).unwrap();
        assert!(
            all.iter().all(|volumes| volumes[0].capacity_bytes == 2 << 30 && volumes[0].kind == "memory")
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let refusal = |free, capacity, nodes| {
            share_out(&[(place("/d", free, 1), capacity)], nodes, 0).unwrap_err().to_string()
        };
        let text = refusal(1 << 30, Some(600 << 20), 2);
        assert_eq!(
            text,
            "volume /d: 1.2 GiB are wanted for 2 node(s), 1 GiB are free there; give a smaller capacity, or free space"
        );
        assert!(refusal(1 << 30, Some(100), 1).contains("100 B is too small; give at least 4 MiB"));
        assert!(refusal(1 << 20, None, 1).starts_with("volume /d: is full: 1 MiB free"));
        let shm = LendableDir { memory: true, ..place("/dev/shm/x", 1 << 40, 1) };
        let text = share_out(&[(shm, None)], 4, 8 << 20).unwrap_err().to_string();
        assert!(text.contains("leaves 2 MiB per volume of this machine's memory"), "{text}");
        let twice = [(place("/d", 1 << 40, 1), None), (place("/d", 1 << 40, 1), None)];
        assert!(share_out(&twice, 1, 0).unwrap_err().to_string().contains("given twice"));
    }

    #[test]
    fn places_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let place = LendableDir::look(dir.path()).unwrap();
        assert!(place.free > 0 && place.dir.is_absolute());
        let missing = LendableDir::look(&dir.path().join("none")).unwrap_err();
        assert!(missing.to_string().ends_with("is missing; create the directory first"), "{missing}");
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(
            LendableDir::look(&dir.path().join("file"))
                .unwrap_err()
                .to_string()
                .contains("is not a directory")
        );
        assert!(LendableDir::look(&dir.path().join("file/x")).is_err());
        if let Ok(shm) = LendableDir::memory() {
            assert!(shm.memory);
        }
    }

    #[test]
    fn a_place_that_is_not_writable_is_said() {
        if rustix::process::geteuid().is_root() {
            return println!("skipped: root may write everywhere");
        }
        let error = LendableDir::look(Path::new("/usr")).unwrap_err().to_string();
        assert!(error.contains("is not writable"), "{error}");
    }

    proptest! {
        #[test]
        fn never_more_is_given_than_there_is(
            free in (1u64 << 30)..(1 << 50), given in proptest::collection::vec(proptest::option::of((1u64 << 22)..(1 << 36)), 1..5),
            nodes in 1u16..100, memory in (1u64 << 34)..(1 << 44),
        ) {
            let places: Vec<_> = given.iter().enumerate().map(|(i, capacity)| {
                (LendableDir { memory: i % 2 == 0, ..place(&format!("/d{i}"), free, 1) }, *capacity)
            }).collect();
            if let Ok(all) = share_out(&places, nodes, memory) {
                let sum: u64 = all.iter().flatten().map(|volume| volume.capacity_bytes).sum();
                prop_assert!(sum <= free);
                prop_assert_eq!(all.len(), usize::from(nodes));
                prop_assert!(all.iter().flatten().all(|volume| volume.capacity_bytes >= VOLUME_BYTES_MIN));
            }
        }
    }
}
