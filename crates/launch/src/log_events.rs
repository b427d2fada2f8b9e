//! Events of logs: what they are made of, and how people read them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use bivouac_types::named;
use bivouac_types::units::format_utc;
use log::kv::Key;
use log::{Level, Record};
use serde::{Deserialize, Serialize};

/// Form of the logs of a formation's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Plain,
    /// An event per line, with its fields.
    Json,
}

/// An event. As a line of JSON it is what [`LogFormat::Json`] writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its time in UTC: `2026-01-02T03:04:05.678Z`.
    pub time: String,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
    /// The host of the process.
    pub host: String,
    /// Kind of the process: `daemon`, `supervisor`, `http`, `keeper`, `agent` or `command`.
    pub process: String,
    /// Its number.
    pub pid: u32,
    /// The node that it is, if it is one.
    pub node: Option<u16>,
    /// The module that says so.
    #[serde(rename = "where")]
    pub place: String,
    /// The event, with its object.
    pub what: String,
    /// The reason.
    pub why: Option<String>,
    /// Action that helps.
    pub remedy: Option<String>,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Plain => "plain",
            LogFormat::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<LogFormat, String> {
        match text {
            "plain" => Ok(LogFormat::Plain),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("'{text}' is none of plain and json")),
        }
    }
}

impl Event {
    /// Returns an event for something that this process says now.
    #[must_use]
    pub fn now(level: Level, place: &str) -> Event {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Event {
            time: format!("{}.{:03}Z", format_utc(since.as_secs()), since.subsec_millis()),
            level: level.as_str().to_lowercase(),
            pid: std::process::id(),
            place: place.to_owned(),
            ..Event::default()
        }
    }

    /// Returns the event of a log record: its text, and beside it `why`: an error, which ends with what to do, or a
    /// `cause`, which does not; and a `remedy`. Or there is but an `error`, which says all of it.
    #[must_use]
    pub fn of_record(self, record: &Record<'_>) -> Event {
        let of = |key: &str| {
            let value = record.key_values().get(Key::from(key))?;
            Some(named(&value.to_string()).into_owned())
        };
        let event = Event { remedy: of("remedy"), ..self };
        if let Some(error) = of("error") {
            return event.of_error(&error);
        }
        let event = Event { what: named(&record.args().to_string()).into_owned(), ..event };
        match (of("why"), of("cause")) {
            (Some(why), _) => event.because(&why),
            (None, why) => Event { why, ..event },
        }
    }

    /// Says why, in the words of an error, which end with what to do about it: `cause; remedy`.
    #[must_use]
    pub fn because(self, error: &str) -> Event {
        // The last one, since a cause may have semicolons in it.
        let (why, remedy) = match error.rsplit_once("; ") {
            Some((why, remedy)) => (why, Some(remedy.to_owned())),
            None => (error, None),
        };
        Event { why: Some(why.to_owned()), remedy: remedy.or(self.remedy), ..self }
    }

    /// Sets it to an error, whose text has the form `object: cause; remedy`.
    #[must_use]
    pub fn of_error(self, error: &str) -> Event {
        match error.split_once(": ") {
            Some((what, rest)) => Event { what: what.to_owned(), ..self }.because(rest),
            None => Event { what: error.to_owned(), ..self },
        }
    }

    /// Parses a line of a log; `None` for one that is no event with fields.
    #[must_use]
    pub fn parse(line: &str) -> Option<Event> {
        line.starts_with('{').then(|| serde_json::from_str(line).ok()).flatten()
    }

    /// Returns its text, in the form for people.
    #[must_use]
    pub fn text(&self) -> String {
        let part = |before: &str, part: &Option<String>| {
            part.as_ref().map(|text| format!("{before}{text}")).unwrap_or_default()
        };
        format!("{}{}{}", self.what, part(": ", &self.why), part("; ", &self.remedy))
    }

    /// Returns the line that [`LogFormat::Plain`] has of it.
    #[must_use]
    pub fn plain(&self) -> String {
        format!("{} {:5} {}: {}", self.time, self.level.to_uppercase(), self.place, self.text())
    }
}

/// Returns a text with what they say in place of events, whatever a launcher wrote in front of them.
pub fn for_people(text: &str) -> Cow<'_, str> {
    const BEGIN: &str = "{\"time\":";
    if !text.contains(BEGIN) {
        return Cow::Borrowed(text);
    }
    let line = |line: &str| {
        let found = line.find(BEGIN).map(|at| line.split_at(at));
        let event = found.and_then(|(front, rest)| Some((front, Event::parse(rest.trim_end())?)));
        event.map_or_else(|| line.to_owned(), |(front, event)| format!("{front}{}\n", event.text()))
    };
    Cow::Owned(text.split_inclusive('\n').map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event() -> Event {
        Event {
            time: "2026-01-01T00:00:02.000Z".into(),
            level: "warn".into(),
            host: "h".into(),
            process: "daemon".into(),
            pid: 7,
            node: Some(1),
            place: "bivouac_node::leases".into(),
            what: "inode 5 is not flushed".into(),
            ..Event::default()
        }
    }

    #[test]
    fn an_event_has_its_fields_and_is_read_by_people_as_before() {
        let said = event().because("node 1: refused; start it again");
        let json = serde_json::to_value(&said).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "time": "2026-01-01T00:00:02.000Z", "level": "warn", "host": "h", "process": "daemon", "pid": 7,
                "node": 1, "where": "bivouac_node::leases", "what": "inode 5 is not flushed",
                "why": "node 1: refused", "remedy": "start it again",
            })
        );
        let plain = "2026-01-01T00:00:02.000Z WARN  bivouac_node::leases: inode 5 is not flushed: node 1: refused; start it again";
        assert_eq!(said.plain(), plain);
        assert_eq!(Event::parse(&json.to_string()), Some(said));
        assert_eq!((Event::parse(plain), Event::parse("{}"), Event::parse("")), (None, None, None));
    }

    #[test]
    fn errors_are_told_apart_into_object_cause_and_remedy() {
        let parts = |text: &str| {
            let event = event().of_error(text);
            assert_eq!(event.text(), text);
            (event.what, event.why, event.remedy)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            parts("/x: could not list it: no (E); see"),
            ("/x".into(), some("could not list it: no (E)"), some("see"))
        );
        assert_eq!(parts("broken pipe"), ("broken pipe".into(), None, None));
        let told = Event { remedy: Some("raise the limit".into()), ..event() }.because("too many");
        assert_eq!((told.why, told.remedy), (some("too many"), some("raise the limit")));
    }

    #[test]
    fn what_launchers_hand_on_is_for_people() {
        let json = serde_json::to_string(&event()).unwrap();
        let text = format!("Warning: x\n0: {json}\n{json}");
        let said = event().text();
        assert_eq!(for_people(&text), format!("Warning: x\n0: {said}\n{said}\n"));
        assert!(matches!(for_people("a {b\n"), Cow::Borrowed(_)));
        assert_eq!(for_people("{\"time\":\n"), "{\"time\":\n");
    }

    proptest! {
        #[test]
        fn any_line_is_borne(line: String, error: String) {
            let _none_or_one = Event::parse(&line);
            let text = format!("{{\"time\":{line}");
            let for_them = for_people(&text);
            prop_assert!(for_them.contains(&line));
            prop_assert_eq!(event().of_error(&error).text(), error);
        }
    }
}
