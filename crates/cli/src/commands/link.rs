//! `bivouac link`: directories of other formations.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_client::{Client, FlushOptions, FlushTarget, Partition, flush_target};
use bivouac_launch::control::{self, Request};
use bivouac_launch::{Environment, FormationState, StateDir, random_bytes};
use bivouac_link::{FarSide, LinkKey, LinkSource, LinkTarget, Usage};
use bivouac_monitor::connect;
use bivouac_monitor::status::LinkReport;
use bivouac_source::SourceError;
use bivouac_types::units::{format_count, format_size, format_utc};
use bivouac_types::{
    Errno, FsResult, Ino, MirrorDeletes, NodeId, PartitionSettings, Site, Source, WritePolicy, printable,
};

use crate::closing::{self, HOLD_MS};
use crate::failure::Failure;
use crate::options::{
    LinkAddArgs, LinkCommand, LinkListArgs, LinkListenArgs, LinkRemoveArgs, LinkShowArgs, NameArgs,
};
use crate::partitioning::{PartitionMaker, Plan};
use crate::reach::ctx;
use crate::unflushed;

/// Longest wait for the answer of a node.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Longest wait for the supervisor.
const LISTEN_WAIT_MS: u64 = 10_000;
/// Bytes of a key file, at most.
const KEY_FILE_MAX: u64 = 4096;

/// Does what a command says.
pub fn run(here: &Environment, command: &LinkCommand) -> Result<ExitCode, Failure> {
    match command {
        LinkCommand::Add(args) => add(here, args),
        LinkCommand::List(args) => list(here, args),
        LinkCommand::Show(args) => show(here, args),
        LinkCommand::Listen(args) => serve_links(here, args),
        LinkCommand::Remove(args) => remove(here, args),
    }
}

/// A formation, and the way there.
struct NearSide {
    dir: StateDir,
    state: FormationState,
    client: Client,
    secret: [u8; 32],
    owner: (u32, u32),
}

/// A link of it.
struct Link {
    name: String,
    path: String,
    address: String,
    key: Option<LinkKey>,
    partition: Partition,
}

impl NearSide {
    fn find(here: &Environment, which: &NameArgs) -> Result<NearSide, Failure> {
        let (_, dir) = StateDir::find_whole(here, which.name.as_ref())?;
        let state = dir.read_living()?;
        let client = connect(&dir, &state, ANSWER_WAIT)?;
        let secret = dir.secret()?;
        Ok(NearSide { dir, state, client, secret, owner: (here.uid, rustix::process::getegid().as_raw()) })
    }

    fn target(&self, address: &str, key: LinkKey) -> Result<LinkTarget, Failure> {
        let formation = self.client.map().formation;
        let (address, owner, asker) = (address.to_owned(), self.owner, None);
        Ok(LinkTarget { address, key, formation, owner, asker, wait: ANSWER_WAIT })
    }

    fn links(&self) -> Result<Vec<Link>, Failure> {
        let mut links = Vec::new();
        for partition in self.client.partitions.list()? {
            let Some(Site::Formation { address, name, key, .. }) =
                partition.settings.source.as_ref().map(Source::site)
            else {
                continue;
            };
            let path = self.client.path_of_dir(partition.dir)?.unwrap_or_else(|| "(removed)".to_owned());
            let (name, address) = (name.clone(), address.clone());
            links.push(Link { name, path, address, key: LinkKey::open(&self.secret, key), partition });
        }
        links.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(links)
    }

    fn link(&self, name: &str) -> Result<Link, Failure> {
        let none = || {
            Failure::new(
                1,
                format_args!("link {name}: there is none; bivouac link list shows those that there are"),
            )
        };
        self.links()?.into_iter().find(|link| link.name == name).ok_or_else(none)
    }
}

fn failed(name: &str, error: &SourceError) -> Failure {
    Failure::new(1, format_args!("link {name}: {error}"))
}

