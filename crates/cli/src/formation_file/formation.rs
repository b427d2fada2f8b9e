//! The table `[formation]`: keys and values are checked by the option table of `up` itself.

use bivouac_launch::FormationRequest;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, Command, FromArgMatches};
use toml::de::{DeTable, DeValue};

use super::{Problem, unknown, values};
use crate::options::{FileKeyArgs, FormationArgs};

/// The one key whose option takes no value: there is no need to say that it is false.
const SWITCH: &str = "allow-other";

/// Returns the options that the table may have.
pub fn options() -> Command {
    let formation = FormationArgs::augment_args(Command::default().name("formation").no_binary_name(true));
    FileKeyArgs::augment_args(formation)
}

/// Returns a key and its value as an argument.
pub fn as_argument(key: &str, value: &str) -> String {
    // With the sign: a value may begin with a dash.
    if key == SWITCH { format!("--{key}") } else { format!("--{key}={value}") }
}

/// Reads the table, which begins at `start`.
pub fn read(table: &DeTable<'_>, start: usize, problems: &mut Vec<Problem>) -> Vec<(String, String)> {
    let options = options();
    // The database of pools is the user's, not the formation's.
    let keys: Vec<&Arg> = options.get_arguments().filter(|argument| argument.get_id() != "db").collect();
    let known: Vec<&str> = keys.iter().filter_map(|argument| argument.get_long()).collect();
    let (mut said, mut places) = (Vec::new(), Vec::new());
    for (key, value) in table {
        let (at, name) = (key.span().start, key.get_ref().as_ref());
        let Some(argument) = keys.iter().find(|argument| argument.get_long() == Some(name)) else {
            problems.push(unknown(at, name, &known));
            continue;
        };
        let given = match (argument.get_action(), value.get_ref()) {
            (_, DeValue::Boolean(false)) if name == SWITCH => Vec::new(),
            (_, DeValue::Boolean(word)) if is_switch(argument) => {
                vec![(value.span().start, word.to_string())]
            }
            (ArgAction::Append, _) => values::list(name, value, problems),
            _ => values::scalar(name, value, problems).map(|text| (at, text)).into_iter().collect(),
        };
        for (at, text) in given {
            match one(name, &text) {
                Ok(()) => {
                    places.push((name.to_owned(), at));
                    said.push((at, name.to_owned(), text));
                }
                Err(cause) => problems.push(Problem::new(at, format!("{name}: {cause}"))),
            }
        }
    }
    // Options count in the order in which they are written, which a table need not keep.
    said.sort_by_key(|(at, ..)| *at);
    let said: Vec<(String, String)> = said.into_iter().map(|(_, key, value)| (key, value)).collect();
    problems.extend(together(&said, &places, start));
    said
}

/// Returns whether an option is on or off.
fn is_switch(argument: &Arg) -> bool {
    argument.get_possible_values().iter().any(|word| word.get_name() == "true")
}

/// Checks that an option takes this value.
fn one(key: &str, value: &str) -> Result<(), String> {
    let parsed = options().try_get_matches_from([as_argument(key, value)]);
    // What it goes with may be further down.
    let parsed = match parsed {
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => return Ok(()),
        parsed => parsed,
    };
    parsed.map(drop).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        // What the parser says behind the option's name, which is not what is written here.
        let cause =
            first.split_once(">': ").or_else(|| first.split_once(": ")).map_or(first, |(_, cause)| cause);
        if cause.contains(value) { cause.to_owned() } else { format!("'{value}' {cause}") }
    })
}

/// Returns the keys that exclude each other, or need others.
fn contradiction(error: &clap::Error, places: &[(String, usize)], start: usize) -> Problem {
    let strings = |kind| match error.get(kind) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(all)) => all.clone(),
        _ => Vec::new(),
    };
    // `--http <[ADDR:]PORT>` is the key `http` here.
    let key =
        |text: &String| text.split([' ', '=', '[']).next().unwrap_or(text).trim_start_matches('-').to_owned();
    let named: Vec<String> = strings(ContextKind::InvalidArg).iter().map(key).collect();
    let others: Vec<String> = strings(ContextKind::PriorArg).iter().map(key).collect();
    let at = places.iter().filter(|(known, _)| named.contains(known) || others.contains(known));
    let at = at.map(|(_, at)| *at).max().unwrap_or(start);
    let text = match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            format!("it needs {} as well: write that, too", named.join(", "))
        }
        ErrorKind::ArgumentConflict if !others.is_empty() => {
            format!("{} and {} exclude each other: leave one out", named.join(", "), others.join(", "))
        }
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    };
    Problem::new(at, text)
}

/// Returns what keeps all of them together from being a formation, if anything does.
fn together(said: &[(String, String)], places: &[(String, usize)], start: usize) -> Option<Problem> {
    let arguments = said.iter().map(|(key, value)| as_argument(key, value));
    let matches = match options().try_get_matches_from(arguments) {
        Ok(matches) => matches,
        Err(error) => return Some(contradiction(&error, places, start)),
    };
    let wishes: FormationRequest =
        FormationArgs::from_arg_matches(&matches).ok()?.wishes("x".parse().ok()?, 1, None);
    let refusal = wishes.check().err()?.to_string();
    // It begins with the option that it is about.
    let named = |(key, _): &&(String, usize)| refusal.starts_with(&format!("--{key}"));
    let at = places.iter().find(named).map_or(start, |(_, at)| *at);
    let key = places.iter().find(named).map_or("formation", |(key, _)| key);
    let cause = refusal.split_once(": ").map_or(refusal.as_str(), |(_, cause)| cause);
    Some(Problem::new(at, format!("{key}: {cause}")))
}
