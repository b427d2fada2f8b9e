//! Free space at the target: checked before and during writes of data whose size is the sender's claim.

use std::os::fd::AsFd;

use bivouac_types::units::format_size;
use rustix::fs::{StatVfs, fstatvfs};

use crate::error::{Cause, PublishError, PublishResult};

/// The part of a file system that a body without a length leaves free, as one in so many …
const LEFT_FREE_PART: u64 = 100;
/// … but at most so many bytes.
const LEFT_FREE_MAX: u64 = 64 << 20;

/// Refuses what certainly does not fit.
///
/// # Errors
/// [`Cause::Other`] with the needed and the free bytes. A file system that says nothing of that takes everything.
pub(crate) fn check_fits(at: impl AsFd, needed: u64, name: &dyn std::fmt::Display) -> PublishResult<()> {
    // With the blocks that are kept for root, who may be the user: only what fits in no case is refused.
    let Some(free) = space(&at).map(|space| space.f_bfree.saturating_mul(space.f_frsize)) else {
        return Ok(());
    };
    if needed <= free {
        return Ok(());
    }
    let (needed, free) = (format_size(needed), format_size(free));
    let text = format!(
        "{name}: does not fit: {needed} are missing, {free} are free; free space, or choose another DST"
    );
    Err(PublishError::new(Cause::Other, text))
}

/// Returns whether too little space is free to continue a file of unknown length.
pub(crate) fn is_short(at: impl AsFd) -> bool {
    space(&at).is_some_and(|space| {
        let [all, free] =
            [space.f_blocks, space.f_bavail].map(|blocks| blocks.saturating_mul(space.f_frsize));
        free < (all / LEFT_FREE_PART).min(LEFT_FREE_MAX)
    })
}

fn space(at: &impl AsFd) -> Option<StatVfs> {
    fstatvfs(at).ok().filter(|space| space.f_blocks > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_certainly_does_not_fit_is_refused() {
        let file = tempfile::tempfile().unwrap();
        check_fits(&file, 1, &"x").unwrap();
        let refusal = check_fits(&file, u64::MAX, &"x").unwrap_err().to_string();
        assert!(refusal.starts_with("x: does not fit: ") && refusal.contains("free space"), "{refusal}");
    }
}
