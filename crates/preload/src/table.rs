//! Which description a descriptor is: a table that is read without locks, and changed by whoever opens and closes.
#![allow(unsafe_code, reason = "a trait says what has to hold of memory")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::file::{DescriptionId, HeldDescription};
use crate::pool::{Pool, Zeroed};

/// Descriptors that are known, in pieces of 1024; the kernel's default limit is the same.
const CHUNKS: usize = 1024;

static TABLE: Pool<Entry, CHUNKS> = Pool::new();

/// A descriptor's description, which it holds; 0 if it is none that concerns us.
struct Entry(AtomicU64);

// SAFETY: a number that means nothing.
unsafe impl Zeroed for Entry {}

/// Returns the description that a descriptor means.
#[inline]
pub fn name(fd: c_int) -> Option<DescriptionId> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?;
    DescriptionId::from_number(entry.0.load(Ordering::Acquire))
}

/// Returns a hold on it.
pub fn hold(fd: c_int) -> Option<HeldDescription> {
    name(fd)?.hold()
}

/// Makes the descriptor mean this description, or none, from now on.
pub fn set(fd: c_int, held: Option<HeldDescription>) {
    let Ok(index) = usize::try_from(fd) else { return };
    let entry = if held.is_some() { TABLE.get_or_make(index) } else { TABLE.get(index) };
    let Some(entry) = entry else { return };
    let number = held.and_then(HeldDescription::give).map_or(0, DescriptionId::number);
    if entry.0.load(Ordering::Relaxed) == 0 {
        // The kernel has given the number to this thread alone.
        return entry.0.store(number, Ordering::Release);
    }
    drop(taken(entry.0.swap(number, Ordering::AcqRel)));
}

/// Makes the descriptor mean nothing any more. Returns the hold that it had.
pub fn remove(fd: c_int) -> Option<HeldDescription> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?;
    if entry.0.load(Ordering::Relaxed) == 0 {
        return None;
    }
    taken(entry.0.swap(0, Ordering::AcqRel))
}

/// Like [`remove`], unless it means another description by now.
pub fn forget(fd: c_int, name: DescriptionId) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|index| TABLE.get(index))
        && entry.0.compare_exchange(name.number(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        drop(name.take());
    }
}

fn taken(number: u64) -> Option<HeldDescription> {
    DescriptionId::from_number(number).and_then(DescriptionId::take)
}

/// Returns all descriptors from `first` to `last` that mean something.
pub fn within(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let wanted = move |index: &usize| (first as usize..=last as usize).contains(index);
    TABLE
        .indices()
        .filter(wanted)
        .filter_map(|index| c_int::try_from(index).ok())
        .filter(|fd| name(*fd).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_hold_their_description() {
        assert!(name(-1).is_none() && name(5000).is_none() && name(c_int::MAX).is_none());
        set(5000, HeldDescription::new(1));
        let meant = name(5000).unwrap();
        set(5001, hold(5000));
        assert_eq!(name(5001), Some(meant));
        assert_eq!(within(4999, 6000).collect::<Vec<_>>(), [5000, 5001]);
        drop(remove(5000));
        assert!(name(5000).is_none() && meant.hold().is_some());
        forget(5001, DescriptionId::from_number(77).unwrap());
        assert_eq!(name(5001), Some(meant));
        forget(5001, meant);
        assert!(name(5001).is_none() && meant.hold().is_none());
    }

    #[test]
    fn what_is_set_anew_lets_the_old_go() {
        set(7000, HeldDescription::new(1));
        let first = name(7000).unwrap();
        set(7000, HeldDescription::new(2));
        assert!(first.hold().is_none() && hold(7000).is_some_and(|held| held.flags() == 2));
        set(7000, None);
        assert!(name(7000).is_none() && remove(7000).is_none());
    }

    #[test]
    fn threads_that_use_and_close_do_not_meet() {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20_000).for_each(|turn| set(9000, HeldDescription::new(turn))));
            scope.spawn(|| {
                (0..20_000).filter_map(|_| hold(9000)).for_each(|held| assert!(held.flags() >= 0));
            });
            scope.spawn(|| (0..20_000).for_each(|_| drop(remove(9000))));
        });
        drop(remove(9000));
        assert!(name(9000).is_none());
    }
}
