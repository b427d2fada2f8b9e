//! Names of directory entries: bytes, not text.

use std::fmt;

use crate::limits::NAME_LEN_MAX;
use crate::{Errno, FsError, FsResult};

/// A checked entry name: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Checks and copies a name.
    ///
    /// # Errors
    /// `ENAMETOOLONG` above 255 bytes; `EINVAL` for an empty or reserved name or a forbidden byte.
    pub fn new(bytes: &[u8]) -> FsResult<Name> {
        if bytes.len() > NAME_LEN_MAX {
            return Err(FsError::new(Errno::ENAMETOOLONG));
        }
        let reserved = bytes.is_empty() || bytes == b"." || bytes == b"..";
        if reserved || bytes.iter().any(|b| matches!(b, b'/' | 0)) {
            return Err(FsError::new(Errno::EINVAL));
        }
        Ok(Name(bytes.into()))
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({self})")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(Name::new(bad).map_err(|e| e.errno()), Err(Errno::EINVAL));
        }
        assert_eq!(Name::new(&[b'x'; 256]).map_err(|e| e.errno()), Err(Errno::ENAMETOOLONG));
        assert_eq!(Name::new(&[0xff, 0xfe]).map(|n| n.to_string()), Ok("\\xff\\xfe".into()));
        assert_eq!(Name::new(&[b'x'; 255]).map(|n| n.as_bytes().len()), Ok(255));
    }
}
