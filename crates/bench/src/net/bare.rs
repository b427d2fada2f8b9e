//! Bare TCP, for comparison: a server that copies between connections and one file, and its client.
//!
//! A request is 32 bytes (operation, offset, length, each 8 bytes little-endian, and 8 reserved) and
//! the data of a write; the answer is 32 bytes and the data of a read.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::net::sockopt;

use super::NetTask;
use super::copy::{CopyMethod, Outcome, copy};
use crate::barrier::Barrier;
use crate::{BenchError, BenchResult};

const HEAD: usize = 32;
const PING: u64 = 0;
const WRITE: u64 = 1;
const READ: u64 = 2;
/// Bytes that go from a socket to the file at once: they stay in the processor's nearest caches.
const TAKEN: usize = 64 << 10;
/// Bytes that go from the file to a socket at once.
const GIVEN: usize = 256 << 10;
/// Bytes of a socket's buffers; the system may give fewer.
const SOCKET_BUFFER: usize = 4 << 20;

type Io<T> = std::io::Result<T>;

/// Serves a new file in a directory until the process is ended; says at which port.
///
/// # Errors
/// When the system refuses the port, the file or another connection.
pub fn serve(dir: &Path, announce: impl FnOnce(u16) -> BenchResult<()>) -> BenchResult<()> {
    let refused = || BenchError::system::<std::io::Error>("the server of the bare copy");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused())?;
    let path = dir.join("data");
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(BenchError::system(path.display()))?;
    announce(listener.local_addr().map_err(refused())?.port())?;
    std::thread::scope(|scope| {
        loop {
            let (stream, _) = listener.accept().map_err(refused())?;
            let file = &file;
            scope.spawn(move || {
                if let Err(error) = answer(stream, file) {
                    log::warn!(why:% = error; "a connection of the bare copy");
                }
            });
        }
    })
}

/// Answers the requests of one connection until it ends.
fn answer(mut stream: TcpStream, file: &File) -> Io<()> {
    prepare(&stream)?;
    let mut piece = vec![1; GIVEN.max(TAKEN)];
    let mut head = [0; HEAD];
    while read_head(&mut stream, &mut head)? {
        let [operation, offset, len] = fields(&head);
        match operation {
            WRITE => {
                take(&mut stream, file, offset, len, &mut piece)?;
                stream.write_all(&head)?;
            }
            READ => {
                stream.write_all(&head)?;
                give(&mut stream, file, offset, len, &mut piece)?;
            }
            _ => stream.write_all(&head)?,
        }
    }
    Ok(())
}

/// Returns whether there is one more request.
fn read_head(stream: &mut TcpStream, head: &mut [u8; HEAD]) -> Io<bool> {
    let first = stream.read(head)?;
    // Nothing at all in front of a request is how a connection ends.
    let Some(rest) = head.get_mut(first..).filter(|_| first > 0) else { return Ok(false) };
    stream.read_exact(rest).map(|()| true)
}

fn take(stream: &mut TcpStream, file: &File, offset: u64, len: u64, piece: &mut [u8]) -> Io<()> {
    pieces(offset, len, piece.get_mut(..TAKEN).unwrap_or_default(), |at, part| {
        stream.read_exact(part)?;
        file.write_all_at(part, at)
    })
}

fn give(stream: &mut TcpStream, file: &File, offset: u64, len: u64, piece: &mut [u8]) -> Io<()> {
    pieces(offset, len, piece.get_mut(..GIVEN).unwrap_or_default(), |at, part| {
        file.read_exact_at(part, at)?;
        stream.write_all(part)
    })
}

fn pieces(offset: u64, len: u64, piece: &mut [u8], mut act: impl FnMut(u64, &mut [u8]) -> Io<()>) -> Io<()> {
    let mut done = 0;
    while done < len {
        let size = (len - done).min(piece.len() as u64);
        act(offset.saturating_add(done), piece.get_mut(..size as usize).unwrap_or_default())?;
        done += size;
    }
    Ok(())
}

