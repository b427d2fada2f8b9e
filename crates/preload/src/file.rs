//! Open file descriptions: what all descriptors have in common that were duplicated from one.
//!
//! They come from a pool and are used again. A reference by id is refused if the description was closed since, and
//! keeps it from being used again while it lives. No locks: a signal handler may do it.
#![allow(unsafe_code, reason = "what they own is reached by pointers")]

use std::num::NonZeroU64;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::direct_file::DirectFile;
use crate::given_up::give_up;
use crate::pool::{Pool, Zeroed};
use crate::process;

/// Most descriptions, in pieces of 1024. What is beyond is the kernel's.
const CHUNKS: usize = 64;

static FILES: Pool<File, CHUNKS> = Pool::new();
/// Index + 1 of the first description that is free, and above it how often that changed.
static FREE: AtomicU64 = AtomicU64::new(0);

/// A description. Zeros are one that is free.
#[derive(Default)]
pub struct File {
    /// Number of times that it was used before, and below it how many have hold of it.
    life: AtomicU64,
    next_free: AtomicU32,
    flags: AtomicU32,
    /// When it was made, counted in events after which other processes may have it too.
    born: AtomicU32,
    state: AtomicU8,
    /// Data calls and bytes so far.
    calls: AtomicU32,
    bytes: AtomicU64,
    /// Its inode number, as far as it was looked at.
    ino: AtomicU64,
    direct: AtomicPtr<DirectFile>,
}

// SAFETY: it has atomic numbers and pointers only.
unsafe impl Zeroed for File {}

/// The route of a file's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CallRoute {
    /// Not decided yet.
    New = 0,
    /// Carried out by this library.
    Direct = 1,
    /// A file of a formation whose calls are left to the mount.
    Mount = 2,
    /// Not a file of a formation: left to the kernel.
    Alien = 3,
    /// A thread is finding out.
    Looking = 4,
}

/// The id of a description: index and generation, so it stays unique when the description is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptionId(NonZeroU64);

/// A reference to a description, which keeps it from being used again.
#[derive(Debug)]
pub struct HeldDescription {
    index: usize,
    file: &'static File,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("life", &self.life).finish_non_exhaustive()
    }
}

impl DescriptionId {
    fn new(index: usize, generation: u32) -> Option<DescriptionId> {
        NonZeroU64::new(u64::from(generation) << 32 | (index as u64 + 1)).map(DescriptionId)
    }

    /// Unpacks an identifier that a table keeps as one number.
    pub fn from_number(number: u64) -> Option<DescriptionId> {
        NonZeroU64::new(number).map(DescriptionId)
    }

    /// See [`DescriptionId::from_number`].
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// Takes a reference; `None` if the description is closed.
    pub fn hold(self) -> Option<HeldDescription> {
        let index = (self.0.get() as u32).checked_sub(1)? as usize;
        let file = FILES.get(index)?;
        let generation = self.0.get() >> 32;
        let more = |life: u64| (life >> 32 == generation && life as u32 > 0).then_some(life + 1);
        file.life.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(HeldDescription { index, file })
    }

    /// Returns a hold that was given away with [`HeldDescription::give`].
    pub fn take(self) -> Option<HeldDescription> {
        let index = (self.0.get() as u32).checked_sub(1)? as usize;
        FILES.get(index).map(|file| HeldDescription { index, file })
    }
}

impl HeldDescription {
    /// Creates a new description, opened with these flags.
    pub fn new(flags: i32) -> Option<HeldDescription> {
        let index = pop_free().or_else(|| FILES.take())?;
        let file = FILES.get(index)?;
        file.flags.store(flags.cast_unsigned(), Ordering::Relaxed);
        file.born.store(process::shares(), Ordering::Relaxed);
        file.calls.store(0, Ordering::Relaxed);
        file.bytes.store(0, Ordering::Relaxed);
        file.ino.store(0, Ordering::Relaxed);
        file.state.store(CallRoute::New as u8, Ordering::Relaxed);
        // Nobody else changes it while it is free.
        file.life.store(file.life.load(Ordering::Relaxed) + 1, Ordering::Release);
        Some(HeldDescription { index, file })
    }

    /// Returns its name.
    pub fn name(&self) -> Option<DescriptionId> {
        DescriptionId::new(self.index, (self.file.life.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// Leaves the hold to whoever takes it by its name.
    pub fn give(self) -> Option<DescriptionId> {
        let name = self.name();
        std::mem::forget(self);
        name
    }
}

impl std::ops::Deref for HeldDescription {
    type Target = File;

    fn deref(&self) -> &File {
        self.file
    }
}

impl Drop for HeldDescription {
    fn drop(&mut self) {
        let less =
            |life: u64| Some(if life as u32 == 1 { (life >> 32).wrapping_add(1) << 32 } else { life - 1 });
        let before = self.file.life.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
        if before.is_ok_and(|life| life as u32 == 1) {
            let direct = self.file.direct.swap(ptr::null_mut(), Ordering::AcqRel);
            push_free(self.index, self.file);
            give_up(direct);
        }
    }
}

fn pop_free() -> Option<usize> {
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        let index = (head as u32).checked_sub(1)? as usize;
        let next = FILES.get(index)?.next_free.load(Ordering::Relaxed);
        let new = ((head >> 32).wrapping_add(1) << 32) | u64::from(next);
        match FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(index),
            Err(other) => head = other,
        }
    }
}

fn push_free(index: usize, file: &File) {
    let mut head = FREE.load(Ordering::Relaxed);
    loop {
        file.next_free.store(head as u32, Ordering::Relaxed);
        let new = ((head >> 32).wrapping_add(1) << 32) | (index as u64 + 1);
        match FREE.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => head = other,
        }
    }
}

