//! What is said to the kernel, packet by packet.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bivouac_client::{FileIdentity, FormationPlace, IDENTIFY, IDENTITY_LEN};
use bivouac_mount::{FileSystem, MountError, OpCtx, Options};
use bivouac_types::limits::LEASE_MS;
use bivouac_types::put::{self, MadeFile, NewFile};
use bivouac_types::{FormationId, Ino, NodeId, OpId, SetAttr, Timestamp};
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::memory::{Memory, SEED};
use crate::socket::{
    Answer, Daemon, HAS_RESEND, INIT_EXT, Kernel, UNIQUE_RESEND, init_body, long, longs, read_body, word,
    words, write_body,
};

const ALL: u64 = u64::MAX;
const ENOSYS: i32 = -38;
const ENOTTY: i32 = -25;
const EAGAIN: i32 = -11;

fn opened(kernel: &mut Kernel) -> u64 {
    let mut body = Vec::new();
    words(&mut body, &[2, 0]);
    let answer = kernel.ask(14, SEED.0, &body);
    assert_eq!((answer.error, answer.body.len()), (0, 16));
    assert_eq!(word(&answer.body, 8), 0x41, "direct I/O with parallel writes");
    long(&answer.body, 0)
}

/// The flags that OPEN of a file with these flags is answered with.
fn kernel_flags(kernel: &mut Kernel, flags: u32) -> u32 {
    let mut body = Vec::new();
    words(&mut body, &[flags, 0]);
    word(&kernel.ask(14, SEED.0, &body).body, 8)
}

