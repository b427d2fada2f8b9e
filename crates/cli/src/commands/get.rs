//! `bivouac get`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use bivouac_http::keys;
use bivouac_launch::Environment;
use bivouac_publish::{
    Cache, CachedEntry, Catalogue, DataSetFile, DatasetLocation, EntryRef, FetchRequest, FetchResult,
    Location, Manifest, Readers, UrlContent, WantedFile, fetch, fetch_plain, is_dir, look, metalink,
    ro_crate, split,
};
use bivouac_types::units::{exact_size, format_count, format_utc};
use serde_json::{Value, json};
use url::Url;

use crate::commands::{find, publish};
use crate::environment;
use crate::failure::Failure;
use crate::near_by;
use crate::options::GetArgs;
use crate::progress::print_line;
use crate::publishing::{Meter, ServerAccess, failed, interruptible, server_of};

/// Name of holders that are this user's own earlier copies.
const CACHE: &str = "fetched before";

/// Something to fetch.
enum FetchItem {
    /// A published entry, its files, and who described it.
    Entry(Box<Manifest>, Vec<DataSetFile>, String),
    Files(Vec<DataSetFile>),
    Bytes(Url, String),
}

/// Fetches something.
pub fn run(here: &Environment, args: &GetArgs) -> Result<ExitCode, Failure> {
    let mut ways = ServerAccess::new(here, &args.which.key)?;
    interruptible(|cancel| {
        ways.web.heed(cancel);
        let meter = Meter::new("get", args.json, args.talk);
        // Whoever reads events is told how it ended, however early that is.
        let tells = |failure: &Failure| tell_failure(args, failure, &meter);
        let done = match find(args, &mut ways).inspect_err(tells)? {
            FetchItem::Bytes(url, name) => bytes(args, &url, &name, &ways, &meter, cancel),
            FetchItem::Files(items) => files(args, None, items, &mut ways, &meter, cancel),
            FetchItem::Entry(manifest, items, from) => {
                check_time(args, &manifest).inspect_err(tells)?;
                if args.json {
                    print_line(&json!({"event": "found", "entry": manifest.id, "from": from}));
                }
                files(args, Some(&manifest), items, &mut ways, &meter, cancel)
            }
        };
        meter.clear();
        done.map(|()| ExitCode::SUCCESS)
    })
}

/// Returns this user's cache, if there is a place for one.
pub fn cache() -> Option<Cache> {
    environment::cache_home().map(|home| Cache::at(home.join("bivouac/published")))
}

fn find(args: &GetArgs, ways: &mut ServerAccess<'_>) -> Result<FetchItem, Failure> {
    let what = args.what.as_str();
    if what.contains("://") {
        return find_place(args, &Location::parse(what).map_err(failed)?, ways);
    }
    // Looked for by its name before it is taken for a file: an id is a word that could be both.
    if ro_crate::is_id(what) && args.which.catalogue.is_some() {
        return find_entry(args, &find::place(&args.which)?, what, ways);
    }
    if Path::new(what).exists() {
        return find_place(args, &Location::parse(what).map_err(failed)?, ways);
    }
    let text = format!(
        "{what}: is neither a file here nor a URL; for an entry of a catalogue write --in CATALOGUE, and see: bivouac find"
    );
    Err(Failure::new(2, text))
}

/// Returns an entry of a catalogue: what was fetched before, then formations near by, then the catalogue.
fn find_entry(
    args: &GetArgs,
    place: &Location,
    id: &str,
    ways: &mut ServerAccess<'_>,
) -> Result<FetchItem, Failure> {
    ways.open(place, false);
    // For its name alone: an open catalogue borrows the ways to servers, which formations near by are asked by first.
    let name = Catalogue::open(place, &environment::objects(), &ways.web).map_err(failed)?.name();
    let cache = cache().filter(|_| !args.no_cache);
    if let Some((manifest, items)) = cache.as_ref().and_then(|cache| cache.find_entry(&name, id)) {
        return Ok(FetchItem::Entry(Box::new(manifest), items, CACHE.to_owned()));
    }
    let which = EntryRef { catalogue: &name, id };
    let near = if args.no_cache { None } else { near_by::find(ways, &args.near, which) };
    let (known, from) = match near {
        Some((known, from)) => (known, from),
        None => {
            let catalogue = Catalogue::open(place, &environment::objects(), &ways.web).map_err(failed)?;
            let (manifest, items) = catalogue.get(id).map_err(failed)?;
            drop(catalogue);
            let known = CachedEntry { manifest, items };
            near_by::tell(ways, &name, &known);
            (known, name.clone())
        }
    };
    let CachedEntry { manifest, items } = known;
    if let Some(cache) = cache {
        cache.keep_entry(&name, &manifest, &items);
    }
    Ok(FetchItem::Entry(Box::new(manifest), items, from))
}

