//! The table `[formation]`: keys and values are checked by the option table of `up` itself.

use bivouac_launch::Wishes;
use clap::{Arg, ArgAction, Args, Command, FromArgMatches};
use toml::de::{DeTable, DeValue};

use super::{Problem, unknown, values};
use crate::options::FormationArgs;

/// The options that the table may have.
pub fn options() -> Command {
    FormationArgs::augment_args(Command::default().name("formation").no_binary_name(true))
}

/// Reads the table, which begins at `start`.
pub fn read(table: &DeTable<'_>, start: usize, problems: &mut Vec<Problem>) -> Vec<(String, String)> {
    let options = options();
    let known: Vec<&str> = options.get_arguments().filter_map(|argument| argument.get_long()).collect();
    let (mut said, mut places) = (Vec::new(), Vec::new());
    for (key, value) in table {
        let (at, name) = (key.span().start, key.get_ref().as_ref());
        let Some(argument) = options.get_arguments().find(|argument| argument.get_long() == Some(name))
        else {
            problems.push(unknown(at, name, &known));
            continue;
        };
        let given = match (argument.get_action(), value.get_ref()) {
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
    said.sort_by_key(|(at, ..)| *at);
    let said: Vec<(String, String)> = said.into_iter().map(|(_, key, value)| (key, value)).collect();
    problems.extend(together(&said, &places, start));
    said
}

/// Whether an option is on or off.
fn is_switch(argument: &Arg) -> bool {
    argument.get_possible_values().iter().any(|word| word.get_name() == "true")
}

/// Whether an option takes this value.
fn one(key: &str, value: &str) -> Result<(), String> {
    let parsed = options().try_get_matches_from([format!("--{key}={value}")]);
    parsed.map(drop).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        // What the parser says behind the option's name, which is not what is written here.
        let cause =
            first.split_once(">': ").or_else(|| first.split_once(": ")).map_or(first, |(_, cause)| cause);
        if cause.contains(value) { cause.to_owned() } else { format!("'{value}' {cause}") }
    })
}

/// Whether all of them together can be a formation.
fn together(said: &[(String, String)], places: &[(String, usize)], start: usize) -> Option<Problem> {
    let arguments = said.iter().map(|(key, value)| format!("--{key}={value}"));
    let matches = options().try_get_matches_from(arguments).ok()?;
    let wishes: Wishes = FormationArgs::from_arg_matches(&matches).ok()?.wishes("x".parse().ok()?, 1, None);
    let refusal = wishes.check().err()?.to_string();
    // It begins with the option that it is about.
    let named = |(key, _): &&(String, usize)| refusal.starts_with(&format!("--{key}"));
    let at = places.iter().find(named).map_or(start, |(_, at)| *at);
    let key = places.iter().find(named).map_or("formation", |(key, _)| key);
    let cause = refusal.split_once(": ").map_or(refusal.as_str(), |(_, cause)| cause);
    Some(Problem::new(at, format!("{key}: {cause}")))
}
