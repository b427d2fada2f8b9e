//! The client that a thread acts for. Transactions know what they change, but not on whose behalf.

use std::cell::Cell;

use bivouac_types::ClientId;

use crate::identity::SYSTEM;

thread_local! {
    static ACTS_FOR: Cell<Option<ClientId>> = const { Cell::new(None) };
}

/// Returns the client that the thread acts for, if any.
pub(super) fn acts_for() -> Option<ClientId> {
    ACTS_FOR.get()
}

/// While this lives, what the thread changes is somebody's change, which others must not miss.
pub struct Principal {
    before: Option<ClientId>,
}

impl Principal {
    /// Makes the thread act for a client, until the result is dropped; for [`SYSTEM`] if everybody is an other.
    pub fn on_behalf_of(client: ClientId) -> Principal {
        Principal { before: ACTS_FOR.replace(Some(client)) }
    }

    /// Returns the client that the thread acts for, [`SYSTEM`] if there is none.
    pub fn for_whom() -> ClientId {
        acts_for().unwrap_or(SYSTEM)
    }
}

impl Drop for Principal {
    fn drop(&mut self) {
        // They nest: within a client's request a change may be made that no client asked for.
        ACTS_FOR.set(self.before);
    }
}
