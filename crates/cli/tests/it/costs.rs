//! What system calls cost in messages, through a real mount of a real formation, is what docs/performance/messages.md says, whatever
//! the number of nodes. What the kernel was told runs out after a moment, on a busy machine also between two calls; so each
//! call is made several times: one of them must cost exactly that, the others may ask for names and attributes besides.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use crate::harness::Camp;
use crate::harness::library::far_library;
use bivouac_client::Client;
use bivouac_types::NodeId;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags, openat, renameat, statx, unlinkat};
use rustix::io::{read, write};

const PAGE: &str = include_str!("../../../../docs/performance/messages.md");
const SMALL: [u8; 3901] = [7; 3901];
/// Number of attempts of which one is undisturbed also on a busy machine.
const ATTEMPTS_MAX: usize = 1000;

/// Prepares a call on a name in a directory; answers what it needs.
type Prepare = fn(&OwnedFd, &str) -> Option<OwnedFd>;
type Act = fn(&OwnedFd, &str, Option<OwnedFd>);

/// The system calls of the table, by its words.
const CALLS: [(&str, Prepare, Act); 10] = [
    ("create, close", nothing, |dir, name, _| drop(make(dir, name, b""))),
    ("create, write 3,901 bytes, close", nothing, |dir, name, _| drop(make(dir, name, &SMALL))),
    ("stat, asking the file system", file, |dir, name, _| {
        assert_eq!(size(dir, name, AtFlags::STATX_FORCE_SYNC), SMALL.len() as u64);
    }),
    ("stat of a name that is not there", nothing, |dir, name, _| {
        statx(dir, name, AtFlags::empty(), StatxFlags::BASIC_STATS).unwrap_err();
    }),
    ("open, close", file, |dir, name, _| drop(openat(dir, name, OFlags::RDONLY, Mode::empty()).unwrap())),
    ("read 3,901 bytes", opened, |_, _, open| {
        let mut back = [0; SMALL.len() + 1];
        assert_eq!(read(open.unwrap(), &mut back[..SMALL.len()]).unwrap(), SMALL.len());
        assert_eq!(back[..SMALL.len()], SMALL);
    }),
    ("read to the end, into a larger buffer", opened, |_, _, open| {
        let (open, mut back) = (open.unwrap(), [0; 2 * SMALL.len()]);
        assert_eq!(read(&open, &mut back).unwrap(), SMALL.len());
        assert_eq!(read(&open, &mut back[SMALL.len()..]).unwrap(), 0);
        assert_eq!(back[..SMALL.len()], SMALL);
    }),
    ("unlink", file, |dir, name, _| unlinkat(dir, name, AtFlags::empty()).unwrap()),
    ("rename within a directory", file, |dir, name, _| {
        renameat(dir, name, dir, format!("{name}-moved")).unwrap();
    }),
    ("list a directory of 100 names", hundred, |dir, name, _| {
        let listed = openat(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut listing = RawDir::new(listed, buffer.spare_capacity_mut());
        let mut count = 0;
        while let Some(entry) = listing.next() {
            entry.unwrap();
            count += 1;
        }
        assert_eq!(count, 102);
    }),
];

fn nothing(_: &OwnedFd, _: &str) -> Option<OwnedFd> {
    None
}

fn file(dir: &OwnedFd, name: &str) -> Option<OwnedFd> {
    drop(make(dir, name, &SMALL));
    None
}

fn opened(dir: &OwnedFd, name: &str) -> Option<OwnedFd> {
    drop(make(dir, name, &SMALL));
    Some(openat(dir, name, OFlags::RDONLY, Mode::empty()).unwrap())
}

fn hundred(dir: &OwnedFd, name: &str) -> Option<OwnedFd> {
    rustix::fs::mkdirat(dir, name, Mode::RWXU).unwrap();
    let inner = openat(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    (0..100).for_each(|i| drop(make(&inner, &format!("f{i}"), b"")));
    refresh(&inner);
    None
}

/// Has the kernel learn the attributes anew.
fn refresh(dir: &OwnedFd) {
    statx(dir, "", AtFlags::STATX_FORCE_SYNC | AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).unwrap();
}

fn make(dir: &OwnedFd, name: &str, content: &[u8]) -> OwnedFd {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = openat(dir, name, flags, Mode::RUSR | Mode::WUSR).unwrap();
    if !content.is_empty() {
        assert_eq!(write(&made, content).unwrap(), content.len());
    }
    made
}

fn size(dir: &OwnedFd, name: &str, flags: AtFlags) -> u64 {
    statx(dir, name, flags, StatxFlags::BASIC_STATS).unwrap().stx_size
}

/// Messages by operation over all nodes: from clients, and from peers.
type Counts = BTreeMap<String, [u64; 2]>;

/// Asked by messages, not by a command: what the kernel was told must not run out meanwhile.
fn counts(asking: &Client, nodes: u16) -> Counts {
    let mut sums = Counts::new();
    for op in (0..nodes).flat_map(|node| asking.nodes().status(NodeId(node)).unwrap().operations) {
        let sum = sums.entry(op.name.to_string()).or_default();
        sum[0] += op.client;
        sum[1] += op.peer;
    }
    sums
}

/// What looking costs, what happens in the background, and what is no message.
const BESIDES: [&str; 7] =
    ["Status", "ListPartitions", "Close", "RemoveSubfiles", "StatFs", "WhichGone", "LeaseWait"];

/// What was counted in between, without what looking costs and what happens in the background.
fn since(before: &Counts, mut now: Counts) -> Counts {
    now.retain(|op, _| !BESIDES.contains(&op.as_str()));
    for (op, counts) in &mut now {
        let before = before.get(op).copied().unwrap_or_default();
        *counts = [counts[0] - before[0], counts[1] - before[1]];
    }
    now.retain(|_, counts| *counts != [0, 0]);
    now
}

/// The row of the table: operations with their number on the client lane.
fn row(call: &str) -> BTreeMap<String, u64> {
    let start = format!("| {call} | ");
    let rows = PAGE.lines().skip_while(|line| !line.starts_with("| system call |"));
    let line = rows.map(str::trim).find(|line| line.starts_with(&start));
    let line = line.unwrap_or_else(|| panic!("the page should have a row for: {call}"));
    let one = |part: &str| {
        let (op, count) = part.trim().split_once(' ').unwrap();
        (op.to_owned(), count.parse().unwrap())
    };
    line.split('|').nth(2).unwrap().split(',').map(one).collect()
}

#[test]
fn system_calls_cost_what_the_page_says_whatever_the_number_of_nodes() {
    for nodes in [1, 2, 4, 16] {
        let Some(camp) = Camp::start(&["--nodes", &nodes.to_string()]) else { return };
        let asking = far_library(&camp.dir());
        for (number, (call, prepare, act)) in CALLS.into_iter().enumerate() {
            let wanted = row(call);
            let attempt = |attempt: usize| {
                // A directory that many names were asked of in vain would have the mount ask for all it has.
                let dir = camp.mount().join(format!("{number}-{attempt}"));
                std::fs::create_dir(&dir).unwrap();
                let dir = rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
                let needed = prepare(&dir, "name");
                // The kernel forgets the attributes of what it changed.
                refresh(&dir);
                let before = counts(&asking, nodes);
                act(&dir, "name", needed);
                since(&before, counts(&asking, nodes))
            };
            let mut seen = (0..ATTEMPTS_MAX).map(attempt).map(|counted| {
                assert!(counted.values().all(|counts| counts[1] == 0), "{call}: {counted:?} among nodes");
                let of_clients: BTreeMap<String, u64> =
                    counted.iter().map(|(op, counts)| (op.clone(), counts[0])).collect();
                let besides = |(op, count): (&String, &u64)| {
                    ["Lookup", "GetAttr"].contains(&op.as_str()) || wanted.get(op) == Some(count)
                };
                assert!(of_clients.iter().all(besides), "{call}: {counted:?} instead of {wanted:?}");
                of_clients
            });
            assert!(seen.any(|seen| seen == wanted), "{nodes} nodes, {call}: never {wanted:?} alone");
        }
        drop(asking);
        camp.down();
    }
}
