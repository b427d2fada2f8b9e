//! Requests of the kernel to the slow directory, and their cost.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::throttle::Cost;
use super::tree::{Change, Tree, now};
use crate::fuse::wire::{OPENED, ROOT, Request, header, init, op, put, statfs};

/// Seconds for which the kernel may cache names and attributes that it was told.
const VALID_SECS: u64 = 1;
/// `RENAME_NOREPLACE`.
const NO_REPLACE: u32 = 1;
/// A file in the root, which no listing shows: what has been asked so far, as JSON. Asking for it is not counted.
pub const COUNTS: &str = ".requests";
const COUNTS_INO: u64 = 2;

/// Requests so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests by kind.
    pub requests: BTreeMap<String, u64>,
    /// Bytes that were written.
    pub written: u64,
    /// Bytes that were read.
    pub read: u64,
}

impl Counts {
    /// Requests of all kinds.
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }

    /// Requests since an earlier look.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let before = |kind: &String| earlier.requests.get(kind).copied().unwrap_or(0);
        let requests =
            self.requests.iter().map(|(kind, count)| (kind.clone(), count.saturating_sub(before(kind))));
        Counts {
            requests: requests.filter(|(_, count)| *count > 0).collect(),
            written: self.written.saturating_sub(earlier.written),
            read: self.read.saturating_sub(earlier.read),
        }
    }
}

/// The directory and what was asked of it.
pub struct Site {
    tree: Tree,
    counts: Counts,
    owner: (u32, u32),
    /// Reading costs as writing does; else what is read is in the page cache of who has just written it.
    pays_for_reads: bool,
}

/// The message that answers, and what the request costs.
pub type Answer = (Vec<u8>, Cost);

impl Site {
    /// An empty one.
    pub fn new(owner: (u32, u32), pays_for_reads: bool) -> Site {
        Site { tree: Tree::new(owner), counts: Counts::default(), owner, pays_for_reads }
    }

    /// Serves a request; nothing for one that the kernel does not wait for.
    pub fn serve(&mut self, request: &Request<'_>) -> Option<Answer> {
        let mut out = Vec::new();
        let outcome = self.perform(request, &mut out);
        if !request.expects_reply() {
            return None;
        }
        let cost = self.charge(request, outcome.err());
        let body = if outcome.is_ok() { out.as_slice() } else { &[] };
        let mut message = header(request.unique, outcome.err(), body.len()).to_vec();
        message.extend_from_slice(body);
        Some((message, cost))
    }

    /// Charges a request. Answers of the kernel's side alone cost nothing: that there is no such request, that it
    /// begins, that a file is closed, and the counts.
    fn charge(&mut self, request: &Request<'_>, error: Option<Errno>) -> Cost {
        let is_counts = request.ino == COUNTS_INO
            || request.op == op::LOOKUP && request.ino == ROOT && request.name(0) == COUNTS.as_bytes();
        let Some(kind) = kind(request.op).filter(|_| !is_counts && error != Some(Errno::NOSYS)) else {
            return Cost::Free;
        };
        *self.counts.requests.entry(kind.to_owned()).or_default() += 1;
        let bytes = match request.op {
            op::READ | op::WRITE => u64::from(request.word(16).unwrap_or(0)),
            _ => 0,
        };
        match request.op {
            op::WRITE => self.counts.written += bytes,
            op::READ => self.counts.read += bytes,
            _ => {}
        }
        if request.op == op::READ && !self.pays_for_reads { Cost::Free } else { Cost::Bytes(bytes) }
    }

