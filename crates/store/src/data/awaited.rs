//! Changes that are made only for who waits for them.

use std::fmt;

use crate::{StoreError, StoreResult};

/// A condition of a change, checked when nobody else can change the subfile any more. One that nobody waits for
/// may have been made again since, and what followed on it too, so it comes too late.
#[derive(Clone, Copy)]
pub struct ChangeCondition<'a>(Option<&'a dyn Fn() -> bool>);

impl<'a> ChangeCondition<'a> {
    /// The condition of a change that is made in any case.
    pub const ALWAYS: ChangeCondition<'static> = ChangeCondition(None);

    /// Creates a condition that holds while `is_awaited` returns true.
    pub fn by(is_awaited: &'a dyn Fn() -> bool) -> ChangeCondition<'a> {
        ChangeCondition(Some(is_awaited))
    }

    /// # Errors
    /// `NotAwaited`.
    pub(super) fn check(&self) -> StoreResult<()> {
        if self.0.is_none_or(|is_awaited| is_awaited()) { Ok(()) } else { Err(StoreError::NotAwaited) }
    }
}

impl fmt::Debug for ChangeCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ChangeCondition" } else { "ChangeCondition(always)" })
    }
}