/// S362.
#[test]
fn an_inode_is_found_by_its_number_and_a_directory_by_what_is_in_it() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    for (of, name, found) in [(SEED.0, &b".\0"[..], SEED.0), (1, b".\0", 1), (1, b"..\0", 1)] {
        let answer = kernel.ask(1, of, name);
        assert_eq!((answer.error, long(&answer.body, 0)), (0, found), "{name:?} of {of}");
    }
    assert_eq!(kernel.ask(1, 999, b".\0").error, -2);
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S103.
#[test]
fn a_close_is_announced_where_it_may_end_locks_of_ranges() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let unannounced = 0x41 | 1 << 5;
    let of_all = |kernel: &mut Kernel| [0, 1, 2].map(|access| kernel_flags(kernel, access));
    assert_eq!(of_all(&mut kernel), [unannounced, unannounced, 0x41], "to read, to write, both");
    daemon.fs.use_locks();
    assert_eq!(of_all(&mut kernel), [0x41; 3]);
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S29.
#[test]
fn only_programs_are_refused_to_a_root_that_may_do_everything() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let asked = |kernel: &mut Kernel, ino: u64, mask: u32| {
        let mut body = Vec::new();
        words(&mut body, &[mask, 0]);
        kernel.ask(34, ino, &body).error
    };
    assert_eq!([6, 7].map(|mask| asked(&mut kernel, SEED.0, mask)), [0, -13]);
    assert_eq!(asked(&mut kernel, 1, 7), 0, "a directory");
    let mut mode = vec![0; 88];
    mode[0] = 1;
    mode[68..72].copy_from_slice(&0o100_u32.to_le_bytes());
    assert_eq!(kernel.ask(4, SEED.0, &mode).error, 0);
    assert_eq!(asked(&mut kernel, SEED.0, 7), 0);
    assert_eq!(asked(&mut kernel, 999, 1), -2);
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn the_first_exchange_agrees_on_what_both_can() {
    let mut kernel = Kernel::new();
    let daemon = kernel.daemon(Memory::new(), Options::default());
    let ahead = kernel.ask(26, 0, &init_body(8, 1, 0));
    assert_eq!((ahead.error, word(&ahead.body, 0)), (0, 7));
    let answer = kernel.ask(26, 0, &init_body(7, 40, HAS_RESEND | INIT_EXT | 1));
    let body = &answer.body;
    assert_eq!((body.len(), word(body, 0), word(body, 4), word(body, 12)), (64, 7, 40, 1 << 30 | 1));
    assert_eq!((word(body, 20), word(body, 32)), (1 << 20, 1 << 7));
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn attributes_come_with_listings_where_that_is_wanted() {
    for (readdirplus, plus) in [(false, 0), (true, 0b11 << 13)] {
        let mut kernel = Kernel::new();
        let options = Options { readdirplus, ..Options::default() };
        let daemon = kernel.daemon(Memory::new(), options);
        let answer = kernel.ask(26, 0, &init_body(7, 45, ALL));
        assert_eq!(word(&answer.body, 12) & (0b11 << 13), plus);
        kernel.unmount();
        daemon.ended().unwrap();
    }
}

#[test]
fn what_a_lease_covers_may_be_cached() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    assert_eq!(kernel.ask(1, 1, b"none\0").error, -2);
    daemon.fs.give_lease(Duration::from_millis(1500));
    let absent = kernel.ask(1, 1, b"none\0");
    assert_eq!((absent.error, absent.body.len(), long(&absent.body, 0)), (0, 128, 0));
    assert_eq!((long(&absent.body, 16), word(&absent.body, 32)), (1, 500_000_000));
    let seed = kernel.ask(1, 1, b"seed\0");
    assert_eq!((long(&seed.body, 0), long(&seed.body, 16), long(&seed.body, 24)), (SEED.0, 1, 1));
    let attr = kernel.ask(3, SEED.0, &[0; 16]);
    assert_eq!((long(&attr.body, 0), word(&attr.body, 8)), (1, 500_000_000));
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn a_kernel_that_is_too_old_is_named() {
    let mut kernel = Kernel::new();
    let daemon = kernel.daemon(Memory::new(), Options::default());
    assert_eq!(kernel.ask(26, 0, &init_body(7, 27, 0)).error, -71);
    let error = daemon.ended().unwrap_err();
    assert!(
        matches!(error, MountError::KernelTooOld(7, 27)) && error.to_string().contains("7.27"),
        "{error}"
    );
}

#[test]
fn names_lead_to_inode_numbers() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let answer = kernel.ask(1, 1, b"seed\0");
    assert_eq!((answer.error, answer.body.len(), long(&answer.body, 0)), (0, 128, SEED.0));
    assert_eq!(kernel.ask(1, 1, b"none\0").error, -2);
    assert_eq!(kernel.ask(1, 1, b"no end").error, -22);
    let counts = daemon.mount.stats();
    assert!(counts.iter().any(|c| c.operation == "Lookup" && c.requests == 3), "{counts:?}");
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn writes_are_passed_on_with_who_asked_and_under_which_number() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let fh = opened(&mut kernel);
    let answer = kernel.ask(16, SEED.0, &write_body(fh, 3, b"hello", 0));
    assert_eq!((answer.error, word(&answer.body, 0)), (0, 5));
    assert_eq!(kernel.ask(15, SEED.0, &read_body(fh, 0, 4096)).body, b"\0\0\0hello");
    let (_, ctx) = daemon.fs.mutations().into_iter().find(|(name, _)| *name == "write").unwrap();
    assert_eq!((ctx.id.0, ctx.retry, ctx.uid, ctx.gid, ctx.pid), (answer.unique, false, 1000, 100, 4242));
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S6. The kernel cuts to the size that it knows by then, which others may have raised, or have fallen below.
#[test]
fn the_cut_after_a_write_that_failed_cuts_nothing_whatever_the_kernel_knows() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let fh = opened(&mut kernel);
    let other = OpCtx { id: OpId(1 << 40), channel: 9, retry: false, uid: 0, gid: 0, pid: 0 };
    let resize = |size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        daemon.fs.setattr(&other, SEED, &set).unwrap();
    };
    for (at_failure, meanwhile, asked, left) in
        [(100, 300, 100, 300), (100, 300, 200, 300), (50, 300, 100, 300), (100, 40, 100, 40)]
            .into_iter()
            .chain([(100, 300, 50, 50), (100, 100, 200, 200), (0, 0, 1, 1)])
    {
        resize(at_failure);
        assert_eq!(kernel.ask(16, SEED.0, &write_body(fh, 1 << 30, b"x", 0)).error, -27);
        resize(meanwhile);
        let mut cut = Vec::new();
        words(&mut cut, &[1 << 3 | 1 << 6, 0]);
        longs(&mut cut, &[fh, asked]);
        cut.resize(88, 0);
        let answer = kernel.ask(4, SEED.0, &cut);
        assert_eq!((answer.error, long(&answer.body, 16 + 8)), (0, left), "the kernel is told the size");
        assert_eq!(daemon.fs.getattr_cached(SEED).unwrap().size, left, "{at_failure}, {meanwhile}, {asked}");
    }
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn sizes_that_lie_are_refused() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let fh = opened(&mut kernel);
    let mut short = write_body(fh, 0, b"hello", 0);
    short.pop();
    assert_eq!(kernel.ask(16, SEED.0, &short).error, -22);
    assert_eq!(kernel.ask(15, SEED.0, &read_body(fh, 0, u32::MAX)).error, -22);
    assert_eq!(kernel.ask(15, SEED.0, &read_body(fh, u64::MAX, 10)).body, b"");
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn releasing_closes_once() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let fh = opened(&mut kernel);
    assert_eq!(daemon.fs.opens(), [(SEED, 1)]);
    let mut release = Vec::new();
    longs(&mut release, &[fh, 0, 0]);
    for _ in 0..2 {
        assert_eq!(kernel.ask(18, SEED.0, &release).error, 0);
        assert_eq!(daemon.fs.opens(), []);
    }
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn set_id_bits_are_dropped_once_per_open_file() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let chmod = |kernel: &mut Kernel, mode: u32| {
        let mut body = vec![0; 88];
        body[..4].copy_from_slice(&1u32.to_ne_bytes());
        body[68..72].copy_from_slice(&mode.to_ne_bytes());
        let answer = kernel.ask(4, SEED.0, &body);
        assert_eq!((answer.error, word(&answer.body, 16 + 60) & 0o7777), (0, mode));
    };
    let killed = || daemon.fs.mutations().iter().filter(|(name, _)| *name == "setattr").count();
    let fh = opened(&mut kernel);
    for (mode, setattrs) in [(0o6755, 2), (0o755, 3), (0o4755, 5)] {
        chmod(&mut kernel, mode);
        for _ in 0..3 {
            assert_eq!(kernel.ask(16, SEED.0, &write_body(fh, 0, b"x", 1 << 2)).error, 0);
            assert_eq!(killed(), setattrs);
        }
    }
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn what_nobody_waits_for_is_not_answered() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    for opcode in [2, 36, 41, 42] {
        kernel.send(opcode, SEED.0, &[0; 16]);
    }
    assert_eq!(kernel.ask(3, SEED.0, &[0; 16]).error, 0);
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn the_kernel_is_told_to_do_without() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    for opcode in [52, 40, 7, 4096] {
        assert_eq!(kernel.ask(opcode, SEED.0, &[0; 64]).error, ENOSYS, "{opcode}");
    }
    assert_eq!(kernel.ask(39, SEED.0, &[0; 64]).error, -25);
    // The file system's own ENOSYS (here for a mode of fallocate) must not end fallocate for good.
    let mut body = Vec::new();
    longs(&mut body, &[0, 0, 10]);
    words(&mut body, &[3, 0]);
    assert_eq!(kernel.ask(43, SEED.0, &body).error, -95);
    kernel.unmount();
    daemon.ended().unwrap();
}

