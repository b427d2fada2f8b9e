//! The environment of the process: read once, by the entry point, and passed down.

use std::ffi::OsString;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Mode, accessat, mkdirat};
use rustix::io::Errno;

use crate::guarded::{guarded, guarded_parent};
use crate::{FormationName, Kind, LaunchError, LaunchResult};

/// Attempts at making a directory that somebody else removes at once.
const MAKE_TRIES: usize = 100;
/// Characters of a job's number that are in the name of its formation.
const JOB_LEN_MAX: usize = 40;
/// Suffix of a mount point, behind the name of its formation.
const MOUNT: &str = "+mount";

/// The user and machine that a command works on.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `BIVOUAC_RUNTIME_DIR`, else `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// `PATH`.
    pub search_path: Option<OsString>,
    /// `BIVOUAC_LOG`.
    pub log_level: Option<String>,
    /// `XDG_STATE_HOME`, else `.local/state` below `HOME`.
    pub state_home: Option<PathBuf>,
    /// Effective user id.
    pub uid: u32,
    /// Host name.
    pub host: String,
    /// This program's own file, to start daemons from.
    pub program: PathBuf,
    /// Variables of batch systems and launchers.
    pub batch: Batch,
    /// The formation of the job that this process is in.
    pub around: EnclosingFormation,
}

/// The formation whose command this process is, or was started by: what `run`, `exec` and the batch system set for it.
#[derive(Clone, Debug, Default)]
pub struct EnclosingFormation {
    /// `BIVOUAC_NAME`.
    pub name: Option<FormationName>,
    /// `BIVOUAC_DIR`, the formation's directory. It leads there also from another runtime directory.
    pub dir: Option<PathBuf>,
}

/// Variables of batch systems and launchers about the job that this process is in.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// `BIVOUAC_TICKET`, what a host is told by a launcher that hands on nothing but the environment.
    pub ticket: Option<String>,
    /// `SLURM_JOB_NODELIST`, the hosts of a job of Slurm.
    pub slurm_nodes: Option<String>,
    /// `SLURMD_NODENAME`, what Slurm calls this host.
    pub slurm_node: Option<String>,
    /// `PBS_NODEFILE`, the file with the hosts of a job of PBS.
    pub nodefile: Option<PathBuf>,
    /// Memory of this host that the job may use, in bytes: `SLURM_MEM_PER_NODE`, or `SLURM_MEM_PER_CPU` and
    /// `SLURM_CPUS_ON_NODE`.
    pub memory: Option<u64>,
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// The job's number: `SLURM_JOB_ID`, `FLUX_JOB_ID` or `PBS_JOBID`.
    pub job: Option<String>,
}

impl Batch {
    /// Returns the name of a formation that is given none inside a job, `job-NUMBER`: jobs of one user may share a
    /// host.
    #[must_use]
    pub fn formation_name(&self) -> Option<FormationName> {
        // Flux and PBS have others as well, which no name has: `ƒ2oLkTLb`, `12[3].server`.
        let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let number: String = self.job.as_deref()?.chars().filter(allowed).take(JOB_LEN_MAX).collect();
        if number.is_empty() { None } else { format!("job-{number}").parse().ok() }
    }
}

impl Environment {
    /// Returns the name of a formation that is started without one: inside a batch job that of the job, else `default`.
    #[must_use]
    pub fn default_name(&self) -> FormationName {
        self.batch.formation_name().unwrap_or_default()
    }

    /// Returns the formation that a command means which is not there: the named one, else that of the job around, else
    /// the default.
    #[must_use]
    pub fn meant_name(&self, name: Option<&FormationName>) -> FormationName {
        name.or(self.around.name.as_ref()).cloned().unwrap_or_else(|| self.default_name())
    }

    /// Returns whether a command without a name may mean a formation that is only the one that runs. Inside a batch job
    /// it may be another job's, and scripts are not asked.
    pub(crate) fn may_mean_the_only_one(&self) -> bool {
        self.batch.formation_name().is_none()
    }

    /// Returns the directory that holds a directory per formation of this user: below `BIVOUAC_RUNTIME_DIR` or
    /// `XDG_RUNTIME_DIR`, else below `/run/user/UID`, else in `/tmp`. It is made, and checked to be nobody else's.
    ///
    /// # Errors
    /// When it is a link, another user's or open to others, or others could replace it.
    pub fn base(&self) -> LaunchResult<PathBuf> {
        let base = self.base_path();
        guarded_parent(
            &base,
            "set BIVOUAC_RUNTIME_DIR to a directory of your own, which others cannot write to",
        )?;
        make_private_dir(&base)?;
        Ok(base)
    }

    /// Returns the base directory without making it; `None` if there is none, so no formation either.
    #[must_use]
    pub fn existing_base(&self) -> Option<PathBuf> {
        let base = self.base_path();
        check_private_dir(&base, self.uid).is_ok().then_some(base)
    }

