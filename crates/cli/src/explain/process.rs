//! Path that calls of a process on its open files take.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bivouac_client::Client;
use bivouac_launch::Environment;
use bivouac_launch::descriptors::{Descriptor, Files, files_of};
use bivouac_launch::mount_table::MountEntry;
use bivouac_types::Ino;
use rustix::fs::OFlags;
use serde::Serialize;

use super::{FormationView, behind};
use crate::failure::Failure;
use crate::table::layout;

/// The preload, as the kernel lists it among a process's libraries.
const PRELOAD: &str = "libbivouac_preload.so";

/// Everything that is shown.
#[derive(Debug, Serialize)]
pub struct ProcessExplanation {
    pid: u32,
    program: String,
    /// True if the preload is in the process.
    has_preload: bool,
    files: Vec<FileExplanation>,
}

#[derive(Debug, Serialize)]
struct FileExplanation {
    descriptor: u32,
    path: PathBuf,
    formation: String,
    flags: Vec<&'static str>,
    /// The node whose daemon serves the mount.
    mounted_through: Option<u16>,
    /// Targets whose subfiles the process has open itself.
    own_targets: Vec<u16>,
    /// Targets of the file that exist.
    targets: usize,
    calls: CallRoute,
    /// Reason why the mount serves them, if it is known.
    why: Option<&'static str>,
}

/// Route of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CallRoute {
    /// The process itself, by the preload or the library.
    Direct,
    /// The preload, once the file has been used enough.
    Soon,
    /// The daemon behind the mount.
    Mount,
}

/// Looks at a process.
///
/// # Errors
/// When there is none, it may not be looked at, or its formation does not answer.
pub fn process(here: &Environment, pid: u32) -> Result<ProcessExplanation, Failure> {
    let files = files_of(pid)?;
    let has_preload = files.mapped.iter().any(|path| path.ends_with(PRELOAD));
    let mut formations: HashMap<PathBuf, (Client, Option<u16>)> = HashMap::new();
    let mut explained = Vec::new();
    for descriptor in &files.descriptors {
        let Some(mount) = &descriptor.mount else { continue };
        // Closed meanwhile: there is nothing to show.
        let Ok(seen) = std::fs::metadata(&descriptor.way) else { continue };
        if !formations.contains_key(&mount.dir) {
            let (client, through, _) = behind(here, mount, &descriptor.target)?;
            formations.insert(mount.dir.clone(), (client, through));
        }
        if let Some((client, through)) = formations.get(&mount.dir) {
            let formation = FormationView { client, through: *through, state: None };
            explained.push(file(&formation, mount, descriptor, Ino(seen.ino()), &files, has_preload)?);
        }
    }
    Ok(ProcessExplanation { pid, program: files.program, has_preload, files: explained })
}

fn file(
    formation: &FormationView,
    mount: &MountEntry,
    descriptor: &Descriptor,
    ino: Ino,
    files: &Files,
    has_preload: bool,
) -> Result<FileExplanation, Failure> {
    let attr = formation.client.getattr(ino)?;
    let reports = if attr.is_file() { formation.client.content.targets(&attr)? } else { Vec::new() };
    let subfiles: Vec<_> = reports.into_iter().filter(|report| report.subfile.exists).collect();
    let has = |path: &str| files.descriptors.iter().any(|open| open.target == Path::new(path));
    let own = subfiles.iter().filter(|report| has(&report.subfile.path));
    let own_targets: Vec<u16> = own.map(|report| report.target.position()).collect();
    let (calls, why) = match why_mount(attr.is_file(), descriptor, files) {
        Some(why) => (CallRoute::Mount, Some(why)),
        None if !own_targets.is_empty() => (CallRoute::Direct, None),
        None if has_preload => (CallRoute::Soon, None),
        None => (CallRoute::Mount, Some("the process has no preload")),
    };
    Ok(FileExplanation {
        descriptor: descriptor.number,
        path: descriptor.target.clone(),
        formation: mount.source.strip_prefix("bivouac:").unwrap_or_default().to_owned(),
        flags: words(descriptor.flags),
        mounted_through: formation.through,
        own_targets,
        targets: subfiles.len(),
        calls,
        why,
    })
}

