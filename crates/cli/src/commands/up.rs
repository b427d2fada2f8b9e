//! `bivouac up`.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_http::announce::{self, Announced};
use bivouac_launch::{CAUGHT, Environment, LaunchError, MountWay, ProcessId, Signals, cannot_mount};
use bivouac_monitor::connect;
use bivouac_mount::fusermount;
use bivouac_stage::Transfer;
use bivouac_stage::jobs::{Direction, Jobs};

use crate::commands::key::shown;
use crate::failure::Failure;
use crate::forming::{RunningFormation, form};
use crate::forming_hosts::{self, Lifetime};
use crate::options::UpArgs;
use crate::output;
use crate::start_report::StartReport;
use crate::unsaved::{PROMISED, keep};
use serde::Serialize;

/// Starts a formation and leaves it running.
pub fn run(here: &Environment, args: &UpArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let place = (!args.no_mount).then_some(&args.place);
    let outputs = absolute(&args.outputs)?;
    Direction::Out.check_targets(&outputs).map_err(|why| Failure::new(1, format!("--out: {why}")))?;
    let owner = args.owner.map(owner).transpose()?;
    let name = args.name().cloned().unwrap_or_else(|| here.default_name());
    if let Some(hosts) = forming_hosts::hosts(here, &args.formation)? {
        let formed = forming_hosts::form(
            here,
            name,
            (&args.formation, &args.file),
            hosts,
            place,
            Lifetime::With(owner),
            &signals,
        )?;
        // One promise is enough: the host's that takes the formation down.
        if formed.whole.is_some() {
            promised(here, &formed, &outputs)?;
        }
        return show(args, &formed);
    }
    if !args.no_mount && MountWay::choose(here, &fusermount::PROGRAMS) == MountWay::Namespaces {
        return Err(cannot_mount().into());
    }
    let formed = form(here, name, &args.formation, &args.file, place, owner, &signals)?;
    promised(here, &formed, &outputs)?;
    show(args, &formed)
}

/// Writes down what is to be copied out, or takes the formation down again.
fn promised(here: &Environment, formed: &RunningFormation, outputs: &[Transfer]) -> Result<(), Failure> {
    if outputs.is_empty() {
        return Ok(());
    }
    promise(formed, outputs).map_err(|failure| formed.give_up(here, failure))
}

fn show(args: &UpArgs, formed: &RunningFormation) -> Result<ExitCode, Failure> {
    let servers = if args.formation.http.is_some() { servers(formed)? } else { Vec::new() };
    let RunningFormation { name, dir, whole, mounts, steps, .. } = formed;
    let report = StartReport::new(name, dir, whole.as_ref(), mounts, steps)?;
    if args.json {
        outln!("{}", output::json(&UpOutput { report: &report, http: &servers }, true)?);
    } else {
        out!("{}{}{}", report.to_text("is up"), text(&servers), report.time_text());
    }
    Ok(ExitCode::SUCCESS)
}

/// Output for scripts.
#[derive(Serialize)]
struct UpOutput<'a> {
    #[serde(flatten)]
    report: &'a StartReport,
    http: &'a [Announced],
}

/// Returns the servers for HTTP of all hosts. From a host that is none of the formation's they are not seen.
fn servers(formed: &RunningFormation) -> Result<Vec<Announced>, Failure> {
    let Some(state) = formed.dir.read()?.filter(|state| !state.is_over_hosts()) else {
        return Ok(Vec::new());
    };
    let client = connect(&formed.dir, &state, Duration::from_millis(state.wait_ms))?;
    let servers = announce::list(&client);
    client.leave();
    Ok(servers?)
}

pub(super) fn owner(pid: u32) -> Result<ProcessId, LaunchError> {
    let remedy = "name one that runs as long as the formation shall, for instance: --owner $$";
    ProcessId::of(pid)
        .ok_or_else(|| LaunchError::usage(format_args!("--owner {pid}"), "there is no such process", remedy))
}

/// Returns the targets for whoever copies them out from elsewhere.
fn absolute(outputs: &[Transfer]) -> Result<Vec<Transfer>, Failure> {
    let absolute =
        |output: &Transfer| Ok(Transfer { src: output.src.clone(), dst: std::path::absolute(&output.dst)? });
    outputs.iter().map(absolute).collect()
}

/// Writes down what is to be copied out before the formation goes, for `down` and for whoever finds it killed.
fn promise(formed: &RunningFormation, outputs: &[Transfer]) -> Result<(), Failure> {
    Jobs::at(formed.dir.stage_path()).promise(outputs).map_err(|failure| Failure::new(1, failure))?;
    let what: Vec<_> = outputs.iter().map(|output| Direction::Out.describe(output)).collect();
    let reason = format!("{PROMISED}: {}", what.join(", "));
    keep(formed.whole.as_ref().unwrap_or(&formed.dir), Some(reason))
}

fn text(servers: &[Announced]) -> String {
    let mut text = String::new();
    for server in servers {
        text.push_str(&format!("serves {}; for keys: bivouac key create\n", shown(server)));
        text.push_str(&format!("to look at it: {}{}/\n", server.url, bivouac_http::PAGE));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_where_it_is_served() {
        let server = Announced { url: "https://h:1".into(), fingerprint: Some("AB".into()), nodes: vec![0] };
        let text = text(&[server]);
        assert!(text.starts_with("serves https://h:1/ (certificate SHA-256 AB); for keys: "), "{text}");
        assert!(text.contains("to look at it: https://h:1/"), "{text}");
    }
}
