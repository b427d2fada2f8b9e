//! Log lines on standard error, which is a file for daemons: time, level, module, text.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use bivouac_types::named;
use bivouac_types::units::format_utc;
use log::{LevelFilter, Log, Metadata, Record};

/// Starts to log. `level` is `off`, `error`, `warn`, `info`, `debug` or `trace`; `warn` otherwise.
pub fn start(level: Option<&str>) {
    start_at(level.and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::Warn));
}

/// Starts to log, daemons with `info` unless told otherwise.
pub fn raise(level: Option<&str>) {
    log::set_max_level(level.and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::Info));
}

fn start_at(level: LevelFilter) {
    if log::set_logger(&StandardError).is_ok() {
        log::set_max_level(level);
    }
}

struct StandardError;

impl Log for StandardError {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let time = format_utc(since.as_secs());
            let millis = since.subsec_millis();
            let (level, target, text) = (record.level(), record.target(), record.args().to_string());
            let text = named(&text);
            // Who was to read it may be gone.
            let _unheard = writeln!(std::io::stderr(), "{time}.{millis:03}Z {level:5} {target}: {text}");
        }
    }

    fn flush(&self) {}
}
