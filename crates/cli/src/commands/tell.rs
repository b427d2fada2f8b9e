//! `bivouac tell`: what one host answers to `bivouac system` of another.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_hosts::{answer_lines, write_answer};
use bivouac_launch::Environment;
use bivouac_survey::{StationAnswer, map_of_this_host, open_station};

use crate::failure::Failure;
use crate::options::TellArgs;

/// Says what this host is, and, to be measured, where it takes orders.
pub fn run(here: &Environment, args: &TellArgs) -> Result<ExitCode, Failure> {
    let map = map_of_this_host(here, args.load);
    let Some(patience) = args.station else {
        answer(here, args, &map)?;
        return Ok(ExitCode::SUCCESS);
    };
    let (mut station, waiting) = open_station(args.network.as_ref())?;
    station.addresses.iter_mut().for_each(|address| {
        let known =
            map.hosts.iter().flat_map(|host| &host.interfaces).find(|one| one.name == address.interface);
        address.speed_bits = known.and_then(|one| one.speed_bits);
    });
    answer(here, args, &StationAnswer { map, station })?;
    // After the answer: who asks connects to the ports that are in it.
    if let Some(waiting) = waiting {
        waiting.serve(Duration::from_millis(patience));
    }
    Ok(ExitCode::SUCCESS)
}

fn answer<T: serde::Serialize>(here: &Environment, args: &TellArgs, what: &T) -> Result<(), Failure> {
    let text = crate::output::json_value(what, false)?;
    match &args.into {
        Some(dir) => write_answer(dir, &here.host, &text)?,
        None => out!("{}", answer_lines(&here.host, &text)),
    }
    Ok(())
}
