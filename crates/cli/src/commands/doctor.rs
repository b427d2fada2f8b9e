//! `bivouac doctor`.

use std::process::ExitCode;

use bivouac_hosts::parse_hosts;
use bivouac_launch::Environment;
use serde::Serialize;

use crate::doctor::{Check, Severity, gather, judge, text};
use crate::failure::Failure;
use crate::options::DoctorArgs;
use crate::output;

/// Output for scripts.
#[derive(Serialize)]
struct DoctorOutput<'a> {
    ok: bool,
    checks: &'a [Check],
}

/// Looks at this machine, and at the hosts that are named. The exit code is 1 if something is missing that formations
/// need.
pub fn run(here: &Environment, args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let hosts = args.hosts.as_deref().map_or(Ok(Vec::new()), |list| parse_hosts(list, 1))?;
    let checks = judge(&gather(here, &hosts));
    let ok = checks.iter().all(|check| check.level != Severity::Missing);
    if args.json {
        outln!("{}", output::json(&DoctorOutput { ok, checks: &checks }, true)?);
    } else {
        out!("{}", text(&checks));
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