    fn perform(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let ino = request.ino;
        match request.op {
            op::INIT => init(out),
            op::FORGET => self.tree.forget(ino, request.long(0)?),
            op::BATCH_FORGET => self.forget_many(request)?,
            op::LOOKUP if ino == ROOT && request.name(0) == COUNTS.as_bytes() => {
                self.entry(COUNTS_INO, out)?;
            }
            op::LOOKUP => {
                let found = self.tree.lookup(ino, &request.name(0))?;
                self.entry(found, out)?;
            }
            op::GETATTR => self.attr_out(ino, out)?,
            op::SETATTR => {
                self.tree.change(ino, &change(request)?)?;
                self.attr_out(ino, out)?;
            }
            op::MKDIR => {
                let made = self.tree.make_dir(ino, request.name(8), request.word(0)? & !request.word(4)?)?;
                self.entry(made, out)?;
            }
            op::CREATE => {
                let perm = request.word(4)? & !request.word(8)?;
                let made = self.tree.make_file(ino, request.name(16), perm)?;
                self.entry(made, out)?;
                put(out, &[0], &[OPENED, 0]);
            }
            op::UNLINK | op::RMDIR => self.tree.remove(ino, &request.name(0))?,
            op::RENAME => self.rename(request, 8, 0)?,
            op::RENAME2 => self.rename(request, 16, request.word(8)?)?,
            op::OPEN => put(out, &[0], &[OPENED, 0]),
            op::OPENDIR => put(out, &[0], &[0, 0]),
            op::READDIR => self.list(request, out)?,
            op::READ if ino == COUNTS_INO => self.read_counts(request, out)?,
            op::READ => out.extend(self.tree.read(ino, request.long(8)?, u64::from(request.word(16)?))?),
            op::WRITE => {
                let data = request.behind(40);
                self.tree.write(ino, request.long(8)?, data)?;
                put(out, &[], &[data.len() as u32, 0]);
            }
            op::STATFS => statfs(out),
            // Everything is where it stays as soon as it is here.
            op::FSYNC | op::FSYNCDIR | op::RELEASE | op::RELEASEDIR | op::INTERRUPT => {}
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn forget_many(&mut self, request: &Request<'_>) -> Result<(), Errno> {
        for at in (0..request.word(0)? as usize).map(|index| 8 + index * 16) {
            self.tree.forget(request.long(at)?, request.long(at + 8)?);
        }
        Ok(())
    }

    fn rename(&mut self, request: &Request<'_>, at: usize, flags: u32) -> Result<(), Errno> {
        if flags & !NO_REPLACE != 0 {
            return Err(Errno::INVAL);
        }
        let mut names = request.names(at);
        let (Some(from), Some(to)) = (names.next(), names.next()) else { return Err(Errno::INVAL) };
        self.tree.rename((request.ino, &from), (request.long(0)?, to), flags & NO_REPLACE == 0)
    }

    /// As many entries as fit.
    fn list(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let room = request.word(16)? as usize;
        for (ino, name) in self.tree.entries(request.ino, request.long(8)?)? {
            if out.len() + 24 + name.len().next_multiple_of(8) > room {
                break;
            }
            put(out, &[ino, ino], &[name.len() as u32, 0]);
            out.extend(name);
            out.resize(out.len().next_multiple_of(8), 0);
        }
        Ok(())
    }

    fn read_counts(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        let text = serde_json::to_vec(&self.counts).map_err(|_| Errno::IO)?;
        let from = text.get(request.long(8)? as usize..).unwrap_or_default();
        out.extend(from.iter().take(request.word(16)? as usize));
        Ok(())
    }

    fn entry(&self, ino: u64, out: &mut Vec<u8>) -> Result<(), Errno> {
        put(out, &[ino, 0, VALID_SECS, VALID_SECS], &[0, 0]);
        self.attr(ino, out)
    }

    fn attr_out(&self, ino: u64, out: &mut Vec<u8>) -> Result<(), Errno> {
        put(out, &[VALID_SECS], &[0, 0]);
        self.attr(ino, out)
    }

    fn attr(&self, ino: u64, out: &mut Vec<u8>) -> Result<(), Errno> {
        if ino == COUNTS_INO {
            let (uid, gid) = self.owner;
            // Its length is not known before it is read; direct I/O is not cut at the size that the kernel was told.
            put(out, &[ino, 0, 0, 0, 0, 0], &[0, 0, 0, 0o100_400, 1, uid, gid, 0, 4096, 0]);
            return Ok(());
        }
        let (attrs, links) = self.tree.attrs(ino)?;
        let [atime, mtime, ctime] = attrs.times;
        let secs = [atime, mtime, ctime].map(|time| time.as_secs());
        let nanos = [atime, mtime, ctime].map(|time| time.subsec_nanos());
        put(out, &[ino, attrs.size, attrs.size.div_ceil(512)], &[]);
        put(out, &secs, &nanos);
        put(out, &[], &[attrs.mode, links, attrs.uid, attrs.gid, 0, 4096, 0]);
        Ok(())
    }
}

/// Kind as which a request is counted; none for those that the storage does not hear of.
fn kind(number: u32) -> Option<&'static str> {
    Some(match number {
        op::LOOKUP => "lookup",
        op::GETATTR => "getattr",
        op::SETATTR => "setattr",
        op::MKDIR => "mkdir",
        op::CREATE => "create",
        op::UNLINK => "unlink",
        op::RMDIR => "rmdir",
        op::RENAME | op::RENAME2 => "rename",
        op::OPEN => "open",
        op::OPENDIR => "opendir",
        op::READDIR => "readdir",
        op::READ => "read",
        op::WRITE => "write",
        op::STATFS => "statfs",
        op::FSYNC | op::FSYNCDIR => "fsync",
        _ => return None,
    })
}

/// `fuse_setattr_in`.
fn change(request: &Request<'_>) -> Result<Change, Errno> {
    let valid = request.word(0)?;
    let has = |bit: u32| valid & 1 << bit != 0;
    let word = |bit: u32, at: usize| if has(bit) { request.word(at).map(Some) } else { Ok(None) };
    let time = |bit: u32, now_bit: u32, secs: usize, nanos: usize| match (has(now_bit), has(bit)) {
        (true, _) => Ok(Some(now())),
        (false, true) => Ok(Some(Duration::new(request.long(secs)?, request.word(nanos)?.min(999_999_999)))),
        (false, false) => Ok::<_, Errno>(None),
    };
    Ok(Change {
        mode: word(0, 68)?,
        uid: word(1, 76)?,
        gid: word(2, 80)?,
        size: if has(3) { Some(request.long(16)?) } else { None },
        times: [time(4, 7, 32, 56)?, time(5, 8, 40, 60)?],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as the kernel sends it.
    fn message(number: u32, ino: u64, arguments: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, &[], &[40 + arguments.len() as u32, number]);
        put(&mut bytes, &[7, ino, 0, 0], &[]);
        bytes.extend(arguments);
        bytes
    }

    fn ask(site: &mut Site, number: u32, ino: u64, arguments: &[u8]) -> (i32, Cost) {
        let message = message(number, ino, arguments);
        let (answer, cost) = site.serve(&Request::whole(&message).unwrap()).unwrap();
        (i32::from_ne_bytes(answer[4..8].try_into().unwrap()), cost)
    }

    #[test]
    fn bytes_are_charged_and_what_is_unknown_is_not() {
        let mut site = Site::new((0, 0), false);
        let mut create = Vec::new();
        put(&mut create, &[], &[0, 0o100_600, 0, 0]);
        create.extend(b"f\0");
        assert_eq!(ask(&mut site, op::CREATE, ROOT, &create), (0, Cost::Bytes(0)));
        let ino = site.tree.entries(ROOT, 0).unwrap()[0].0;
        let (mut write, mut read) = (Vec::new(), Vec::new());
        put(&mut write, &[0, 3], &[5, 0]);
        write.resize(40, 0);
        write.extend(b"hello");
        put(&mut read, &[0, 0], &[4096, 0]);
        read.resize(40, 0);
        assert_eq!(ask(&mut site, op::WRITE, ino, &write), (0, Cost::Bytes(5)));
        assert_eq!(site.tree.read(ino, 0, 100), Ok(b"\0\0\0hello".to_vec()));
        assert_eq!(ask(&mut site, op::READ, ino, &read), (0, Cost::Free));
        assert_eq!(ask(&mut site, 43, ino, &[0; 32]), (-Errno::NOSYS.raw_os_error(), Cost::Free));
        assert_eq!(
            ask(&mut site, op::LOOKUP, ROOT, b"none\0"),
            (-Errno::NOENT.raw_os_error(), Cost::Bytes(0))
        );
        assert_eq!(ask(&mut site, op::LOOKUP, ROOT, b".requests\0"), (0, Cost::Free));
        let kinds: Vec<_> =
            site.counts.requests.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(kinds, [("create", 1), ("lookup", 1), ("read", 1), ("write", 1)]);
        assert_eq!((site.counts.written, site.counts.total()), (5, 4));
        let mut paying = Site { pays_for_reads: true, ..site };
        assert_eq!(ask(&mut paying, op::READ, ino, &read), (0, Cost::Bytes(4096)));
    }

    #[test]
    fn counts_are_those_since_an_earlier_look() {
        let counts = |write, open| Counts {
            requests: [("write".to_owned(), write), ("open".to_owned(), open)].into(),
            written: write * 10,
            read: 0,
        };
        let since = counts(5, 2).since(&counts(2, 2));
        assert_eq!((since.total(), since.written), (3, 30));
        assert_eq!(since.requests.keys().collect::<Vec<_>>(), ["write"]);
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let mut site = Site::new((0, 0), false);
        for number in 0..60 {
            for arguments in [&[][..], &[0; 7], &[255; 40], &[0; 200]] {
                let message = message(number, ROOT, arguments);
                let request = Request::whole(&message).unwrap();
                assert_eq!(site.serve(&request).is_some(), request.expects_reply(), "{number}");
            }
        }
        assert!(Request::whole(&[0; 10]).is_none());
    }
}
