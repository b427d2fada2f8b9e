//! How to form it: as a formation file.

use std::fmt::Write;

use crate::predict::{Prediction, Verdict, Work};

/// Files up to this size are whole on one seat with the default stripe anyway; a small stripe spreads those in between.
const MEAN_SMALL: u64 = 4 << 20;
/// From this mean size on, files are streamed: larger stripes mean fewer messages.
const MEAN_LARGE: u64 = 256 << 20;

/// What is recommended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// Nodes.
    pub nodes: u32,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Whether checkpoints get a partition of their own, under the session contract.
    pub checkpoints: bool,
}

impl Advice {
    /// For a job, by what is to be expected of it.
    #[must_use]
    pub fn of(work: &Work, prediction: &Prediction) -> Advice {
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
        Advice { nodes: nodes.max(room), stripe, checkpoints: work.checkpoints > 0 }
    }
}

/// The formation file for `up --config`. It has no number of nodes: that would be nodes of one machine, and a plan is
/// for hosts, which come from the job.
#[must_use]
pub fn formation_file(advice: &Advice, comment: &str) -> String {
    let mut text = String::new();
    for line in comment.lines() {
        let _ = writeln!(text, "# {line}");
    }
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
    text
}
