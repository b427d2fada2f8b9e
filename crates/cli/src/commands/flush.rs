//! `bivouac flush`.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_client::Client;
use bivouac_launch::Environment;
use bivouac_stage::escape;
use bivouac_types::units::{format_count, format_size};

use crate::failure::Failure;
use crate::flushing::{Manner, Outcome, Target, bring_all};
use crate::options::FlushArgs;
use crate::reach::{self, Reached};

/// How long a node may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Brings what was written to site storage.
pub fn run(here: &Environment, args: &FlushArgs) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for path in &args.paths {
        let Reached { client, entry, resolved } = reach::of_path(here, path, ANSWER_WAIT)?;
        let below = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
        let target = Target::at(&client, &entry.dir, below)?;
        client.site.send_behind()?;
        if args.dry_run {
            announce(&escape(path), &client, &target)?;
            client.leave();
            continue;
        }
        let manner = Manner { force: args.force, jobs: args.jobs };
        let outcome = bring_all(&client, &target, &client.site.unsaved()?, manner)?;
        client.leave();
        if !tell(&escape(path), &outcome, args.quiet) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Says what would be brought there.
fn announce(what: &str, client: &Client, target: &Target) -> Result<(), Failure> {
    let unsaved = client.site.unsaved()?;
    let plan = target.plan(client, &unsaved)?;
    let bytes: u64 = plan.files.iter().map(|file| unsaved.bytes_of(file.attr.ino).min(file.attr.size)).sum();
    plan.files.iter().for_each(|file| outln!("{}", escape(&target.path_of(file))));
    let files = format_count(plan.files.len() as u64, "file");
    outln!("{what}: would flush {files}, about {}", format_size(bytes));
    Ok(())
}

/// Says what came of it; whether all is there.
fn tell(what: &str, outcome: &Outcome, quiet: bool) -> bool {
    for lost in &outcome.lost {
        errln!("bivouac: {lost}");
    }
    for (path, error) in &outcome.failed {
        errln!("bivouac: {}: not flushed: {error}", escape(path));
    }
    let (files, mut bytes) = (format_count(outcome.files as u64, "file"), format_size(outcome.bytes));
    if outcome.deleted > 0 {
        bytes.push_str(&format!("; deleted {}", outcome.deleted));
    }
    let failed = outcome.failed.len();
    match failed {
        0 if quiet => {}
        0 => outln!("{what}: flushed {files}, {bytes}"),
        _ => outln!("{what}: flushed {files}, {bytes}; {failed} were not, and stay in the formation"),
    }
    failed == 0
}