/// Finds out what is at a place: an entry's directory or its description, a metalink, or any file of a server.
fn find_place(args: &GetArgs, place: &Location, ways: &mut ServerAccess<'_>) -> Result<FetchItem, Failure> {
    let is_metalink = |name: &str| [".meta4", ".metalink"].iter().any(|end| name.ends_with(end));
    match place {
        Location::Path(path) if path.is_dir() => {
            let (parent, id) = split(path).map_err(failed)?;
            find_entry(args, &Location::Path(parent), &id, ways)
        }
        Location::Path(path) if path.to_str().is_some_and(is_metalink) => metalink_in(path),
        Location::Path(path) if path.ends_with(ro_crate::FILE) => {
            let dir = path.parent().unwrap_or(path);
            find_place(args, &Location::Path(dir.to_owned()), ways)
        }
        Location::Path(path) => {
            let text =
                "is neither an entry of a catalogue nor a metalink; to copy a file, use cp or bivouac stage";
            Err(Failure::new(2, format_args!("{}: {text}", path.display())))
        }
        Location::S3 { bucket, key, endpoint, region } => {
            let key = key.trim_end_matches(ro_crate::FILE).trim_end_matches('/');
            let (parent, id) = key.rsplit_once('/').unwrap_or(("", key));
            let (bucket, endpoint, region) = (bucket.clone(), endpoint.clone(), region.clone());
            let place = Location::S3 { bucket, key: parent.to_owned(), endpoint, region };
            find_entry(args, &place, id, ways)
        }
        Location::Web(url) => {
            ways.open_server(url, args.fingerprint.as_deref(), false, true);
            // The names of other servers come from this one: they are not shown its key.
            match entry_at(url) {
                Some((parent, id)) => find_entry(args, &Location::Web(parent), &id, ways),
                None => Ok(match look(url, &ways.web).map_err(failed)? {
                    UrlContent::Files(items) => FetchItem::Files(items),
                    UrlContent::Bytes { url, name } => FetchItem::Bytes(url, name),
                }),
            }
        }
    }
}

/// Returns the catalogue and the name of an entry that a URL names by its directory or its description.
fn entry_at(url: &Url) -> Option<(Url, String)> {
    let dir = url.path().strip_suffix(ro_crate::FILE).unwrap_or(url.path()).strip_suffix('/')?;
    let (parent, id) = dir.rsplit_once('/').filter(|(_, id)| ro_crate::is_id(id))?;
    let mut catalogue = url.clone();
    catalogue.set_path(parent);
    Some((catalogue, id.to_owned()))
}

