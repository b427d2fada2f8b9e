//! `bivouac find` and `bivouac unpublish`.

use std::process::ExitCode;

use bivouac_launch::Environment;
use bivouac_publish::{
    Catalogue, CatalogueListing, Cause, DatasetLocation, EntryRef, Kind, Location, Manifest, PublishError,
};
use bivouac_types::units::{format_size, format_utc};
use serde_json::{Value, json};

use crate::commands::get;
use crate::environment;
use crate::failure::Failure;
use crate::near_by;
use crate::options::{CatalogueArgs, FindArgs, UnpublishArgs};
use crate::publishing::{ServerAccess, failed};
use crate::table::layout;

/// Shows data sets that have all words.
pub fn find(here: &Environment, args: &FindArgs) -> Result<ExitCode, Failure> {
    let (place, mut ways) = (place(&args.which)?, ServerAccess::new(here, &args.which.key)?);
    ways.open(&place, false);
    let found = entries(args, &place, &mut ways)?;
    let now = bivouac_http::keys::now();
    let is_meant =
        |entry: &&Manifest| entry.is_meant_by(&args.words) && (args.expired || !entry.has_expired(now));
    let entries: Vec<&Manifest> = found.entries.iter().filter(is_meant).collect();
    if args.json {
        let all: Vec<Value> = entries.iter().map(|entry| json_of(entry, now)).collect();
        outln!("{}", crate::output::json_value(&all, true)?);
    } else {
        out!("{}", text_of(&entries, now));
    }
    found.damaged.iter().for_each(|text| errln!("bivouac: not shown: {text}"));
    Ok(ExitCode::SUCCESS)
}

/// Returns all entries of the catalogue; if it does not answer, those that formations near by know.
fn entries(
    args: &FindArgs,
    place: &Location,
    ways: &mut ServerAccess<'_>,
) -> Result<CatalogueListing, Failure> {
    let catalogue = Catalogue::open(place, &environment::objects(), &ways.web).map_err(failed)?;
    let name = catalogue.name();
    let listed = if args.known { None } else { Some(catalogue.list()) };
    drop(catalogue);
    let error = match listed {
        None => return Ok(near_by::list(ways, &args.near, &name)),
        Some(Ok(found)) => return Ok(found),
        Some(Err(error)) => error,
    };
    let known =
        if is_away(&error) { near_by::list(ways, &args.near, &name) } else { CatalogueListing::default() };
    if known.entries.is_empty() {
        return Err(failed(error));
    }
    errln!("bivouac: {error}; shown is only what formations near by know of it");
    Ok(known)
}

/// Returns whether a catalogue does not answer, or is a directory that this host does not have now.
fn is_away(error: &PublishError) -> bool {
    // NotFound as well: a catalogue on a file system that is not mounted here is a directory that is missing.
    matches!(error.cause(), Cause::Unreachable | Cause::NotFound | Cause::Other)
}

/// Takes a data set out of a catalogue.
pub fn unpublish(here: &Environment, args: &UnpublishArgs) -> Result<ExitCode, Failure> {
    let (place, mut ways) = (place(&args.which)?, ServerAccess::new(here, &args.which.key)?);
    ways.open(&place, true);
    let catalogue = Catalogue::open(&place, &environment::objects(), &ways.web).map_err(failed)?;
    catalogue.remove(&args.entry).map_err(failed)?;
    if let Some(cache) = get::cache() {
        cache.forget_entry(&catalogue.name(), &args.entry);
    }
    let name = catalogue.name();
    drop(catalogue);
    // After the catalogue: formations near by tell an entry as long as they have it, for an hour at most.
    near_by::forget(&mut ways, EntryRef { catalogue: &name, id: &args.entry });
    outln!("{} is out of {name}; its files are where they were", args.entry);
    Ok(ExitCode::SUCCESS)
}

/// Returns the location of the catalogue that was named.
pub fn place(args: &CatalogueArgs) -> Result<Location, Failure> {
    let text = args.catalogue.as_ref().ok_or_else(|| {
        Failure::new(2, "no catalogue is named; write --in CATALOGUE, or set BIVOUAC_CATALOGUE")
    })?;
    Location::parse(text).map_err(failed)
}

fn text_of(entries: &[&Manifest], now: u64) -> String {
    if entries.is_empty() {
        return "nothing found\n".to_owned();
    }
    let row = |entry: &&Manifest| {
        let end = match entry.expires {
            Some(_) if entry.has_expired(now) => "expired".to_owned(),
            Some(end) => format!("{}Z", format_utc(end)),
            None => "-".to_owned(),
        };
        vec![
            entry.id.clone(),
            entry.title.clone(),
            entry.files.to_string(),
            format_size(entry.bytes),
            entry.who.clone(),
            format!("{}Z", format_utc(entry.created)),
            end,
            entry.licence.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    let rows: Vec<Vec<String>> = entries.iter().map(row).collect();
    layout(&["ENTRY", "TITLE", "FILES", "SIZE", "WHO", "PUBLISHED", "UNTIL", "LICENCE"], &[2, 3], &rows)
}

/// Returns an entry for scripts.
pub fn json_of(entry: &Manifest, now: u64) -> Value {
    let holder = |holder: &DatasetLocation| {
        let formation = match &holder.kind {
            Kind::Formation { name, .. } => Some(name),
            Kind::Site => None,
        };
        json!({"url": holder.base, "formation": formation, "fingerprint": holder.fingerprint})
    };
    json!({
        "entry": entry.id, "title": entry.title, "words": entry.words, "licence": entry.licence, "who": entry.who,
        "name": entry.name, "files": entry.files, "bytes": entry.bytes, "published_unix_s": entry.created,
        "expires_unix_s": entry.expires, "expired": entry.has_expired(now),
        "holders": entry.holders.iter().map(holder).collect::<Vec<_>>(),
    })
}
