//! What is said of arguments that make no sense besides what the parser says of them.

use std::ffi::{OsStr, OsString};

use clap::Command;

use super::{Cli, command};

/// How an option is written whose value may be left out, where one is given behind a space: that is another operand, and none
/// that the command knows.
pub fn hint(arguments: &[OsString]) -> Option<String> {
    let table = command();
    let given = arguments.split(|argument| argument == "--").next()?;
    let place = given.windows(2).position(|pair| takes_no_operand(chosen(&table, given), pair))?;
    let [option, value] = arguments.get(place..place + 2)? else { return None };
    let joined = [option, OsStr::new("="), value].into_iter().collect::<OsString>();
    let mut meant = arguments.to_vec();
    meant.splice(place..place + 2, [joined.clone()]);
    Cli::read(meant).is_ok().then(|| format!("write {}", joined.to_string_lossy()))
}

/// The command that the arguments name.
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
            ("bivouac run --secure true -- true", "write --secure=true"),
            ("bivouac partition set --mirror-deletes yes p", "write --mirror-deletes=yes"),
        ] {
            assert!(Cli::read(line.split(' ').map(OsString::from).collect()).is_err(), "{line}");
            assert_eq!(hinted(line).as_deref(), Some(says));
        }
    }

    #[test]
    fn other_mistakes_have_no_such_hint() {
        for line in [
            "bivouac",
            "bivouac status --watch",
            "bivouac status --watch soon",
            "bivouac status --name 1s x",
            "bivouac status --watch --name",
            "bivouac nonsense --watch 1s",
            "bivouac stage in --watch 1s",
            "bivouac exec -- true --cd run",
        ] {
            assert_eq!(hinted(line), None, "{line}");
        }
    }
}