    /// Returns the file of a program that `PATH` leads to.
    #[must_use]
    pub fn find_program(&self, name: &str) -> Option<PathBuf> {
        self.search_dirs()
            .map(|dir| dir.join(name))
            .find(|file| accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok() && file.is_file())
    }

    /// Returns the directories that programs are looked for in.
    pub(crate) fn search_dirs(&self) -> impl Iterator<Item = PathBuf> {
        std::env::split_paths(self.search_path.as_deref().unwrap_or_else(|| "/usr/bin:/bin".as_ref()))
    }

    /// Returns the directories that mounts are made below unless others are chosen.
    pub(crate) fn mount_bases(&self) -> [PathBuf; 2] {
        [self.base_path(), self.shared_base()]
    }

    /// Returns the mount point of a formation over several hosts unless another is chosen: the same on all, in a
    /// directory that is this user's. No formation has such a name, so it is the directory of none.
    #[must_use]
    pub fn hosts_mount(&self, name: &FormationName) -> PathBuf {
        self.shared_base().join(format!("{name}{MOUNT}"))
    }

    /// Returns the value of `BIVOUAC_RUNTIME_DIR` with which a directory is that of this user's formations.
    #[must_use]
    pub fn runtime_dir_of(&self, base: &Path) -> PathBuf {
        match base.parent() {
            Some(runtime) if base != self.shared_base() => runtime.to_owned(),
            _ => base.to_owned(),
        }
    }

    /// Directories of this user's formations that were told no runtime directory.
    pub(crate) fn usual_bases(&self) -> [PathBuf; 2] {
        [self.user_dir().join("bivouac"), self.shared_base()]
    }

    /// Returns whether a directory is one of this user's alone.
    pub(crate) fn is_base(&self, base: &Path) -> bool {
        check_private_dir(base, self.uid).is_ok()
    }

    fn user_dir(&self) -> PathBuf {
        PathBuf::from(format!("/run/user/{}", self.uid))
    }

    fn shared_base(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/bivouac-{}", self.uid))
    }

    fn base_path(&self) -> PathBuf {
        // The place of who has no runtime directory can be named by who has one.
        if self.runtime_dir.as_ref() == Some(&self.shared_base()) {
            return self.shared_base();
        }
        let runtime =
            self.runtime_dir.clone().into_iter().chain([self.user_dir()]).find(|dir| is_ours(dir, self.uid));
        match runtime {
            Some(dir) => dir.join("bivouac"),
            None => self.shared_base(),
        }
    }
}

/// Makes a directory for this user only, or checks that the one that is there is such a one.
///
/// # Errors
/// When it cannot be made, is a link, another user's or open to others.
pub fn make_private_dir(dir: &Path) -> LaunchResult<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            check_private_dir(dir, rustix::process::geteuid().as_raw())
        }
        Err(error) => Err(LaunchError::path(dir, "make the directory", error)),
    }
}

/// Makes a mount point, for this user only, where nobody else can put anything in its place; answers whether it is ours
/// to remove. One that is there is left as it is.
///
/// # Errors
/// When it cannot be made, or others could replace it.
pub fn make_mount_point(dir: &Path) -> LaunchResult<bool> {
    let (parent, name) = (dir.parent().unwrap_or(Path::new("/")), dir.file_name().unwrap_or_default());
    let is_default = name.as_encoded_bytes().ends_with(MOUNT.as_bytes());
    // Another formation that ends may remove the directory of all of them just now.
    for _ in 0..MAKE_TRIES {
        if is_default {
            make_private_dir(parent)?;
        }
        let parent = guarded(parent, "name another mount point with --mount")?;
        match mkdirat(&parent.dir, name, Mode::RWXU) {
            Ok(()) => return Ok(true),
            // What a crash left at the usual place is ours; a directory that was named is its owner's.
            Err(Errno::EXIST) => return Ok(is_default),
            Err(Errno::NOENT) if is_default => {}
            Err(error) => return Err(LaunchError::path(dir, "make the mount point", error)),
        }
    }
    Err(LaunchError::path(dir, "make the mount point", Errno::NOENT))
}

/// Removes what [`make_mount_point`] may have made around a mount point.
pub fn remove_around(dir: &Path) {
    let is_default = dir.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(MOUNT.as_bytes()));
    if let Some(parent) = dir.parent().filter(|_| is_default) {
        let _others_are_there = std::fs::remove_dir(parent);
    }
}

fn check_private_dir(dir: &Path, uid: u32) -> LaunchResult<()> {
    let seen = std::fs::symlink_metadata(dir).map_err(|e| LaunchError::path(dir, "look at it", e))?;
    let refuse = |cause: &str| {
        let remedy = "remove it, or set BIVOUAC_RUNTIME_DIR to a directory of your own";
        Err(LaunchError::new(Kind::Refused, dir.display(), cause, remedy))
    };
    match seen {
        _ if seen.file_type().is_symlink() => refuse("is a symbolic link, not a directory"),
        _ if !seen.is_dir() => refuse("is not a directory"),
        _ if seen.uid() != uid => refuse(&format!("belongs to user {}, not to {uid}", seen.uid())),
        _ if seen.mode() & 0o077 != 0 => refuse("is open to other users"),
        _ => Ok(()),
    }
}