/// No waiting for more to send, and room for a whole request. A system that gives less room is slower, not wrong.
fn prepare(stream: &TcpStream) -> Io<()> {
    stream.set_nodelay(true)?;
    let _less_room = sockopt::set_socket_send_buffer_size(stream, SOCKET_BUFFER);
    let _less_room = sockopt::set_socket_recv_buffer_size(stream, SOCKET_BUFFER);
    Ok(())
}

fn fields(head: &[u8; HEAD]) -> [u64; 3] {
    let mut words =
        head.chunks_exact(8).map(|word| word.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)));
    [(); 3].map(|()| words.next().unwrap_or(0))
}

fn head(operation: u64, offset: u64, len: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    for (place, word) in head.chunks_exact_mut(8).zip([operation, offset, len]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    head
}

/// Does the client's part.
///
/// # Errors
/// When the server is gone.
pub fn perform(task: &NetTask, barrier: &mut dyn Barrier) -> BenchResult<Outcome> {
    let connect = |_| Connection::to(task.port).map_err(broken);
    let mut ways = (0..task.plan.streams).map(connect).collect::<BenchResult<Vec<_>>>()?;
    copy(&task.plan, &mut ways, barrier)
}

fn broken(error: std::io::Error) -> BenchError {
    BenchError::refused("the connection of the bare copy", error)
}

struct Connection {
    stream: TcpStream,
}

impl Connection {
    fn to(port: u16) -> Io<Connection> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        prepare(&stream)?;
        Ok(Connection { stream })
    }

    fn exchange(&mut self, head: [u8; HEAD], data: &[u8], into: &mut [u8]) -> Io<()> {
        self.stream.write_all(&head)?;
        self.stream.write_all(data)?;
        let mut answer = [0; HEAD];
        self.stream.read_exact(&mut answer)?;
        self.stream.read_exact(into)
    }
}

impl CopyMethod for Connection {
    fn write(&mut self, offset: u64, data: &[u8]) -> BenchResult<()> {
        self.exchange(head(WRITE, offset, data.len() as u64), data, &mut []).map_err(broken)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> BenchResult<()> {
        self.exchange(head(READ, offset, into.len() as u64), &[], into).map_err(broken)
    }

    fn ping(&mut self) -> BenchResult<()> {
        self.exchange(head(PING, 0, 0), &[], &mut []).map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::barrier::LoneProcess;
    use crate::net::tests::small;
    use crate::pattern::Pattern;
    use std::sync::mpsc::channel;

    /// The port of a server that ends with this process.
    fn served(dir: &std::path::Path) -> u16 {
        let (announced, port) = channel();
        let dir = dir.to_owned();
        std::thread::spawn(move || {
            serve(&dir, |port| announced.send(port).map_err(|_| BenchError::interrupted()))
        });
        port.recv().unwrap()
    }

    #[test]
    fn the_server_keeps_what_its_clients_write() {
        let dir = tempfile::tempdir().unwrap();
        let task = NetTask { port: served(dir.path()), plan: small() };
        let outcome = perform(&task, &mut LoneProcess(0)).unwrap();
        assert_eq!(outcome.timed.iter().map(|timed| timed.units).collect::<Vec<_>>(), [65_536; 3]);
        let content = std::fs::read(dir.path().join("data")).unwrap();
        assert_eq!(content.len(), 65_536);
        // The second connection's half was written by large requests only.
        assert_eq!(Pattern::new(1).mismatch(&content[32_768..], 32_768), None);
    }

    #[test]
    fn reading_behind_the_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut connection = Connection::to(served(dir.path())).unwrap();
        connection.write(0, &[7; 10]).unwrap();
        let mut back = [0; 10];
        connection.read(0, &mut back).unwrap();
        assert_eq!(back, [7; 10]);
        assert!(connection.read(5, &mut back).is_err());
    }

    #[test]
    fn a_head_is_what_it_says() {
        assert_eq!(fields(&head(READ, 1 << 40, 7)), [READ, 1 << 40, 7]);
        assert_eq!(head(WRITE, 0x0102, 3)[8..10], [2, 1]);
    }
}
