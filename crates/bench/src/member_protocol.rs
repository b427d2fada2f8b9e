//! The messages between the leader of a measurement and its member processes: a line of JSON each.

use serde::{Deserialize, Serialize};

/// The task of a member, as the leader sends it: `{"KIND": TASK}`. The [worker](crate::work) has a variant for each kind.
pub trait MemberTask: Serialize {
    /// Its kind: the name of the worker's variant.
    const KIND: &'static str;
}

/// A message of a member to its leader: a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub enum MemberMessage {
    /// It is at a barrier.
    Barrier,
    /// It serves.
    Serving,
    /// It listens at this port.
    Port(u16),
    /// It has ended with this outcome.
    Done(serde_json::Value),
    /// It cannot go on.
    Failed(String),
}

/// The leader's answer to [`MemberMessage::Barrier`] once all members are there.
pub const GO: &[u8] = b"go\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_one_line() {
        let said = MemberMessage::Failed("a\nb".into());
        let line = serde_json::to_string(&said).unwrap();
        assert!(!line.contains('\n'));
        assert!(matches!(serde_json::from_str(&line), Ok(MemberMessage::Failed(text)) if text == "a\nb"));
    }
}