/// Returns why a file is left to the mount, whatever the process has loaded.
fn why_mount(is_file: bool, descriptor: &Descriptor, files: &Files) -> Option<&'static str> {
    let flags = OFlags::from_bits_retain(descriptor.flags);
    if !is_file {
        Some("not a regular file")
    } else if flags.contains(OFlags::APPEND) {
        Some("O_APPEND: the home of the file says where")
    } else if flags.contains(OFlags::DSYNC) {
        Some("O_SYNC or O_DSYNC")
    } else if files.mapped.contains(&descriptor.target) {
        Some("it is mapped")
    } else {
        None
    }
}

fn words(flags: u32) -> Vec<&'static str> {
    let flags = OFlags::from_bits_retain(flags);
    let access = match flags & OFlags::ACCMODE {
        OFlags::WRONLY => "write",
        OFlags::RDWR => "read and write",
        _ => "read",
    };
    let more = [(OFlags::APPEND, "append"), (OFlags::DSYNC, "sync"), (OFlags::DIRECT, "direct")];
    let more = more.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, word)| word);
    std::iter::once(access).chain(more).collect()
}

impl ProcessExplanation {
    /// Returns it in the form for people.
    pub fn to_text(&self) -> String {
        let with = if self.has_preload { "with" } else { "without" };
        let mut text = format!("process {} ({}), {with} the preload\n", self.pid, self.program);
        if self.files.is_empty() {
            return text + "it has no file of a formation open\n";
        }
        let rows: Vec<Vec<String>> = self.files.iter().map(FileExplanation::row).collect();
        text.push_str(&layout(&["FD", "OPENED TO", "READS AND WRITES GO", "FILE"], &[0], &rows));
        text
    }
}

impl FileExplanation {
    fn row(&self) -> Vec<String> {
        let through = match self.mounted_through {
            Some(node) => format!("through the mount, to node {node}"),
            None => "through the mount".to_owned(),
        };
        let go = match self.calls {
            CallRoute::Direct => {
                let targets: Vec<String> = self.own_targets.iter().map(u16::to_string).collect();
                let (all, listed) = (self.targets, targets.join(", "));
                let rest = if targets.len() < all { "; to the others by messages" } else { "" };
                format!("by itself: it has {} of {all} subfiles open (targets {listed}){rest}", targets.len())
            }
            CallRoute::Soon => format!(
                "by itself, from the seventh call or 512 KiB on, unless others share its position; else {through}"
            ),
            CallRoute::Mount => format!("{through}: {}", self.why.unwrap_or("that is what serves it")),
        };
        vec![self.descriptor.to_string(), self.flags.join(", "), go, self.path.display().to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(flags: OFlags) -> Descriptor {
        Descriptor {
            number: 5,
            target: "/m/f".into(),
            flags: flags.bits(),
            mount: None,
            way: "/proc/1/fd/5".into(),
        }
    }

    #[test]
    fn what_the_mount_has_to_do_is_said_with_the_reason() {
        let (none, mapped) = (Files::default(), Files { mapped: vec!["/m/f".into()], ..Files::default() });
        let plain = open(OFlags::RDWR);
        assert_eq!(why_mount(true, &plain, &none), None);
        assert_eq!(why_mount(false, &plain, &none), Some("not a regular file"));
        assert_eq!(why_mount(true, &plain, &mapped), Some("it is mapped"));
        let append = open(OFlags::WRONLY | OFlags::APPEND);
        assert!(why_mount(true, &append, &none).is_some_and(|why| why.contains("O_APPEND")));
        assert_eq!(words(append.flags), ["write", "append"]);
        assert_eq!(words(OFlags::RDWR.bits()), ["read and write"]);
    }
}
