//! For whom a thread acts: changes come in transactions that know what they change but not who wants that.

use std::cell::Cell;

use bivouac_types::ClientId;

use crate::identity::SYSTEM;

thread_local! {
    static ACTS_FOR: Cell<Option<ClientId>> = const { Cell::new(None) };
}

/// For whom the thread acts, if for anybody.
pub(super) fn acts_for() -> Option<ClientId> {
    ACTS_FOR.get()
}

/// While this lives, what the thread changes is somebody's change, which others must not miss.
pub struct Principal {
    before: Option<ClientId>,
}

impl Principal {
    /// The thread acts for a client; for [`SYSTEM`] if everybody is an other.
    pub fn on_behalf_of(client: ClientId) -> Principal {
        Principal { before: ACTS_FOR.replace(Some(client)) }
    }

    /// For whom the thread acts; [`SYSTEM`] if for nobody in particular.
    pub fn for_whom() -> ClientId {
        acts_for().unwrap_or(SYSTEM)
    }
}

impl Drop for Principal {
    fn drop(&mut self) {
        ACTS_FOR.set(self.before);
    }
}