fn is_ours(dir: &Path, uid: u32) -> bool {
    // `XDG_RUNTIME_DIR` may be another user's (behind `su`), or gone with a log-out.
    let writable = accessat(CWD, dir, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok();
    dir.is_absolute()
        && writable
        && std::fs::metadata(dir).is_ok_and(|seen| seen.is_dir() && seen.uid() == uid)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    pub(crate) fn environment(runtime_dir: Option<&Path>) -> Environment {
        Environment {
            runtime_dir: runtime_dir.map(Path::to_owned),
            search_path: Some("/nonexistent:/bin:/usr/bin".into()),
            log_level: None,
            state_home: None,
            uid: rustix::process::geteuid().as_raw(),
            host: "h".into(),
            program: "/bin/false".into(),
            batch: Batch::default(),
            around: EnclosingFormation::default(),
        }
    }

    #[test]
    fn a_job_names_its_formation() {
        let named = |job: &str| Batch { job: Some(job.into()), ..Batch::default() }.formation_name();
        assert_eq!(named("4711").unwrap().as_str(), "job-4711");
        assert_eq!(named("12[3].server.site").unwrap().as_str(), "job-123.server.site");
        assert_eq!(named("ƒ2oLkTLb").unwrap().as_str(), "job-2oLkTLb", "as Flux writes them");
        assert_eq!((named(""), named("ƒ")), (None, None));
        assert!(named(&"9".repeat(200)).is_some());
        assert_eq!(environment(None).default_name().as_str(), "default");
    }

    #[test]
    fn the_runtime_directory_is_preferred() {
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        assert_eq!(here.existing_base(), None);
        assert_eq!(here.base().unwrap(), dir.path().join("bivouac"));
        assert_eq!(here.existing_base(), Some(dir.path().join("bivouac")));
        let mode = dir.path().join("bivouac").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }

    #[test]
    fn without_one_there_is_a_place_of_the_user() {
        let base = environment(Some(Path::new("/nonexistent"))).base_path();
        let text = base.to_str().unwrap();
        assert!(text.starts_with("/run/user/") || text.starts_with("/tmp/bivouac-"), "{text}");
        assert_ne!(environment(Some(Path::new("relative"))).base_path(), Path::new("relative/bivouac"));
    }

    #[test]
    fn every_place_can_be_named_from_every_other() {
        let here = environment(None);
        for base in here.usual_bases().into_iter().chain([PathBuf::from("/x/bivouac")]) {
            let runtime = here.runtime_dir_of(&base);
            let reached = environment(Some(&runtime)).base_path();
            assert!(reached == base || !is_ours(&runtime, here.uid), "{}", base.display());
        }
        let shared = here.shared_base();
        assert_eq!(environment(Some(&shared)).base_path(), shared);
    }

    #[test]
    fn tricks_with_the_directory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("b");
        let refusal = || make_private_dir(&base).unwrap_err().to_string();
        symlink(dir.path(), &base).unwrap();
        assert!(refusal().contains("symbolic link"));
        std::fs::remove_file(&base).unwrap();
        std::fs::create_dir(&base).unwrap();
        std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(refusal().contains("open to other users"));
        std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(check_private_dir(&base, 4_000_000).unwrap_err().to_string().contains("not to 4000000"));
        make_private_dir(&base).unwrap();
    }

    /// S320.
    #[test]
    fn the_mount_point_of_several_hosts_is_in_a_directory_of_ours() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        let at = base.join("x+mount");
        assert!(make_mount_point(&at).unwrap());
        assert_eq!(at.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        assert_eq!(base.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
        assert!(make_mount_point(&at).unwrap(), "what a crash left there is ours");
        std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_mount_point(&at).unwrap_err().to_string().contains("open to other users"));
        std::fs::set_permissions(&base, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::remove_dir(&at).unwrap();
        remove_around(&at);
        assert!(!base.exists());
        symlink(dir.path(), &base).unwrap();
        assert!(make_mount_point(&at).unwrap_err().to_string().contains("symbolic link"));
        let chosen = dir.path().join("chosen");
        assert_eq!((make_mount_point(&chosen).unwrap(), make_mount_point(&chosen).unwrap()), (true, false));
        let here = environment(None);
        let name: FormationName = "x".parse().unwrap();
        assert!(here.hosts_mount(&name).starts_with(here.shared_base()));
        assert!("x+mount".parse::<FormationName>().is_err(), "no formation has that directory");
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let here = environment(None);
        assert!(here.find_program("sh").is_some_and(|file| file.ends_with("sh")));
        assert_eq!(here.find_program("no-such-program"), None);
    }
}
