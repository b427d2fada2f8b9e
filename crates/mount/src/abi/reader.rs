//! Takes numbers and names off the front of a request, with bounds checks.

use bivouac_types::{Errno, FsError};

/// The request is not what the kernel would send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl From<Malformed> for FsError {
    fn from(_: Malformed) -> FsError {
        FsError::with(Errno::EINVAL, "malformed request on the FUSE device; is the kernel newer than 7.45?")
    }
}

/// The rest of a request.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Returns the next 16 bits.
    ///
    /// # Errors
    /// `Malformed` at the end of the request, as for all of these.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Returns the next 32 bits.
    ///
    /// # Errors
    /// `Malformed` at the end of the request.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Returns the next 64 bits.
    ///
    /// # Errors
    /// `Malformed` at the end of the request.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Returns the bytes up to the next NUL, which is skipped.
    ///
    /// # Errors
    /// `Malformed` when there is no NUL, or nothing in front of it.
    pub fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let (name, rest) = self.rest.split_at_checked(end).ok_or(Malformed)?;
        self.rest = rest.get(1..).unwrap_or_default();
        if name.is_empty() { Err(Malformed) } else { Ok(name) }
    }

    /// Returns the next `len` bytes.
    ///
    /// # Errors
    /// `Malformed` when there are fewer.
    pub fn bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(len as usize).ok_or(Malformed)?;
        self.rest = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_from_the_front_and_stops_at_the_end() {
        let mut bytes = 7u32.to_ne_bytes().to_vec();
        bytes.extend(9u64.to_ne_bytes());
        bytes.extend(b"old\0new\0xyz");
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u32(), reader.u64()), (Ok(7), Ok(9)));
        assert_eq!((reader.name(), reader.name()), (Ok(&b"old"[..]), Ok(&b"new"[..])));
        assert_eq!(reader.name(), Err(Malformed));
        assert_eq!(reader.bytes(4), Err(Malformed));
        assert_eq!(reader.bytes(3), Ok(&b"xyz"[..]));
        assert_eq!(reader.u16(), Err(Malformed));
    }

    #[test]
    fn an_empty_name_is_refused() {
        assert_eq!(Reader::new(b"\0x").name(), Err(Malformed));
    }
}