fn others_pass_while(waits_for: fn()) {
    let (let_go, gate) = mpsc::channel::<()>();
    let (waits, waiting) = mpsc::channel();
    let gate = Mutex::new(gate);
    let fs = Memory::with_gate(move |operation, _| {
        if operation == "read" {
            waits_for();
            waits.send(()).unwrap();
            gate.lock().recv().unwrap();
        }
    });
    let (mut kernel, daemon) = Kernel::started(ALL, fs, Options { readers_max: 1, ..Options::default() });
    let fh = opened(&mut kernel);
    let slow = kernel.send(15, SEED.0, &read_body(fh, 0, 10));
    waiting.recv().unwrap();
    assert_eq!(kernel.ask(3, SEED.0, &[0; 16]).error, 0);
    let_go.send(()).unwrap();
    assert_eq!(kernel.receive().unique, slow);
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn a_request_that_waits_for_another_node_lets_others_pass() {
    others_pass_while(bivouac_mount::about_to_block);
}

/// As one that waits for a slow disk.
#[test]
fn a_request_that_takes_long_lets_others_pass() {
    others_pass_while(|| ());
}

#[test]
fn a_bug_in_a_request_is_an_error_of_this_request_only() {
    let fs = Memory::with_gate(|operation, _| assert_ne!(operation, "read", "a bug, on purpose"));
    let (mut kernel, daemon) = Kernel::started(ALL, fs, Options::default());
    let fh = opened(&mut kernel);
    assert_eq!(kernel.ask(15, SEED.0, &read_body(fh, 0, 10)).error, -5);
    assert_eq!(kernel.ask(3, SEED.0, &[0; 16]).error, 0);
    kernel.unmount();
    daemon.ended().unwrap();
}

#[test]
fn the_next_daemon_registers_opens_and_asks_for_what_is_unanswered() {
    let (mut kernel, first) = Kernel::started(ALL, Memory::new(), Options::default());
    let mut open = Vec::new();
    words(&mut open, &[2, 0]);
    let fh = opened(&mut kernel);
    let opener = kernel.send(14, SEED.0, &open);
    let lost = kernel.receive();
    let second = kernel.daemon(Memory::new(), Options::default());
    let notification = kernel.receive();
    assert_eq!((notification.unique, notification.error, notification.body.len()), (0, 7, 0));
    assert_eq!(second.fs.reasserted(), [(SEED, 2, 2)]);
    // The open whose answer was lost is sent again: same handle, and no further open is registered.
    for _ in 0..4 {
        kernel.send_as(opener | UNIQUE_RESEND, 14, SEED.0, &open);
        let again = kernel.receive();
        assert_eq!((again.unique, &again.body), (opener | UNIQUE_RESEND, &lost.body));
    }
    assert_eq!(second.fs.opens().iter().chain(&first.fs.opens()).map(|(_, n)| n).sum::<u32>(), 4);
    let retries = [&first, &second].map(|d| d.fs.mutations().iter().filter(|(_, ctx)| ctx.retry).count());
    assert_eq!(retries.iter().sum::<usize>(), 4);
    assert!(fh != long(&lost.body, 0));
    kernel.unmount();
    first.ended().unwrap();
    second.ended().unwrap();
}

/// S71.
#[test]
fn without_resending_what_was_in_flight_fails_instead_of_hanging() {
    let (let_go, gate) = mpsc::channel::<()>();
    let (waits, waiting) = mpsc::channel();
    let gate = Mutex::new(gate);
    let fs = Memory::with_gate(move |_, _| {
        waits.send(()).unwrap();
        gate.lock().recv().unwrap();
    });
    let (mut kernel, first) =
        Kernel::started(ALL & !HAS_RESEND, fs, Options { readers_max: 1, ..Options::default() });
    let fh = opened(&mut kernel);
    let stuck = kernel.send(15, SEED.0, &read_body(fh, 0, 10));
    waiting.recv().unwrap();
    let second = kernel.daemon(Memory::new(), Options::default());
    let answer = kernel.receive();
    assert_eq!((answer.unique, answer.error), (stuck, -5));
    assert_eq!(kernel.ask(3, SEED.0, &[0; 16]).error, 0);
    let_go.send(()).unwrap();
    kernel.receive();
    kernel.unmount();
    first.ended().unwrap();
    second.ended().unwrap();
}

#[test]
fn listings_go_on_where_they_stopped() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    for name in [&b"a\0"[..], b"bb\0", b"ccc\0"] {
        let mut body = Vec::new();
        words(&mut body, &[0o755, 0]);
        body.extend(name);
        assert_eq!(kernel.ask(9, 1, &body).error, 0);
    }
    let (mut offset, mut names) = (0, Vec::new());
    loop {
        // Room for two entries at a time.
        let answer = kernel.ask(28, 1, &read_body(0, offset, 64));
        assert_eq!(answer.error, 0);
        let mut rest = &answer.body[..];
        if rest.is_empty() {
            break;
        }
        while !rest.is_empty() {
            let len = word(rest, 16) as usize;
            names.push(String::from_utf8(rest[24..24 + len].to_vec()).unwrap());
            offset = long(rest, 8);
            rest = &rest[(24 + len).next_multiple_of(8)..];
        }
    }
    assert_eq!(names, [".", "..", "seed", "a", "bb", "ccc"]);
    kernel.unmount();
    daemon.ended().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_asked_is_answered_once(
        requests in proptest::collection::vec((0..56u32, 0..20u64, proptest::collection::vec(any::<u8>(), 0..128)), 1..40),
    ) {
        let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
        for (opcode, nodeid, body) in requests {
            let unique = kernel.send(opcode, nodeid, &body);
            if !matches!(opcode, 2 | 36 | 41 | 42) {
                let answer = kernel.receive_answer();
                prop_assert_eq!(answer.unique, unique);
                prop_assert!(answer.error <= 0 && answer.error > -512);
            }
        }
        prop_assert_eq!(kernel.ask(3, Ino::ROOT.0, &[0; 16]).error, 0);
        kernel.unmount();
        prop_assert!(daemon.ended().is_ok());
    }
}

