//! Space check before anything is written.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::statvfs;

use crate::error::{Cause, Failure};
use crate::journal::TransferHistory;
use crate::nofollow;
use crate::paths::{below, containing};
use crate::scan::{Entry, ObjectKind, Plan, STAT_BLOCK};

/// Refuses a copy that certainly does not fit. Files that were copied or started before do not count, and replaced ones
/// give their space back.
///
/// # Errors
/// [`Cause::NoRoom`] with the needed and the free bytes.
pub(crate) fn check(plan: &Plan, past: &TransferHistory, dst: &Path) -> Result<(), Failure> {
    // The nearest that exists; what cannot be asked is left to the copy itself.
    let Some(space) = std::iter::successors(Some(dst), |path| containing(path).filter(|up| up != path))
        .find_map(|path| statvfs(path).ok())
    else {
        return Ok(());
    };
    // Also what is reserved for root: only what certainly does not fit is refused here.
    let free = space.f_bfree.saturating_mul(space.f_frsize);
    let is_known =
        |entry: &Entry| past.lines.contains_key(&entry.path) || past.parts.contains_key(&entry.path);
    let wanted = || plan.entries.iter().filter(|entry| entry.kind == ObjectKind::File && !is_known(entry));
    let sum = |bytes: fn(&Entry, &Path) -> u64| {
        wanted().fold(0_u64, |sum, entry| sum.saturating_add(bytes(entry, dst)))
    };
    if sum(|entry, _| entry.space) <= free {
        return Ok(());
    }
    // Looking at what is there takes as long as the copy's own looks, so only now.
    let needed = sum(|entry, dst| {
        let replaced = nofollow::lstat(&below(dst, &entry.path))
            .map_or(0, |meta| meta.blocks().saturating_mul(STAT_BLOCK));
        entry.space.saturating_sub(replaced)
    });
    if needed <= free { Ok(()) } else { Err(Failure::new(dst, Cause::NoRoom { needed, free })) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::CopyOptions;
    use crate::scan::scan;
    use std::fs;

    #[test]
    fn what_cannot_fit_is_refused_and_holes_take_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = (dir.path().join("src"), dir.path().join("none/below/dst"));
        fs::create_dir(&src).unwrap();
        fs::write(src.join("a"), "content").unwrap();
        fs::File::create(src.join("holes")).unwrap().set_len(1 << 43).unwrap();
        let mut plan = scan(src, &CopyOptions::default(), None);
        assert!(check(&plan, &TransferHistory::default(), &dst).is_ok());
        for entry in &mut plan.entries {
            entry.space = 1 << 60;
        }
        let refusal = check(&plan, &TransferHistory::default(), &dst).unwrap_err();
        assert_eq!(refusal.errno(), Some(bivouac_types::Errno::ENOSPC));
        assert!(
            refusal.to_string().contains("does not fit: 2 EiB")
                || refusal.to_string().contains("does not fit: 2048 PiB"),
            "{refusal}"
        );
        let mut past = TransferHistory::default();
        for name in ["a", "holes"] {
            past.parts.insert(name.into(), Vec::new());
        }
        assert!(check(&plan, &past, &dst).is_ok(), "what was begun has its room");
    }
}
