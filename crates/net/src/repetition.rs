//! How the kernel repeats what the other side does not confirm.
//!
//! Each repetition of TCP waits twice as long as the one before, up to two minutes, so behind a cut a connection is silent for
//! about as long again. Requests do not bear that: they are bounded in time.
#![allow(unsafe_code, reason = "the option has no safe form yet")]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::net::sockopt;

/// `TCP_RTO_MAX_MS` of Linux 6.15, which the C library does not name everywhere yet.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// Longest time between two repetitions, in milliseconds: the shortest that the kernel takes.
const REPEAT_MS_MAX: libc::c_int = 1000;
/// Where that cannot be had: how long is repeated before the connection ends, in milliseconds. Half of the time that a request has
/// by default, so that it can be sent again. Not shorter, as it also ends connections to somebody who is there and takes nothing.
const UNCONFIRMED_MS: u32 = 15_000;
/// Silence after which the asking side has the kernel look whether the other side still has the connection, time between two looks,
/// and how many without an answer end it. An answer may be on its way over one that only the other side has ended.
const LOOK_IDLE: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_COUNT: u32 = 10;

/// Has the kernel repeat what is not confirmed at least once per second; that it can end the connection for it, some 15 s later, is
/// for both ways. Without either it works too, only later.
pub(crate) fn bound(socket: &impl AsFd) {
    if !repeat_often(socket) {
        let _as_late_as_it_will = sockopt::set_tcp_user_timeout(socket, UNCONFIRMED_MS);
    }
}

/// For the asking side, whose answer may be lost with the other side's end of the connection.
pub(crate) fn look_often(socket: &impl AsFd) {
    let _as_late_as_it_will = sockopt::set_socket_keepalive(socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(socket, LOOK_IDLE))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, LOOK_INTERVAL))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, LOOK_COUNT));
}

/// Whether this kernel can.
fn repeat_often(socket: &impl AsFd) -> bool {
    let value: libc::c_int = REPEAT_MS_MAX;
    // SAFETY: the descriptor is open as long as it is borrowed, and the kernel reads `value`, of the length that is given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    set == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    /// S284: what it does to requests is seen on virtual hosts.
    #[test]
    fn repetition_is_bounded_one_way_or_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        bound(&socket);
        let unconfirmed = sockopt::tcp_user_timeout(&socket).unwrap();
        assert_eq!(unconfirmed, if repeat_often(&socket) { 0 } else { UNCONFIRMED_MS });
        look_often(&socket);
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), LOOK_IDLE);
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), LOOK_COUNT);
        // Neither is possible here, which is no error.
        let (other, _) = std::os::unix::net::UnixStream::pair().unwrap();
        bound(&other);
        look_often(&other);
    }
}
