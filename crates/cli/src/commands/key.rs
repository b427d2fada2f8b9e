//! `bivouac key`: who may use the servers for HTTP, and link to a formation.

use std::process::ExitCode;
use std::time::Duration;

use bivouac_client::Client;
use bivouac_http::announce::Announced;
use bivouac_http::keys::{Deriver, Key};
use bivouac_http::{RequestPath, announce, keys};
use bivouac_launch::{Environment, StateDir};
use bivouac_link::LinkKey;
use bivouac_monitor::connect;
use bivouac_types::units::format_utc;
use bivouac_types::{Errno, FsError};

use crate::commands::serve::METRICS;
use crate::failure::Failure;
use crate::options::{KeyAction, KeyArgs, KeyCreateArgs, KeyListArgs, KeyRevokeArgs, NameArgs};
use crate::private_file;
use crate::reach::ctx;

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Makes, lists or revokes keys.
pub fn run(here: &Environment, args: &KeyArgs) -> Result<ExitCode, Failure> {
    match &args.action {
        KeyAction::Create(args) => create(here, args),
        KeyAction::List(args) => list(here, args),
        KeyAction::Revoke(args) => revoke(here, args),
    }
}

fn client(here: &Environment, which: &NameArgs) -> Result<(StateDir, Client), Failure> {
    let (_, dir) = StateDir::find(here, which.name.as_ref())?;
    let client = connect(&dir, &dir.read_living()?, ANSWER_WAIT)?;
    Ok((dir, client))
}

fn create(here: &Environment, args: &KeyCreateArgs) -> Result<ExitCode, Failure> {
    if args.key_file.is_some() && args.key_file == args.header_file {
        let text = "--key-file and --header-file name the same file, which can have one of the two: give them two names";
        return Err(Failure::new(2, text));
    }
    let (dir, client) = client(here, &args.which)?;
    let usage =
        |why: &str| Failure::new(2, format_args!("--path {}: {why}; write for instance /data", args.path));
    let target = RequestPath::plain(args.path.as_bytes()).map_err(usage)?;
    let path =
        String::from_utf8(RequestPath { is_dir: false, ..target }.path()).map_err(|_| usage("is no text"))?;
    // A page of the servers, of which nothing is to be changed if there should ever be such a file.
    let is_page = match client.find(path.as_bytes(), false) {
        Err(error) if path == METRICS && error.errno() == Errno::ENOENT => true,
        found => found.map(|_| false).map_err(|error| no_path(&path, &error))?,
    };
    if args.link && (is_page || !client.find(path.as_bytes(), true)?.is_dir()) {
        return Err(usage("is no directory, and a link shows one"));
    }
    let read_only = args.read_only || is_page;
    let now = keys::now();
    let expires = args.expires.map(|after| now.saturating_add(after.0.div_ceil(1000)));
    let wanted =
        Key { id: String::new(), path, read_only, created: now, expires, link: args.link, made_by: None };
    // Before the key is made: one that nobody is told of would stay, and could not be revoked by its name.
    let servers = if args.link { Vec::new() } else { announce::list(&client)? };
    let key = keys::create(&client, &ctx(here, &client), &wanted)?;
    if args.link {
        client.leave();
        return write_link_key(args, &dir, &key.id);
    }
    client.leave();
    // Each of them is where it goes on with the key's path.
    servers.iter().for_each(|server| errln!("{}", shown(server)));
    if servers.is_empty() {
        errln!("bivouac: no server is running: start the formation with --http PORT");
    }
    errln!("access key for S3: {}; its secret key is the whole key", key.id);
    write_key(args, &Deriver::new(&dir.secret()?).key(&key.id), &key.id)
}

/// Writes the key of a link, and says where the gateway of this host is.
fn write_link_key(args: &KeyCreateArgs, dir: &StateDir, id: &str) -> Result<ExitCode, Failure> {
    match dir.read_living()?.gateway.and_then(|gateway| gateway.address) {
        Some(address) => {
            errln!("bivouac: in the other formation: bivouac link add NAME {address} --key-file FILE")
        }
        None => errln!("bivouac: no gateway is running: start the formation with --link-listen ADDR:PORT"),
    }
    let key = LinkKey::derive(&dir.secret()?, id).expose();
    write_key(args, &key, id)
}

/// Writes the key where it is wanted. One that cannot be written is of no use, so it is named.
fn write_key(args: &KeyCreateArgs, key: &str, id: &str) -> Result<ExitCode, Failure> {
    let wanted = [(&args.key_file, format!("{key}\n")), (&args.header_file, header(key))];
    if wanted.iter().all(|(path, _)| path.is_none()) {
        private_file::warn_of_readers(", and use --key-file FILE or --header-file FILE");
        outln!("{key}");
        return Ok(ExitCode::SUCCESS);
    }
    for (path, text) in wanted {
        let written = path.as_deref().map_or(Ok(()), |path| private_file::write(path, &text));
        written.map_err(|failure| {
            Failure::new(1, format_args!("{failure}; the key was made: bivouac key revoke {id}"))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn header(key: &str) -> String {
    format!("Authorization: Bearer {key}\n")
}

fn no_path(path: &str, error: &FsError) -> Failure {
    Failure::new(1, format_args!("--path {path}: {error} in the formation; make it first"))
}

/// Returns a server, for people.
pub fn shown(server: &Announced) -> String {
    match &server.fingerprint {
        Some(fingerprint) => format!("{}/ (certificate SHA-256 {fingerprint})", server.url),
        None => format!("{}/ (not encrypted)", server.url),
    }
}

fn list(here: &Environment, args: &KeyListArgs) -> Result<ExitCode, Failure> {
    let (_, client) = client(here, &args.which)?;
    let keys = keys::list(&client)?;
    client.leave();
    let now = keys::now();
    if args.json {
        let all: Vec<_> = keys.iter().map(|key| json(key, now)).collect();
        outln!("{}", crate::output::json_value(&all, true)?);
        return Ok(ExitCode::SUCCESS);
    }
    for key in &keys {
        let rights = if key.read_only { "read" } else { "read, write" };
        let end = match key.expires {
            Some(_) if key.has_expired(now) => "expired".to_owned(),
            Some(end) => format!("until {}Z", format_utc(end)),
            None => "until it is revoked".to_owned(),
        };
        let link = if key.link { "  link" } else { "" };
        let by = key.made_by.as_ref().map_or_else(String::new, |by| format!("  made with {by}"));
        outln!("{}  {}  {rights}  {end}{link}{by}", key.id, key.path);
    }
    Ok(ExitCode::SUCCESS)
}

fn json(key: &Key, now: u64) -> serde_json::Value {
    serde_json::json!({
        "id": key.id,
        "path": key.path,
        "read_only": key.read_only,
        "created": key.created,
        "expires": key.expires,
        "expired": key.has_expired(now),
        "link": key.link,
        "made_by": key.made_by,
    })
}

fn revoke(here: &Environment, args: &KeyRevokeArgs) -> Result<ExitCode, Failure> {
    let (_, client) = client(here, &args.which)?;
    let revoked = keys::revoke(&client, &ctx(here, &client), &args.id);
    client.leave();
    match revoked {
        Err(error) if error.errno() == Errno::ENODATA => {
            // Whoever writes the whole key does not want to see it again.
            Err(Failure::new(1, "there is no key with this id; see: bivouac key list"))
        }
        revoked => {
            revoked?;
            // Then no server answers anybody with it: their clocks need not go quite as fast as this one.
            bivouac_net::pause(keys::CACHED * 5 / 4);
            Ok(ExitCode::SUCCESS)
        }
    }
}
