//! A host that is measured: it says over the launcher where it can be reached, and takes orders until the command is
//! gone.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bivouac_hosts::local_addresses;
use bivouac_launch::hex::to_hex;
use bivouac_launch::{LaunchResult, Network, random_bytes};
use bivouac_net::{Auth, Link, Secret};
use bivouac_types::FormationId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::messages::{MeasureOrder, MeasuredConnection, Reply, StationAddress};
use super::transfer;

/// Time that somebody may take to prove that he knows the secret.
const PROOF: Duration = Duration::from_secs(5);
/// Time that the command may be silent while others are measured.
const SILENCE: Duration = Duration::from_secs(120);
/// Time between two looks for the launcher, until the command has come.
const HEARD: Duration = Duration::from_secs(1);
/// Time until the end of a transfer is told.
const TELL: Duration = Duration::from_millis(10);

/// A station that waits for orders.
#[derive(Debug)]
pub struct OpenStation {
    orders: TcpListener,
    data: TcpListener,
    auth: Auth,
}

/// Opens a station on the addresses of a network, or on all.
///
/// # Errors
/// That the system has no random numbers.
pub fn open_station(network: Option<&Network>) -> LaunchResult<(StationAddress, Option<OpenStation>)> {
    let (id, secret): ([u8; 16], [u8; 32]) = (random_bytes()?, random_bytes()?);
    let station = |addresses, port, data_port, trouble| StationAddress {
        addresses,
        port,
        data_port,
        id: to_hex(&id),
        secret: to_hex(&secret),
        trouble,
    };
    let addresses = match local_addresses(network) {
        Ok(addresses) => addresses,
        Err(error) => return Ok((station(Vec::new(), 0, 0, Some(error.to_string())), None)),
    };
    let opened = listen().and_then(|orders| {
        let data = listen()?;
        let ports = (orders.local_addr()?.port(), data.local_addr()?.port());
        Ok((orders, data, ports))
    });
    match opened {
        Ok((orders, data, (port, data_port))) => {
            let auth = Auth { formation: FormationId(id), secret: Secret::new(secret), is_secure: true };
            Ok((station(addresses, port, data_port, None), Some(OpenStation { orders, data, auth })))
        }
        Err(error) => {
            let trouble = format!("no port could be opened: {error}");
            Ok((station(addresses, 0, 0, Some(trouble)), None))
        }
    }
}

/// Returns whether the launcher still takes what this host says: an empty line. A launcher that is left behind notices
/// by it, too, that nobody hears it any more.
fn is_heard() -> bool {
    let mut output = std::io::stdout();
    output.write_all(b"\n").and_then(|()| output.flush()).is_ok()
}

fn listen() -> std::io::Result<TcpListener> {
    let any = |ip: IpAddr| TcpListener::bind((ip, 0));
    // Without IPv6 in the kernel there is still the other one.
    // Both ports are the system's choice, and told over the launcher.
    any(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| any(Ipv4Addr::UNSPECIFIED.into()))
}

impl OpenStation {
    /// Takes orders of the first one who knows the secret, until that one is gone; of nobody, if nobody comes in time,
    /// or nobody hears any more what this host says.
    pub fn serve(self, patience: Duration) {
        let until = Instant::now() + patience;
        while Instant::now() < until && is_heard() {
            if let Some(mut line) = self.next(until.min(Instant::now() + HEARD)) {
                // One at a time: who knows the secret is let in, and all others get no thread of this host.
                match line.await_proof(Instant::now() + PROOF) {
                    Ok(true) => return self.obey(line),
                    Ok(false) => log::warn!("somebody connected and said nothing"),
                    Err(error) => log::warn!(error:%; "{error}"),
                }
            }
        }
    }

    fn next(&self, until: Instant) -> Option<MeasuredConnection> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).ok()?;
        let mut polled = [PollFd::from_borrowed_fd(self.orders.as_fd(), PollFlags::IN)];
        poll(&mut polled, Some(&left)).ok().filter(|came| *came > 0)?;
        Link::accept(&self.orders, &self.auth).map(MeasuredConnection::over).ok()
    }

    fn obey(&self, mut line: MeasuredConnection) {
        let (done, results) = mpsc::channel();
        std::thread::scope(|scope| {
            let (mut under_way, mut silent) = (0_usize, Instant::now());
            while silent.elapsed() < SILENCE {
                let wait = if under_way > 0 { TELL } else { SILENCE };
                let order = match line.hear::<MeasureOrder>(Instant::now() + wait) {
                    Ok(order) => order,
                    // The command has ended.
                    Err(_) => return,
                };
                if let Some(order) = order {
                    silent = Instant::now();
                    // Before it is begun: who comes at once waits in the backlog of the listener.
                    if matches!(order, MeasureOrder::Receive(_)) && line.say(&Reply::Ready).is_err() {
                        return;
                    }
                    under_way += 1;
                    let done = done.clone();
                    scope.spawn(move || {
                        let reply = match order {
                            MeasureOrder::Receive(wanted) => {
                                Reply::Received(transfer::receive(&self.data, &wanted))
                            }
                            MeasureOrder::Send(to, wanted) => Reply::Sent(transfer::send(to, &wanted)),
                        };
                        let _nobody_waits = done.send(reply);
                    });
                }
                for reply in results.try_iter() {
                    assert!(under_way > 0, "a transfer ended that had not begun");
                    under_way -= 1;
                    if line.say(&reply).is_err() {
                        return;
                    }
                }
            }
        });
    }
}