/// `fuse_ioctl_in`.
fn ioctl_body(flags: u32, cmd: u32, in_size: u32, out_size: u32) -> Vec<u8> {
    let mut body = Vec::new();
    longs(&mut body, &[1]);
    words(&mut body, &[flags, cmd]);
    longs(&mut body, &[0xdead_beef]);
    words(&mut body, &[in_size, out_size]);
    body
}

#[test]
fn a_file_says_who_it_is_to_who_asks_rightly() {
    let place = FormationPlace {
        id: FormationId([3; 16]),
        node: NodeId(1),
        wait_ms: 5000,
        directory: "/run/camp".into(),
    };
    let formation = Some(Arc::new(place.clone()));
    let options = Options { formation, ..Options::default() };
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), options);
    let size = IDENTITY_LEN as u32;
    let of_directory = 1 << 4;
    for (ino, flags) in [(SEED, 0), (Ino::ROOT, of_directory)] {
        let answer = kernel.ask(39, ino.0, &ioctl_body(flags, IDENTIFY, 0, size));
        assert_eq!((answer.error, answer.body.len(), long(&answer.body, 0)), (0, 16 + IDENTITY_LEN, 0));
        let said = FileIdentity::from_bytes(answer.body[16..].try_into().unwrap()).unwrap();
        assert_eq!((said.ino, &*said.formation), (ino, &place));
    }
    for wrong in [
        ioctl_body(0, IDENTIFY + 1, 0, size),
        ioctl_body(0, 0x5401, 0, size),
        ioctl_body(0, IDENTIFY, 1, size),
        ioctl_body(0, IDENTIFY, 0, size - 1),
        ioctl_body(0, IDENTIFY, 0, u32::MAX),
        ioctl_body(1 << 1, IDENTIFY, 0, size),
    ] {
        assert_eq!(kernel.ask(39, SEED.0, &wrong).error, ENOTTY);
    }
    assert_eq!(kernel.ask(39, SEED.0, &[0xff; 31]).error, -22, "shorter than a request");
    kernel.unmount();
    daemon.ended().unwrap();
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    assert_eq!(kernel.ask(39, SEED.0, &ioctl_body(0, IDENTIFY, 0, size)).error, ENOTTY, "of no formation");
    kernel.unmount();
    daemon.ended().unwrap();
}

