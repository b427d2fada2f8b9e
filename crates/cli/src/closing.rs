//! Before a formation is taken down: all changes are held up, and site storage gets what it does not have.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use bivouac_client::{Client, FlushOptions, FlushOutcome};
use bivouac_launch::{CODE_KEEP, FormationName, FormationState, StateDir, random_bytes};
use bivouac_monitor::connect;
use bivouac_types::FsResult;
use bivouac_types::units::format_count;

use crate::failure::Failure;
use crate::unflushed;

/// Time for which changes are refused unless the request is repeated, in milliseconds: if this process is killed, the
/// formation goes on.
pub const HOLD_MS: u32 = 15_000;
/// The same at the end, until the daemons have ended.
const HOLD_LAST_MS: u32 = 60_000;
/// Pause before it is said again.
const RENEWAL: Duration = Duration::from_secs(3);
/// Files that are flushed at the same time.
const FLUSH_JOBS: usize = 8;

/// Holds all changes up while it lives, and longer if the formation ends.
pub struct Closing {
    client: Arc<Client>,
    token: u64,
    /// Ends the thread that renews the hold; it returns whether changes were held up all along.
    renewals: Option<(Sender<()>, JoinHandle<bool>)>,
}

impl Closing {
    /// Brings everything to its source, holds changes up, and looks that nothing is left. Nothing for a formation that
    /// stands in front of no site storage.
    ///
    /// # Errors
    /// With what is not at its source, and why: everybody may go on writing then.
    pub fn decide(
        name: &FormationName,
        dir: &StateDir,
        state: &FormationState,
    ) -> Result<Option<Closing>, Failure> {
        if !unflushed::has_sources(dir, state) {
            return Ok(None);
        }
        if !dir.is_held() {
            let text = format!(
                "formation {name} was killed, and nobody knows whether all that was written is at its source ({}); have it \
                 back: bivouac recover {name}; or throw it away: bivouac down --name {name} --discard",
                state.sources.as_deref().unwrap_or("?")
            );
            return Err(Failure::new(CODE_KEEP, text));
        }
        let client = Arc::new(connect(dir, state, unflushed::ANSWER_WAIT)?);
        // Most of it while others can still write.
        let options = FlushOptions { force: false, jobs: FLUSH_JOBS };
        unflushed::flush_by(&client, options)?;
        // Held before it is looked: what is written behind the look would be lost with the formation.
        let mut closing = Closing::hold(client)?;
        match closing.flush_rest(name, options) {
            Ok(()) => Ok(Some(closing)),
            Err(failure) => {
                closing.lift();
                Err(failure)
            }
        }
    }

    fn hold(client: Arc<Client>) -> Result<Closing, Failure> {
        let token = u64::from_le_bytes(random_bytes()?);
        let (renewals, ended) = channel();
        let mut closing = Closing { client: Arc::clone(&client), token, renewals: None };
        // What mounts have acknowledged and not sent arrives before nobody changes anything any more; what cannot is
        // among what is not at its source.
        let held = client.site.hold_behind(token, HOLD_MS).and_then(|_| client.site.fence(token, HOLD_MS));
        held.inspect_err(|_| closing.open())?;
        // By a thread of its own: what is flushed meanwhile may take longer than the hold.
        let thread = std::thread::spawn(move || renew(&client, token, &ended));
        closing.renewals = Some((renewals, thread));
        Ok(closing)
    }

    fn flush_rest(&mut self, name: &FormationName, options: FlushOptions) -> Result<(), Failure> {
        let outcome = unflushed::flush_sent(&self.client, options)?;
        outcome.lost.iter().for_each(|lost| errln!("bivouac: {lost}"));
        let unflushed = unflushed::list(&self.client)?;
        if !unflushed.is_empty() {
            return Err(refusal(name, &unflushed, &outcome));
        }
        // The renewals first, which would set the shorter time again. If changes were not held up all along, something
        // may have been written since it was looked.
        let was_held = self.end_renewals();
        if !hold_on(&self.client, self.token, HOLD_LAST_MS)? || !was_held {
            let text = format!(
                "formation {name}: a daemon was restarted while it was looked whether all is at its source; try again"
            );
            return Err(Failure::new(CODE_KEEP, text));
        }
        Ok(())
    }

    /// Lifts the hold, as the formation goes on: everybody may write again.
    pub fn lift(mut self) {
        self.end_renewals();
        self.open();
    }

    /// Returns whether the renewals found changes held up all along.
    fn end_renewals(&mut self) -> bool {
        let Some((renewals, thread)) = self.renewals.take() else { return true };
        // Dropping the sender is what ends the wait for the next renewal.
        drop(renewals);
        thread.join().unwrap_or(false)
    }

    fn open(&self) {
        if let Err(error) = hold_on(&self.client, self.token, 0) {
            errln!("bivouac: changes are held up for {} s more: {error}", HOLD_LAST_MS / 1000);
        }
    }
}

/// Renews a hold while `act` runs, by a thread of its own: it may take longer than the hold. Returns what `act` does,
/// and whether changes were held up all along.
pub fn while_held<T>(client: &Client, token: u64, act: impl FnOnce() -> T) -> (T, bool) {
    std::thread::scope(|scope| {
        let (renewals, ended) = channel();
        let thread = scope.spawn(move || renew(client, token, &ended));
        let done = act();
        drop(renewals);
        (done, thread.join().unwrap_or(false))
    })
}

/// Renews a hold until the sender is gone. Returns false if changes were let through meanwhile: the renewal behind that
/// begins a new hold, and the ones that follow do not tell.
fn renew(client: &Client, token: u64, ended: &Receiver<()>) -> bool {
    let mut was_held = true;
    while ended.recv_timeout(RENEWAL) == Err(RecvTimeoutError::Timeout) {
        match hold_on(client, token, HOLD_MS) {
            Ok(is_held) => was_held &= is_held,
            Err(error) => {
                // Some nodes may have begun a new hold, of which the next renewal does not tell.
                was_held = false;
                errln!("bivouac: changes may not be held up any more: {error}");
            }
        }
    }
    was_held
}

/// Goes on holding up changes, and that any are acknowledged before they are sent; or lets them go on. Whether changes
/// had been held up until now.
fn hold_on(client: &Client, token: u64, hold_ms: u32) -> FsResult<bool> {
    client.site.ask_unsent(token, hold_ms)?;
    client.site.fence(token, hold_ms)
}

/// Returns why files are not at their source, a line for each reason.
fn reasons(outcome: &FlushOutcome) -> String {
    let mut by_reason: BTreeMap<String, Vec<&Path>> = BTreeMap::new();
    for (path, error) in &outcome.failed {
        by_reason.entry(error.to_string()).or_default().push(path);
    }
    let line = |(reason, paths): (String, Vec<&Path>)| match &paths[..] {
        [path] => format!("  {}: {reason}\n", path.display()),
        [first, rest @ ..] => {
            format!("  {} and {}: {reason}\n", first.display(), format_count(rest.len() as u64, "other"))
        }
        [] => String::new(),
    };
    by_reason.into_iter().map(line).collect()
}

fn refusal(name: &FormationName, unflushed: &[String], outcome: &FlushOutcome) -> Failure {
    let why = reasons(outcome);
    let text = format!(
        "formation {name} has {}\n{why}bivouac flush them, or throw them away: bivouac down --name {name} --discard",
        unflushed.join("\n")
    );
    Failure::new(CODE_KEEP, text)
}
