//! Why a command failed, and its exit code. The codes are documented in docs/commands.md.

use std::fmt;

use bivouac_launch::LaunchError;
use bivouac_types::FsError;

/// Exit code of `run` when inputs could not be copied in; the command was not started.
pub const CODE_NOT_STAGED_IN: u8 = 120;
/// Exit code of `run` when the command succeeded and its outputs did not come out safely.
pub const CODE_NOT_STAGED_OUT: u8 = 121;
/// Exit code of `run` when all went well, but something of the formation is left.
pub const CODE_NOT_CLEAN: u8 = 122;
/// Exit code of `run` when there was no formation for the command.
pub const CODE_NOT_STARTED: u8 = 125;

/// Exit code of `fsck` when something could not be checked.
pub const CODE_FSCK_FAILED: u8 = 8;
/// Exit code of `fsck` when the request makes no sense.
pub const CODE_FSCK_USAGE: u8 = 16;

/// A failure in the user's words, with an exit code.
#[derive(Debug)]
pub struct Failure {
    text: String,
    code: u8,
}

impl Failure {
    /// Creates a failure with a code of its own.
    pub fn new(code: u8, text: impl fmt::Display) -> Failure {
        Failure { text: text.to_string(), code }
    }

    /// Returns the same failure with another exit code.
    pub fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }

    /// Returns the exit code of the command.
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Failure {
        Failure::new(error.exit_code(), error)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::new(1, error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::new(1, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_launch::{CODE_NOT_EXECUTABLE, CODE_NOT_FOUND};
    use bivouac_monitor::status::{CODE_DEGRADED, CODE_FAILED};

    #[test]
    fn every_code_is_in_the_documentation() {
        let page = include_str!("../../../docs/commands.md");
        let special = [CODE_NOT_STAGED_IN, CODE_NOT_STAGED_OUT, CODE_NOT_CLEAN, CODE_NOT_STARTED];
        let special =
            special.into_iter().chain([CODE_DEGRADED, CODE_FAILED, CODE_FSCK_FAILED, CODE_FSCK_USAGE]);
        for code in special.chain([0, 1, 2, bivouac_launch::CODE_KEEP, CODE_NOT_EXECUTABLE, CODE_NOT_FOUND]) {
            assert!(page.contains(&format!("| {code} |")), "exit code {code}");
        }
    }

    #[test]
    fn exit_codes_tell_usage_from_refusal() {
        let usage = LaunchError::usage("--nodes 0", "a formation needs a node", "write 1");
        assert_eq!(Failure::from(usage).exit_code(), 2);
        let refused = Failure::from(FsError::from(bivouac_types::Errno::ENOSPC));
        assert_eq!((refused.exit_code(), refused.to_string().as_str()), (1, "no space left (ENOSPC)"));
        assert_eq!(refused.with_code(CODE_NOT_STARTED).exit_code(), 125);
    }
}
