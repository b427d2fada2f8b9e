//! The advised formation, as a formation file.

use std::fmt::Write;

use crate::predict::{JobWork, Prediction, Verdict};

/// Files up to this size are whole on one target with the default stripe anyway; a small stripe spreads those in
/// between.
const MEAN_SMALL: u64 = 4 << 20;
/// Mean file size from which files are streamed: larger stripes mean fewer messages.
const MEAN_LARGE: u64 = 256 << 20;

/// A recommendation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Nodes.
    pub nodes: u32,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// True if checkpoints get a partition of their own, under the session contract.
    pub checkpoints: bool,
    /// Directories that get settings of their own, by what an earlier run did in them.
    pub parts: Vec<PartitionAdvice>,
    /// Further remarks on an earlier run, in lines.
    pub remarks: Vec<String>,
}

/// A directory with settings of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionAdvice {
    /// Its path in the formation.
    pub path: String,
    /// True if it gets the session contract.
    pub is_session: bool,
    /// Bytes of a stripe, if not those of the rest.
    pub stripe: Option<u64>,
    /// Reasons for it, in lines.
    pub reasons: Vec<String>,
}

impl Advice {
    /// Returns the advice for a job, by its predicted figures.
    #[must_use]
    pub fn of(work: &JobWork, prediction: &Prediction) -> Advice {
        let room = prediction.nodes_for_room.and_then(|nodes| u32::try_from(nodes).ok()).unwrap_or(1);
        let nodes = match prediction.verdict {
            Verdict::With { nodes } => nodes,
            Verdict::Use | Verdict::Not => work.nodes.max(1),
        };
        let files = work.in_files.saturating_add(work.out_files).max(1);
        let mean = work.in_bytes.saturating_add(work.out_bytes) / files;
        let stripe = match mean {
            0..MEAN_SMALL => 256 << 10,
            MEAN_SMALL..MEAN_LARGE => 1 << 20,
            _ => 4 << 20,
        };
        let (parts, remarks) = (Vec::new(), Vec::new());
        Advice { nodes: nodes.max(room), stripe, checkpoints: work.checkpoints > 0, parts, remarks }
    }
}

/// Returns the formation file for `up --config`. It has no number of nodes: that would be nodes of one machine, and a
/// plan is for hosts, which come from the job.
#[must_use]
pub fn formation_file(advice: &Advice, comment: &str) -> String {
    let mut text = String::new();
    comment.lines().chain(advice.remarks.iter().map(String::as_str)).for_each(|line| remark(&mut text, line));
    let _ = writeln!(text, "[formation]");
    if advice.nodes > 1 {
        let _ = writeln!(text, "# On {} hosts: inside a job of that size, or with --hosts.", advice.nodes);
    }
    let _ = writeln!(text, "stripe = \"{}k\"", advice.stripe >> 10);
    if advice.checkpoints {
        let _ = writeln!(
            text,
            "\n# Each file is written by one process, and read by others only once it is closed."
        );
        let _ =
            writeln!(text, "[[partition]]\npath = \"/checkpoints\"\ncontract = \"session\"\nstripe = \"4m\"");
    }
    for part in &advice.parts {
        let _ = writeln!(text);
        part.reasons.iter().for_each(|reason| remark(&mut text, reason));
        let _ = writeln!(text, "[[partition]]\npath = {}", quoted(&part.path));
        if part.is_session {
            let _ = writeln!(text, "contract = \"session\"");
        }
        if let Some(stripe) = part.stripe {
            // Rounded up: an earlier run may have had a stripe below 1 KiB, and `0k` is refused.
            let _ = writeln!(text, "stripe = \"{}k\"", stripe.div_ceil(1 << 10));
        }
    }
    text
}

/// Appends a line of a comment, in which TOML has no control characters.
fn remark(text: &mut String, line: &str) {
    let line: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let _ = writeln!(text, "# {line}");
}

/// Returns a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
