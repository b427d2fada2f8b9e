//! `bivouac join`: one host's part of a formation over several.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bivouac_hosts::{JoinOptions, Mounter, join};
use bivouac_launch::{
    Environment, FormationState, Kind, LaunchError, LaunchResult, LogFormat, MountWay, StateDir, cannot_mount,
};
use bivouac_mount::fusermount;

use super::supervise::supervise_at;
use crate::attach::{MountRequest, attach, wait_usable};
use crate::failure::Failure;
use crate::logging;
use crate::options::JoinArgs;

/// Device through which the kernel makes mounts.
const DEVICE: &str = "/dev/fuse";
/// Its major and minor number.
const DEVICE_NUMBER: (u32, u32) = (10, 229);

/// Plays this host's part until it is over.
pub fn run(here: &Environment, args: JoinArgs) -> Result<ExitCode, Failure> {
    logging::call("agent");
    let options = JoinOptions { ticket: args.ticket, sent: args.sent, meet: args.meet, apart: args.apart };
    join(here, &options, &Fuse(here), &|dir| supervise_at(here, dir))?;
    Ok(ExitCode::SUCCESS)
}

struct Fuse<'a>(&'a Environment);

impl Mounter for Fuse<'_> {
    fn write_logs_as(&self, format: LogFormat) {
        logging::write_as(format, None);
    }

    fn check(&self) -> LaunchResult<()> {
        let refused = |e| LaunchError::path(Path::new(DEVICE), "use it, and FUSE is needed to mount", e);
        // Also the helper opens it with the user's rights.
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE);
        let device = opened.and_then(|device| device.metadata()).map_err(refused)?;
        if device.rdev() != rustix::fs::makedev(DEVICE_NUMBER.0, DEVICE_NUMBER.1) {
            let remedy = "load the kernel's module (modprobe fuse), or give --no-mount";
            return Err(LaunchError::new(Kind::Refused, DEVICE, "is not the FUSE device", remedy));
        }
        match MountWay::choose(self.0, &fusermount::PROGRAMS) {
            MountWay::Namespaces => Err(cannot_mount()),
            MountWay::Direct | MountWay::Helper(_) => Ok(()),
        }
    }

    fn mount(
        &self,
        dir: &StateDir,
        state: &FormationState,
        at: &Path,
        own_dir: bool,
        allow_other: bool,
    ) -> Result<PathBuf, String> {
        let node = state.nodes.first().map_or(0, |node| node.id);
        let wanted = MountRequest { node, dir: at, own_dir, allow_other };
        let mount = attach(self.0, dir, state, wanted).map_err(|failure| failure.to_string())?;
        let bound = Duration::from_millis(state.wait_ms);
        wait_usable(&mount, bound).map_err(|failure| failure.to_string())?;
        Ok(mount)
    }
}