/// The number of an ioctl that makes a file from so many bytes, and the request with those bytes behind it.
fn put_body(flags: u32, bytes: &[u8]) -> Vec<u8> {
    let size = bytes.len() as u32;
    let mut body = ioctl_body(flags, put::number(bytes.len()).unwrap(), size, size);
    body.extend(bytes);
    body
}

/// Asks for a file in the root directory; as long as what a daemon before may have said counts, again.
fn put_file(kernel: &mut Kernel, bytes: &[u8]) -> (Vec<Answer>, Answer) {
    loop {
        let unique = kernel.send(39, Ino::ROOT.0, &put_body(1 << 4, bytes));
        let mut notes = Vec::new();
        let answer = loop {
            match kernel.receive() {
                answer if answer.unique == unique => break answer,
                note => notes.push(note),
            }
        };
        if answer.error != EAGAIN {
            return (notes, answer);
        }
        assert!(notes.is_empty(), "nothing has changed");
    }
}

/// S269.
#[test]
fn a_file_is_made_behind_the_back_of_the_kernel_which_is_told() {
    let (mut kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    let mtime = Timestamp { secs: 7, nanos: 8 };
    let (mut bytes, file) = (Vec::new(), NewFile { name: b"new", mode: 0o600, mtime, content: b"content" });
    assert!(file.encode(&mut bytes));
    let (notes, answer) = put_file(&mut kernel, &bytes);
    assert_eq!((answer.error, answer.body.len()), (0, 16 + put::MADE_LEN));
    let made = MadeFile::from_bytes(&answer.body[16..]).unwrap();
    let told: Vec<_> = notes.iter().map(|note| (note.unique, note.error, long(&note.body, 0))).collect();
    assert_eq!(told, [(0, 2, Ino::ROOT.0)], "the directory's attributes");
    assert_eq!(long(&notes[0].body, 8), u64::MAX, "and no pages");
    let attr = daemon.fs.lookup_cached(Ino::ROOT, b"new").unwrap();
    assert_eq!((attr.ino, attr.size, attr.mtime, attr.uid), (made.ino, 7, mtime, 1000));
    let (notes, again) = put_file(&mut kernel, &bytes);
    assert_eq!((notes.len(), again.error), (1, -17), "it is there");
    for wrong in [put_body(0, &bytes), put_body(1 << 4 | 1 << 1, &bytes), put_body(1 << 4, &bytes[1..])] {
        assert_eq!(kernel.ask(39, Ino::ROOT.0, &wrong).error, ENOTTY);
    }
    let cut = put_body(1 << 4, &bytes);
    assert_eq!(kernel.ask(39, Ino::ROOT.0, &cut[..cut.len() - 1]).error, -22, "shorter than it says");
    kernel.unmount();
    daemon.ended().unwrap();
}

/// `OPEN` of a file by the one thread that there is.
fn reopened(kernel: &mut Kernel) {
    let mut body = Vec::new();
    words(&mut body, &[2, 0]);
    assert_eq!(kernel.ask(14, SEED.0, &body).error, 0);
}

/// For how long attributes may be cached, in whole seconds.
fn cached(kernel: &mut Kernel) -> u64 {
    long(&kernel.ask(3, SEED.0, &[0; 16]).body, 0)
}

/// For how long a kernel may cache what it is told, in seconds: longer than any machine takes.
const CACHED_S: u64 = 3600;

/// A kernel that may cache what it is told.
fn caching() -> (Kernel, Daemon) {
    let (kernel, daemon) = Kernel::started(ALL, Memory::new(), Options::default());
    daemon.fs.give_lease(Duration::from_secs(CACHED_S));
    (kernel, daemon)
}

fn is_told_to_forget(note: &Answer, ino: Ino) -> bool {
    let body = &note.body;
    (note.unique, note.error, long(body, 0), long(body, 8)) == (0, 2, ino.0, u64::MAX)
}

/// S271.
#[test]
fn a_kernel_that_is_asked_caches_nothing() {
    let (mut kernel, daemon) = caching();
    let begun = Instant::now();
    // For as long as a lease runs, which may be over on a busy machine.
    let is_over = || begun.elapsed() >= Duration::from_millis(LEASE_MS);
    assert!(daemon.mount.invalidate_attrs(SEED).is_zero(), "it was told nothing");
    assert!(is_told_to_forget(&kernel.receive(), SEED));
    assert!(cached(&mut kernel) == 0 || is_over(), "and nothing from now on");
    let seed = kernel.ask(1, 1, b"seed\0");
    assert_eq!(long(&seed.body, 16), CACHED_S, "its name is another matter");
    assert!(long(&seed.body, 24) == 0 || is_over());
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S379. A name that was looked up, found or not, is told for no longer once it is asked for; another one is.
#[test]
fn a_name_that_is_asked_for_may_be_shown_for_as_long_as_was_said() {
    let (mut kernel, daemon) = caching();
    let hash = |name: &[u8]| bivouac_client::entry_hash(Ino(1), name);
    for name in [&b"seed"[..], b"absent"] {
        let looked = [name, b"\0"].concat();
        assert!(daemon.mount.invalidate_name(Ino(1), hash(b"other")).is_zero());
        assert_eq!(long(&kernel.ask(1, 1, &looked).body, 16), CACHED_S);
        let left = daemon.mount.invalidate_name(Ino(1), hash(name));
        assert!(left > Duration::from_secs(CACHED_S - 600), "{left:?}");
        assert!(
            matches!(kernel.ask(1, 1, &looked), answer if answer.error != 0 || long(&answer.body, 16) == 0)
        );
    }
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S271.
#[test]
fn a_kernel_that_may_not_have_heard_yet_cannot_forget() {
    let (mut kernel, daemon) = caching();
    assert_eq!(cached(&mut kernel), CACHED_S);
    let on_the_way = daemon.mount.invalidate_attrs(SEED);
    assert!(on_the_way <= Duration::from_millis(LEASE_MS), "{on_the_way:?}");
    assert!(is_told_to_forget(&kernel.receive(), SEED));
    reopened(&mut kernel);
    assert!(daemon.mount.invalidate_attrs(SEED).is_zero(), "who sends another request has heard");
    assert!(is_told_to_forget(&kernel.receive(), SEED));
    kernel.unmount();
    daemon.ended().unwrap();
}

/// S271.
#[test]
fn a_file_that_was_closed_had_been_opened() {
    let (mut kernel, daemon) = caching();
    let mut body = Vec::new();
    words(&mut body, &[1, 0o100_644, 0, 0]);
    body.extend(b"made\0");
    let made = kernel.ask(35, 1, &body);
    let (ino, handle) = (Ino(long(&made.body, 0)), long(&made.body, 128));
    let mut body = Vec::new();
    longs(&mut body, &[handle, 0, 0]);
    assert_eq!(kernel.ask(18, ino.0, &body).error, 0);
    assert!(daemon.mount.invalidate_attrs(ino).is_zero());
    assert!(is_told_to_forget(&kernel.receive(), ino));
    kernel.unmount();
    daemon.ended().unwrap();
}