fn metalink_in(path: &Path) -> Result<FetchItem, Failure> {
    let refused = |why: &dyn std::fmt::Display| Failure::new(1, format_args!("{}: {why}", path.display()));
    let len = std::fs::metadata(path).map_err(|error| refused(&error))?.len();
    if len > metalink::TEXT_MAX as u64 {
        return Err(refused(&"is too large for a metalink"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| refused(&error))?;
    metalink::decode(&text).map(FetchItem::Files).map_err(|why| refused(&why))
}

fn check_time(args: &GetArgs, manifest: &Manifest) -> Result<(), Failure> {
    match manifest.expires {
        Some(end) if manifest.has_expired(keys::now()) && !args.expired => {
            let text = format!(
                "{}: expired at {}Z; ask {} to publish it again, or fetch it all the same with --expired",
                manifest.id,
                format_utc(end),
                manifest.who
            );
            Err(Failure::new(1, text))
        }
        _ => Ok(()),
    }
}

/// Fetches bytes that nobody published digests of.
fn bytes(
    args: &GetArgs,
    url: &Url,
    name: &str,
    ways: &ServerAccess<'_>,
    meter: &Meter,
    cancel: &AtomicBool,
) -> Result<(), Failure> {
    let to = match &args.dst {
        Some(dst) if is_dir(dst) || ends_with_slash(dst) => dst.join(name),
        Some(dst) => dst.clone(),
        None => {
            let is_shown = refuse_hidden(name).inspect_err(|failure| tell_failure(args, failure, meter));
            is_shown.map(|()| PathBuf::from(name))?
        }
    };
    let fetched = fetch_plain(url, &to, args.force, args.max_size, &ways.web, meter, cancel);
    let (len, digest) = fetched.map_err(failed).inspect_err(|failure| tell_failure(args, failure, meter))?;
    meter.clear();
    let sum = meter.sum(1, len);
    let warning = "its server says no digests, so nothing was compared";
    meter.say(&format!("{}: {sum}; {warning}; SHA-256 {}", to.display(), digest.hex()));
    if args.json {
        print_line(&json!({
            "event": "ended", "ok": true, "files": 1, "files_already": 0, "bytes_moved": len,
            "verified": false, "sha256": digest.hex(),
        }));
    }
    Ok(())
}

fn ends_with_slash(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    path.as_os_str().as_bytes().ends_with(b"/")
}

/// Returns the files, whose digests are known.
fn files(
    args: &GetArgs,
    manifest: Option<&Manifest>,
    items: Vec<DataSetFile>,
    ways: &mut ServerAccess<'_>,
    meter: &Meter,
    cancel: &AtomicBool,
) -> Result<(), Failure> {
    let placed = targets(args, manifest, items);
    let (into, items) = placed.inspect_err(|failure| tell_failure(args, failure, meter))?;
    let cache = cache();
    let known = cache.as_ref().filter(|_| !args.no_cache);
    let (holders, files) = places(args, manifest, items, known, ways);
    let order = FetchRequest { files, holders, into, force: args.force, jobs: args.jobs };
    let here = environment::objects();
    let mut readers = Readers::new(&here, &ways.web);
    let named = [args.which.catalogue.as_deref(), Some(args.what.as_str())];
    named.into_iter().flatten().filter_map(Location::of_url).for_each(|place| readers.trust(&place));
    let fetched = fetch(&order, &readers, meter, cancel);
    meter.clear();
    if args.json {
        print_line(&ended(&fetched, meter));
    }
    let fetched = fetched.map_err(failed)?;
    if let Some(cache) = cache {
        // After all of it came: what is noted is taken for a copy of that digest.
        note(&cache, &order);
    }
    tell(&order, &fetched, meter);
    Ok(())
}

/// Returns where the files are to be written: a directory, and their names below it.
fn targets(
    args: &GetArgs,
    manifest: Option<&Manifest>,
    mut items: Vec<DataSetFile>,
) -> Result<(PathBuf, Vec<DataSetFile>), Failure> {
    let is_one = manifest.map_or(items.len() == 1, |manifest| manifest.is_file) && items.len() == 1;
    let dst = args.dst.as_deref();
    if let (true, Some(dst)) = (is_one, dst.filter(|dst| !is_dir(dst) && !ends_with_slash(dst))) {
        let (dir, name) = split(dst).map_err(failed)?;
        items.iter_mut().for_each(|item| item.name.clone_from(&name));
        return Ok((dir, items));
    }
    let own = manifest.filter(|_| !is_one).map_or(".", |manifest| &manifest.name);
    if dst.is_none() {
        let names = items.iter().map(|item| item.name.as_str());
        let hidden =
            if own == "." { names.into_iter().find(|name| name.starts_with('.')) } else { Some(own) };
        refuse_hidden(hidden.unwrap_or_default())?;
    }
    Ok((dst.unwrap_or(Path::new(own)).to_owned(), items))
}

/// Refuses hidden names chosen by others: they might be settings of a program in the working directory.
fn refuse_hidden(name: &str) -> Result<(), Failure> {
    if !name.starts_with('.') {
        return Ok(());
    }
    let text = format!("{name}: would be a hidden name here; say where to put it: bivouac get ENTRY DST");
    Err(Failure::new(2, text))
}

/// Returns whether a holder has the certificate that the user named.
fn is_same(named: Option<&str>, holder: &DatasetLocation) -> bool {
    let bare = |text: &str| text.replace(':', "").to_lowercase();
    named.map(bare).is_some_and(|named| holder.fingerprint.as_deref().map(bare) == Some(named))
}

/// Returns who has which file: own copies first, then the formation, then site storage; opens access to them.
fn places(
    args: &GetArgs,
    manifest: Option<&Manifest>,
    items: Vec<DataSetFile>,
    cache: Option<&Cache>,
    ways: &mut ServerAccess<'_>,
) -> (Vec<String>, Vec<WantedFile>) {
    let (mut names, known) = (vec![CACHE.to_owned()], manifest.map_or(&[][..], |manifest| &manifest.holders));
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for holder in known {
        if let Some((_, url)) = server_of(&holder.base) {
            // Anybody can write an entry. The user's key is for a server whose certificate the user named.
            let is_confirmed = url.scheme() == "https" && is_same(args.fingerprint.as_deref(), holder);
            ways.open_server(&url, holder.fingerprint.as_deref(), false, is_confirmed);
        }
        numbers.insert(holder.base.clone(), names.len());
        names.push(publish::shown(holder));
    }
    let mut number_of = |url: &str, ways: &mut ServerAccess<'_>| {
        let holder: Option<&DatasetLocation> = known.iter().find(|holder| holder.has(url));
        let server = server_of(url);
        let name = match (holder, &server) {
            (Some(holder), _) => holder.base.clone(),
            (None, Some((origin, _))) => origin.clone(),
            (None, None) => url.split('/').take(3).collect::<Vec<_>>().join("/"),
        };
        *numbers.entry(name.clone()).or_insert_with(|| {
            if let Some((_, url)) = &server {
                // Of an URL that the user wrote the server has its key already; strangers are not shown any.
                ways.open_server(url, None, false, false);
            }
            names.push(name);
            names.len() - 1
        })
    };
    let files = items.into_iter().map(|mut item| {
        let own = item.digest.and_then(|digest| cache?.find(&digest, item.size));
        let own = own.and_then(|path| Location::Path(path).url().ok()).map(|url| (0, url));
        let others = std::mem::take(&mut item.urls).into_iter().map(|url| (number_of(&url, ways), url));
        let places = own.into_iter().chain(others).collect();
        WantedFile { item, places }
    });
    let files = files.collect();
    (names, files)
}

fn note(cache: &Cache, order: &FetchRequest) {
    for WantedFile { item, .. } in &order.files {
        if let (Some(digest), Ok(path)) = (item.digest, std::path::absolute(order.into.join(&item.name))) {
            cache.note(&digest, &path);
        }
    }
}

fn tell(order: &FetchRequest, fetched: &FetchResult, meter: &Meter) {
    let bytes = order.files.iter().map(|wanted| wanted.item.size).sum();
    let from = fetched.parts.iter().map(|(name, parts)| {
        let (parts, from) = (format_count(*parts, "part"), if name == CACHE { "" } else { "from " });
        format!("{parts} {from}{name}")
    });
    let from: Vec<String> = from.collect();
    let from = if from.is_empty() { "all was there".to_owned() } else { from.join(", ") };
    let sum = meter.sum(fetched.files, bytes);
    let to = match order.files.as_slice() {
        [WantedFile { item, .. }] => order.into.join(&item.name),
        _ => order.into.clone(),
    };
    let to = to.strip_prefix(".").unwrap_or(&to);
    meter.say(&format!("{}: {sum}, verified; {from}", to.display()));
    log::info!("fetched {} files, {} moved", fetched.files, exact_size(fetched.moved));
}

/// Tells whoever reads events that nothing was fetched.
fn tell_failure(args: &GetArgs, failure: &Failure, meter: &Meter) {
    if args.json {
        meter.clear();
        print_line(&failed_event(failure, &[]));
    }
}

fn failed_event(failure: &dyn std::fmt::Display, left_out: &[Value]) -> Value {
    json!({"event": "ended", "ok": false, "failure": failure.to_string(), "left_out": left_out})
}

fn ended(fetched: &Result<FetchResult, bivouac_publish::PublishError>, meter: &Meter) -> Value {
    let left_out: Vec<Value> =
        meter.left_out().iter().map(|(holder, why)| json!({"holder": holder, "why": why})).collect();
    match fetched {
        Ok(fetched) => {
            let parts: serde_json::Map<String, Value> =
                fetched.parts.iter().map(|(name, parts)| (name.clone(), (*parts).into())).collect();
            json!({
                "event": "ended", "ok": true, "files": fetched.files, "files_already": fetched.already,
                "bytes_moved": fetched.moved, "verified": true, "parts": parts, "left_out": left_out,
            })
        }
        Err(error) => failed_event(error, &left_out),
    }
}
