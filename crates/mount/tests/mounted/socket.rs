//! Plays the kernel over a socket that keeps packets apart.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bivouac_mount::{Mount, MountError, Options, create_state};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

use crate::memory::Memory;

pub const INIT_EXT: u64 = 1 << 30;
pub const HAS_RESEND: u64 = 1 << 39;
pub const UNIQUE_RESEND: u64 = 1 << 63;
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The kernel's end, and what belongs to the mount rather than to one daemon.
pub struct Kernel {
    socket: File,
    device: OwnedFd,
    pub state: File,
    unique: u64,
}

/// An answer taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    pub unique: u64,
    pub error: i32,
    pub body: Vec<u8>,
}

/// A daemon at work.
pub struct Daemon {
    pub fs: Arc<Memory>,
    pub mount: Arc<Mount<Memory>>,
    thread: JoinHandle<Result<(), MountError>>,
}

impl Daemon {
    pub fn ended(self) -> Result<(), MountError> {
        self.thread.join().unwrap()
    }
}

impl Kernel {
    pub fn new() -> Kernel {
        let (socket, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        // An answer that does not come is a failure, and no test that goes on for ever.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_MAX)).unwrap();
        Kernel { socket: File::from(socket), device, state: File::from(create_state().unwrap()), unique: 0 }
    }

    /// A daemon that serves this kernel.
    pub fn daemon(&self, fs: Memory, options: Options) -> Daemon {
        self.try_daemon(fs, options).unwrap()
    }

    /// The same, if the daemon accepts the state.
    pub fn try_daemon(&self, fs: Memory, options: Options) -> Result<Daemon, MountError> {
        let (fs, device) = (Arc::new(fs), self.device.try_clone().unwrap());
        let mount = Mount::new(Arc::clone(&fs), device, self.state.try_clone().unwrap(), options)?;
        let mount = Arc::new(mount);
        let runner = Arc::clone(&mount);
        Ok(Daemon { fs, mount, thread: thread::spawn(move || runner.run()) })
    }

    /// A daemon that has shaken hands with a kernel that has all of `flags`.
    pub fn started(flags: u64, fs: Memory, options: Options) -> (Kernel, Daemon) {
        let mut kernel = Kernel::new();
        let daemon = kernel.daemon(fs, options);
        assert_eq!(kernel.ask(26, 0, &init_body(7, 40, flags)).error, 0);
        (kernel, daemon)
    }

    /// Sends a request and answers its number.
    pub fn send(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> u64 {
        self.unique += 2;
        self.send_as(self.unique, opcode, nodeid, body);
        self.unique
    }

    pub fn send_as(&mut self, unique: u64, opcode: u32, nodeid: u64, body: &[u8]) {
        let mut packet = Vec::new();
        words(&mut packet, &[40 + body.len() as u32, opcode]);
        longs(&mut packet, &[unique, nodeid]);
        words(&mut packet, &[1000, 100, 4242, 0]);
        packet.extend(body);
        self.socket.write_all(&packet).unwrap();
    }

    pub fn receive(&mut self) -> Answer {
        let mut packet = vec![0; 1 << 17];
        let len = self.socket.read(&mut packet).unwrap();
        assert!(len >= 16 && packet[..4] == (len as u32).to_ne_bytes(), "{len}");
        Answer {
            unique: long(&packet, 8),
            error: word(&packet, 4).cast_signed(),
            body: packet[16..len].into(),
        }
    }

    /// The next answer: what the daemon has to say besides is passed by.
    pub fn receive_answer(&mut self) -> Answer {
        loop {
            let answer = self.receive();
            if answer.unique != 0 {
                return answer;
            }
        }
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> Answer {
        let unique = self.send(opcode, nodeid, body);
        let answer = self.receive_answer();
        assert_eq!(answer.unique, unique);
        answer
    }

    /// Unmounts.
    pub fn unmount(self) {}
}

pub fn init_body(major: u32, minor: u32, flags: u64) -> Vec<u8> {
    let mut body = Vec::new();
    words(&mut body, &[major, minor, 131_072, flags as u32, (flags >> 32) as u32]);
    body.resize(64, 0);
    body
}

pub fn read_body(fh: u64, offset: u64, size: u32) -> Vec<u8> {
    let mut body = Vec::new();
    longs(&mut body, &[fh, offset]);
    words(&mut body, &[size, 0, 0, 0, 0, 0]);
    body
}

pub fn write_body(fh: u64, offset: u64, data: &[u8], write_flags: u32) -> Vec<u8> {
    let mut body = Vec::new();
    longs(&mut body, &[fh, offset]);
    words(&mut body, &[data.len() as u32, write_flags, 0, 0, 0, 0]);
    body.extend(data);
    body
}

pub fn words(into: &mut Vec<u8>, words: &[u32]) {
    words.iter().for_each(|word| into.extend(word.to_ne_bytes()));
}

pub fn longs(into: &mut Vec<u8>, longs: &[u64]) {
    longs.iter().for_each(|long| into.extend(long.to_ne_bytes()));
}

pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}
