//! Volumes on which blocks of content get checksums.

use std::fmt;
use std::str::FromStr;

/// On which volumes blocks of new subfiles get checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// On disks: in memory the sums would lie in the same memory as what they are of, and that mostly corrects itself.
    Auto,
    /// On all.
    On,
    /// On none.
    #[default]
    Off,
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Checksum::Auto => "auto",
            Checksum::On => "on",
            Checksum::Off => "off",
        })
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Checksum, String> {
        match text {
            "auto" => Ok(Checksum::Auto),
            "on" => Ok(Checksum::On),
            "off" => Ok(Checksum::Off),
            _ => Err(format!("'{text}' is none of auto, on and off")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_it_is_read() {
        for checksum in [Checksum::Auto, Checksum::On, Checksum::Off] {
            assert_eq!(checksum.to_string().parse(), Ok(checksum));
        }
        assert!("On".parse::<Checksum>().is_err_and(|error| error.contains("auto, on and off")));
    }
}
