//! Valid packets and states, damaged: each request gets one answer, and no daemon panics.

use std::io::{Read, Seek, SeekFrom, Write};

use bivouac_mount::Options;
use bivouac_types::Ino;

use crate::memory::{Memory, SEED};
use crate::mutate::Mutator;
use crate::socket::{Daemon, HAS_RESEND, Kernel, read_body, words, write_body};

/// Requests that are not answered.
const SILENT: [u32; 4] = [2, 36, 41, 42];

/// Opcode, node and body of a request of every shape.
fn requests() -> Vec<Vec<u8>> {
    let mut requests = Vec::new();
    let mut add = |opcode: u8, node: u8, numbers: &[u32], rest: &[u8]| {
        let mut request = vec![opcode, node];
        words(&mut request, numbers);
        request.extend_from_slice(rest);
        requests.push(request);
    };
    let seed = SEED.0 as u8;
    add(1, 1, &[], b"seed\0");
    add(3, seed, &[0; 4], b"");
    add(4, seed, &[0x6b; 22], b"");
    add(6, 1, &[], b"link\0target\0");
    add(8, 1, &[0o100_644, 0, 0, 0], b"node\0");
    add(9, 1, &[0o755, 0], b"dir\0");
    add(10, 1, &[], b"gone\0");
    add(12, 1, &[1, 0], b"seed\0other\0");
    add(13, 1, &[2, 0], b"more\0");
    add(14, seed, &[2, 0], b"");
    add(17, 1, &[], b"");
    add(18, seed, &[0; 6], b"");
    add(21, seed, &[5, 0, 0, 0], b"user.x\0value");
    add(22, seed, &[100, 0], b"user.x\0");
    add(23, seed, &[100, 0], b"");
    add(35, 1, &[0x42, 0o644, 0, 0], b"new\0");
    add(42, 1, &[2, 0, 5, 0, 1, 0, 6, 0, 1, 0], b"");
    add(43, seed, &[0; 8], b"");
    add(45, 1, &[1, 0, 1, 0], b"seed\0other\0");
    add(46, seed, &[0, 0, 0, 0, 3, 0], b"");
    for (opcode, body) in [
        (15, read_body(0, 0, 4096)),
        (16, write_body(0, 3, b"hello", 0)),
        (28, read_body(0, 0, 4096)),
        (44, read_body(0, 1, 500)),
    ] {
        add(opcode, if opcode > 20 { 1 } else { seed }, &[], &body);
    }
    requests
}

#[test]
fn damaged_requests_are_answered_once() {
    let (mut kernel, daemon) = Kernel::started(u64::MAX, Memory::new(), Options::default());
    Mutator::new(requests()).each(3_000, |request| {
        let [opcode, node, body @ ..] = request else { return };
        let opcode = u32::from(*opcode);
        let unique = kernel.send(opcode, u64::from(*node), body);
        if !SILENT.contains(&opcode) {
            let answer = kernel.receive_answer();
            assert_eq!(answer.unique, unique, "{request:?}");
            // EIO would be a request that panicked; but for answers that are too long for this socket.
            let fine =
                answer.error <= 0 && answer.error > -512 && (answer.error != -5 || [5, 15].contains(&opcode));
            assert!(fine, "{answer:?} to {request:?}");
        }
    });
    assert_eq!(kernel.ask(3, Ino::ROOT.0, &[0; 16]).error, 0);
    kernel.unmount();
    daemon.ended().unwrap();
}

/// What a daemon leaves that had some files open.
fn state() -> Vec<u8> {
    let (mut kernel, daemon) = Kernel::started(HAS_RESEND, Memory::new(), Options::default());
    for _ in 0..3 {
        let mut body = Vec::new();
        words(&mut body, &[2, 0]);
        assert_eq!(kernel.ask(14, SEED.0, &body).error, 0);
    }
    let mut state = kernel.state.try_clone().unwrap();
    kernel.unmount();
    daemon.ended().unwrap();
    let mut bytes = Vec::new();
    state.seek(SeekFrom::Start(0)).unwrap();
    state.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn damaged_states_are_refused_or_served() {
    let (mut refused, mut served) = (0, 0);
    Mutator::new(vec![state()]).each(600, |bytes| {
        let mut kernel = Kernel::new();
        kernel.state.write_all(bytes).unwrap();
        let daemon = kernel.try_daemon(Memory::new(), Options::default());
        kernel.unmount();
        match daemon.and_then(Daemon::ended) {
            Ok(()) => served += 1,
            Err(_) => refused += 1,
        }
    });
    assert!(refused > 50 && served > 50, "{refused} refused, {served} served");
}
