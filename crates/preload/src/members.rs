//! The formations that this process has joined.
#![allow(unsafe_code, reason = "children leave their parent's alone, whoever has it locked")]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use bivouac_client::{FormationPlace, Member};
use bivouac_types::FormationId;
use parking_lot::Mutex;

/// Pause before a formation is joined again after a failure.
const PAUSE: Duration = Duration::from_secs(5);

type FormationTable = Mutex<Vec<(FormationId, JoinOutcome)>>;

enum JoinOutcome {
    Member(Arc<Member>),
    /// Failed; not to be tried before this time.
    Failed(Instant),
}

static MEMBERS: AtomicPtr<FormationTable> = AtomicPtr::new(ptr::null_mut());

fn members() -> &'static FormationTable {
    let mut known = MEMBERS.load(Ordering::Acquire);
    if known.is_null() {
        let new = Box::into_raw(Box::new(FormationTable::default()));
        match MEMBERS.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => known = new,
            Err(other) => {
                // SAFETY: just made, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                known = other;
            }
        }
    }
    // SAFETY: made from a box, and never given back.
    unsafe { &*known }
}

/// Returns this process's membership of a formation; `None` if it cannot join.
pub fn of(formation: &FormationPlace) -> Option<Arc<Member>> {
    let mut members = members().lock();
    match members.iter().find(|(id, _)| *id == formation.id) {
        Some((_, JoinOutcome::Member(member))) => return Some(Arc::clone(member)),
        Some((_, JoinOutcome::Failed(until))) if *until > Instant::now() => return None,
        _ => {}
    }
    let member = Member::join(&formation.directory, Duration::from_millis(formation.wait_ms)).map(Arc::new);
    let joined = match &member {
        Ok(member) => JoinOutcome::Member(Arc::clone(member)),
        Err(_) => JoinOutcome::Failed(Instant::now() + PAUSE),
    };
    members.retain(|(id, _)| *id != formation.id);
    members.push((formation.id, joined));
    member.ok()
}

/// Leaves all of them.
pub fn leave() {
    if !MEMBERS.load(Ordering::Acquire).is_null() {
        let left = std::mem::take(&mut *members().lock());
        drop(left);
    }
}

/// Drops the memberships in the child after a fork: it has joined no formation.
pub fn renew() {
    MEMBERS.store(ptr::null_mut(), Ordering::Release);
}
