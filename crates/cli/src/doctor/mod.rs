//! Checks of what a formation needs, or profits from, on this machine: facts first, then judgement.

mod facts;
mod judge;

use serde::Serialize;

pub use facts::{HostAnswer, HostFacts, gather};
pub use judge::judge;

/// Importance of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// All is well.
    Ok,
    /// Formations work without it, with restrictions.
    Note,
    /// Without it there is no formation, or no mount.
    Missing,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its subject.
    pub name: String,
    /// Its result.
    pub level: Severity,
    /// The finding, in words.
    pub found: String,
    /// The consequence: what does not work because of it; `None` if everything does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub costs: Option<String>,
    /// How to get it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    fn ok(name: &str, found: impl Into<String>) -> Check {
        Check { name: name.into(), level: Severity::Ok, found: found.into(), costs: None, remedy: None }
    }

    fn lacks(level: Severity, name: &str, found: impl Into<String>, costs: &str, remedy: &str) -> Check {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Check { name: name.into(), level, found: found.into(), costs: some(costs), remedy: some(remedy) }
    }
}

/// Returns the checks for people: a line each, and below it what it costs and how to get it.
pub fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Check { name, level, found, costs, remedy } in checks {
        let word = match level {
            Severity::Ok => "ok     ",
            Severity::Note => "note   ",
            Severity::Missing => "MISSING",
        };
        text.push_str(&format!("{word}  {name:width$}  {found}\n"));
        for more in costs.iter().chain(remedy) {
            text.push_str(&format!("{:indent$}{more}\n", "", indent = 11 + width));
        }
    }
    let missing = checks.iter().filter(|check| check.level == Severity::Missing).count();
    text + &match missing {
        0 => "formations can be started and mounted here\n".to_owned(),
        1 => "1 thing is missing that formations need here\n".to_owned(),
        many => format!("{many} things are missing that formations need here\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_its_remedy() {
        let checks = [
            Check::ok("kernel", "6.18.44"),
            Check::lacks(
                Severity::Missing,
                "/dev/fuse",
                "is not there",
                "nothing can be mounted",
                "modprobe fuse",
            ),
        ];
        assert_eq!(
            text(&checks),
            "ok       kernel     6.18.44\nMISSING  /dev/fuse  is not there\n                    nothing can be mounted\n                    \
             modprobe fuse\n1 thing is missing that formations need here\n"
        );
        assert!(text(&checks[..1]).ends_with("formations can be started and mounted here\n"));
    }
}
