//! Fencing tokens: the incarnation that the client's node had when a thread began to write under locks. Nodes refuse
//! what carries an older one than they have seen (`locks::fence` decides which token it is).

use std::cell::Cell;

thread_local! {
    static TOKEN: Cell<u32> = const { Cell::new(0) };
}

/// A scope in which the requests that this thread sends carry a token.
pub(crate) struct FencingScope {
    before: u32,
}

impl FencingScope {
    /// Begins a scope with this token; 0 for requests under no lock.
    pub(crate) fn with(token: u32) -> FencingScope {
        FencingScope { before: TOKEN.replace(token) }
    }

    /// Returns the token of the requests of this thread; 0 if it writes under no lock.
    pub(crate) fn token() -> u32 {
        TOKEN.get()
    }
}

impl Drop for FencingScope {
    fn drop(&mut self) {
        TOKEN.set(self.before);
    }
}
