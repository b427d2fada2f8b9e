//! What is said and asked before something is removed that cannot be had back.

use std::io::{BufRead, IsTerminal};

use bivouac_launch::{State, StateDir};
use bivouac_types::units::{format_count, format_size};

use crate::status::{Report, look};

/// What a formation takes with it: nothing to say of an empty one, and of one whose state cannot be seen at all.
pub fn what_goes(dir: &StateDir, state: &State) -> Option<String> {
    if !dir.is_held() {
        let volumes = state.nodes.iter().map(|node| node.volumes.len() as u64).sum();
        return Some(format!("was killed; what is on its {} is removed", format_count(volumes, "volume")));
    }
    said_of(&look(dir).ok()?)
}

fn said_of(report: &Report) -> Option<String> {
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

/// Whether somebody can be asked.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Whether it may be removed: without a terminal nobody can be asked, and who types at none has said so.
pub fn is_agreed(was_said: bool) -> bool {
    if was_said || !can_ask() {
        return true;
    }
    crate::output::complain(format_args!("remove it? [y/N] "));
    is_yes(std::io::stdin().lock())
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
