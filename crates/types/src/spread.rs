//! Sizes at which directories spread.

use std::fmt;
use std::str::FromStr;

use crate::limits::{SPREAD_ALONE_AT_DEFAULT, SPREAD_AT_DEFAULT};

/// Numbers of entries from which on a directory spreads over all nodes. While one client has it for itself it is
/// quicker, and no less balanced for long, where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpreadAt {
    /// Of one that several clients use.
    pub shared: u64,
    /// Of one that one client alone uses.
    pub alone: u64,
}

impl SpreadAt {
    /// Spreads a directory at so many entries, whoever uses it.
    #[must_use]
    pub fn entries(entries: u64) -> SpreadAt {
        SpreadAt { shared: entries, alone: entries }
    }
}

impl Default for SpreadAt {
    fn default() -> SpreadAt {
        SpreadAt { shared: SPREAD_AT_DEFAULT, alone: SPREAD_ALONE_AT_DEFAULT }
    }
}

impl fmt::Display for SpreadAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.shared, self.alone)
    }
}

impl FromStr for SpreadAt {
    type Err = String;

    /// Parses `N`, or `N,M` for directories that several use and that one uses.
    fn from_str(text: &str) -> Result<SpreadAt, String> {
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let (shared, alone) = text.split_once(',').unwrap_or((text, text));
        match (number(shared), number(alone)) {
            (Some(shared), Some(alone)) if shared <= alone => Ok(SpreadAt { shared, alone }),
            (Some(_), Some(_)) => Err(format!(
                "'{text}': a directory that one client uses cannot spread earlier than one that several use"
            )),
            _ => Err(format!(
                "'{text}' is no number of entries: say one, as 1024, or one for directories that several use and one for those that one uses, as 1024,16384"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_it_is_read() {
        assert_eq!("7".parse(), Ok(SpreadAt::entries(7)));
        assert_eq!("7,9".parse(), Ok(SpreadAt { shared: 7, alone: 9 }));
        assert_eq!(SpreadAt::default().to_string().parse(), Ok(SpreadAt::default()));
        for wrong in ["", "0", "x", "7,", ",7", "1,2,3", "-1", "0,1"] {
            assert!(wrong.parse::<SpreadAt>().is_err_and(|error| error.contains("as 1024,16384")), "{wrong}");
        }
        assert!("9,7".parse::<SpreadAt>().is_err_and(|error| error.contains("earlier")));
    }
}
