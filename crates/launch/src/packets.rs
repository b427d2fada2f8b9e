//! Messages between processes of one formation on one machine: a packet of JSON, with descriptors.
//!
//! The sockets are `SOCK_SEQPACKET`, so a packet arrives whole or not at all. Long content travels as
//! the descriptor of a file in memory, so no sender ever waits for a reader.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest packet, in bytes.
pub const PACKET_LEN_MAX: usize = 1 << 16;
/// Most descriptors with one packet.
pub const DESCRIPTORS_MAX: usize = 252;

/// Returns a connected pair of sockets for packets.
///
/// # Errors
/// What the system says.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends one packet.
///
/// # Errors
/// What the system says; `WouldBlock` where the socket is non-blocking and full.
pub fn send<T: Serialize>(socket: impl AsFd, message: &T, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    if body.len() > PACKET_LEN_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "packet too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        // The message would go without them, and be taken for one that needs none.
        let is_with = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(is_with, "no room for {} descriptors", descriptors.len());
    }
    retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(&body)], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives one packet; `None` when the other side is gone.
///
/// # Errors
/// `InvalidData` for anything but a whole packet with this content; otherwise what the system says.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut body = vec![0; PACKET_LEN_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut body)];
    let received = retry_on_intr(|| recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
    // No packet is empty, as JSON is not, so nothing is the end.
    if received.bytes == 0 {
        return Ok(None);
    }
    // The kernel drops what does not fit and closes descriptors beyond the limit of open files; half a message is
    // none.
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "packet too long"));
    }
    let message = serde_json::from_slice(body.get(..received.bytes).unwrap_or_default());
    Ok(Some((message.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?, descriptors)))
}

/// Puts content into a file in memory, to be sent as a descriptor.
///
/// # Errors
/// What the system says.
pub fn to_memory<T: Serialize>(content: &T) -> io::Result<OwnedFd> {
    // A packet has 64 KiB at most, and a state of a thousand nodes is longer.
    let mut file = File::from(memfd_create("bivouac", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(content)?)?;
    Ok(file.into())
}

/// Reads content that [`to_memory`] wrote.
///
/// # Errors
/// `InvalidData` for other content; otherwise what the system says.
pub fn from_memory<T: DeserializeOwned>(descriptor: OwnedFd) -> io::Result<T> {
    let mut file = File::from(descriptor);
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_arrives_with_its_descriptors() {
        let (here, there) = pair().unwrap();
        let memory = to_memory(&vec![1u32; 100_000]).unwrap();
        send(&here, &"hello", &[memory.as_fd()]).unwrap();
        send(&here, &7, &[]).unwrap();
        let (text, mut descriptors) = receive::<String>(&there).unwrap().unwrap();
        assert_eq!((text.as_str(), descriptors.len()), ("hello", 1));
        assert_eq!(from_memory::<Vec<u32>>(descriptors.pop().unwrap()).unwrap(), vec![1; 100_000]);
        assert_eq!(receive::<u32>(&there).unwrap().unwrap().0, 7);
        drop(here);
        assert!(receive::<u32>(&there).unwrap().is_none());
    }

    #[test]
    fn what_is_no_packet_is_an_error() {
        let (here, there) = pair().unwrap();
        rustix::io::write(&here, b"{").unwrap();
        assert_eq!(receive::<u32>(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
        rustix::io::write(&here, b"{\"a\":1}").unwrap();
        assert_eq!(receive::<u32>(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
        rustix::io::write(&here, &[b' '; PACKET_LEN_MAX + 1]).unwrap();
        assert_eq!(receive::<u32>(&there).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let long = "x".repeat(PACKET_LEN_MAX);
        assert_eq!(send(&here, &long, &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
