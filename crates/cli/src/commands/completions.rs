//! `bivouac completions`: for bash, zsh, fish and others.

use std::any::TypeId;
use std::process::ExitCode;

use bivouac_launch::{FormationName, Launcher};
use bivouac_types::Checksum;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::options::{CompletionsArgs, command};

/// Stands for names of formations until the script has what asks for them.
const NAMES: &str = "names-of-formations";
/// Command that prints the names. It prints nothing if it fails.
const ASK: &str = "bivouac list --names 2>/dev/null";
/// Commands whose `--name` is one that there is not yet.
const MAKERS: [&str; 2] = ["up", "run"];

/// Writes them to standard output.
pub fn run(args: &CompletionsArgs) -> Result<ExitCode, Failure> {
    out!("{}", script(args.shell));
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut hinted(command()), "bivouac", &mut text);
    let text = String::from_utf8_lossy(&text);
    // The generators know lists of words and kinds of paths only, so a word stands for the question.
    match shell {
        Shell::Bash => text.replace(NAMES, &format!("$({ASK})")),
        Shell::Fish => text.replace(&format!("{NAMES}\\t''"), &format!("({ASK})")),
        Shell::Zsh => {
            let asks =
                format!("_bivouac_names() {{\n    compadd -- ${{(f)\"$({ASK})\"}}\n}}\n\n_bivouac() {{\n");
            text.replace(&format!("({NAMES})"), "_bivouac_names").replacen("_bivouac() {\n", &asks, 1)
        }
        _ => text.into_owned(),
    }
}

/// Returns the table, with what the value of each option is.
fn hinted(command: Command) -> Command {
    let makes = MAKERS.contains(&command.get_name());
    command.mut_args(|arg| hint(arg, makes)).mut_subcommands(hinted)
}

fn hint(arg: Arg, makes: bool) -> Arg {
    let (named, is_path) = (names(&arg), arg.get_value_hint() == ValueHint::AnyPath);
    if !arg.get_action().takes_values() || !arg.get_possible_values().is_empty() {
        return arg;
    }
    if is(&arg, TypeId::of::<FormationName>()) {
        // A name that is still to be chosen is not completed by those that are taken.
        return if makes { arg.value_hint(ValueHint::Other) } else { arg.value_parser([NAMES]) };
    }
    let words = fixed(&arg, &named);
    if !words.is_empty() {
        return arg.value_parser(PossibleValuesParser::new(words));
    }
    arg.value_hint(match named.as_str() {
        named if named.starts_with("DIR") => ValueHint::DirPath,
        "FILE" | "OLD" | "OLD.json" => ValueHint::FilePath,
        named if is_path || named.starts_with("SRC") || named.contains("URL") => ValueHint::AnyPath,
        _ => ValueHint::Other,
    })
}

fn names(arg: &Arg) -> String {
    arg.get_value_names().and_then(<[_]>::first).map_or_else(String::new, ToString::to_string)
}

fn is(arg: &Arg, kind: TypeId) -> bool {
    arg.get_value_parser().type_id() == kind
}

/// Returns the words that an option takes: those in small letters in the name of its value, or those of its type.
fn fixed(arg: &Arg, named: &str) -> Vec<String> {
    let words: &[&str] = match () {
        () if is(arg, TypeId::of::<Checksum>()) => &["auto", "on", "off"],
        () if is(arg, TypeId::of::<Launcher>()) => &["ssh", "slurm", "pbs", "flux", "mpi"],
        () => &[],
    };
    let is_word =
        |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || "-3".contains(c));
    let said = named.split('|').map(|word| word.split('[').next().unwrap_or(word));
    words.iter().copied().chain(said.filter(is_word)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_know_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let text = script(shell);
            for word in ["up", "status", "down", "run", "explain", "mount-each"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
            assert!(!text.contains(NAMES), "{shell}");
        }
    }

    #[test]
    fn values_are_of_the_right_kind() {
        let table = hinted(command());
        let arg = |path: &[&str], long: &str| {
            let sub = path.iter().fold(&table, |command, name| command.find_subcommand(name).unwrap());
            sub.get_arguments().find(|arg| arg.get_long() == Some(long)).unwrap().clone()
        };
        let words = |arg: Arg| -> Vec<String> {
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
        };
        assert_eq!(words(arg(&["down"], "name")), [NAMES]);
        assert_eq!(arg(&["up"], "name").get_value_hint(), ValueHint::Other, "it is a new one");
        assert_eq!(words(arg(&["up"], "launch")), ["ssh", "slurm", "pbs", "flux", "mpi"]);
        assert_eq!(words(arg(&["up"], "checksum")), ["auto", "on", "off"]);
        assert_eq!(
            words(arg(&["partition", "set"], "write")),
            ["through", "on-close", "delayed", "on-flush", "never"]
        );
        assert_eq!(words(arg(&["partition", "set"], "master-hash")), ["xxh3", "byte-sum"]);
        assert_eq!(words(arg(&["stage", "out"], "changed-since")), ["in"]);
        assert_eq!(arg(&["up"], "mount").get_value_hint(), ValueHint::DirPath);
        assert_eq!(arg(&["up"], "config").get_value_hint(), ValueHint::FilePath);
        assert_eq!(arg(&["up"], "stripe").get_value_hint(), ValueHint::Other);
        assert_eq!(arg(&["run"], "in").get_value_hint(), ValueHint::AnyPath);
    }
}
