//! `bivouac flush`.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_launch::mounts::mount_of;
use bivouac_launch::{FormationName, StateDir, Surroundings};
use bivouac_types::units::format_size;

use crate::failure::Failure;
use crate::flushing::{Manner, Outcome, Target, bring_all};
use crate::options::FlushArgs;
use crate::reach;

/// How long a node may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Brings what was written to site storage.
pub fn run(here: &Surroundings, args: &FlushArgs) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for path in &args.paths {
        let failed = |e| Failure::new(1, format_args!("{}: {e}; check its path", path.display()));
        let resolved = path.canonicalize().map_err(failed)?;
        let entry = mount_of(&resolved)
            .ok_or_else(|| Failure::new(1, format_args!("{}: is not in a formation", path.display())))?;
        let name: Option<FormationName> =
            entry.source.strip_prefix("bivouac:").and_then(|name| name.parse().ok());
        let (_, dir) = StateDir::find(here, name.as_ref())?;
        let client = reach::client(&dir, &reach::living(&dir)?, ANSWER_WAIT)?;
        let below = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
        let target = Target::at(&client, &entry.dir, below)?;
        client.send_behind()?;
        let manner = Manner { force: args.force, jobs: args.jobs };
        let outcome = bring_all(&client, &target, &client.unsaved()?, manner)?;
        client.leave();
        if !tell(&path.display().to_string(), &outcome) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Says what came of it; whether all is there.
fn tell(what: &str, outcome: &Outcome) -> bool {
    for lost in &outcome.lost {
        errln!("bivouac: {lost}");
    }
    for (path, error) in &outcome.failed {
        errln!("bivouac: {}: not flushed: {error}", path.display());
    }
    let (files, mut bytes) = (outcome.files, format_size(outcome.bytes));
    if outcome.deleted > 0 {
        bytes.push_str(&format!("; deleted {}", outcome.deleted));
    }
    let failed = outcome.failed.len();
    match failed {
        0 => outln!("{what}: flushed {files} files, {bytes}"),
        _ => outln!("{what}: flushed {files} files, {bytes}; {failed} were not, and stay in the formation"),
    }
    failed == 0
}