/// Returns all descriptions that ever were.
pub fn all() -> impl Iterator<Item = &'static File> {
    FILES.taken().map(|(_, file)| file)
}

/// Holds on all that are in use.
pub fn held() -> impl Iterator<Item = HeldDescription> {
    let name = |(index, file): (usize, &File)| {
        DescriptionId::new(index, (file.life.load(Ordering::Acquire) >> 32) as u32)
    };
    FILES.taken().filter_map(name).filter_map(DescriptionId::hold)
}

/// Resets the table in the child after a fork: descriptions that the parent serves are the parent's.
pub fn renew() {
    for file in all() {
        // The parent's objects are left alone: their locks may be held by threads that do not exist here.
        file.direct.store(ptr::null_mut(), Ordering::Relaxed);
        let was = file.state.load(Ordering::Relaxed);
        if was == CallRoute::Direct as u8 || was == CallRoute::Looking as u8 {
            file.state.store(CallRoute::New as u8, Ordering::Relaxed);
        }
    }
}

impl File {
    /// Returns the flags it was opened with, as far as is known.
    pub fn flags(&self) -> i32 {
        self.flags.load(Ordering::Relaxed).cast_signed()
    }

    pub fn set_flags(&self, flags: i32) {
        self.flags.store(flags.cast_unsigned(), Ordering::Relaxed);
    }

    /// Returns whether another process may have it, and move its position or set its flags.
    pub fn is_shared(&self) -> bool {
        self.born.load(Ordering::Relaxed) != process::shares()
    }

    pub fn state(&self) -> CallRoute {
        match self.state.load(Ordering::Acquire) {
            0 => CallRoute::New,
            1 => CallRoute::Direct,
            2 => CallRoute::Mount,
            3 => CallRoute::Alien,
            _ => CallRoute::Looking,
        }
    }

    /// Counts a call; how many there were before, and how many bytes they moved.
    pub fn count(&self, bytes: usize) -> (u32, u64) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        (calls, self.bytes.fetch_add(bytes as u64, Ordering::Relaxed))
    }

    /// Returns its inode number, if somebody has looked and that is it.
    pub fn ino(&self) -> Option<u64> {
        Some(self.ino.load(Ordering::Relaxed)).filter(|ino| *ino != 0)
    }

    pub fn set_ino(&self, ino: u64) {
        self.ino.store(ino, Ordering::Relaxed);
    }

    /// Takes it upon the caller to look what is to be done; one does.
    pub fn begin_look(&self) -> bool {
        let (new, looking) = (CallRoute::New as u8, CallRoute::Looking as u8);
        self.state.compare_exchange(new, looking, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Sets the outcome of the lookup.
    pub fn end_look(&self, found: Result<Box<DirectFile>, CallRoute>) {
        match found {
            Ok(direct) => {
                self.direct.store(Box::into_raw(direct), Ordering::Release);
                self.state.store(CallRoute::Direct as u8, Ordering::Release);
            }
            Err(state) => self.state.store(state as u8, Ordering::Release),
        }
    }

    /// Returns what its calls are carried out with. A holder of the description may use it, unless the process ceases
    /// to carry out calls itself: see [`ServedCall`](crate::serving::ServedCall).
    pub fn direct(&self) -> Option<&DirectFile> {
        let direct = self.direct.load(Ordering::Acquire);
        // SAFETY: it was a box's, and is given up when nobody holds the description, or nobody is inside any more.
        unsafe { direct.as_ref() }
    }

    /// Leaves its calls to the mount from now on.
    pub fn leave_to_mount(&self) {
        self.state.store(CallRoute::Mount as u8, Ordering::Release);
    }

    /// Takes away what its calls are done with.
    pub fn take_direct(&self) -> *mut DirectFile {
        self.leave_to_mount();
        self.direct.swap(ptr::null_mut(), Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_good_as_long_as_its_description() {
        let held = HeldDescription::new(libc::O_RDWR).unwrap();
        let name = held.name().unwrap();
        let second = name.hold().unwrap();
        assert_eq!(
            (second.flags(), second.state(), second.name()),
            (libc::O_RDWR, CallRoute::New, Some(name))
        );
        drop(held);
        assert!(name.hold().is_some(), "somebody still has it");
        drop(second);
        assert!(name.hold().is_none());
        let others: Vec<HeldDescription> = (0..100).filter_map(|_| HeldDescription::new(0)).collect();
        assert!(others.iter().all(|other| other.name() != Some(name)), "it is used again by another name");
        assert!(name.hold().is_none());
    }

    #[test]
    fn holds_can_be_given_away() {
        let name = HeldDescription::new(0).unwrap().give().unwrap();
        assert!(name.hold().is_some());
        drop(name.take());
        assert!(name.hold().is_none());
    }

    #[test]
    fn one_looks() {
        let held = HeldDescription::new(0).unwrap();
        assert_eq!((held.count(10), held.count(5)), ((0, 0), (1, 10)));
        assert!(held.begin_look() && !held.begin_look());
        held.end_look(Err(CallRoute::Alien));
        assert!(held.state() == CallRoute::Alien && !held.begin_look() && held.direct().is_none());
    }

    #[test]
    fn what_was_shared_is_known() {
        let before = HeldDescription::new(0).unwrap();
        process::share();
        assert!(before.is_shared());
    }
}
