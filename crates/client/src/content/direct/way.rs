//! Connection to a node of this machine for grants, with the session that shows that this process is alive.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use bivouac_direct::Session;
use bivouac_layout::TargetRange;
use bivouac_net::{Address, Identity, Line};
use bivouac_types::{Errno, FsError, FsResult, Ino, NodeId};
use bivouac_wire::{GrantRequest, LendSizeRequest, WidenRequest, op};
use parking_lot::Mutex;

use super::size::SizeHandle;
use super::{AccessKind, Handle};

/// Pause before a node that could not be reached is asked again.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest wait for a reply, since messages do the same.
const WAIT_MAX: Duration = Duration::from_secs(10);

pub struct DirectConnection {
    address: Address,
    identity: Identity,
    wait: Duration,
    link: Mutex<Link>,
}

#[derive(Default)]
struct Link {
    open: Option<Open>,
    not_before: Option<Instant>,
}

struct Open {
    line: Line,
    session: Arc<Session>,
}

impl DirectConnection {
    pub fn new(address: Address, identity: Identity, wait: Duration) -> DirectConnection {
        DirectConnection { address, identity, wait: wait.min(WAIT_MAX), link: Mutex::default() }
    }

    /// Asks for a grant of a subfile; `None` if it is refused.
    pub fn ask(
        &self,
        node: NodeId,
        ino: Ino,
        range: &TargetRange,
        wish: AccessKind,
        count: &Arc<AtomicUsize>,
    ) -> Option<Handle> {
        self.with(|open| {
            let session = open.session.index();
            let (target, write, offset, len) =
                (range.target, wish == AccessKind::Write, range.subfile_offset, range.len);
            let request = GrantRequest { session, ino, target, write, offset, len };
            let (grant, file) = open.line.ask::<op::GrantDirect>(&request)?;
            if !grant.granted {
                return Ok(None);
            }
            Ok(Handle::new(node, Arc::clone(&open.session), &grant, file, count))
        })
    }

    /// Asks for a wider window. Returns true if it was granted.
    pub fn widen(&self, handle: &Handle, range: &TargetRange) -> bool {
        let widened = self.with(|open| {
            let (session, (gate, turn)) = (handle.session(), handle.gate());
            let (offset, len) = (range.subfile_offset, range.len);
            let request = WidenRequest { session, gate, turn, offset, len };
            let (window, _) = open.line.ask::<op::WidenDirect>(&request)?;
            Ok(window.widened.then_some(window))
        });
        widened.map(|window| handle.set_window(&window)).is_some()
    }

    /// Asks for the size of a file; `None` if it is refused.
    pub fn lend_size(&self, ino: Ino) -> Option<SizeHandle> {
        self.with(|open| {
            let request = LendSizeRequest { session: open.session.index(), ino };
            let (lease, _) = open.line.ask::<op::LendSize>(&request)?;
            Ok(if lease.lent { SizeHandle::new(&open.session, &lease) } else { None })
        })
    }

    /// Calls `ask` with the connection, which is made if there is none. After an error there is none for [`PAUSE`].
    fn with<T>(&self, ask: impl FnOnce(&mut Open) -> FsResult<Option<T>>) -> Option<T> {
        let mut link = self.link.lock();
        if link.not_before.is_some_and(|moment| moment > Instant::now()) {
            return None;
        }
        // A connection made before a fork is the parent's: its replies would go to either process.
        let open = match link.open.take().filter(|open| open.session.is_own()) {
            Some(open) => Ok(open),
            None => self.open(),
        };
        let asked = open.and_then(|mut open| Ok((ask(&mut open)?, open)));
        match asked {
            Ok((answer, open)) => {
                link.open = Some(open);
                answer
            }
            Err(error) => {
                // The connection goes: a reply that comes late would be taken for that to the next question.
                log::debug!(why:% = error; "{}: no direct access", self.address);
                link.not_before = Some(Instant::now() + PAUSE);
                None
            }
        }
    }

    fn open(&self) -> FsResult<Open> {
        let (line, session) = open_session(&self.address, &self.identity, self.wait)?;
        Ok(Open { line, session: Arc::new(session) })
    }
}

/// Opens a connection to a node of this machine, and a session.
///
/// # Errors
/// What the node or the system says.
pub fn open_session(address: &Address, identity: &Identity, wait: Duration) -> FsResult<(Line, Session)> {
    let mut line = Line::open(address, identity, wait)?;
    let (given, grants) = line.ask::<op::OpenSession>(&())?;
    let grants = grants.ok_or_else(|| FsError::with(Errno::EPROTO, "a session without its grant table"))?;
    let session = Session::take(grants, given.session)
        .map_err(|error| FsError::from_io(&error, &format!("session {}", given.session)))?;
    Ok((line, session))
}
