//! What is said of arguments that make no sense besides what the parser says of them.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Command};

use super::{Cli, command};

/// What was meant by an operand that the command does not know: the value of an option that takes it behind an equals
/// sign, the command of `run` and `exec` without its dashes, or the file of `config`.
pub fn hint(arguments: &[OsString]) -> Option<String> {
    let table = command();
    let given = arguments.split(|argument| argument == "--").next()?;
    value_behind_a_space(&table, given, arguments).or_else(|| match chosen(&table, given).get_name() {
        "run" | "exec" if given.len() == arguments.len() => command_without_dashes(arguments),
        "config" => Some("write --check FILE".to_owned()),
        _ => None,
    })
}

/// Whether the arguments ask for JSON on standard output. Some commands write it to a file that `--json` names.
pub fn wants_json(arguments: &[OsString]) -> bool {
    let given = arguments.split(|argument| argument == "--").next().unwrap_or_default();
    if !given.iter().any(|argument| argument == "--json") {
        return false;
    }
    let table = command();
    let option = chosen(&table, given).get_arguments().find(|arg| arg.get_long() == Some("json"));
    option.is_some_and(|arg| matches!(arg.get_action(), ArgAction::SetTrue))
}

/// Commands that have both: options whose value may be left out, and a formation's name as their only operand.
const WITH_NAMES: [&str; 2] = ["up", "status"];

/// Returns the value that was meant for an option and stands behind a space, where it would count as the name of a
/// formation.
pub fn value_taken_for_a_name(arguments: &[OsString]) -> Option<String> {
    // Every command starts here, and the table takes longer to make than a daemon to start.
    let name = arguments.get(1)?.to_str().filter(|name| WITH_NAMES.contains(name))?;
    let table = command();
    let command = table.find_subcommand(name)?;
    let [_, value] = arguments.windows(2).find(|pair| takes_no_operand(command, pair))? else { return None };
    Some(value.to_string_lossy().into_owned())
}

/// How an option is written whose value may be left out, where one is given behind a space; and which values there are,
/// where it takes none like that.
fn value_behind_a_space(table: &Command, given: &[OsString], arguments: &[OsString]) -> Option<String> {
    let place = given.windows(2).position(|pair| takes_no_operand(chosen(table, given), pair))?;
    let [option, value] = arguments.get(place..place + 2)? else { return None };
    let joined = [option, OsStr::new("="), value].into_iter().collect::<OsString>();
    let mut meant = arguments.to_vec();
    meant.splice(place..place + 2, [joined.clone()]);
    match Cli::read(meant) {
        Ok(_) => Some(format!("write {}", joined.to_string_lossy())),
        Err(error) => refused(option, &error),
    }
}

/// Why an option does not take a value, if that is what is wrong.
fn refused(option: &OsStr, error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(about)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = option.to_str().filter(|option| about.starts_with(*option))?;
    let values = about.trim_start_matches(option).trim_matches(['[', ']', '=', '<', '>']);
    let said = error.to_string();
    match error.kind() {
        ErrorKind::InvalidValue => Some(format!("write {option}={values}")),
        ErrorKind::ValueValidation => {
            let why = said.lines().next()?.split_once("': ")?.1;
            Some(format!("write {option}={values}: {why}"))
        }
        _ => None,
    }
}

/// Returns the first word that would be a command if the dashes stood in front of it.
fn command_without_dashes(arguments: &[OsString]) -> Option<String> {
    let words = arguments.iter().enumerate().skip(2);
    let mut words = words.filter(|(_, word)| !word.to_string_lossy().starts_with('-'));
    let (_, word) = words.find(|(place, _)| {
        let mut meant = arguments.to_vec();
        meant.insert(*place, "--".into());
        Cli::read(meant).is_ok()
    })?;
    Some(format!("write -- in front of the command: -- {}", word.to_string_lossy()))
}

/// Returns the command that the arguments name.
fn chosen<'a>(table: &'a Command, arguments: &[OsString]) -> &'a Command {
    let words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let (_, command) = words.fold((false, table), |(is_over, command), word| {
        match command.find_subcommand(word).filter(|_| !is_over) {
            Some(sub) => (false, sub),
            None => (!word.starts_with('-'), command),
        }
    });
    command
}

fn takes_no_operand(command: &Command, pair: &[OsString]) -> bool {
    let [option, value] = pair else { return false };
    let Some(long) = option.to_str().and_then(|option| option.strip_prefix("--")) else { return false };
    let known = command.get_arguments().find(|arg| arg.get_long() == Some(long));
    known.is_some_and(clap::Arg::is_require_equals_set) && !value.to_string_lossy().starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hinted(line: &str) -> Option<String> {
        hint(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_value_behind_a_space_is_pointed_out() {
        for (line, says) in [
            ("bivouac status --watch 1s", "write --watch=1s"),
            ("bivouac status --name x --watch 500ms --json", "write --watch=500ms"),
            ("bivouac exec --cd run -- ./solver", "write --cd=run"),
            ("bivouac up --in-process true", "write --in-process=true"),
            ("bivouac up --in-process camp", "write --in-process=true|false"),
            ("bivouac run --secure true -- true", "write --secure=true"),
            ("bivouac partition set --mirror-deletes yes p", "write --mirror-deletes=yes"),
            ("bivouac up --hosts a,b --send static/bivouac", "write --send=static/bivouac"),
            ("bivouac run --nodes 2 ls -l", "write -- in front of the command: -- ls"),
            ("bivouac exec make", "write -- in front of the command: -- make"),
            ("bivouac config camp.toml", "write --check FILE"),
            (
                "bivouac status --watch soon",
                "write --watch=DURATION: 'soon' is not a duration; write for instance 500ms, 30s, 5m, 2h or 1d",
            ),
            ("bivouac up --in-process maybe", "write --in-process=true|false"),
        ] {
            assert!(Cli::read(line.split(' ').map(OsString::from).collect()).is_err(), "{line}");
            assert_eq!(hinted(line).as_deref(), Some(says));
        }
    }

    #[test]
    fn scripts_are_told_apart_by_what_they_ask_for() {
        let wants = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["bivouac status --json", "bivouac stage in --json a", "bivouac up --nods 3 --json"] {
            assert!(wants(line), "{line}");
        }
        for line in
            ["bivouac status", "bivouac run -- app --json", "bivouac report --json f", "bivouac down --json"]
        {
            assert!(!wants(line), "{line}");
        }
    }

    #[test]
    fn other_mistakes_have_no_such_hint() {
        for line in [
            "bivouac",
            "bivouac status --watch",
            "bivouac status --name 1s x",
            "bivouac run --nodes 2",
            "bivouac run --nodez 2 ls",
            "bivouac status --watch --name",
            "bivouac nonsense --watch 1s",
            "bivouac stage in --watch 1s",
            "bivouac exec -- true --cd run",
        ] {
            assert_eq!(hinted(line), None, "{line}");
        }
    }
}
