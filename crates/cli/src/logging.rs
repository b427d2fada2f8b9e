//! Log lines on standard error, which is a file for daemons: time, level, module, text.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

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
            let time = utc(since.as_secs());
            let millis = since.subsec_millis();
            let (level, target, text) = (record.level(), record.target(), record.args());
            // Who was to read it may be gone.
            let _unheard = writeln!(std::io::stderr(), "{time}.{millis:03}Z {level:5} {target}: {text}");
        }
    }

    fn flush(&self) {}
}

/// Seconds since 1970 as a date: the civil calendar of Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn utc(secs: u64) -> String {
    let (days, rest) = (secs / 86_400, secs % 86_400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (secs, date) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_210_096, "2024-02-29T12:34:56"),
            (4_107_542_399, "2100-02-28T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(utc(secs), date);
        }
    }
}
