//! A line of a log: its writer, time, level and text.

use std::borrow::Cow;

use bivouac_launch::Event;
use clap::ValueEnum;
use serde::Serialize;

use super::node_of;
use crate::options::LogLevel;

/// A line with who wrote it.
#[derive(Debug, PartialEq, Eq)]
pub struct LogLine<'a> {
    pub by: &'a str,
    line: &'a str,
    /// Its content, if it was written as an event with fields.
    event: Option<Event>,
    /// Its level. A continuation has the level of the line that it continues.
    level: Option<LogLevel>,
}

/// A line of a log, for programs. What one goes on with has neither time nor level, and of lines for people their text
/// is all that is known of what happened.
#[derive(Serialize)]
pub struct Parsed<'a> {
    time: Option<&'a str>,
    level: Option<String>,
    by: &'a str,
    process: &'a str,
    node: Option<u16>,
    host: Option<&'a str>,
    pid: Option<u32>,
    #[serde(rename = "where")]
    place: Option<&'a str>,
    what: &'a str,
    why: Option<&'a str>,
    remedy: Option<&'a str>,
    text: String,
}

/// Returns all lines by their time, those without one behind the line that they go on from.
pub fn merged(logs: &[(String, Vec<String>)]) -> Vec<LogLine<'_>> {
    let mut all = Vec::new();
    for (by, lines) in logs {
        let (mut time, mut level) = (String::new(), None);
        for line in lines {
            let event = Event::parse(line);
            match (&event, stamp(line)) {
                (Some(event), _) => (time, level) = (event.time.clone(), level_of(&event.level)),
                (None, Some(stamp)) => {
                    let word = line.get(stamp.len()..).unwrap_or_default().split_whitespace().next();
                    (time, level) = (stamp.to_owned(), word.and_then(level_of));
                }
                (None, None) => {}
            }
            all.push((time.clone(), LogLine { by, line, event, level }));
        }
    }
    // The sort is stable: lines of the same time stay in the order in which their process wrote them.
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.into_iter().map(|(_, line)| line).collect()
}

fn level_of(word: &str) -> Option<LogLevel> {
    LogLevel::from_str(word, true).ok()
}

impl LogLine<'_> {
    /// Returns whether it is as severe as this; where that is not known it may be.
    pub fn is_at_least(&self, level: Option<LogLevel>) -> bool {
        self.level.zip(level).is_none_or(|(own, wanted)| own <= wanted)
    }

    /// Returns it in the form for people.
    pub fn plain(&self) -> Cow<'_, str> {
        self.event.as_ref().map_or(Cow::Borrowed(self.line), |event| Cow::Owned(event.plain()))
    }

    /// Returns it in the form for programs.
    pub fn parsed(&self) -> Parsed<'_> {
        match &self.event {
            Some(event) => Parsed {
                time: Some(&event.time),
                level: Some(event.level.clone()),
                by: self.by,
                process: &event.process,
                node: event.node,
                host: Some(&event.host),
                pid: Some(event.pid),
                place: Some(&event.place),
                what: &event.what,
                why: event.why.as_deref(),
                remedy: event.remedy.as_deref(),
                text: event.text(),
            },
            None => self.parsed_plain(),
        }
    }

    /// Returns a line for people, parsed: who it was is known by the name of the log.
    fn parsed_plain(&self) -> Parsed<'_> {
        let (by, host) = self.by.split_once('@').map_or((self.by, None), |(by, host)| (by, Some(host)));
        let node = node_of(by);
        let process = if node.is_some() { "daemon" } else { by };
        let time = stamp(self.line);
        let rest = time.and_then(|time| self.line.strip_prefix(time)).unwrap_or(self.line);
        let rest = if time.is_some() { rest.trim_start() } else { rest };
        let head = rest.split_once(' ').filter(|_| time.is_some());
        let parts = head.and_then(|(level, rest)| Some((level, rest.trim_start().split_once(": ")?)));
        let (level, place, what) = match parts {
            Some((level, (place, what))) => (Some(level.to_lowercase()), Some(place), what),
            None => (None, None, rest),
        };
        let (why, remedy, pid, text) = (None, None, None, what.to_owned());
        Parsed { time, level, by: self.by, process, node, host, pid, place, what, why, remedy, text }
    }
}

