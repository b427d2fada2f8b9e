//! `bivouac recover`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_launch::{
    CAUGHT, LaunchError, MountWay, Recovery, Signals, Started, Surroundings, cannot_mount, recover, table,
};
use bivouac_mount::fusermount;

use super::up::owner;
use crate::attach::wait_usable;
use crate::failure::Failure;
use crate::forming::mount_all;
use crate::options::RecoverArgs;

/// Starts a formation again that was killed as a whole, and mounts it.
pub fn run(here: &Surroundings, args: &RecoverArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    if !args.no_mount && MountWay::choose(here, &fusermount::PROGRAMS) == MountWay::Namespaces {
        return Err(cannot_mount().into());
    }
    let wanted = Recovery {
        name: args.formation.clone().or_else(|| args.name.clone()),
        volumes: args.volumes.clone(),
        port: args.port,
        owner: args.owner.map(owner).transpose()?,
        ttl_ms: args.ttl.map(|ttl| ttl.0),
    };
    let bound = Duration::from_millis(args.start_timeout.0);
    let mut notice = |text: &str| errln!("bivouac: {text}");
    let mut started = recover(here, &wanted, bound, &signals, &mut notice)?;
    let place = (!args.no_mount).then_some(&args.place);
    let mounted = mount_all(here, &started.dir, &started.state, place).and_then(|mounts| {
        started.phases.end("mount");
        mounts.iter().try_for_each(|mount| wait_usable(mount, bound))?;
        started.phases.end("ready");
        Ok(mounts)
    });
    let mounts = mounted.map_err(|failure| {
        let name = &started.name;
        Failure::new(
            failure.exit_code(),
            format_args!("formation {name} runs again, but is not mounted: {failure}; bivouac mount --name {name} DIR does that"),
        )
    })?;
    show(args.json, started, &mounts)?;
    Ok(ExitCode::SUCCESS)
}

fn show(json: bool, started: Started, mounts: &[PathBuf]) -> Result<(), Failure> {
    let (name, dir, steps) = (started.name, started.dir, started.phases.into_steps());
    if json {
        let shown =
            serde_json::json!({ "name": name, "directory": dir.path(), "mounts": mounts, "steps": steps });
        outln!("{}", serde_json::to_string_pretty(&shown).map_err(std::io::Error::from)?);
        return Ok(());
    }
    outln!("formation {name} is recovered");
    mounts.iter().for_each(|mount| outln!("mounted at {}", mount.display()));
    out!("{}", table(&steps));
    Ok(())
}
