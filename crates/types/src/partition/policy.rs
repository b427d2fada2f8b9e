//! When data moves between the nodes and site storage.

use std::fmt;
use std::str::FromStr;

pub use super::choices::ReadPolicy;
use crate::limits::{DELAYED_BYTES_DEFAULT, DELAYED_MS_DEFAULT};
use crate::units::{exact_duration, exact_size, parse_duration_ms, parse_size};

/// When content that was written goes to site storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePolicy {
    /// Before the write is acknowledged.
    Through,
    /// Before the close of the file returns.
    OnClose,
    /// When it has waited for long enough, or too much of it waits.
    Delayed {
        /// Longest that content waits, in milliseconds.
        age_ms: u64,
        /// Most bytes of the partition that wait.
        bytes: u64,
    },
    /// On request: `bivouac flush`, and the end of the formation.
    #[default]
    OnFlush,
    /// Never: the source is only read.
    Never,
}

impl WritePolicy {
    /// Its text forms.
    pub const FORMS: &str = "through, on-close, delayed[=AGE[/BYTES]], on-flush, never";
}

impl fmt::Display for WritePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WritePolicy::Through => f.write_str("through"),
            WritePolicy::OnClose => f.write_str("on-close"),
            WritePolicy::Delayed { age_ms, bytes } => {
                write!(f, "delayed={}/{}", exact_duration(*age_ms), exact_size(*bytes))
            }
            WritePolicy::OnFlush => f.write_str("on-flush"),
            WritePolicy::Never => f.write_str("never"),
        }
    }
}

impl FromStr for WritePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<WritePolicy, String> {
        match text.split_once('=').unwrap_or((text, "")) {
            ("through", "") => Ok(WritePolicy::Through),
            ("on-close", "") => Ok(WritePolicy::OnClose),
            ("on-flush", "") => Ok(WritePolicy::OnFlush),
            ("never", "") => Ok(WritePolicy::Never),
            ("delayed", limits) => delayed(limits),
            _ => Err(format!("write policy '{text}' is none of {}", WritePolicy::FORMS)),
        }
    }
}

fn delayed(limits: &str) -> Result<WritePolicy, String> {
    let (age, bytes) = limits.split_once('/').unwrap_or((limits, ""));
    let age_ms = if age.is_empty() { Ok(DELAYED_MS_DEFAULT) } else { parse_duration_ms(age) };
    let bytes = if bytes.is_empty() { Ok(DELAYED_BYTES_DEFAULT) } else { parse_size(bytes) };
    match (age_ms?, bytes?) {
        (0, _) | (_, 0) => Err("write policy 'delayed' with nothing to wait for: write through".to_owned()),
        (age_ms, bytes) => Ok(WritePolicy::Delayed { age_ms, bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_policies_are_read() {
        let read = |text: &str| text.parse::<WritePolicy>();
        let default = WritePolicy::Delayed { age_ms: DELAYED_MS_DEFAULT, bytes: DELAYED_BYTES_DEFAULT };
        assert_eq!(read("delayed"), Ok(default));
        assert_eq!(read("delayed=5m/2g"), Ok(WritePolicy::Delayed { age_ms: 300_000, bytes: 2 << 30 }));
        assert_eq!(read("delayed=/64m").map(|policy| policy.to_string()), Ok("delayed=30s/64m".to_owned()));
        assert_eq!(read("on-close"), Ok(WritePolicy::OnClose));
    }

    #[test]
    fn bad_write_policies_are_refused_by_name() {
        let refusal = |text: &str| text.parse::<WritePolicy>().unwrap_err();
        assert!(refusal("late").contains("'late' is none of through"));
        assert!(refusal("through=1s").contains("through=1s"));
        assert!(refusal("delayed=soon").contains("'soon' is not a duration"));
        assert!(refusal("delayed=0s").contains("nothing to wait for"));
    }
}
