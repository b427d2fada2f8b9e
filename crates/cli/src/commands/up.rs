//! `bivouac up`.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_http::announce::{self, Announced};
use bivouac_launch::{CAUGHT, Environment, LaunchError, MountWay, ProcessId, Signals, cannot_mount, table};
use bivouac_mount::fusermount;
use bivouac_stage::Transfer;
use bivouac_stage::jobs::{Jobs, Way};

use crate::commands::key::shown;
use crate::failure::Failure;
use crate::forming::{Formed, form};
use crate::forming_hosts::{self, Ends};
use crate::options::UpArgs;
use crate::progress::name;
use crate::reach;
use crate::unsaved::{PROMISED, keep};

/// Starts a formation and leaves it running.
pub fn run(here: &Environment, args: &UpArgs) -> Result<ExitCode, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let place = (!args.no_mount).then_some(&args.place);
    let outputs = absolute(&args.outputs)?;
    let owner = args.owner.map(owner).transpose()?;
    if let Some(hosts) = forming_hosts::hosts(here, &args.formation)? {
        let formed = forming_hosts::form(
            here,
            args.name.clone(),
            (&args.formation, &args.file),
            hosts,
            place,
            Ends::With(owner),
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
    let formed = form(here, args.name.clone(), &args.formation, &args.file, place, owner, &signals)?;
    promised(here, &formed, &outputs)?;
    show(args, &formed)
}

/// Writes down what is to be copied out, or takes the formation down again.
fn promised(here: &Environment, formed: &Formed, outputs: &[Transfer]) -> Result<(), Failure> {
    if outputs.is_empty() {
        return Ok(());
    }
    promise(formed, outputs).map_err(|failure| formed.give_up(here, failure))
}

fn show(args: &UpArgs, formed: &Formed) -> Result<ExitCode, Failure> {
    let servers = if args.formation.http.is_some() { servers(formed)? } else { Vec::new() };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&json(formed, &servers)).map_err(std::io::Error::from)?);
    } else {
        out!("{}", text(formed, &servers));
    }
    Ok(ExitCode::SUCCESS)
}

/// The servers for HTTP of all hosts. From a host that is none of the formation's they are not seen.
fn servers(formed: &Formed) -> Result<Vec<Announced>, Failure> {
    let Some(state) = formed.dir.read()?.filter(|state| !state.is_over_hosts()) else {
        return Ok(Vec::new());
    };
    let client = reach::client(&formed.dir, &state, Duration::from_millis(state.wait_ms))?;
    let servers = announce::list(&client);
    client.leave();
    Ok(servers?)
}

pub(super) fn owner(pid: u32) -> Result<ProcessId, LaunchError> {
    let remedy = "name one that runs as long as the formation shall, for instance: --owner $$";
    ProcessId::of(pid)
        .ok_or_else(|| LaunchError::usage(format_args!("--owner {pid}"), "there is no such process", remedy))
}

/// Targets for whoever copies them out from elsewhere.
fn absolute(outputs: &[Transfer]) -> Result<Vec<Transfer>, Failure> {
    let absolute =
        |output: &Transfer| Ok(Transfer { src: output.src.clone(), dst: std::path::absolute(&output.dst)? });
    outputs.iter().map(absolute).collect()
}

/// Writes down what is to be copied out before the formation goes, for `down` and for whoever finds it killed.
fn promise(formed: &Formed, outputs: &[Transfer]) -> Result<(), Failure> {
    Jobs::at(formed.dir.stage_path()).promise(outputs).map_err(|failure| Failure::new(1, failure))?;
    let what: Vec<_> = outputs.iter().map(|output| name(Way::Out, output)).collect();
    let reason = format!("{PROMISED}: {}", what.join(", "));
    keep(formed.whole.as_ref().unwrap_or(&formed.dir), Some(reason))
}

fn json(formed: &Formed, servers: &[Announced]) -> serde_json::Value {
    serde_json::json!({
        "name": formed.name,
        "directory": formed.dir.path(),
        "mounts": formed.mounts,
        "steps": formed.steps,
        "http": servers,
    })
}

fn text(formed: &Formed, servers: &[Announced]) -> String {
    let mut text = format!("formation {} is up\n", formed.name);
    for mount in &formed.mounts {
        let on = if formed.whole.is_some() { " on each host" } else { "" };
        text.push_str(&format!("mounted at {}{on}\n", mount.display()));
    }
    for server in servers {
        text.push_str(&format!("serves {}; for keys: bivouac key create\n", shown(server)));
        text.push_str(&format!("to look at it: {}{}/\n", server.url, bivouac_http::PAGE));
    }
    if formed.steps.is_empty() {
        return text;
    }
    text + &table(&formed.steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_launch::{Phase, StateDir};

    fn formed() -> Formed {
        Formed {
            name: "x".parse().unwrap(),
            dir: StateDir::at("/run/b/x".into()),
            mounts: vec!["/m/0".into(), "/m/1".into()],
            steps: vec![Phase { name: "daemons".into(), us: 2000 }],
            whole: None,
            _tie: None,
        }
    }

    #[test]
    fn people_see_mounts_and_times() {
        let server = Announced { url: "https://h:1".into(), fingerprint: Some("AB".into()), nodes: vec![0] };
        let text = text(&formed(), &[server]);
        assert!(
            text.starts_with("formation x is up\nmounted at /m/0\nmounted at /m/1\nserves https://h:1/ (certificate SHA-256 AB)"),
            "{text}"
        );
        assert!(text.contains("daemons        2.0 ms"), "{text}");
    }

    #[test]
    fn scripts_see_the_same() {
        let json = json(&formed(), &[]);
        assert_eq!((&json["name"], &json["mounts"][1]), (&"x".into(), &"/m/1".into()));
        assert_eq!((&json["steps"][0]["us"], &json["directory"]), (&2000.into(), &"/run/b/x".into()));
    }
}
