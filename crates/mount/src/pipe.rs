//! Replies that the kernel takes from a file by way of a pipe: pages are passed on, and copied once, into the memory
//! of the program that reads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::options::MAX_WRITE_DEFAULT;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

/// Bytes of a place of a pipe, which holds one page, or a part of one.
const PAGE: usize = 4096;
/// Places besides those of whole pages: the reply's header, and a page of which only the end is sent.
const SPARE: usize = 2;

/// Shorter requests would cost more than a copy.
const LEAST: usize = 128 << 10;

/// A pipe of one thread, empty between replies.
#[derive(Debug)]
pub struct Pipe {
    from: OwnedFd,
    to: OwnedFd,
    payload_max: usize,
}

/// Reason why a reply was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSent;

impl Pipe {
    /// Creates a pipe for replies with payloads of up to `payload_max` bytes, or less if the system allows no more
    /// (`fs.pipe-max-size`).
    pub fn new(payload_max: usize) -> Result<Pipe, Errno> {
        // Not blocking: a pipe that is too small makes the reply a copied one, and does not hang its only user.
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let wanted = payload_max + SPARE * PAGE;
        let places = fcntl_setpipe_size(&to, wanted).or_else(|_| fcntl_setpipe_size(&to, payload_max));
        let places = places.or_else(|_| rustix::pipe::fcntl_getpipe_size(&to))? / PAGE;
        Ok(Pipe { from, to, payload_max: places.saturating_sub(SPARE) * PAGE })
    }

    /// Returns whether a payload fits.
    pub fn takes(&self, len: usize) -> bool {
        len <= self.payload_max
    }

    /// Sends a header and `len` bytes of a file to the device. After an error the pipe may hold anything.
    pub fn send(
        &self,
        device: BorrowedFd<'_>,
        header: &[u8],
        (file, offset, len): (BorrowedFd<'_>, u64, usize),
    ) -> Result<(), NotSent> {
        if rustix::io::write(&self.to, header) != Ok(header.len()) {
            return Err(NotSent);
        }
        let (mut at, mut rest) = (offset, len);
        while rest > 0 {
            match splice(file, Some(&mut at), &self.to, None, rest, SpliceFlags::NONBLOCK) {
                // The file is shorter than its size says: the copied reply reads zeros there.
                Ok(0) => return Err(NotSent),
                Ok(count) => rest -= count,
                Err(Errno::INTR) => {}
                Err(_) => return Err(NotSent),
            }
        }
        // The device takes a reply whole.
        let total = header.len() + len;
        match splice(self.from.as_fd(), None, device, None, total, SpliceFlags::empty()) {
            Ok(sent) if sent == total => Ok(()),
            _ => Err(NotSent),
        }
    }
}

/// Returns the longest read that is to be asked for, in bytes, where it is less than the kernel's own limit: what users
/// may give pipes is as much as the longest request, and not the header besides.
#[must_use]
pub fn read_max() -> Option<usize> {
    let longest = MAX_WRITE_DEFAULT as usize;
    let takes = Pipe::new(longest).map_or(0, |pipe| pipe.payload_max);
    (LEAST..longest).contains(&takes).then(|| (takes / 2 + 1).next_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::{Read, Write};

    #[test]
    fn a_header_and_a_part_of_a_file_come_as_one() {
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        file.write_all(&content).unwrap();
        let (device, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let pipe = Pipe::new(1 << 18).unwrap();
        assert!(pipe.takes(1 << 18));
        for (offset, len) in [(0, 10), (5000, 100_000), (100, 65_536)] {
            assert_eq!(pipe.send(device.as_fd(), b"header", (file.as_fd(), offset as u64, len)), Ok(()));
            let mut answer = vec![0; 6 + len];
            std::fs::File::from(kernel.try_clone().unwrap()).read_exact(&mut answer).unwrap();
            assert_eq!(answer, [b"header", &content[offset..offset + len]].concat());
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_not_sent() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 100]).unwrap();
        let (device, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let pipe = Pipe::new(1 << 16).unwrap();
        assert_eq!(pipe.send(device.as_fd(), b"header", (file.as_fd(), 0, 101)), Err(NotSent));
        drop((device, pipe));
        let mut nothing = Vec::new();
        std::fs::File::from(kernel).read_to_end(&mut nothing).unwrap();
        assert!(nothing.is_empty());
    }
}
