//! TCP retransmission and keepalive settings.
//!
//! TCP doubles its retransmission timeout up to two minutes, so after an interruption a connection stays silent for
//! about as long again. Requests are bounded in time, so here that timeout is bounded too.
#![allow(unsafe_code, reason = "the option has no safe form yet")]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::net::sockopt;

/// `TCP_RTO_MAX_MS` of Linux 6.15, which the C library does not name everywhere yet.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// Longest retransmission timeout, in milliseconds: the smallest bound that the kernel takes.
const RTO_MS_MAX: libc::c_int = 1000;
/// On kernels without that option: how long sent data may stay unacknowledged before the connection ends, in
/// milliseconds. Half of a request's default time, so that it can be sent again. Not shorter, as it also ends
/// connections to a peer that reads nothing.
const UNACKNOWLEDGED_MS: u32 = 15_000;
/// Keepalive of clients: idle time before the first probe, time between probes, and unanswered probes that end the
/// connection. It finds half-open connections, over which no answer will come.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 10;

/// Bounds the retransmission timeout, so that a connection goes on within a second after an interruption. On kernels
/// that cannot, it bounds the time without acknowledgement instead. Failures are ignored: requests then take longer.
pub(crate) fn bound_retransmission(socket: &impl AsFd) {
    if !bound_timeout(socket) {
        let _as_late_as_it_will = sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MS);
    }
}

/// Enables keepalive probes, for clients: they find half-open connections. Failures are ignored.
pub(crate) fn enable_keepalive(socket: &impl AsFd) {
    let _as_late_as_it_will = sockopt::set_socket_keepalive(socket, true)
        .and_then(|()| sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES));
}

/// Sets the bound; returns whether this kernel can.
fn bound_timeout(socket: &impl AsFd) -> bool {
    let value: libc::c_int = RTO_MS_MAX;
    // SAFETY: the descriptor is open as long as it is borrowed, and the kernel reads `value`, of the length that is
    // given.
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
    fn retransmission_is_bounded_one_way_or_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        bound_retransmission(&socket);
        let unacknowledged = sockopt::tcp_user_timeout(&socket).unwrap();
        assert_eq!(unacknowledged, if bound_timeout(&socket) { 0 } else { UNACKNOWLEDGED_MS });
        enable_keepalive(&socket);
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), KEEPALIVE_PROBES);
        // Neither is possible here, which is no error.
        let (other, _) = std::os::unix::net::UnixStream::pair().unwrap();
        bound_retransmission(&other);
        enable_keepalive(&other);
    }
}