fn add(here: &Environment, args: &LinkAddArgs) -> Result<ExitCode, Failure> {
    let name = &args.link;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !name.bytes().all(is_word) || !(1..=64).contains(&name.len()) || matches!(&name[..], "." | "..") {
        let text = "a link's name has 1 to 64 letters, digits, dashes, dots and underscores";
        return Err(Failure::new(2, format_args!("link '{name}': {text}")));
    }
    let key = read_key(&args.key_file)?;
    let near = NearSide::find(here, &args.which)?;
    if near.links()?.iter().any(|link| link.name == *name) {
        return Err(Failure::new(
            1,
            format_args!("link {name}: there is one; choose another name, or: bivouac link remove {name}"),
        ));
    }
    let formation = near.client.map().formation;
    let far = LinkSource::open(near.target(&args.address, key.clone())?);
    let far = far.map_err(|error| failed(name, &error))?;
    let side = far.far_side().map_err(|error| failed(name, &error))?;
    // Before anything is made: a formation that links itself in a circle would wait for its own gateway.
    far.reaches(vec![formation]).map_err(|error| failed(name, &error))?;
    // Sealed for this formation: whoever reads the settings of its partitions has no key by that.
    let sealed = key.seal(&near.secret).map_err(|why| Failure::new(1, why))?;
    let source = Source::of_link(&args.address, name, &sealed, side.read_only)
        .map_err(|_| Failure::new(2, format_args!("'{}': write HOST:PORT", args.address)))?;
    let settings = PartitionSettings {
        source: Some(source),
        write: WritePolicy::OnClose,
        mirror_deletes: MirrorDeletes::Yes,
        ..PartitionSettings::default()
    };
    let path = args.at.clone().unwrap_or_else(|| format!("/{name}"));
    let (nodes, sizing, sharing) = Default::default();
    let plan = Plan { path: path.clone().into_bytes(), nodes, sizing, sharing, settings, says_stripe: false };
    let (uid, gid) = near.owner;
    let maker = PartitionMaker { client: &near.client, uid, gid, state: &near.state };
    // Before there is anything to flush: killed in between, this leaves a note too many.
    unflushed::note_source(&near.dir, &path, &format!("link {name}"))?;
    maker.make(&plan)?;
    // Two formations that link each other at the same moment find nothing before.
    if let Err(error) = far.reaches(vec![formation]) {
        let link = near.link(name)?;
        detach(here, &near, &link)?;
        drop_link(here, &near, &link)?;
        return Err(failed(name, &error));
    }
    near.client.leave();
    let rights = if side.read_only { ", to read" } else { "" };
    outln!("{path} is {} of formation '{}' at {}{rights}", shown(&side.path), side.name, args.address);
    Ok(ExitCode::SUCCESS)
}

/// Returns a path of the other side, which does nothing to a terminal.
fn shown(path: &[u8]) -> String {
    printable(&format!("/{}", String::from_utf8_lossy(path))).into_owned()
}

