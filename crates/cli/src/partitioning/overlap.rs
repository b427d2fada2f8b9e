//! A formation never stands in front of itself: a source that is in one of its mounts, or has one in it, would have its
//! nodes wait for themselves.

use std::path::{Path, PathBuf};

use bivouac_launch::{FormationState, overlapping};
use bivouac_types::{Site, Source};

/// Returns the directory of a source, without links where it can be looked at.
fn directory(source: &Source) -> Option<PathBuf> {
    let Site::Directory { path } = source.site() else { return None };
    let path = Path::new(path);
    Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

/// Refuses a source that overlaps a mount of the formation.
pub fn refuse_mounted(state: &FormationState, source: Option<&Source>) -> Result<(), String> {
    let Some(dir) = source.and_then(directory) else { return Ok(()) };
    let mut on_hosts = state.hosts.iter().filter_map(|host| host.mount.as_ref());
    let on_host = on_hosts.find(|mount| overlap(mount, &dir)).cloned();
    match overlapping(state, &dir).or(on_host) {
        Some(mount) => Err(refusal(&dir, &mount)),
        None => Ok(()),
    }
}

/// Refuses a mount point that overlaps one of these sources.
pub fn refuse_source<'a>(mount: &Path, sources: impl IntoIterator<Item = &'a Source>) -> Result<(), String> {
    let overlapping = sources.into_iter().filter_map(directory).find(|dir| overlap(mount, dir));
    overlapping.map_or(Ok(()), |dir| Err(refusal(&dir, mount)))
}

fn overlap(mount: &Path, dir: &Path) -> bool {
    mount.starts_with(dir) || dir.starts_with(mount)
}

fn refusal(source: &Path, mount: &Path) -> String {
    let (source, mount) = (source.display(), mount.display());
    format!(
        "source {source}: the formation is mounted at {mount}, and would wait for itself; choose a source that is neither in \
         a mount of the formation nor around one, or mount it elsewhere (--mount DIR)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S324.
    #[test]
    fn a_source_in_or_around_a_mount_is_refused() {
        let source = |path: &str| path.parse::<Source>().unwrap();
        let refuse = |mount: &str, path: &str| refuse_source(Path::new(mount), [&source(path)]);
        for (mount, path) in [("/no/m", "/no/m"), ("/no/m", "/no/m/in/it"), ("/no/site/m", "/no/site")] {
            let text = refuse(mount, path).unwrap_err();
            assert!(
                text.contains(mount) && text.contains(path) && text.contains("wait for itself"),
                "{text}"
            );
        }
        for (mount, path) in [("/no/m", "/no/mine"), ("/no/m", "/no/other"), ("/no/m", "s3://bucket/no/m")] {
            assert_eq!(refuse(mount, path), Ok(()));
        }
    }
}
