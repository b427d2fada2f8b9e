//! The commands in groups, as the help shows them: the common ones first.

use clap::Command;

/// Columns of the help.
const COLUMNS: usize = 100;
/// Commands whose options are so many that `-h` shows only those without a heading.
const LONG: [&str; 2] = ["up", "run"];

/// Headings and commands, all that there are.
const GROUPS: &[(&str, &[&str])] = &[
    ("A formation", &["up", "status", "path", "grow", "shrink", "down", "list"]),
    ("Work in it", &["run", "exec", "stage"]),
    ("What it does", &["top", "report", "metrics", "logs", "explain", "races"]),
    ("When something is wrong", &["doctor", "recover", "reap", "fsck", "scrub"]),
    (
        "Mounts, partitions, contracts, site storage",
        &["mount", "unmount", "partition", "contract", "laminate", "flush", "pin", "unpin", "config"],
    ),
    ("Files over HTTP, links between formations", &["key", "share", "link"]),
    ("Data that outlives formations", &["pool", "publish", "find", "get", "unpublish"]),
    ("Machines and plans", &["plan", "system", "bench"]),
    ("This program", &["completions", "man"]),
];

/// Returns the table with its commands in groups.
pub fn grouped(command: Command) -> Command {
    let overview: String = GROUPS
        .iter()
        .map(|(heading, names)| {
            let lines: String =
                names.iter().filter_map(|name| command.find_subcommand(name)).map(line).collect();
            format!("{heading}:\n{lines}\n")
        })
        .collect();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{overview}Options:\n{{options}}\n\nbivouac COMMAND --help \
         explains one, with examples."
    );
    command.help_template(template).mut_subcommands(|sub| {
        if !LONG.contains(&sub.get_name()) {
            return sub;
        }
        sub.mut_args(|arg| {
            let is_rare = arg.get_help_heading().is_some_and(|heading| heading != "Arguments");
            if is_rare { arg.hide_short_help(true) } else { arg }
        })
    })
}

/// Returns the name of a command, and what it is for.
fn line(command: &Command) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("  {:<12}", command.get_name());
    let (indent, mut column) = (text.chars().count() + 1, text.chars().count());
    for word in about.split_whitespace() {
        if column + 1 + word.chars().count() > COLUMNS {
            text.push_str(&format!("\n{}", " ".repeat(indent - 1)));
            column = indent - 1;
        }
        text.push(' ');
        text.push_str(word);
        column += 1 + word.chars().count();
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::command;

    #[test]
    fn every_command_is_in_one_group() {
        let table = command();
        let names: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let shown = table.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
        let shown: Vec<&str> = shown.map(Command::get_name).collect();
        for name in &shown {
            assert_eq!(names.iter().filter(|known| *known == name).count(), 1, "{name}");
        }
        assert_eq!(names.len(), shown.len());
        let help = command().render_help().to_string();
        assert!(help.contains("A formation:\n  up           Start a formation and mount it\n"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= COLUMNS), "{help}");
    }

    #[test]
    fn the_short_help_has_the_common_options() {
        let mut table = command();
        table.build();
        let up = table.find_subcommand_mut("up").unwrap();
        let (short, long) = (up.render_help().to_string(), up.render_long_help().to_string());
        for option in ["--nodes", "--volume", "--mount", "--out", "--ttl", "--json", "--config"] {
            assert!(short.contains(option), "{option}: {short}");
        }
        for (heading, option) in [("Several hosts:", "--min-nodes"), ("When nodes fail:", "--deaths-max")] {
            assert!(long.contains(heading) && long.contains(option), "{option}");
            assert!(!short.contains(option), "{option}");
        }
        assert!(short.contains("see more with '--help'"), "{short}");
    }
}
