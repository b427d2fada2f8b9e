//! Changes that are made only for who waits for them.

use std::fmt;

use crate::{StoreError, StoreResult};

/// Whether somebody waits for a change: asked when nobody else can change the subfile any more. One that nobody waits for
/// may have been made again since, and what followed on it too, so it comes too late.
#[derive(Clone, Copy)]
pub struct Awaited<'a>(Option<&'a dyn Fn() -> bool>);

impl<'a> Awaited<'a> {
    /// Who asked for it does not go away.
    pub const ALWAYS: Awaited<'static> = Awaited(None);

    /// Somebody waits as long as this says so.
    pub fn by(is_awaited: &'a dyn Fn() -> bool) -> Awaited<'a> {
        Awaited(Some(is_awaited))
    }

    /// # Errors
    /// `NotAwaited`.
    pub(super) fn check(&self) -> StoreResult<()> {
        if self.0.is_none_or(|is_awaited| is_awaited()) { Ok(()) } else { Err(StoreError::NotAwaited) }
    }
}

impl fmt::Debug for Awaited<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Awaited" } else { "Awaited(always)" })
    }
}
