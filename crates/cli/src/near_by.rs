//! Entries of catalogues that formations near by know: this user's own on this host, whichever host of the formation
//! told them, and a server that the user names.

use std::collections::HashSet;

use bivouac_http::{keys, known};
use bivouac_publish::{
    CachedEntry, CatalogueListing, EntryRef, KNOWN_MAX, Location, PublishError, RequestOptions,
};
use serde_json::Value;
use url::Url;

use crate::options::NearArgs;
use crate::publishing::{ServerAccess, ServingFormation};
use crate::reach;

/// Most bytes of a server's list of entries.
const LIST_MAX: usize = 64 << 20;

/// Returns an entry as known to one of the formations near by, with the name of that one.
pub fn find(
    ways: &mut ServerAccess<'_>,
    near: &NearArgs,
    which: EntryRef<'_>,
) -> Option<(CachedEntry, String)> {
    let now = keys::now();
    for own in ways.own() {
        match known::find(&own.client, which, now) {
            Ok(Some(known)) => return Some((known, named(own))),
            Ok(None) => {}
            Err(error) => not_asked(&named(own), &error),
        }
    }
    let (url, from) = server(ways, near)?;
    let parameters = [("catalogue", which.catalogue), ("id", which.id)];
    let text = match asked(ways, &url, "entry.json", &parameters, KNOWN_MAX) {
        Ok(text) => text?,
        Err(error) => {
            not_asked(&from, &error);
            return None;
        }
    };
    match CachedEntry::decode(&text, which, now) {
        Ok(known) => Some((known, from)),
        Err(why) => {
            errln!("bivouac: {from}: what it says of {} is not believed: it {why}", which.id);
            None
        }
    }
}

/// Returns all entries of a catalogue that they know, each once, the newest version.
pub fn list(ways: &mut ServerAccess<'_>, near: &NearArgs, catalogue: &str) -> CatalogueListing {
    let now = keys::now();
    let mut found = CatalogueListing::default();
    for own in ways.own() {
        match known::list(&own.client, catalogue, now) {
            Ok(all) => found.entries.extend(all.into_iter().map(|known| known.manifest)),
            Err(error) => not_asked(&named(own), &error),
        }
    }
    if let Some((url, from)) = server(ways, near) {
        match asked(ways, &url, "find.json", &[("catalogue", catalogue)], LIST_MAX) {
            Ok(Some(text)) => add(&mut found, &text, (catalogue, now), &from),
            Ok(None) => {}
            Err(error) => not_asked(&from, &error),
        }
    }
    found.entries.sort_by(|a, b| (b.created, &a.id).cmp(&(a.created, &b.id)));
    // Versions of one entry are apart where others were published between them.
    let mut seen = HashSet::new();
    found.entries.retain(|entry| seen.insert(entry.id.clone()));
    found
}

/// Adds the entries of a server's list, each checked as any entry is.
fn add(found: &mut CatalogueListing, text: &str, (catalogue, now): (&str, u64), from: &str) {
    let document: Value = serde_json::from_str(text).unwrap_or_default();
    let Some(entries) = document.get("entries").and_then(Value::as_array) else {
        return found.damaged.push(format!("what {from} knows: it is no list of entries"));
    };
    for text in entries {
        match CachedEntry::decode_any(text.as_str().unwrap_or_default(), now) {
            Ok((of, known)) if of == catalogue => found.entries.push(known.manifest),
            Ok(_) => found.damaged.push(format!("an entry that {from} knows: it is of another catalogue")),
            Err(why) => found.damaged.push(format!("an entry that {from} knows: it {why}")),
        }
    }
}

/// Stores an entry in own formations. Where that fails, others and the catalogue are asked later.
pub fn tell(ways: &mut ServerAccess<'_>, catalogue: &str, known: &CachedEntry) {
    let here = ways.here();
    for own in ways.own() {
        let ctx = || reach::ctx(here, &own.client);
        if let Err(error) = known::tell(&own.client, &ctx, catalogue, known) {
            not_asked(&named(own), &error);
        }
    }
}

/// Removes an entry from own formations; prints for how long others may still have it.
pub fn forget(ways: &mut ServerAccess<'_>, which: EntryRef<'_>) {
    let here = ways.here();
    for own in ways.own() {
        let ctx = || reach::ctx(here, &own.client);
        if let Err(error) = known::forget(&own.client, &ctx, which) {
            let hours = bivouac_publish::FRESH_S / 3600;
            errln!("bivouac: {} may tell of it for up to {hours} h: {error}", named(own));
        }
    }
}

fn named(own: &ServingFormation) -> String {
    format!("formation {}", own.client.map().name)
}

/// Logs a failure, which only costs time: others are asked.
fn not_asked(who: &str, error: &dyn std::fmt::Display) {
    log::info!(why:% = error; "{who} is not asked for entries");
}

/// Returns the server that the user named, with the way to it.
fn server(ways: &mut ServerAccess<'_>, near: &NearArgs) -> Option<(Url, String)> {
    let text = near.near.as_deref().filter(|text| !text.is_empty())?;
    let Ok(Location::Web(url)) = Location::parse(text) else {
        errln!("bivouac: --near: is no URL of a server (https://HOST:PORT/); nobody is asked there");
        return None;
    };
    ways.open_server(&url, None, false, false);
    let from = bivouac_publish::origin_of(&url);
    Some((url, from))
}

/// Returns a text of a server; nothing, if it knows nothing.
fn asked(
    ways: &ServerAccess<'_>,
    server: &Url,
    part: &str,
    parameters: &[(&str, &str)],
    most: usize,
) -> Result<Option<String>, PublishError> {
    let mut url = server.clone();
    url.set_path(&format!("{}/{part}", known::PLACE));
    // Blanks of parameters are no signs of plus where they are read.
    let pairs = parameters
        .iter()
        .map(|(name, value)| format!("{name}={}", bivouac_publish::encoded(value.as_bytes())));
    url.set_query(Some(&pairs.collect::<Vec<_>>().join("&")));
    let mut answer = ways.web.ask("GET", &url, &RequestOptions::default())?;
    match answer.status {
        200 => answer.text(most).map(Some),
        404 => Ok(None),
        _ => Err(answer.refusal()),
    }
}
