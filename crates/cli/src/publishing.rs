//! Common parts of publishing, finding and fetching: access to servers, keys for them, and progress.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bivouac_client::Client;
use bivouac_http::announce::{self, Announced};
use bivouac_http::keys::{self, Deriver, Key};
use bivouac_launch::{CAUGHT, Environment, LaunchError, Signals, StateDir};
use bivouac_monitor::connect;
use bivouac_publish::{Cause, FetchObserver, Location, PublishError, Web, origin_of};
use bivouac_types::units::{format_count, format_size};
use indicatif::ProgressBar;
use serde_json::json;
use url::Url;

use crate::failure::Failure;
use crate::options::{KeyFileArgs, TalkArgs};
use crate::progress::{TELL_EVERY, new_bar, percent, print_line};
use crate::{environment, reach, staging};

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Life of a key that a command makes for itself, in seconds, if the command is killed.
const KEY_LIFE_S: u64 = 24 * 3600;
/// Largest file with a key, in bytes.
const KEY_FILE_MAX: u64 = 64 << 10;

/// Turns an error of the library into one of a command.
pub fn failed(error: PublishError) -> Failure {
    Failure::new(if error.cause() == Cause::Usage { 2 } else { 1 }, error)
}

/// A running formation of this user on this host that serves HTTP.
pub struct ServingFormation {
    dir: StateDir,
    /// A client of it.
    pub client: Client,
    pub servers: Vec<Announced>,
}

/// Returns this user's formations that serve HTTP. One that cannot be reached is left out.
pub fn own_formations(here: &Environment) -> Vec<ServingFormation> {
    // Of one whose processes were killed nothing serves, and a question to it would take the whole wait.
    let living = StateDir::list(here).into_iter().filter(|(_, dir)| dir.is_held());
    living
        .filter_map(|(_, dir)| {
            let state = dir.read_living().ok().filter(|state| state.http.is_some())?;
            let client = connect(&dir, &state, ANSWER_WAIT).ok()?;
            let servers = announce::list(&client).ok()?;
            Some(ServingFormation { dir, client, servers })
        })
        .collect()
}

impl ServingFormation {
    /// Returns the server of a URL, if it is one of this formation.
    pub fn server(&self, url: &Url) -> Option<&Announced> {
        let is_it =
            |server: &&Announced| Url::parse(&server.url).is_ok_and(|own| own.origin() == url.origin());
        self.servers.iter().find(is_it)
    }
}

/// The way to servers for one command, and the keys that it has made for that.
pub struct ServerAccess<'e> {
    here: &'e Environment,
    /// The way itself.
    pub web: Web,
    shown: Option<String>,
    own: Option<Vec<ServingFormation>>,
    made: Vec<(usize, String)>,
}

impl<'e> ServerAccess<'e> {
    /// Creates the access with the key of a file, if one is named.
    pub fn new(here: &'e Environment, args: &KeyFileArgs) -> Result<ServerAccess<'e>, Failure> {
        let shown = args.key_file.as_deref().map(first_line).transpose()?;
        Ok(ServerAccess { here, web: Web::new(&environment::objects()), shown, own: None, made: Vec::new() })
    }

    /// Returns this user's formations on this host.
    pub fn own(&mut self) -> &[ServingFormation] {
        let here = self.here;
        self.own.get_or_insert_with(|| own_formations(here))
    }

    /// Returns the user and machine that the command works on.
    pub fn here(&self) -> &'e Environment {
        self.here
    }

    /// Opens the way to a place that the user named: the key that is to be shown is for its server, and for no other.
    pub fn open(&mut self, place: &Location, changes: bool) {
        if let Location::Web(url) = place {
            self.open_server(url, None, changes, true);
            self.shown = None;
        }
    }

    /// Opens the way to a server, for what is at a URL. Of an own formation a key is made; its certificate, or one with
    /// this fingerprint, is trusted.
    pub fn open_server(&mut self, url: &Url, fingerprint: Option<&str>, changes: bool, shows: bool) {
        // What the user's own formation says counts more than what an entry says of it.
        let here = self.here;
        let own = self.own.get_or_insert_with(|| own_formations(here));
        let found = own.iter().enumerate().find_map(|(number, own)| Some((number, own, own.server(url)?)));
        if let Some(pin) = found.and_then(|(_, _, server)| server.fingerprint.as_deref()).or(fingerprint) {
            self.web.add_pin(url, pin);
        }
        if self.web.has_key(url) || url.password().is_some() {
            return;
        }
        if let Some(key) = self.shown.as_ref().filter(|_| shows) {
            self.web.add_key(url, key);
            return;
        }
        let Some((number, formation, _)) = found else { return };
        let now = keys::now();
        let expires = Some(now.saturating_add(KEY_LIFE_S));
        let (path, read_only) = ("/".into(), !changes);
        let wanted =
            Key { id: String::new(), path, read_only, created: now, expires, link: false, made_by: None };
        let ctx = reach::ctx(here, &formation.client);
        let made = keys::create(&formation.client, &ctx, &wanted).and_then(|key| {
            let secret = formation.dir.secret().map_err(|_| bivouac_types::Errno::EACCES)?;
            Ok((Deriver::new(&secret).key(&key.id), key.id))
        });
        // Without one the server says what is missing.
        if let Ok((key, id)) = made {
            self.web.add_key(url, &key);
            self.made.push((number, id));
        }
    }
}

impl Drop for ServerAccess<'_> {
    fn drop(&mut self) {
        let own = self.own.take().unwrap_or_default();
        for (number, id) in &self.made {
            if let Some(own) = own.get(*number) {
                let ctx = reach::ctx(self.here, &own.client);
                let _it_ends_by_itself = keys::revoke(&own.client, &ctx, id);
            }
        }
        own.iter().for_each(|own| own.client.leave());
    }
}

