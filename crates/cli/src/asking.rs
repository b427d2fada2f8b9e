//! Text and questions before something is removed that cannot be restored.

use std::io::{BufRead, IsTerminal};

use bivouac_launch::{Amount, FormationState, StateDir};
use bivouac_monitor::status::{StatusReport, look};
use bivouac_types::units::{format_count, format_size};

/// Returns what would be lost with a formation, as text; `None` for an empty one.
pub fn what_goes(dir: &StateDir, state: &FormationState) -> Option<String> {
    // Of a killed one no node can be asked: its volumes are what there is to say of it.
    if !dir.is_held() {
        let volumes = state.nodes.iter().map(|node| node.volumes.len() as u64).sum();
        // What was lost with hosts cannot be seen from here.
        let is_empty = !state.is_over_hosts() && Amount::of(state).is_nothing();
        let text = format!("was killed; what is on its {} is removed", format_count(volumes, "volume"));
        return (!is_empty).then_some(text);
    }
    match look(dir) {
        Ok(report) => said_of(&report),
        Err(failure) => Some(format!("removes what is in it, which cannot be seen: {failure}")),
    }
}

fn said_of(report: &StatusReport) -> Option<String> {
    let (inodes, bytes) = report.content();
    let silent = report.nodes.iter().filter(|node| node.files.is_none()).count() as u64;
    let unseen = match silent {
        0 => String::new(),
        silent => format!(", and what is on {} that cannot be asked", format_count(silent, "node")),
    };
    if inodes == 0 && silent == 0 {
        return None;
    }
    let what = if inodes == 1 { "1 file or directory" } else { &format!("{inodes} files and directories") };
    let kept = match report.unflushed.as_ref().map(|unflushed| unflushed.files as u64) {
        None => String::new(),
        Some(0) => "; what is at a source stays there".to_owned(),
        Some(files) => format!("; brings {} to the source first", format_count(files, "changed file")),
    };
    Some(format!("removes {what}, {}{unseen}{kept}", format_size(bytes)))
}

/// Returns whether somebody can be asked.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Answer to whether something may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes, by an option or by what was typed.
    Yes,
    /// Something else was typed.
    No,
    /// There is no terminal to ask at. Standard input may have been meant for anything.
    Unasked,
}

/// Asks whether it may be removed, unless that was said.
pub fn answer(was_said: bool) -> Answer {
    if was_said {
        return Answer::Yes;
    }
    // Not asked at all: what a script has at standard input was meant for something else.
    if !can_ask() {
        return Answer::Unasked;
    }
    crate::output::complain(format_args!("remove it? [y/N] "));
    if is_yes(std::io::stdin().lock()) { Answer::Yes } else { Answer::No }
}

fn is_yes(mut input: impl BufRead) -> bool {
    let mut answer = String::new();
    let read = input.read_line(&mut answer);
    read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (answer, agreed) in [
            ("y\n", true),
            ("YES\n", true),
            (" yes ", true),
            ("\n", false),
            ("", false),
            ("n\n", false),
            ("yeah\n", false),
        ] {
            assert_eq!(is_yes(answer.as_bytes()), agreed, "{answer:?}");
        }
    }
}
