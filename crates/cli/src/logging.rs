//! Events on standard error, which is a file for daemons: as lines for people, or each as one line of JSON.

use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::{PoisonError, RwLock};

use bivouac_launch::{Environment, Event, LogFormat, StateDir};
use bivouac_types::named;
use log::{LevelFilter, Log, Metadata, Record};

use crate::failure::Failure;

/// Identity and format of this process's log.
struct Writer {
    format: LogFormat,
    host: String,
    process: &'static str,
    node: Option<u16>,
}

static WRITER: RwLock<Writer> =
    RwLock::new(Writer { format: LogFormat::Plain, host: String::new(), process: "command", node: None });

/// Starts to log. The level is `off`, `error`, `warn`, `info`, `debug` or `trace`; `warn` otherwise.
pub fn start(here: &Environment) {
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(level(here, LevelFilter::Warn));
        change(|writer| writer.host.clone_from(&here.host));
    }
}

/// Goes on as a process that a formation leaves behind: with `info`, unless told otherwise.
pub fn raise(here: &Environment, process: &'static str) {
    log::set_max_level(level(here, LevelFilter::Info));
    change(|writer| writer.process = process);
}

/// Like [`raise`], in the form that the formation of this directory has chosen.
pub fn raise_at(here: &Environment, process: &'static str, dir: &StateDir) {
    raise(here, process);
    // Who cannot read it will say so in a moment.
    write_as(dir.read().ok().flatten().map(|state| state.log_format).unwrap_or_default(), None);
}

/// Writes in this form from now on; as a node, if the process is one.
pub fn write_as(format: LogFormat, node: Option<u16>) {
    change(|writer| (writer.format, writer.node) = (format, node));
    if format == LogFormat::Json {
        // The hook that is there writes several lines, none of which is JSON.
        std::panic::set_hook(Box::new(panicked));
    }
}

/// Goes on as another process of the same formation.
pub fn call(process: &'static str) {
    change(|writer| writer.process = process);
}

/// Says why this process has failed.
pub fn complain(failure: &Failure) {
    if is_json() {
        write(&event(log::Level::Error, module_path!()).of_error(&named(&failure.to_string())));
    } else {
        errln!("bivouac: {failure}");
    }
}

fn level(here: &Environment, otherwise: LevelFilter) -> LevelFilter {
    here.log_level.as_deref().and_then(|level| level.parse().ok()).unwrap_or(otherwise)
}

fn change(change: impl FnOnce(&mut Writer)) {
    change(&mut WRITER.write().unwrap_or_else(PoisonError::into_inner));
}

fn is_json() -> bool {
    WRITER.read().unwrap_or_else(PoisonError::into_inner).format == LogFormat::Json
}

fn panicked(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let what = format!("thread '{}' panicked", thread.name().unwrap_or("?"));
    let why = info.payload_as_str().map(str::to_owned);
    write(&Event { what, why, ..event(log::Level::Error, &place) });
}

/// Returns an event with the fields that all events of this process have.
fn event(level: log::Level, place: &str) -> Event {
    let writer = WRITER.read().unwrap_or_else(PoisonError::into_inner);
    Event {
        host: writer.host.clone(),
        process: writer.process.to_owned(),
        node: writer.node,
        ..Event::now(level, place)
    }
}

/// Writes an event by one call, so that lines of several threads and processes stay whole.
fn write(event: &Event) {
    let mut line = if is_json() { serde_json::to_string(event).unwrap_or_default() } else { event.plain() };
    line.push('\n');
    // The reader may be gone.
    let _nobody_listens = std::io::stderr().lock().write_all(line.as_bytes());
}

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            write(&of_record(record));
        }
    }

    fn flush(&self) {}
}

fn of_record(record: &Record<'_>) -> Event {
    event(record.level(), record.target()).of_record(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::kv::Value;

    fn said(values: &[(&str, Value<'_>)], text: std::fmt::Arguments<'_>) -> Event {
        let mut record = Record::builder();
        of_record(&record.level(log::Level::Warn).target("m").key_values(&values).args(text).build())
    }

    #[test]
    fn fields_are_what_was_said_beside_the_text() {
        let some = |text: &str| Some(text.to_owned());
        let why = std::io::Error::from_raw_os_error(bivouac_types::Errno::ENOENT.code());
        let event = said(&[("why", Value::from_display(&why))], format_args!("inode 5 waits"));
        assert_eq!(
            (event.what.as_str(), event.why),
            ("inode 5 waits", some("no such file or directory (ENOENT)"))
        );
        assert_eq!(
            (event.level.as_str(), event.place.as_str(), event.pid),
            ("warn", "m", std::process::id())
        );
        let event =
            said(&[("why", Value::from("full")), ("remedy", Value::from("free some"))], format_args!("x"));
        assert_eq!((event.text().as_str(), event.remedy), ("x: full; free some", some("free some")));
        let event = said(&[("error", Value::from("/x: gone; make it"))], format_args!("/x: gone; make it"));
        assert_eq!((event.what.as_str(), event.why, event.remedy), ("/x", some("gone"), some("make it")));
        let event = said(&[("cause", Value::from("killed; its log ends"))], format_args!("x"));
        assert_eq!((event.why, event.remedy), (some("killed; its log ends"), None));
        let event = said(&[], format_args!("a: b; c"));
        assert_eq!((event.what.as_str(), event.why, event.remedy), ("a: b; c", None, None));
    }
}