fn read_key(path: &Path) -> Result<LinkKey, Failure> {
    let refused = |why: &dyn std::fmt::Display| Failure::new(1, format_args!("{}: {why}", path.display()));
    let found = std::fs::metadata(path).map_err(|error| refused(&error))?;
    if !found.is_file() || found.len() > KEY_FILE_MAX {
        return Err(refused(&"is no file with a key"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| refused(&error))?;
    text.parse().map_err(|why: String| refused(&why))
}

fn list(here: &Environment, args: &LinkListArgs) -> Result<ExitCode, Failure> {
    let near = NearSide::find(here, &args.which)?;
    let links = near.links()?;
    near.client.leave();
    if args.json {
        let all: Vec<_> = links.iter().map(json).collect();
        outln!("{}", crate::output::json(&all, true)?);
        return Ok(ExitCode::SUCCESS);
    }
    if links.is_empty() {
        outln!("no links; make one with: bivouac link add NAME ADDR:PORT --key-file FILE");
    }
    for link in &links {
        outln!("{}  {}  {}  {}", link.name, link.path, link.address, key_id(link));
    }
    Ok(ExitCode::SUCCESS)
}

fn key_id(link: &Link) -> &str {
    link.key.as_ref().map_or("(being removed)", LinkKey::id)
}

fn json(link: &Link) -> serde_json::Value {
    serde_json::json!({
        "name": link.name,
        "path": link.path,
        "gateway": link.address,
        "key": link.key.as_ref().map(LinkKey::id),
    })
}

fn show(here: &Environment, args: &LinkShowArgs) -> Result<ExitCode, Failure> {
    let near = NearSide::find(here, &args.which)?;
    let link = near.link(&args.link)?;
    let asked = ask(&near, &link);
    let statuses: Vec<_> =
        near.state.nodes.iter().filter_map(|node| near.client.nodes().status(NodeId(node.id)).ok()).collect();
    let seen = LinkReport::of(statuses.iter()).into_iter().find(|seen| seen.name == link.name);
    near.client.leave();
    if args.json {
        let mut value = json(&link);
        match &asked {
            Ok(far) => {
                let (side, usage) = (&far.side, &far.usage);
                value["formation"] = side.name.clone().into();
                value["formation_id"] = side.formation.to_string().into();
                value["far_path"] = shown(&side.path).into();
                value["read_only"] = side.read_only.into();
                value["expires"] = side.expires.into();
                value["round_trip_us"] = (far.round_trip.as_micros() as u64).into();
                value["streams"] = usage.streams.into();
                value["bytes_sent"] = usage.bytes_in.into();
                value["bytes_fetched"] = usage.bytes_out.into();
                value["requests"] = usage.requests.into();
                value["errors"] = usage.errors.into();
                value["last_error"] = usage.last_error.clone().into();
            }
            Err(error) => value["error"] = error.to_string().into(),
        }
        value["nodes"] = serde_json::to_value(&seen).unwrap_or_default();
        outln!("{}", crate::output::json(&value, true)?);
    } else {
        outln!("link {}: {}", link.name, link.path);
        outln!("  gateway      {}, key {}", link.address, key_id(&link));
        match &asked {
            Ok(far) => tell(far),
            Err(error) => outln!("  state        {error}"),
        }
        match &seen {
            Some(seen) => outln!("  nodes        {}", seen.state()),
            None => outln!("  nodes        have not used it since they were started"),
        }
        if let Some(error) = seen.as_ref().and_then(LinkReport::error) {
            outln!("  last error   {error}");
        }
    }
    Ok(if asked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The answer of the other side.
struct Far {
    side: FarSide,
    usage: Usage,
    round_trip: Duration,
}

fn ask(near: &NearSide, link: &Link) -> Result<Far, Failure> {
    let key = link
        .key
        .clone()
        .ok_or_else(|| Failure::new(1, "it is being removed; go on with: bivouac link remove"))?;
    let failed = |error: SourceError| Failure::new(1, error.to_string());
    let far = LinkSource::open(near.target(&link.address, key)?).map_err(failed)?;
    let (side, usage) = (far.far_side().map_err(failed)?, far.usage().map_err(failed)?);
    Ok(Far { side, usage, round_trip: far.round_trip() })
}

fn tell(far: &Far) {
    let Far { side, usage, round_trip } = far;
    outln!("  leads to     {} of formation '{}' ({})", shown(&side.path), side.name, side.formation);
    let end = side
        .expires
        .map_or_else(|| "until it is revoked".to_owned(), |end| format!("until {}Z", format_utc(end)));
    outln!("  rights       {}, {end}", if side.read_only { "read" } else { "read, write" });
    outln!("  round trip   {:.1} ms", round_trip.as_secs_f64() * 1000.0);
    outln!(
        "  traffic      {} fetched, {} sent, {} requests over {} connections",
        format_size(usage.bytes_out),
        format_size(usage.bytes_in),
        usage.requests,
        usage.streams
    );
    match usage.errors {
        0 => outln!("  errors       none"),
        count => outln!("  errors       {count}, the last one: {}", usage.last_error),
    }
}

fn serve_links(here: &Environment, args: &LinkListenArgs) -> Result<ExitCode, Failure> {
    let (name, dir) = StateDir::find_whole(here, args.which.name.as_ref())?;
    if dir.read_living()?.is_over_hosts() {
        let text = format!("formation {name} is over several hosts: start it with --link-listen");
        return Err(Failure::new(1, text));
    }
    control::ask(&dir, &Request::Listen { wish: args.address.0 }, &[], LISTEN_WAIT_MS)?;
    let state = dir.read_living()?;
    let gateway = state.gateway.as_ref().and_then(|gateway| gateway.address).unwrap_or(args.address.0);
    outln!("formation {name} serves links at {gateway}; keys: bivouac key create --link");
    Ok(ExitCode::SUCCESS)
}

fn remove(here: &Environment, args: &LinkRemoveArgs) -> Result<ExitCode, Failure> {
    let near = NearSide::find(here, &args.which)?;
    let link = near.link(&args.link)?;
    check_alone(&near, &link)?;
    let is_detached = link.partition.settings.source.as_ref().is_some_and(Source::is_detached);
    if args.discard || is_detached {
        detach(here, &near, &link)?;
    } else {
        send(&near, &link)?;
        detach_sent(here, &near, &link)?;
    }
    drop_link(here, &near, &link)?;
    near.client.leave();
    outln!("link {} is gone, with {}; nothing was deleted at the other side", link.name, link.path);
    Ok(ExitCode::SUCCESS)
}

/// Refuses while another partition is below the link: what is in it is not the link's to take away.
fn check_alone(near: &NearSide, link: &Link) -> Result<(), Failure> {
    let top = format!("{}/", link.path.trim_end_matches('/'));
    for partition in near.client.partitions.list()? {
        let path = near.client.path_of_dir(partition.dir)?;
        if let Some(path) = path.filter(|path| path.starts_with(&top)) {
            let text = format!("link {}: {path} is a partition of its own: remove that first", link.name);
            return Err(Failure::new(1, text));
        }
    }
    Ok(())
}

/// Sends what is not at the other side.
fn send(near: &NearSide, link: &Link) -> Result<(), Failure> {
    near.client.site.send_behind()?;
    let target = FlushTarget::find(&near.client, Path::new("/"), below(link))?;
    let unsaved = near.client.site.unsaved()?;
    let outcome = flush_target(&near.client, &target, &unsaved, FlushOptions { force: false, jobs: 8 })?;
    outcome.lost.iter().for_each(|lost| errln!("bivouac: {lost}"));
    for (path, error) in &outcome.failed {
        errln!("bivouac: {}: not sent: {error}", String::from_utf8_lossy(path.as_os_str().as_bytes()));
    }
    if outcome.failed.is_empty() {
        return Ok(());
    }
    let text = format!(
        "link {}: {} not at the other side: send it, or throw it away with --discard",
        link.name,
        format_count(outcome.failed.len() as u64, "file")
    );
    Err(Failure::new(1, text))
}

/// Detaches a link while nobody changes anything, if all is at the other side then.
fn detach_sent(here: &Environment, near: &NearSide, link: &Link) -> Result<(), Failure> {
    let site = &near.client.site;
    let token = u64::from_le_bytes(random_bytes()?);
    let held = || -> Result<(), Failure> {
        site.hold_behind(token, HOLD_MS)?;
        site.fence(token, HOLD_MS)?;
        let target = FlushTarget::find(&near.client, Path::new("/"), below(link))?;
        let look = || unflushed::list_of(&near.client, &target);
        let (left, was_held) = closing::while_held(&near.client, token, look);
        let left = left?;
        if !left.is_empty() {
            let text = format!(
                "link {} has {}\nend what writes there and try again, or throw them away with --discard",
                link.name,
                left.join("\n")
            );
            return Err(Failure::new(1, text));
        }
        // It tells whether changes were held up all along; if not, something may be written since the look.
        if !site.fence(token, HOLD_MS)? || !was_held {
            let text = format!("link {}: a daemon was restarted meanwhile; try again", link.name);
            return Err(Failure::new(1, text));
        }
        detach(here, near, link)
    };
    let detached = held();
    // After an error it runs out by itself.
    let lifted = site.ask_unsent(token, 0).and_then(|_| site.fence(token, 0));
    detached.and(lifted.map(drop).map_err(Into::into))
}

/// Returns a link's path from the formation's root on.
fn below(link: &Link) -> &Path {
    Path::new(link.path.trim_start_matches('/'))
}

/// Detaches a link: nothing is brought or sent over it from now on.
fn detach(here: &Environment, near: &NearSide, link: &Link) -> Result<(), Failure> {
    let client = &near.client;
    let partition = &link.partition;
    let settings = &partition.settings;
    let shown = |error| Failure::new(1, format_args!("{}: {error}", link.path));
    if let Some(source) = settings.source.as_ref().filter(|source| !source.is_detached()) {
        let settings = PartitionSettings {
            source: source.detached(),
            mirror_deletes: MirrorDeletes::No,
            write: WritePolicy::OnFlush,
            ..settings.clone()
        };
        client
            .partitions
            .set(&ctx(here, client), partition.id, partition.version, settings)
            .map_err(shown)?;
    }
    // A node that has not heard of it would have the other side delete what is removed here.
    let now = client.partitions.now(partition.id).map_err(shown)?;
    client.partitions.check_known(partition.id, now.version).map_err(shown)
}

/// Takes a detached link off, with what is here of it.
fn drop_link(here: &Environment, near: &NearSide, link: &Link) -> Result<(), Failure> {
    let (client, partition) = (&near.client, &link.partition);
    let shown = |error| Failure::new(1, format_args!("{}: {error}", link.path));
    remove_below(here, client, partition.dir).map_err(shown)?;
    let (uid, gid) = near.owner;
    let maker = PartitionMaker { client, uid, gid, state: &near.state };
    maker.remove_directory(link.path.as_bytes()).map_err(shown)?;
    // Only when it has no entries left: a link that is still there can be removed by the same command again.
    client.partitions.forget(&ctx(here, client), partition.id)?;
    Ok(())
}

/// Removes what is here below a directory.
fn remove_below(here: &Environment, client: &Client, top: Ino) -> FsResult<()> {
    // A directory is seen twice: its entries go first.
    let mut dirs = vec![(top, None)];
    while let Some((dir, place)) = dirs.last().cloned() {
        let mut below = Vec::new();
        loop {
            // From the beginning each time: what was read before is removed by now.
            let entries = client.readdir_here(dir, 0)?;
            if entries.is_empty() || !below.is_empty() {
                break;
            }
            for entry in entries {
                match client.unlink(&ctx(here, client), dir, &entry.name) {
                    Err(error) if error.errno() == Errno::EISDIR => {
                        below.push((entry.ino, Some((dir, entry.name))));
                    }
                    Err(error) if error.errno() == Errno::ENOENT => {}
                    removed => removed?,
                }
            }
        }
        if !below.is_empty() {
            dirs.extend(below);
            continue;
        }
        dirs.pop();
        if let Some((parent, name)) = place {
            let name: Vec<u8> = name;
            match client.rmdir(&ctx(here, client), parent, &name) {
                Err(error) if error.errno() == Errno::ENOENT => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}
