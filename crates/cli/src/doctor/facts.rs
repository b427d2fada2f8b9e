//! Facts about this machine that matter to formations.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bivouac_hosts::{HostArg, has_program};
use bivouac_launch::{Environment, LendableDir, MountWay, available_memory, parallel_map, tightest_memory};
use bivouac_mount::fusermount;
use rustix::process::{Resource, getrlimit};

use crate::{environment, preloading};

/// Set-user-id.
const SETUID: u32 = 0o4000;

/// State of a host on which a formation is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAnswer {
    pub name: String,
    /// True if `bivouac` is installed there; an error says why the host cannot be reached.
    pub has_program: Result<bool, String>,
}

/// Facts about this host that the checks judge.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The kernel's release, as `uname -r`.
    pub kernel: String,
    /// Reason why `/dev/fuse` cannot be opened, if it cannot.
    pub no_device: Option<String>,
    /// True if this process may mount by itself.
    pub may_mount: bool,
    /// The helper for ordinary users, and whether it is set-user-id root.
    pub helper: Option<(String, bool)>,
    /// Reason why no user namespaces can be made, if that is known.
    pub no_namespaces: Option<String>,
    /// True if others may be let into mounts.
    pub user_allow_other: bool,
    /// True if the kernel hands FUSE requests over io_uring, if it could.
    pub fuse_uring: Option<bool>,
    /// Open files that a process may have, at most.
    pub open_files: Option<u64>,
    /// Processes and threads that the user may have.
    pub processes: Option<u64>,
    /// Memory that programs may use now, in bytes.
    pub available_bytes: u64,
    /// The control group that leaves least of it, in words.
    pub group: Option<String>,
    /// Free bytes of the place of volumes in memory; or why there is none.
    pub memory_place: Result<u64, String>,
    /// Directory of formations; or why there can be none.
    pub runtime_dir: Result<String, String>,
    /// True if that is the user's own, made by a login, or a place that all share.
    pub has_runtime_dir: bool,
    /// The preload's library, if it is beside the program.
    pub preload: Option<String>,
    /// Programs that start others on hosts, those that are here.
    pub launchers: Vec<&'static str>,
    /// The batch job that this is in.
    pub job: Option<String>,
    /// State of the hosts that were named.
    pub hosts: Vec<HostAnswer>,
}

/// Finds out. Each host is asked by ssh, all at the same time.
pub fn gather(here: &Environment, hosts: &[HostArg]) -> HostFacts {
    let helper = fusermount::PROGRAMS.iter().find_map(|name| here.find_program(name)).map(|path| {
        let is_root = path.metadata().is_ok_and(|found| found.uid() == 0 && found.mode() & SETUID != 0);
        (path.display().to_string(), is_root)
    });
    // The hard limit, to which starting a formation raises the soft one.
    let limit = |resource| getrlimit(resource).maximum;
    // Opened, not looked at: the control group of a container forbids devices whatever their permissions say.
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let launchers = ["ssh", "srun", "mpiexec", "flux", "pbsdsh"];
    let ask =
        |host: &HostArg| HostAnswer { name: host.name.clone(), has_program: has_program(here, &host.name) };
    let asked = parallel_map(hosts, ask);
    HostFacts {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        no_device: device.err().map(|error| error.to_string()),
        may_mount: MountWay::choose(here, &[]) == MountWay::Direct,
        helper,
        no_namespaces: no_namespaces(&|path| std::fs::read_to_string(path).ok()),
        user_allow_other: allows_others(&std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default()),
        fuse_uring: std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
            .ok()
            .map(|text| text.trim() == "Y"),
        open_files: limit(Resource::Nofile),
        processes: limit(Resource::Nproc),
        available_bytes: available_memory(here.batch.memory),
        group: tightest_memory(),
        memory_place: LendableDir::memory().map(|place| place.free).map_err(|error| error.to_string()),
        runtime_dir: here.base().map(|base| base.display().to_string()).map_err(|error| error.to_string()),
        has_runtime_dir: here.runtime_dir.as_ref().is_some_and(|dir| dir.is_dir()),
        preload: preloading::installed().map(|path| path.display().to_string()),
        launchers: launchers.into_iter().filter(|name| here.find_program(name).is_some()).collect(),
        job: environment::job(),
        hosts: asked.into_iter().flatten().collect(),
    }
}

/// Returns the reason why ordinary users cannot make namespaces, by the kernel's settings.
fn no_namespaces(read: &dyn Fn(&Path) -> Option<String>) -> Option<String> {
    let setting = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        read(Path::new(&path)).and_then(|text| text.trim().parse::<u64>().ok())
    };
    // The second is of Debian's kernels, the third of Ubuntu's; others have no such file, which forbids nothing.
    let forbids = [
        ("user.max_user_namespaces", 0),
        ("kernel.unprivileged_userns_clone", 0),
        ("kernel.apparmor_restrict_unprivileged_userns", 1),
    ];
    let found = forbids.into_iter().find(|(name, value)| setting(name) == Some(*value));
    found.map(|(name, value)| format!("{name} is {value}"))
}

fn allows_others(text: &str) -> bool {
    text.lines().any(|line| line.trim() == "user_allow_other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let sysctl = |all: &'static [(&str, &str)]| {
            no_namespaces(&|path: &Path| {
                let found = all.iter().find(|(name, _)| path == Path::new("/proc/sys").join(name));
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(sysctl(&[]), None);
        assert_eq!(
            sysctl(&[("user/max_user_namespaces", "0\n")]),
            Some("user.max_user_namespaces is 0".into())
        );
        assert_eq!(sysctl(&[("user/max_user_namespaces", "31215\n")]), None);
        assert!(sysctl(&[("kernel/apparmor_restrict_unprivileged_userns", "1\n")]).is_some());
        assert!(allows_others("# x\n user_allow_other \n") && !allows_others("#user_allow_other\n"));
    }
}
