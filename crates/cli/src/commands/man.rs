//! `bivouac man`: the manual, from the table of options.

use std::process::ExitCode;

use clap::{Arg, Command};
use clap_mangen::Man;

use crate::failure::Failure;
use crate::options::{ManArgs, command};

/// Writes the main page to standard output, or all pages into a directory.
pub fn run(args: &ManArgs) -> Result<ExitCode, Failure> {
    match &args.dir {
        Some(dir) => {
            let failed =
                |e| Failure::new(1, format_args!("{}: {e}; name a directory that exists", dir.display()));
            clap_mangen::generate_to(pages(), dir).map_err(failed)?;
        }
        None => {
            let mut page = Vec::new();
            Man::new(pages()).render(&mut page)?;
            out!("{}", String::from_utf8_lossy(&page));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the table, each command with its synopsis: the generator's own leaves out what values are called.
fn pages() -> Command {
    let mut command = command().disable_help_subcommand(true);
    command.build();
    with_synopsis(command)
}

fn with_synopsis(command: Command) -> Command {
    let text = synopsis(&command);
    command.override_usage(text).mut_subcommands(with_synopsis)
}

/// Returns the command, options in the order of the table, then operands, then what follows.
fn synopsis(command: &Command) -> String {
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options = shown().filter(|arg| !arg.is_positional()).map(option);
    let operands = shown().filter(|arg| arg.is_positional()).map(operand);
    let sub = command.has_subcommands().then(|| "COMMAND".to_owned());
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    std::iter::once(name).chain(options).chain(operands).chain(sub).collect::<Vec<_>>().join(" ")
}

fn option(arg: &Arg) -> String {
    let long = arg.get_long().map(|long| format!("--{long}"));
    let names = arg.get_short().map(|short| format!("-{short}")).into_iter().chain(long);
    let mut text = names.collect::<Vec<_>>().join("|");
    if arg.get_action().takes_values() {
        let may_lack = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
        let before = if arg.is_require_equals_set() { "=" } else { " " };
        text += &match (may_lack, value(arg)) {
            (true, value) if arg.is_require_equals_set() => format!("[={value}]"),
            (true, value) => format!(" [{value}]"),
            (false, value) => format!("{before}{value}"),
        };
    }
    let more = if repeats(arg) { "..." } else { "" };
    if arg.is_required_set() { format!("{text}{more}") } else { format!("[{text}]{more}") }
}

fn operand(arg: &Arg) -> String {
    let more = if repeats(arg) && !value(arg).contains("...") { "..." } else { "" };
    let text = format!("{}{more}", value(arg));
    let text = if arg.is_last_set() { format!("-- {text}") } else { text };
    if arg.is_required_set() { text } else { format!("[{text}]") }
}

fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().map(|names| names.join(" "));
    let words =
        || arg.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect::<Vec<_>>();
    names.unwrap_or_else(|| match words() {
        words if words.is_empty() => arg.get_id().as_str().to_uppercase(),
        words => words.join("|"),
    })
}

fn repeats(arg: &Arg) -> bool {
    matches!(arg.get_action(), clap::ArgAction::Append)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_per_command() {
        let dir = tempfile::tempdir().unwrap();
        run(&ManArgs { dir: Some(dir.path().into()) }).unwrap();
        let page = std::fs::read_to_string(dir.path().join("bivouac-run.1")).unwrap();
        assert!(page.contains("bivouac run \\-\\-nodes 4"), "{page}");
        assert!(page.contains("out\\-always") && page.contains("121"), "{page}");
        assert!(page.contains("[\\-\\-nodes N]") && page.contains("\\-\\- COMMAND..."), "{page}");
        assert!(dir.path().join("bivouac.1").exists());
        let of_another_program = std::fs::read_to_string(dir.path().join("bivouac-bench-io.1")).unwrap();
        let has = |text: &str| of_another_program.contains(text);
        assert!(has("bivouac bench io") && has("[\\-\\-transfer SIZE]"), "{of_another_program}");
        assert!(!dir.path().join("bivouac-node.1").exists());
        assert!(run(&ManArgs { dir: Some(dir.path().join("none")) }).is_err());
    }

    #[test]
    fn synopses_have_what_values_are_called() {
        let of = |path: &[&str]| {
            let mut command = &pages();
            for name in path {
                command = command.find_subcommand(name).unwrap();
            }
            synopsis(command)
        };
        let status = of(&["status"]);
        assert!(
            status.starts_with(
                "bivouac status [--name NAME] [--watch[=DURATION]] [--operations] [--lost] [--json]"
            ),
            "{status}"
        );
        let copy = of(&["stage", "in"]);
        assert!(copy.contains("[-n|--dry-run]") && copy.ends_with(" SRC... DST"), "{copy}");
        let config = of(&["config"]);
        assert!(
            config.starts_with("bivouac config --check FILE"),
            "what is required has no brackets: {config}"
        );
        assert!(of(&["up"]).contains("[--volume DIR[:CAPACITY]]..."), "{}", of(&["up"]));
        assert!(of(&[]).starts_with("bivouac [") && of(&[]).ends_with("COMMAND"));
    }

    #[test]
    fn no_option_with_a_value_is_without_its_name() {
        fn check(command: &Command) {
            let text = synopsis(command);
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && !arg.is_positional()) {
                let (Some(long), true) = (arg.get_long(), arg.get_action().takes_values()) else { continue };
                let ways = [" ", "[=", "="].map(|behind| format!("--{long}{behind}"));
                assert!(ways.iter().any(|way| text.contains(way)), "{} --{long}: {text}", command.get_name());
                assert!(!text.contains(&format!("--{long}]")), "{} --{long}: {text}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&pages());
    }
}
