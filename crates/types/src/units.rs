//! Sizes and durations as people write them.

/// Reads a size: digits and an optional unit. `k`, `m`, `g`, `t`, `p` and `KiB` … are powers of 1024,
/// `KB` … are powers of 1000; upper and lower case mean the same.
///
/// # Errors
/// A sentence that names the text and shows what is understood.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor = unit_factor(unit.trim()).ok_or_else(|| bad_size(text))?;
    // First: as a fraction, a number above 2^53 would be rounded.
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| bad_size(text));
    }
    let fraction: f64 = number.parse().map_err(|_| bad_size(text))?;
    let bytes = fraction * factor as f64;
    if bytes.is_finite() && bytes < 9e18 { Ok(bytes as u64) } else { Err(bad_size(text)) }
}

fn bad_size(text: &str) -> String {
    format!("'{text}' is not a size; write for instance 4096, 64k, 1MiB, 2.5g or 10GB")
}

fn unit_factor(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    let mut chars = lower.chars();
    let power = match chars.next() {
        None => return Some(1),
        Some('b') => return (lower == "b").then_some(1),
        Some(letter) => 1 + "kmgtp".find(letter)? as u32,
    };
    match chars.as_str() {
        "" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// Writes a size with a unit of 1024 and at most one decimal: `1.5 MiB`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // With one decimal, it would be written as 1024.0 otherwise.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

/// Writes a number of things: `1 file`, `2 files`.
#[must_use]
pub fn format_count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Writes milliseconds in at most two units: `1.5 s`, `3 min`, `2 h 5 min`, `4 d 1 h`.
#[must_use]
pub fn format_duration(ms: u64) -> String {
    let secs = ms / 1000;
    match secs {
        0..60 => format!("{:.1} s", ms as f64 / 1000.0),
        60..3600 => format!("{} min", secs / 60),
        3600..86_400 => format!("{} h {} min", secs / 3600, secs % 3600 / 60),
        _ => format!("{} d {} h", secs / 86_400, secs % 86_400 / 3600),
    }
}

/// Writes microseconds in few letters: `8 µs`, `1.0 ms`, `33 s`.
#[must_use]
pub fn format_micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..10_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ => format!("{} s", us / 1_000_000),
    }
}

/// Returns the seconds since 1970 as a date: the civil calendar of Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms".
#[must_use]
pub fn format_utc(secs: u64) -> String {
    let (days, rest) = (secs / 86_400, secs % 86_400);
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    assert!((1..=12).contains(&month) && (1..=31).contains(&day), "{secs} s is a date that no calendar has");
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Writes a size so that [`parse_size`] reads the same: `64k`, `1500`.
#[must_use]
pub fn exact_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(1 << 50, "p"), (1 << 40, "t"), (1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")];
    in_units(bytes, &UNITS)
}

/// Writes milliseconds so that [`parse_duration_ms`] reads the same: `30s`, `1500ms`.
#[must_use]
pub fn exact_duration(ms: u64) -> String {
    const UNITS: [(u64, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    in_units(ms, &UNITS)
}

/// Returns a number in the largest unit that it is a multiple of.
fn in_units(number: u64, units: &[(u64, &str)]) -> String {
    // Zero is a multiple of the largest unit, too.
    let fits = units.iter().find(|(unit, _)| number != 0 && number.is_multiple_of(*unit));
    match fits {
        Some((unit, name)) => format!("{}{name}", number / unit),
        None => number.to_string(),
    }
}

/// Reads a duration in milliseconds: digits and `ms`, `s` (also without unit), `m`, `h` or `d`.
///
/// # Errors
/// A sentence that names the text and shows what is understood.
pub fn parse_duration_ms(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a duration; write for instance 500ms, 30s, 5m, 2h or 1d");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(bad()),
    };
    let value: u64 = number.parse().map_err(|_| bad())?;
    value.checked_mul(factor).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        for (ms, text) in
            [(1500, "1.5 s"), (61_000, "1 min"), (7_500_000, "2 h 5 min"), (349_200_000, "4 d 1 h")]
        {
            assert_eq!(format_duration(ms), text);
        }
    }

    #[test]
    fn one_is_one_thing() {
        assert_eq!([0, 1, 2].map(|number| format_count(number, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 65_536),
            ("1MiB", 1 << 20),
            ("2.5g", 5 << 29),
            ("10GB", 10_000_000_000),
            (" 1 tib ", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "-1", "1x", "1kibi", "99999999999999999999", "1e9", "NaN"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 30, "1 GiB"), ((1 << 20) - 1, "1 MiB")]
        {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn what_is_written_exactly_is_read_again() {
        for number in [0, 1, 999, 1000, 1024, 1500, 60_000, 65_536, 1 << 30, u64::MAX] {
            assert_eq!(parse_size(&exact_size(number)), Ok(number));
            assert_eq!(parse_duration_ms(&exact_duration(number)), Ok(number));
        }
        assert_eq!((exact_size(65_536), exact_duration(90_000)), ("64k".into(), "90s".into()));
    }

    #[test]
    fn durations_are_read() {
        for (text, ms) in [("500ms", 500), ("30", 30_000), ("5m", 300_000), ("1d", 86_400_000)] {
            assert_eq!(parse_duration_ms(text), Ok(ms));
        }
        assert!(parse_duration_ms("1y").is_err() && parse_duration_ms("").is_err());
    }

    #[test]
    fn dates_are_right() {
        for (secs, date) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_210_096, "2024-02-29T12:34:56"),
            (4_107_542_399, "2100-02-28T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            assert_eq!(format_utc(secs), date);
        }
    }
}
