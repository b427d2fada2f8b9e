//! A connection to the kernel: requests are read from the device, replies written to it.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bivouac_types::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as OsErrno;

use crate::abi::{
    NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, REQUEST_HEADER_LEN, WRITE_ARGS_LEN, inval_entry, inval_inode,
    inval_pages, reply_header,
};
use crate::known_size;
use crate::pipe::{NotSent, Pipe};

/// Alignment of payloads in memory, in bytes.
const PAGE: usize = 4096;
/// Room behind the largest write, in bytes: extensions of later kernels.
const SLACK: usize = PAGE;
/// Errors from here on are the kernel's own and are refused in a reply.
const ERRNO_END: i32 = 512;

/// Memory for one request. The payload of a write, and that of a read's reply, start on a page.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    payload_at: usize,
    payload_max: usize,
}

impl Buffer {
    /// Creates memory for payloads of up to `payload_max` bytes, all of it resident: a kill while the kernel copies a
    /// request to a page that is not there yet makes the kernel fail the request, instead of keeping it for the next
    /// daemon.
    #[must_use]
    pub fn new(payload_max: usize) -> Buffer {
        let mut bytes = vec![0; payload_max.saturating_add(SLACK + 2 * PAGE)];
        // A store to each page: what `vec![0; ..]` takes is mapped anew, and has no pages yet.
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *std::hint::black_box(byte) = 1);
        // One page in front of the payload for header and arguments, so that the payload itself begins on a page.
        let to_page = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Buffer { bytes, payload_at: to_page + PAGE, payload_max }
    }

    fn request_at(&self) -> usize {
        self.payload_at - REQUEST_HEADER_LEN - WRITE_ARGS_LEN
    }

    /// Returns the request of `len` bytes that was read last.
    #[must_use]
    pub fn request(&self, len: usize) -> &[u8] {
        let at = self.request_at();
        self.bytes.get(at..at.saturating_add(len)).unwrap_or_default()
    }

    /// Returns the room for the payload of a reply, or `None` when it would not fit. Overwrites the request.
    pub fn payload_mut(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.payload_at.checked_add(len).filter(|_| len <= self.payload_max)?;
        self.bytes.get_mut(self.payload_at..end)
    }

    /// Returns the first `len` bytes of the payload.
    #[must_use]
    pub fn payload(&self, len: usize) -> &[u8] {
        self.bytes.get(self.payload_at..self.payload_at.saturating_add(len)).unwrap_or_default()
    }

    fn room(&mut self) -> &mut [u8] {
        let at = self.request_at();
        self.bytes.get_mut(at..).unwrap_or_default()
    }
}

