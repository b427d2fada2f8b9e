//! `bivouac top`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bivouac_launch::{CAUGHT, Environment, LaunchError, LaunchResult, Signals, StateDir, asks_to_end};
use bivouac_monitor::rates::{RateSampler, Rates};
use ratatui::crossterm::event::{self, Event};

use crate::commands::status::is_over;
use crate::environment::{has_colors, has_utf8, is_dumb_terminal};
use crate::failure::Failure;
use crate::options::TopArgs;
use crate::top::{KeyAction, Screen, table};

/// Pause between two looks for keys and news.
const KEYS_EVERY: Duration = Duration::from_millis(50);

/// Shows a formation at work.
pub fn run(here: &Environment, args: &TopArgs) -> Result<ExitCode, Failure> {
    let (_, dir) = StateDir::find_whole(here, args.which.name())?;
    let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
    let sampler = RateSampler::begin_with_uses(dir)?;
    let every = Duration::from_millis(args.every.0);
    if args.json || args.once || !std::io::stdout().is_terminal() || is_dumb_terminal() {
        in_turn(sampler, args, every, &signals)
    } else {
        on_screen(sampler, every, &signals)
    }
}

/// Prints interval after interval as text or JSON.
fn in_turn(
    mut sampler: RateSampler,
    args: &TopArgs,
    every: Duration,
    signals: &Signals,
) -> Result<ExitCode, Failure> {
    for rates in args.since.map(|since| sampler.past(since.0)).transpose()?.unwrap_or_default() {
        outln!("{}", crate::output::json(&rates, false)?);
    }
    let mut between = "";
    while !is_over(signals, every) {
        let Some(rates) = sampler.sample()? else { break };
        if args.json {
            outln!("{}", crate::output::json(&rates, false)?);
        } else {
            out!("{between}{}", table(&rates));
        }
        between = "\n";
        if args.once || crate::output::is_closed() {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Results of the thread that asks the nodes, so that silent nodes do not delay key strokes.
type RateReceiver = Receiver<LaunchResult<Option<Rates>>>;

fn on_screen(sampler: RateSampler, every: Duration, signals: &Signals) -> Result<ExitCode, Failure> {
    let every_ms = Arc::new(AtomicU64::new(0));
    let set = |every: Duration| {
        every_ms.store(u64::try_from(every.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    };
    set(every);
    let (seen, looker) = begin_looking(sampler, Arc::clone(&every_ms))?;
    let mut screen = Screen::new(every, has_colors(), has_utf8());
    let mut terminal = ratatui::try_init()?;
    let outcome = (|| {
        loop {
            terminal.draw(|frame| screen.draw(frame))?;
            if event::poll(KEYS_EVERY)?
                && let Event::Key(key) = event::read()?
            {
                match screen.key(key) {
                    KeyAction::Stay => {}
                    KeyAction::End => return Ok(false),
                    KeyAction::Every(every) => {
                        set(every);
                        looker.unpark();
                    }
                }
            }
            if std::iter::from_fn(|| signals.next()).any(asks_to_end) {
                return Ok(false);
            }
            match seen.try_recv() {
                Ok(rates) => match rates? {
                    Some(rates) => screen.show(rates),
                    None => return Ok(true),
                },
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(true),
            }
        }
    })();
    // In any case, before anything is said: a terminal in raw mode shows no lines.
    ratatui::try_restore()?;
    let is_gone: Result<bool, Failure> = outcome;
    if is_gone? {
        errln!("bivouac: the formation is gone");
    }
    Ok(ExitCode::SUCCESS)
}

fn begin_looking(
    mut sampler: RateSampler,
    every_ms: Arc<AtomicU64>,
) -> Result<(RateReceiver, Thread), Failure> {
    let (sender, seen) = channel();
    // Another thread than the screen's: a node that does not answer holds the look, not the keys.
    let looker = thread::Builder::new().name("looks".into()).spawn(move || {
        loop {
            let begun = Instant::now();
            loop {
                let every = Duration::from_millis(every_ms.load(Ordering::Relaxed));
                match every.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
                    Some(left) => thread::park_timeout(left),
                    None => break,
                }
            }
            let rates = sampler.sample();
            let is_last = !matches!(rates, Ok(Some(_)));
            if sender.send(rates).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok((seen, looker.thread().clone()))
}
