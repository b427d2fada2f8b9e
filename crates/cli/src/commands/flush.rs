//! `bivouac flush`.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_client::{Client, FlushOptions, FlushOutcome, FlushTarget, flush_target};
use bivouac_launch::Environment;
use bivouac_stage::escape;
use bivouac_types::PartitionId;
use bivouac_types::units::{format_count, format_size};

use crate::failure::Failure;
use crate::options::FlushArgs;
use crate::reach::{self, MountedPath};

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Brings what was written to site storage.
pub fn run(here: &Environment, args: &FlushArgs) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for path in &args.paths {
        let MountedPath { client, entry, resolved } = reach::of_path(here, path, ANSWER_WAIT)?;
        let below = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
        let subtree = FlushTarget::find(&client, &entry.dir, below)?;
        if subtree.top.attr.layout.partition() == PartitionId::ROOT {
            let text = "is in no partition with a source: nothing is to be flushed";
            return Err(Failure::new(1, format_args!("{}: {text}", entry.dir.join(below).display())));
        }
        // What mounts have acknowledged and not sent is not known to the nodes, and would not be among what is flushed.
        client.site.send_behind()?;
        if args.dry_run {
            announce(&escape(path), &client, &subtree)?;
            client.leave();
            continue;
        }
        let options = FlushOptions { force: args.force, jobs: args.jobs };
        let outcome = flush_target(&client, &subtree, &client.site.unsaved()?, options)?;
        client.leave();
        if !tell(&escape(path), &outcome, args.quiet) {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Says what would be brought there.
fn announce(what: &str, client: &Client, subtree: &FlushTarget) -> Result<(), Failure> {
    let unsaved = client.site.unsaved()?;
    let plan = subtree.plan(client, &unsaved)?;
    let bytes: u64 = plan.files.iter().map(|file| unsaved.bytes_of(file.attr.ino).min(file.attr.size)).sum();
    plan.files.iter().for_each(|file| outln!("{}", escape(&subtree.path_of(file))));
    let files = format_count(plan.files.len() as u64, "file");
    outln!("{what}: would flush {files}, about {}", format_size(bytes));
    Ok(())
}

/// Says what came of it; whether all is there.
fn tell(what: &str, outcome: &FlushOutcome, quiet: bool) -> bool {
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
