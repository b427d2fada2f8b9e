//! `bivouac publish`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bivouac_client::FlushTarget;
use bivouac_http::{RequestPath as HttpPath, announce, keys};
use bivouac_launch::Environment;
use bivouac_publish::{
    CachedEntry, Catalogue, Cause, DatasetLocation, Kind, Location, Manifest, Readers, ScanResult, Web,
    check_name, compare, freeze, new_id,
};
use bivouac_types::units::format_count;

use crate::commands::find::json_of;
use crate::environment;
use crate::failure::Failure;
use crate::near_by;
use crate::options::PublishArgs;
use crate::progress::print_line;
use crate::publishing::{Meter, ServerAccess, failed, interruptible};
use crate::reach::{self, MountedPath};

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Publishes a path.
pub fn run(here: &Environment, args: &PublishArgs) -> Result<ExitCode, Failure> {
    let path = args
        .path
        .canonicalize()
        .map_err(|error| Failure::new(1, format_args!("{}: {error}; check its path", args.path.display())))?;
    // What is refused afterwards costs the reading of all files.
    for (text, option) in [(&args.title, "--title"), (&args.words, "--words")] {
        plain(text, option)?;
    }
    for (text, option) in [(&args.licence, "--licence"), (&args.who, "--who")] {
        text.as_deref().map_or(Ok(()), |text| plain(text, option).map(drop))?;
    }
    let place = Location::parse(&args.catalogue).map_err(failed)?;
    let mut ways = ServerAccess::new(here, &args.key)?;
    interruptible(|cancel| {
        let meter = Meter::new("publish", args.json, args.talk);
        let holders = holders(here, args, &path)?;
        let frozen = freeze(&path, args.jobs, &meter, cancel);
        meter.clear();
        let frozen = frozen.map_err(failed)?;
        for skipped in &frozen.skipped {
            errln!("bivouac: not published: {} ({})", skipped.path.display(), skipped.what);
        }
        let holders = looked_at(holders, &frozen, &ways.web, cancel)?;
        ways.open(&place, true);
        let catalogue = Catalogue::open(&place, &environment::objects(), &ways.web).map_err(failed)?;
        let known = put(here, args, &path, frozen, holders, &catalogue)?;
        let name = catalogue.name();
        drop(catalogue);
        // Last, when the catalogue has it: what formations near by tell is what the catalogue would.
        near_by::tell(&mut ways, &name, &known);
        let manifest = known.manifest;
        let by = manifest.holders.iter().map(shown).collect::<Vec<_>>().join(", ");
        let sum = meter.sum(manifest.files, manifest.bytes);
        meter.say(&format!("{} is in {name}: {sum}, to be had from {by}", manifest.title));
        if args.json {
            print_line(&json_of(&manifest, keys::now()));
        } else {
            outln!("{}", manifest.id);
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns a holder, for people.
pub fn shown(holder: &DatasetLocation) -> String {
    match &holder.kind {
        Kind::Formation { name, .. } => format!("formation {name} ({})", holder.base),
        Kind::Site => holder.base.clone(),
    }
}

/// A place that may have the files.
struct SourceCandidate {
    holder: DatasetLocation,
    look: PresenceCheck,
}

/// Check of whether a candidate has the files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PresenceCheck {
    /// It is the place that is read for the digests.
    Read,
    /// The user says that it does: all of it is compared, and has to be the same.
    Named,
    /// It may be outdated: all of it is compared, and it counts if it is the same.
    Found,
}

fn holders(here: &Environment, args: &PublishArgs, path: &Path) -> Result<Vec<SourceCandidate>, Failure> {
    let mut all = Vec::new();
    match bivouac_launch::mounts::mount_of(path) {
        Some(entry) if entry.source.starts_with("bivouac:") => all.extend(of_formation(here, path)?),
        _ => all.push(SourceCandidate {
            holder: site(&Location::Path(path.to_owned()))?,
            look: PresenceCheck::Read,
        }),
    }
    for text in &args.sites {
        let place = Location::parse(text).map_err(failed)?;
        all.push(SourceCandidate { holder: site(&place)?, look: PresenceCheck::Named });
    }
    if all.is_empty() {
        let text = format!(
            "{}: nobody could fetch it: the formation has no server for HTTP, and no site storage has it; start the \
             formation with --http, or copy it out and name that place with --site",
            path.display()
        );
        return Err(Failure::new(1, text));
    }
    Ok(all)
}

fn site(place: &Location) -> Result<DatasetLocation, Failure> {
    if let Location::Web(url) = place
        && (!url.username().is_empty() || url.password().is_some() || url.query().is_some())
    {
        let text =
            "--site: a URL with a password or a query, which all would read in the entry; name it without";
        return Err(Failure::new(2, text));
    }
    Ok(DatasetLocation { kind: Kind::Site, base: place.url().map_err(failed)?, fingerprint: None })
}

/// Returns the servers of a formation, and site storage that the path's partition stands in front of.
fn of_formation(here: &Environment, path: &Path) -> Result<Vec<SourceCandidate>, Failure> {
    use std::os::unix::ffi::OsStrExt as _;
    let MountedPath { client, entry, resolved } = reach::of_path(here, path, ANSWER_WAIT)?;
    let below = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
    let usage = |why: &str| Failure::new(2, format_args!("{}: {why}", path.display()));
    let target = HttpPath::plain(below.as_os_str().as_bytes()).map_err(usage)?;
    let target = HttpPath { is_dir: false, ..target };
    let map = client.map();
    let (name, id) = (map.name.clone(), map.formation.to_string());
    let servers = announce::list(&client)?.into_iter().map(|server| SourceCandidate {
        holder: DatasetLocation {
            kind: Kind::Formation { name: name.clone(), id: id.clone() },
            base: format!("{}{}", server.url, target.encoded().trim_end_matches('/')),
            fingerprint: server.fingerprint,
        },
        look: PresenceCheck::Read,
    });
    let mut all: Vec<SourceCandidate> = servers.collect();
    let target = FlushTarget::find(&client, &entry.dir, below)?;
    let partition = client.partitions.get(target.top.attr.layout.partition())?;
    if let Some(source) = partition.as_ref().and_then(|partition| partition.settings.source.as_ref()) {
        let place = Location::parse(source.as_str()).map_err(failed)?;
        let below = String::from_utf8_lossy(&target.top.path).into_owned();
        let place = if below.is_empty() { place } else { place.join(&below) };
        // Digests are of what was read here: site storage may have an earlier version.
        all.push(SourceCandidate { holder: site(&place)?, look: PresenceCheck::Found });
    }
    client.leave();
    Ok(all)
}

/// Returns the candidates that have exactly these bytes. The servers of the formation have what was just read through
/// its mount.
fn looked_at(
    candidates: Vec<SourceCandidate>,
    frozen: &ScanResult,
    web: &Web,
    cancel: &AtomicBool,
) -> Result<Vec<DatasetLocation>, Failure> {
    let here = environment::objects();
    let mut readers = Readers::new(&here, web);
    let places = candidates.iter().filter_map(|candidate| Location::of_url(&candidate.holder.base));
    places.for_each(|place| readers.trust(&place));
    let mut holders = Vec::new();
    for SourceCandidate { holder, look } in candidates {
        let compared =
            if look == PresenceCheck::Read { Ok(()) } else { compare(frozen, &holder, &readers, cancel) };
        match compared {
            Ok(()) => holders.push(holder),
            Err(error) if look == PresenceCheck::Named || error.cause() == Cause::Interrupted => {
                return Err(failed(error));
            }
            Err(error) => errln!("bivouac: site storage is not named in the entry: {error}"),
        }
    }
    if holders.is_empty() {
        let text = "nobody could fetch it: the formation has no server for HTTP, and site storage does not have it; \
                    start the formation with --http, or bring it to site storage: bivouac flush";
        return Err(Failure::new(1, text));
    }
    Ok(holders)
}

fn put(
    here: &Environment,
    args: &PublishArgs,
    path: &Path,
    frozen: ScanResult,
    holders: Vec<DatasetLocation>,
    catalogue: &Catalogue<'_>,
) -> Result<CachedEntry, Failure> {
    let ScanResult { mut items, is_file, .. } = frozen;
    for item in &mut items {
        let name = if is_file { "" } else { &item.name };
        item.urls = holders.iter().map(|holder| holder.url(name)).collect();
    }
    let created = keys::now();
    let name = path.file_name().map_or_else(|| PathBuf::from("files"), PathBuf::from);
    let name = name.to_string_lossy().into_owned();
    check_name(&name)
        .map_err(|why| Failure::new(2, format_args!("{}: its name {why}; rename it", path.display())))?;
    let who =
        || format!("{}@{}", environment::user().unwrap_or_else(|| format!("uid-{}", here.uid)), here.host);
    let manifest = Manifest {
        id: new_id(&args.title).map_err(failed)?,
        title: plain(&args.title, "--title")?,
        words: plain(&args.words, "--words")?,
        licence: args.licence.as_ref().map(|text| plain(text, "--licence")).transpose()?,
        who: plain(&args.who.clone().unwrap_or_else(who), "--who")?,
        name,
        is_file,
        created,
        expires: args.expires.map(|after| created.saturating_add(after.0.div_ceil(1000))),
        holders,
        files: items.len() as u64,
        bytes: items.iter().map(|item| item.size).sum(),
    };
    catalogue.put(&manifest, &items).map_err(failed)?;
    log::info!("published {}: {}", manifest.id, format_count(manifest.files, "file"));
    Ok(CachedEntry { manifest, items })
}

/// Checks a text for readers.
fn plain(text: &str, option: &str) -> Result<String, Failure> {
    const LEN_MAX: usize = 4096;
    if text.len() > LEN_MAX || text.contains(char::is_control) {
        let text = format!(
            "{option}: is longer than {LEN_MAX} bytes or has control characters; write one short line"
        );
        return Err(Failure::new(2, text));
    }
    Ok(text.to_owned())
}