fn first_line(path: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let refused = |why: &dyn std::fmt::Display| {
        Failure::new(1, format_args!("{}: {why}; its first line has to be a key", path.display()))
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| refused(&error))?;
    // A device, or a file that was named by mistake, may have no end.
    file.take(KEY_FILE_MAX).read_to_string(&mut text).map_err(|error| refused(&error))?;
    let line = text.lines().next().unwrap_or_default().trim();
    // Also as the header that curl reads.
    let key = line.strip_prefix("Authorization: Bearer ").unwrap_or(line).trim();
    if key.is_empty() || key.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(refused(&"has no key"));
    }
    Ok(key.to_owned())
}

/// Returns the name of a URL's server.
pub fn server_of(url: &str) -> Option<(String, Url)> {
    match Location::of_url(url)? {
        Location::Web(url) => Some((origin_of(&url), url)),
        _ => None,
    }
}

/// Tells how far a command is: a bar on a terminal, lines of JSON for scripts.
pub struct Meter {
    word: &'static str,
    json: bool,
    talk: TalkArgs,
    bar: Option<ProgressBar>,
    since: Instant,
    told: Mutex<Instant>,
    found: [AtomicU64; 2],
    files: AtomicU64,
    moved: AtomicU64,
    already: AtomicU64,
    left_out: Mutex<Vec<(String, String)>>,
}

impl Meter {
    /// Creates the meter of a command, whose word precedes its output.
    pub fn new(word: &'static str, json: bool, talk: TalkArgs) -> Meter {
        let bar = (!json && !talk.quiet && std::io::stderr().is_terminal()).then(|| new_bar(word));
        let now = Instant::now();
        let [files, moved, already] = [0; 3].map(AtomicU64::new);
        let (found, left_out) = ([0; 2].map(AtomicU64::new), Mutex::default());
        Meter {
            word,
            json,
            talk,
            bar,
            since: now,
            told: Mutex::new(now),
            found,
            files,
            moved,
            already,
            left_out,
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns the sources that were left out, with reasons.
    pub fn left_out(&self) -> Vec<(String, String)> {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says something beside the bar.
    pub fn say(&self, text: &str) {
        let say = || errln!("{:>4} {text}", self.word);
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None if !self.json && !self.talk.quiet => say(),
            None => {}
        }
    }

    /// Returns the files, bytes and time, as all copies are summed up.
    pub fn sum(&self, files: u64, bytes: u64) -> String {
        let secs = self.elapsed().as_secs_f64();
        let moved = self.moved.load(Ordering::Relaxed);
        let rate = format_size((moved as f64 / secs.max(0.001)) as u64);
        let (files, bytes) = (format_count(files, "file"), format_size(bytes));
        format!("{files}, {bytes} in {secs:.1} s ({rate}/s)")
    }

    fn tell(&self) {
        // Another thread tells just now; copies do not wait for whoever reads that.
        let Ok(mut told) = self.told.try_lock() else { return };
        if !self.json || told.elapsed() < TELL_EVERY {
            return;
        }
        *told = Instant::now();
        let of = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        let [files_found, bytes_found] = [&self.found[0], &self.found[1]].map(of);
        let bytes = of(&self.moved).saturating_add(of(&self.already));
        let rate = of(&self.moved) as f64 / self.elapsed().as_secs_f64().max(0.001);
        print_line(&json!({
            "event": "progress", "files": of(&self.files), "files_found": files_found, "bytes": bytes,
            "bytes_found": bytes_found, "bytes_per_s": rate.round(), "percent": percent(bytes, bytes_found),
        }));
    }
}

impl FetchObserver for Meter {
    fn found(&self, files: u64, bytes: u64) {
        self.found[0].store(files, Ordering::Relaxed);
        self.found[1].store(bytes, Ordering::Relaxed);
        self.bar.iter().for_each(|bar| bar.set_length(bytes));
    }

    fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
        self.bar.iter().for_each(|bar| bar.inc(bytes));
        self.tell();
    }

    fn already(&self, bytes: u64) {
        self.already.fetch_add(bytes, Ordering::Relaxed);
        self.bar.iter().for_each(|bar| bar.inc(bytes));
    }

    fn again(&self, bytes: u64) {
        self.moved.fetch_sub(bytes, Ordering::Relaxed);
        self.bar.iter().for_each(|bar| bar.set_position(bar.position().saturating_sub(bytes)));
    }

    fn file_done(&self, name: &str) {
        let files = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        let found = self.found[0].load(Ordering::Relaxed);
        self.bar.iter().for_each(|bar| bar.set_message(format!("{files}/{found} files")));
        if self.talk.verbose {
            self.say(name);
        }
    }

    fn left_out(&self, holder: &str, why: &str) {
        let all = &mut *self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((holder.to_owned(), why.to_owned()));
        let say = || errln!("{:>4} left out: {holder}: {why}", self.word);
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }
}

/// Does something that signals interrupt. Call it before there are threads.
pub fn interruptible<T>(work: impl FnOnce(&Arc<AtomicBool>) -> Result<T, Failure>) -> Result<T, Failure> {
    let signals = Signals::catch(&CAUGHT).map_err(|error| LaunchError::system("signals", error))?;
    let (done, signal) = staging::interruptible(&signals, |cancel| work(&cancel));
    match (done, signal) {
        (Err(failure), Some(signal)) => Err(failure.with_code(bivouac_types::code_of_signal(signal))),
        // A signal that came when all was done has interrupted nothing.
        (done, _) => done,
    }
}
