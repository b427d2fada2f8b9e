//! `bivouac share`.

use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_http::keys::{Deriver, Key};
use bivouac_http::{RequestPath, announce, keys};
use bivouac_launch::{Environment, StateDir};
use bivouac_types::units::format_utc;
use url::Url;

use crate::commands::key;
use crate::failure::Failure;
use crate::options::ShareArgs;
use crate::private_file;
use crate::reach::{self, MountedPath};

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// User name in a link: servers accept any name with a key.
const ANYBODY: &str = "link";

/// Makes a key for a path, and a link that has it in it.
pub fn run(here: &Environment, args: &ShareArgs) -> Result<ExitCode, Failure> {
    let failed =
        |why: &dyn std::fmt::Display| Failure::new(1, format_args!("{}: {why}", args.path.display()));
    let MountedPath { client, entry, resolved } = reach::of_path(here, &args.path, ANSWER_WAIT)?;
    let below = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
    let target = RequestPath::plain(below.as_os_str().as_bytes()).map_err(|why| failed(&why))?;
    let target = RequestPath { is_dir: resolved.is_dir(), ..target };
    let servers = announce::list(&client)?;
    if servers.is_empty() {
        return Err(failed(&"no server is running that could show it; start the formation with --http PORT"));
    }
    let path = String::from_utf8(RequestPath { is_dir: false, ..target.clone() }.path())
        .map_err(|_| failed(&"its name is no text; rename it"))?;
    let now = keys::now();
    let end = now.saturating_add(args.expires.0.div_ceil(1000));
    let wanted = Key {
        id: String::new(),
        path,
        read_only: true,
        created: now,
        expires: Some(end),
        link: false,
        made_by: None,
    };
    let ctx = reach::ctx(here, &client);
    let name = entry.source.strip_prefix("bivouac:").and_then(|name| name.parse().ok());
    let (_, dir) = StateDir::find(here, name.as_ref())?;
    let secret = dir.secret()?;
    // After all that can fail is at hand: a key that nobody is told of would stay until its end.
    let made = keys::create(&client, &ctx, &wanted)?;
    client.leave();
    servers.iter().for_each(|server| errln!("{}", key::shown(server)));
    errln!(
        "ends at {}Z; before that by: bivouac key revoke --name {} {}",
        format_utc(end),
        client.map().name,
        made.id
    );
    let key = Deriver::new(&secret).key(&made.id);
    private_file::warn_of_readers("");
    for server in &servers {
        let link = format!("{}{}", server.url, target.encoded());
        let mut link = Url::parse(&link).map_err(|error| failed(&error))?;
        link.set_username(ANYBODY)
            .and_then(|()| link.set_password(Some(&key)))
            .map_err(|()| failed(&"its server's URL takes no key"))?;
        outln!("{link}");
    }
    Ok(ExitCode::SUCCESS)
}
