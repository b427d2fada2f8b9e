//! Mounts of a formation that this process reaches at their paths. A mount point without its mount is a plain
//! directory: what is written there goes to the local disk, and nothing that is read there says what the formation
//! holds.

use std::fs::{File, read_link};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::mount_table::{MountPresence, Table};
use crate::state::{FormationState, MountState};
use crate::{Kind, LaunchError, LaunchResult};

/// Location of a mount of a formation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountView {
    /// At its path, as this process sees it.
    Here,
    /// At its path, but in the mount namespace of this process of the formation.
    Namespace(u32),
    /// Below another mount, which shows this as its source.
    Covered(String),
    /// Taken away, or in a mount namespace that no process of the formation is in.
    Gone,
}

impl MountView {
    /// Returns the reason why the path does not lead to the mount; `None` if it does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        match self {
            MountView::Here => None,
            MountView::Namespace(pid) => Some(format!(
                "is in another mount namespace, that of process {pid}, which bivouac exec and bivouac stage enter"
            )),
            MountView::Covered(source) => Some(format!("is covered by another mount ({source})")),
            MountView::Gone => Some("is not mounted here".into()),
        }
    }
}

/// The mounts of a formation as this process and the formation's own processes see them.
#[derive(Debug)]
pub struct MountViews {
    here: Table,
    /// Processes of the formation, one for each other mount namespace, and their tables; read when they are needed.
    others: OnceLock<Vec<(u32, Table)>>,
    processes: Vec<u32>,
}

impl MountViews {
    /// Reads the kernel's table; no mount is looked at, so this never waits for whoever serves one.
    #[must_use]
    pub fn of(state: &FormationState) -> MountViews {
        let processes = state.supervisor.into_iter().chain(state.processes());
        let processes = processes.filter(|process| process.is_alive()).map(|process| process.pid).collect();
        MountViews { here: Table::here(), others: OnceLock::new(), processes }
    }

    /// Returns the location of a mount.
    #[must_use]
    pub fn view(&self, mount: &MountState) -> MountView {
        let seen = self.here.see(&mount.dir, mount.connection);
        if seen == MountPresence::Here {
            return MountView::Here;
        }
        let others = self.others.get_or_init(|| other_tables(&self.processes));
        let is_there = |table: &Table| table.see(&mount.dir, mount.connection) == MountPresence::Here;
        match (others.iter().find(|(_, table)| is_there(table)), seen) {
            (Some((pid, _)), _) => MountView::Namespace(*pid),
            (None, MountPresence::Covered(source)) => MountView::Covered(source),
            (None, _) => MountView::Gone,
        }
    }
}

fn other_tables(processes: &[u32]) -> Vec<(u32, Table)> {
    let own = namespace_of("self", "mnt");
    let (mut known, mut tables) = (vec![own], Vec::new());
    for pid in processes {
        let namespace = namespace_of(&pid.to_string(), "mnt");
        if namespace.is_some() && !known.contains(&namespace) {
            // One table for each namespace: most processes of a formation are in the same.
            known.push(namespace);
            tables.push((*pid, Table::of(*pid)));
        }
    }
    tables
}

/// Returns the mount namespace of this process.
#[must_use]
pub fn own_namespace() -> Option<PathBuf> {
    namespace_of("self", "mnt")
}

fn namespace_of(process: &str, kind: &str) -> Option<PathBuf> {
    read_link(format!("/proc/{process}/ns/{kind}")).ok()
}

/// Paths of this machine that have to name the same in another mount namespace.
#[derive(Debug)]
pub struct SharedPaths(Vec<(PathBuf, Option<Identity>)>);

/// The nearest directory or file above a path that exists: its path, device and number.
type Identity = (PathBuf, u64, u64);

impl SharedPaths {
    /// Notes what the paths are for this process.
    #[must_use]
    pub fn note(paths: impl IntoIterator<Item = PathBuf>) -> SharedPaths {
        SharedPaths(paths.into_iter().map(|path| (path.clone(), identity(&path))).collect())
    }

    /// Returns the first path that is something else by now.
    fn changed(&self) -> Option<&Path> {
        self.0.iter().find(|(path, noted)| identity(path) != *noted).map(|(path, _)| path.as_path())
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let seen = |above: &Path| Some((above.to_owned(), std::fs::metadata(above).ok()?));
    let (above, meta) = path.ancestors().filter(|above| !above.as_os_str().is_empty()).find_map(seen)?;
    Some((above, meta.dev(), meta.ino()))
}

/// Moves this process into the mount namespace of another one, and into its user namespace where that is needed for it.
/// The working directory stays the one of this path. To be called while this process has only one thread.
///
/// # Errors
/// What the system refuses; and that a path of `shared`, or the working directory, is something else there.
pub fn enter_namespace_of(pid: u32, shared: &SharedPaths) -> LaunchResult<()> {
    let object = || format!("the mount namespace of process {pid}");
    let remedy = format!("run the command in it: {}", nsenter(pid));
    let refused = |error: std::io::Error| {
        LaunchError::new(
            Kind::Refused,
            object(),
            format_args!("cannot be entered: {error}").to_string(),
            &remedy,
        )
    };
    let work_dir = read_link("/proc/self/cwd").map_err(refused)?;
    let work_dir_before = SharedPaths::note([work_dir.clone()]);
    let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}"));
    let (user, mount) = (open("user").map_err(refused)?, open("mnt").map_err(refused)?);
    let enter = |file: &File, kind| move_into_link_name_space(file.as_fd(), Some(kind));
    let entered = match enter(&mount, LinkNameSpaceType::Mount) {
        // Whoever may not at once may as the owner of the user namespace that it belongs to.
        Err(Errno::PERM) => {
            enter(&user, LinkNameSpaceType::User).and_then(|()| enter(&mount, LinkNameSpaceType::Mount))
        }
        entered => entered,
    };
    entered.map_err(|error| refused(error.into()))?;
    let other = |path: &Path| {
        let object = path.display();
        let cause =
            format!("is something else in the mount namespace of process {pid}, where the formation is");
        LaunchError::new(Kind::Refused, object, cause, &format!("name a path that both have, or {remedy}"))
    };
    // Entering a mount namespace leads to its root directory.
    std::env::set_current_dir(&work_dir).map_err(|_| other(&work_dir))?;
    let changed = shared.changed().or_else(|| work_dir_before.changed());
    changed.map_or(Ok(()), |path| Err(other(path)))
}

/// Returns the way in which a shell enters the namespaces of a process.
#[must_use]
pub fn nsenter(pid: u32) -> String {
    let user = if namespace_of(&pid.to_string(), "user") == namespace_of("self", "user") {
        ""
    } else {
        "--user --preserve-credentials "
    };
    format!("nsenter {user}--mount --target {pid}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::sample;

    #[test]
    fn a_mount_point_without_its_mount_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mount =
            MountState { id: 1, dir: dir.path().to_owned(), node: 0, connection: 4_000_000, trouble: None };
        let view = MountViews::of(&sample()).view(&mount);
        assert_eq!(view, MountView::Gone);
        assert!(view.trouble().unwrap().contains("is not mounted here"));
    }

    #[test]
    fn a_path_that_became_another_one_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (there, missing) = (dir.path().join("there"), dir.path().join("there/not/yet"));
        std::fs::create_dir(&there).unwrap();
        let noted = SharedPaths::note([missing.clone()]);
        assert_eq!(noted.changed(), None);
        std::fs::rename(&there, dir.path().join("away")).unwrap();
        std::fs::create_dir(&there).unwrap();
        assert_eq!(noted.changed(), Some(missing.as_path()));
    }
}
