//! The end of a pool as an entry of a calendar: RFC 5545.

use jiff::Timestamp;

use crate::Pool;

/// Upper limit of a line without its end, in bytes.
const LINE_MAX: usize = 75;

/// Returns the calendar entry of a pool's end, with an alarm if there is a reminder.
#[must_use]
pub fn entry(pool: &Pool, host: &str, now_s: i64) -> String {
    let of = format!("bivouac pool {}", pool.name);
    let mut lines = vec![
        "BEGIN:VCALENDAR".to_owned(),
        "VERSION:2.0".into(),
        "PRODID:-//Bivouac//pools//EN".into(),
        "BEGIN:VEVENT".into(),
        format!(
            "UID:{}",
            escaped(&format!("bivouac-pool-{}-{}-{}@{host}", pool.owner, pool.id, pool.created_s))
        ),
        format!("DTSTAMP:{}", time(now_s)),
        // A later one of the same entry takes its place.
        format!("SEQUENCE:{}", pool.expires_s.saturating_sub(pool.created_s).max(0) / 60),
        format!("DTSTART:{}", time(pool.expires_s)),
        "DURATION:PT1H".into(),
        format!("SUMMARY:{}", escaped(&format!("{of} ends"))),
        format!("DESCRIPTION:{}", escaped(&description(pool))),
        "TRANSP:TRANSPARENT".into(),
    ];
    if let Some(days) = pool.remind_days {
        let alarm = ["BEGIN:VALARM", "ACTION:DISPLAY"].map(str::to_owned);
        lines.extend(alarm);
        lines.push(format!("DESCRIPTION:{}", escaped(&format!("{of} ends"))));
        lines.extend([format!("TRIGGER:-P{days}D"), "END:VALARM".to_owned()]);
    }
    lines.extend(["END:VEVENT", "END:VCALENDAR"].map(str::to_owned));
    lines.iter().map(|line| folded(line)).collect()
}

fn description(pool: &Pool) -> String {
    let title = if pool.title.is_empty() { String::new() } else { format!("{}\n", pool.title) };
    format!("{title}{}\nMore time: bivouac pool extend {}", String::from_utf8_lossy(&pool.source), pool.name)
}

fn time(at_s: i64) -> String {
    let at = Timestamp::from_second(at_s).unwrap_or(Timestamp::UNIX_EPOCH);
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Returns a text value: 3.3.11.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '\n' => escaped.push_str("\\n"),
            '\\' | ';' | ',' => escaped.extend(['\\', c]),
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}

/// Returns a line and its end; a longer one goes on behind a space: 3.1. Not within a character.
fn folded(line: &str) -> String {
    let (mut text, mut len) = (String::new(), 0);
    for c in line.chars() {
        if len + c.len_utf8() > LINE_MAX {
            text.push_str("\r\n ");
            len = 1;
        }
        text.push(c);
        len += c.len_utf8();
        assert!(len <= LINE_MAX, "a line of {len} bytes is longer than RFC 5545 allows");
    }
    text + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_folded_between_characters() {
        assert_eq!(folded("short"), "short\r\n");
        assert_eq!(folded(&"x".repeat(75)), format!("{}\r\n", "x".repeat(75)));
        let long = "é".repeat(100);
        let text = folded(&long);
        assert!(text.ends_with("\r\n") && text.split("\r\n").all(|line| line.len() <= LINE_MAX), "{text}");
        assert_eq!(text.replace("\r\n ", "").trim_end(), long);
    }

    #[test]
    fn values_are_escaped() {
        assert_eq!(escaped("a,b;c\\d\nEND:VEVENT\r\u{7}"), "a\\,b\\;c\\\\d\\nEND:VEVENT");
        assert_eq!(time(1_764_072_000), "20251125T120000Z");
        assert_eq!(time(i64::MAX), "19700101T000000Z");
    }
}