/// Returns the time that a line begins with: digits and their signs, so that texts are ordered as times.
fn stamp(line: &str) -> Option<&str> {
    let first = line.split(' ').next()?;
    let is_time = first.len() >= 20 && first.ends_with('Z') && first.as_bytes().get(10) == Some(&b'T');
    is_time.then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_in_the_order_of_their_times_and_what_goes_on_stays_behind() {
        let lines = |all: &[&str]| all.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        let logs = vec![
            (
                "n0".to_owned(),
                lines(&["2026-01-01T00:00:02.000Z b", " more of b", "2026-01-01T00:00:04.000Z d"]),
            ),
            ("supervisor".to_owned(), lines(&["2026-01-01T00:00:01.000Z a", "2026-01-01T00:00:03.000Z c"])),
        ];
        let merged = merged(&logs);
        let ends: Vec<&str> = merged.iter().map(|line| line.line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(ends, ["a", "b", "b", "c", "d"]);
        assert_eq!((merged[0].by, merged[2].by, merged[2].line), ("supervisor", "n0", " more of b"));
    }

    #[test]
    fn lines_have_parts_for_programs() {
        let json = |by: &str, line: &str| {
            let logs = [(by.to_owned(), vec![line.to_owned()])];
            serde_json::to_value(merged(&logs)[0].parsed()).unwrap()
        };
        let parsed = json("n0", "2026-01-01T00:00:02.000Z WARN  bivouac_node::leases: node 1: late: 3 s");
        assert_eq!(
            parsed,
            serde_json::json!({
                "time": "2026-01-01T00:00:02.000Z", "level": "warn", "by": "n0", "process": "daemon", "node": 0,
                "host": null, "pid": null, "where": "bivouac_node::leases", "what": "node 1: late: 3 s",
                "why": null, "remedy": null, "text": "node 1: late: 3 s",
            })
        );
        let other = json("supervisor@b", "stack backtrace:");
        assert!(other["time"].is_null() && other["level"].is_null() && other["text"] == "stack backtrace:");
        assert_eq!((&other["process"], &other["host"]), (&"supervisor".into(), &"b".into()));
        assert_eq!(json("n0", "2026-01-01T00:00:02.000Z half")["text"], "half");
        assert_eq!(json("n0", "")["text"], "");
        let event = json("n0", EVENT);
        let why = (event["what"].as_str(), event["why"].as_str(), event["remedy"].as_str());
        assert_eq!(why, (Some("a"), Some("b"), Some("c")));
        assert_eq!((event["text"].as_str(), event["pid"].as_u64()), (Some("a: b; c"), Some(7)));
    }

    const EVENT: &str = r#"{"time":"2026-01-01T00:00:03.000Z","level":"warn","host":"h","process":"daemon","pid":7,"node":0,"where":"m","what":"a","why":"b","remedy":"c"}"#;

    #[test]
    fn levels_are_those_of_the_lines_that_others_go_on_from() {
        let lines = [
            "2026-01-01T00:00:02.000Z INFO  m: x",
            "more of x",
            EVENT,
            "more of a",
            "2026-01-01T00:00:04.000Z DEBUG m: y",
        ];
        let logs = [("n0".to_owned(), lines.map(str::to_owned).to_vec())];
        let shown = |level| {
            let lines = merged(&logs);
            lines
                .iter()
                .filter(|line| line.is_at_least(level))
                .map(|line| line.line.len())
                .collect::<Vec<_>>()
        };
        let all = lines.map(str::len);
        assert_eq!(shown(None), all);
        assert_eq!(shown(Some(LogLevel::Info)), all[..4]);
        assert_eq!(shown(Some(LogLevel::Warn)), all[2..4]);
        assert!(shown(Some(LogLevel::Error)).is_empty());
        let merged = merged(&logs);
        assert_eq!(merged[2].plain(), "2026-01-01T00:00:03.000Z WARN  m: a: b; c");
    }
}
