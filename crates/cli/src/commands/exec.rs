//! `bivouac exec`: a command on a formation that runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::{Environment, FormationName, FormationState, StateDir, become_command};

use crate::failure::{CODE_NOT_STARTED, Failure};
use crate::options::ExecArgs;
use crate::staging::{UsableMounts, enter_mounts};
use crate::{environment, preloading};

/// Becomes the command. Returns only if that fails.
pub fn run(here: &Environment, args: &ExecArgs) -> Result<ExitCode, Failure> {
    let not_started = |failure: Failure| match failure.exit_code() {
        2 => failure,
        _ => failure.with_code(CODE_NOT_STARTED),
    };
    let (dir, state) = formation(here, args.which.name.as_ref()).map_err(not_started)?;
    // Before the mounts are looked at: in the other namespace they are where the command will see them.
    if !args.no_mount {
        enter_mounts(&dir, &state, Vec::new()).map_err(not_started)?;
    }
    let usable = UsableMounts::find(&state);
    let mount = usable.mounts.first().map(|mount| mount.dir.as_path());
    if mount.is_none() && !args.no_mount && args.cd.is_none() {
        return Err(not_mounted(&state, &usable));
    }
    let work_dir = args.cd.as_deref().map(|below| work_dir(&state, mount, below)).transpose()?;
    let preload = preloading::value(&args.preload, std::env::var_os(preloading::VARIABLE).as_deref())?;

    let values =
        [mount.map(Path::as_os_str), Some(OsStr::new(state.name.as_str())), Some(dir.path().as_os_str())];
    let mut variables: Vec<_> = environment::OF_COMMANDS.into_iter().zip(values).collect();
    variables.extend(preload.as_deref().map(|preload| (preloading::VARIABLE, Some(preload))));
    let (code, text) = become_command(&args.command, &variables, work_dir.as_deref());
    Err(Failure::new(code, text))
}

/// Returns the formation that is named; else the one of the command that we are called by; else as every command has
/// it.
fn formation(
    here: &Environment,
    name: Option<&FormationName>,
) -> Result<(StateDir, FormationState), Failure> {
    let (name_of, dir_of) = environment::around();
    let around = dir_of.filter(|_| name.is_none()).map(StateDir::at);
    // A formation that has gone leaves its directory's name in the environment of what it started.
    let dir = match around.filter(|dir| dir.read().is_ok_and(|state| state.is_some())) {
        Some(dir) => dir,
        None => {
            let around = name_of.and_then(|name| name.to_str()?.parse().ok());
            StateDir::find(here, name.or(around.as_ref()))?.1
        }
    };
    let state = dir.read_living()?;
    Ok((dir, state))
}

/// Returns the failure for a formation that is not mounted here: a command that finds no `BIVOUAC` would take another
/// directory for it, the root among them.
fn not_mounted(state: &FormationState, usable: &UsableMounts<'_>) -> Failure {
    let why = usable.left_out.iter().map(|(mount, why)| format!(" (mount {}: {why})", mount.dir.display()));
    let text = format!(
        "formation {0} is not mounted on this host, so BIVOUAC cannot be set{1}; mount it: bivouac mount --name {0} DIR, or say \
         that the command does without: bivouac exec --no-mount",
        state.name,
        why.collect::<String>()
    );
    Failure::new(CODE_NOT_STARTED, text)
}

/// Returns the directory in the mount in which the command begins.
fn work_dir(state: &FormationState, mount: Option<&Path>, below: &Path) -> Result<PathBuf, Failure> {
    let Some(mount) = mount else {
        let text = format!(
            "--cd: formation {0} is not mounted on this host; mount it: bivouac mount --name {0} DIR",
            state.name
        );
        return Err(Failure::new(CODE_NOT_STARTED, text));
    };
    // In a mount every path is below it: one with a slash in front means the formation's root.
    let dir = mount.join(below.strip_prefix("/").unwrap_or(below));
    match std::fs::metadata(&dir) {
        Ok(found) if found.is_dir() => Ok(dir),
        Ok(_) => {
            Err(Failure::new(CODE_NOT_STARTED, format_args!("--cd: {} is not a directory", dir.display())))
        }
        Err(error) => {
            let text =
                format_args!("--cd: {}: {error}; a path counts from the formation's root", dir.display());
            Err(Failure::new(CODE_NOT_STARTED, text))
        }
    }
}