/// The device, shared by all threads.
#[derive(Debug)]
pub struct Channel {
    device: File,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Channel {
    /// Talks through `device`, which is in blocking mode.
    #[must_use]
    pub fn new(device: OwnedFd) -> Channel {
        Channel { device: File::from(device) }
    }

    /// Waits for the next request and answers its length, or `None` when the file system is unmounted.
    ///
    /// # Errors
    /// What the device says that has no other meaning.
    pub fn receive(&self, buffer: &mut Buffer) -> io::Result<Option<usize>> {
        loop {
            match (&self.device).read(buffer.room()) {
                Ok(0) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                Err(error) => match OsErrno::from_io_error(&error) {
                    Some(OsErrno::NODEV | OsErrno::CONNABORTED) => return Ok(None),
                    // The request was taken back, or a signal came.
                    Some(OsErrno::NOENT | OsErrno::INTR | OsErrno::AGAIN) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Returns whether there is a request to be read.
    pub fn has_request(&self) -> bool {
        let mut device = [PollFd::new(&self.device, PollFlags::IN)];
        poll(&mut device, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Answers a request. A reply that the kernel refuses becomes an I/O error, so that nobody
    /// waits for ever.
    pub fn reply(&self, unique: u64, body: &[u8]) {
        if let Err(error) = self.send(unique, 0, body) {
            log::error!(why:% = error; "the kernel refused a reply of {} bytes", body.len());
            self.reply_error(unique, Errno::EIO);
        }
    }

    /// Answers a request with a part of a file: descriptor, offset and length.
    ///
    /// # Errors
    /// When it has to be answered in another way.
    pub fn reply_from(
        &self,
        unique: u64,
        pipe: &Pipe,
        part: (BorrowedFd<'_>, u64, usize),
    ) -> Result<(), NotSent> {
        pipe.send(self.device.as_fd(), &reply_header(unique, 0, part.2), part)
    }

    /// Answers a request with an error.
    pub fn reply_error(&self, unique: u64, errno: Errno) {
        let code = if errno.code() < ERRNO_END { errno.code() } else { Errno::EIO.code() };
        if let Err(error) = self.send(unique, -code, &[]) {
            log::error!(why:% = error; "the kernel refused the reply {errno}");
        }
    }

    /// Sends a notification without a body.
    ///
    /// # Errors
    /// What the kernel says to it.
    pub fn notify(&self, code: i32) -> io::Result<()> {
        self.send(0, code, &[])
    }

    /// Makes the kernel request the attributes of an inode again when it needs them. It takes no lock that a request
    /// may hold.
    ///
    /// # Errors
    /// The error of the write to the device; an inode that the kernel does not know is none.
    pub fn forget_attributes(&self, nodeid: u64) -> io::Result<()> {
        self.send(0, NOTIFY_INVAL_INODE, &inval_inode(nodeid))
    }

    /// Makes the kernel drop the pages of a range (0 bytes: to the end), after it has written back dirty ones. It
    /// waits for requests about these pages, so a thread that serves requests must not call it.
    ///
    /// # Errors
    /// The error of the write to the device; an inode that the kernel does not know is none.
    pub fn drop_pages(&self, nodeid: u64, offset: u64, len: u64) -> io::Result<()> {
        self.send(0, NOTIFY_INVAL_INODE, &inval_pages(nodeid, offset, len))
    }

    /// Raises the kernel's size of a file to at least `size` bytes and drops its pages, as if it had requested the
    /// attributes. It waits as [`Channel::drop_pages`] does.
    ///
    /// # Errors
    /// The error of the write to the device; an inode that the kernel does not know is none.
    pub fn raise_size(&self, nodeid: u64, size: u64) -> io::Result<()> {
        known_size::raise(self.device.as_fd(), nodeid, size)?;
        // Pages read behind the old end have no content, and the notification leaves an empty one.
        self.drop_pages(nodeid, 0, 0)
    }

    /// Makes the kernel forget a name. It waits for the directory's lock, which programs with unanswered requests hold,
    /// so a thread that serves requests must not call it.
    ///
    /// # Errors
    /// What the kernel says to it; that it does not know the name is none.
    pub fn forget_name(&self, parent: u64, name: &[u8]) -> io::Result<()> {
        self.send(0, NOTIFY_INVAL_ENTRY, &inval_entry(parent, name))
    }

    fn send(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let header = reply_header(unique, error, body.len());
        let parts = [IoSlice::new(&header), IoSlice::new(body)];
        let parts = if body.is_empty() { &parts[..1] } else { &parts[..] };
        loop {
            match rustix::io::writev(&self.device, parts) {
                Err(OsErrno::INTR | OsErrno::AGAIN) => {}
                // The device takes a reply whole. The rest of these: nobody waits for the answer any more,
                // or the file system is gone.
                Ok(_) | Err(OsErrno::NOENT | OsErrno::NODEV | OsErrno::CONNABORTED | OsErrno::PIPE) => {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;

    fn pair() -> (Channel, File) {
        let (ours, kernel) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Channel::new(ours), File::from(kernel))
    }

    #[test]
    fn payloads_start_on_a_page() {
        let mut buffer = Buffer::new(8192);
        assert_eq!(buffer.payload(1).as_ptr().align_offset(PAGE), 0);
        assert_eq!(buffer.request(80).as_ptr().wrapping_add(80), buffer.payload(0).as_ptr());
        assert!(buffer.room().len() >= 80 + 8192 + 4096);
        assert_eq!(buffer.payload_mut(8192).map(|room| room.len()), Some(8192));
        assert!(buffer.payload_mut(8193).is_none() && buffer.payload_mut(usize::MAX).is_none());
    }

    #[test]
    fn a_request_is_read_whole_and_answered_in_one_message() {
        let (channel, mut kernel) = pair();
        kernel.write_all(&[7; 100]).unwrap();
        let mut buffer = Buffer::new(4096);
        assert_eq!(channel.receive(&mut buffer).unwrap(), Some(100));
        assert_eq!(buffer.request(100), [7; 100]);
        channel.reply(42, b"body");
        let mut answer = [0; 64];
        assert_eq!(kernel.read(&mut answer).unwrap(), 20);
        assert_eq!(answer[..20], [&reply_header(42, 0, 4)[..], b"body"].concat());
        assert_eq!(answer[..4], 20u32.to_ne_bytes());
    }

    #[test]
    fn an_errno_that_the_kernel_would_refuse_becomes_eio() {
        let (channel, mut kernel) = pair();
        for (errno, seen) in [(Errno::ENOSPC, -28), (Errno::from_code(1000), -5)] {
            channel.reply_error(1, errno);
            let mut answer = [0; 64];
            assert_eq!(kernel.read(&mut answer).unwrap(), 16);
            assert_eq!(answer[..16], reply_header(1, seen, 0));
        }
    }

    #[test]
    fn the_other_side_going_away_is_the_end() {
        let (channel, kernel) = pair();
        drop(kernel);
        assert_eq!(channel.receive(&mut Buffer::new(4096)).unwrap(), None);
        channel.reply(1, b"nobody listens");
    }
}
