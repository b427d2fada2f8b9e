//! `bivouac system`: what the machines are and what joins them.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_launch::Environment;
use bivouac_monitor::status::CODE_DEGRADED;
use bivouac_survey::{
    HostQuery, LocalQuery, MeasureQuery, gather_hosts, gather_local, measure, read_map, read_maps,
};
use bivouac_sysmap::{Map, diff, dot, svg};
use jsonpath_rust::JsonPath;

use crate::failure::Failure;
use crate::options::{MapFormat, SystemArgs, WhoseArgs};
use crate::system::{changes, text, to_xml, to_yaml};

/// Longest expression, in bytes; and how deep brackets may be in each other.
const QUERY_MAX: usize = 4096;
const DEPTH_MAX: usize = 32;
/// Exit code if nothing matches, as of grep.
const CODE_NOTHING_FOUND: u8 = 1;

/// Shows the map of this host, or of others.
pub fn run(here: &Environment, args: &SystemArgs) -> Result<ExitCode, Failure> {
    args.query.as_deref().map_or(Ok(()), check)?;
    let old = args.diff.as_deref().map(read_map).transpose()?;
    let map = map_of(here, args)?;
    let mut is_found = true;
    if let Some(old) = old {
        let found = diff(&bivouac_sysmap::merge(vec![old]), &map);
        if args.json {
            outln!("{}", crate::output::json_value(&found, true)?);
        } else {
            out!("{}", changes(&found));
        }
    } else if let Some(query) = &args.query {
        is_found = select(&map, query)?;
    } else {
        show(&map, if args.json { MapFormat::Json } else { args.format })?;
    }
    // On standard error where the map itself is for programs.
    if args.json || args.query.is_some() || args.format != MapFormat::Table {
        map.notes.iter().for_each(|note| errln!("bivouac: not known: {note}"));
    }
    let is_slow = map.measured.as_ref().is_some_and(|measured| !measured.slow.is_empty());
    Ok(match is_slow {
        _ if !is_found => ExitCode::from(CODE_NOTHING_FOUND),
        true => ExitCode::from(CODE_DEGRADED),
        false => ExitCode::SUCCESS,
    })
}

/// Returns the map that is asked for, as far as it can be had.
fn map_of(here: &Environment, args: &SystemArgs) -> Result<Map, Failure> {
    let WhoseArgs { name, hosts, hostfile, here: only_here, from, launcher, program, answer_timeout } =
        &args.whose;
    let query = HostQuery {
        formation: name.clone(),
        hosts: hosts.clone(),
        hostfile: hostfile.clone(),
        launcher: launcher.clone(),
        program: program.clone(),
        answer_timeout: Duration::from_millis(answer_timeout.0),
        load_ms: args.load.0,
    };
    if args.measure {
        let bound = Duration::from_millis(args.measure_time.0);
        return Ok(measure(here, &query, &MeasureQuery { bound, network: args.network.clone() })?);
    }
    if !from.is_empty() {
        return Ok(read_maps(from)?);
    }
    let (root, record) = (args.root.as_deref(), args.record.as_deref());
    let only_here = *only_here || root.is_some() || record.is_some();
    match if only_here { None } else { gather_hosts(here, &query)? } {
        Some(map) => Ok(map),
        None => Ok(gather_local(here, &LocalQuery { root, record, load_ms: args.load.0 })?),
    }
}

fn show(map: &Map, form: MapFormat) -> Result<(), Failure> {
    match form {
        MapFormat::Table => out!("{}", text(map)),
        MapFormat::Json => outln!("{}", crate::output::json_value(&map, true)?),
        MapFormat::Yaml => out!("{}", to_yaml(map)?),
        MapFormat::Xml => out!("{}", to_xml(map)?),
        MapFormat::Dot => out!("{}", dot(map)),
        MapFormat::Svg => out!("{}", svg(map)),
    }
    Ok(())
}

/// Refuses, before anything is asked, an expression that its parser would go too deep into, which it does by calling
/// itself.
fn check(query: &str) -> Result<(), Failure> {
    let refused =
        |cause: &str| Failure::new(2, format_args!("--query: {cause}; write for instance $.hosts[*].name"));
    if query.len() > QUERY_MAX {
        return Err(refused(&format!("has more than {QUERY_MAX} bytes")));
    }
    let mut depth = 0_usize;
    for c in query.chars() {
        match c {
            '(' | '[' | '!' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(refused(&format!("has more than {DEPTH_MAX} brackets in each other")));
        }
    }
    let nothing = serde_json::Value::Null;
    nothing.query(query).map(|_| ()).map_err(|error| {
        let text = error.to_string();
        refused(&format!("is no JSONPath: {}", text.split_whitespace().collect::<Vec<_>>().join(" ")))
    })
}

/// Shows what is found of the map. Whether that is anything.
fn select(map: &Map, query: &str) -> Result<bool, Failure> {
    let value = serde_json::to_value(map).map_err(std::io::Error::from)?;
    let found = value.query(query).map_err(|error| Failure::new(2, format_args!("--query: {error}")))?;
    for value in &found {
        outln!("{value}");
    }
    if found.is_empty() {
        errln!(
            "bivouac: --query {query}: nothing in the map is of that kind; see all of it with: bivouac system --json"
        );
    }
    Ok(!found.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_checked_before_anything_is_asked() {
        assert!(check("$.hosts[?@.memory.total_bytes > 1].name").is_ok());
        assert!(check("$.hosts[?search(@.name, 'n[0-9]+')]").is_ok());
        for wrong in
            ["", "hosts", "$[", &"(".repeat(100), &format!("$[?{}]", "!".repeat(2000)), &"$".repeat(5000)]
        {
            assert_eq!(check(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
