//! What clients saw, and whether one after the other could have seen it.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::ops::Range;

/// One operation from its call to its return, in steps of the schedule.
#[derive(Clone, Debug)]
pub struct Entry<O> {
    /// When it was called.
    pub call: u64,
    /// When it returned; where that is not known, when it was over at the latest.
    pub ret: u64,
    /// Whether it may not have happened at all.
    pub maybe: bool,
    /// What it did and saw.
    pub op: O,
    /// Happens only after this one, and then certainly.
    pub after: Option<usize>,
}

/// What operations mean.
pub trait Model {
    /// What there is.
    type State: Clone + Eq + Hash;
    /// What is done, with its result.
    type Op;

    /// The state after it, if it may have had its result in this state.
    fn apply(&self, state: &Self::State, op: &Self::Op) -> Option<Self::State>;
}

/// What came of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Explained,
    /// There is none; the most operations that an order has.
    Impossible(Vec<usize>),
    /// The search was given up.
    Unknown,
}

const VISITS_MAX: usize = 2_000_000;

/// Looks for an order of all operations in which each has its result, and no operation comes before one that had
/// returned when it was called (Wing and Gong, with states that were seen remembered, as Lowe does).
pub fn explain<M: Model>(model: &M, start: M::State, entries: &[Entry<M::Op>]) -> Verdict {
    let words = entries.len().div_ceil(64);
    let mut seen: HashSet<(Vec<u64>, M::State)> = HashSet::new();
    let mut stack = vec![(vec![0u64; words], start, Vec::new())];
    let mut best: Vec<usize> = Vec::new();
    while let Some((done, state, order)) = stack.pop() {
        let is_done = |at: usize| done[at / 64] >> (at % 64) & 1 == 1;
        let must = |at: usize| !entries[at].maybe || entries[at].after.is_some_and(is_done);
        let open: Vec<usize> = (0..entries.len()).filter(|at| !is_done(*at)).collect();
        if !open.iter().any(|at| must(*at)) {
            return Verdict::Explained;
        }
        if order.len() > best.len() {
            best.clone_from(&order);
        }
        let first_return =
            open.iter().filter(|at| must(**at)).map(|at| entries[*at].ret).min().unwrap_or(u64::MAX);
        for at in open.into_iter().rev() {
            let entry = &entries[at];
            if entry.call > first_return || entry.after.is_some_and(|before| !is_done(before)) {
                continue;
            }
            let Some(next) = model.apply(&state, &entry.op) else { continue };
            let mut now_done = done.clone();
            now_done[at / 64] |= 1 << (at % 64);
            if seen.insert((now_done.clone(), next.clone())) {
                let mut now_order = order.clone();
                now_order.push(at);
                stack.push((now_done, next, now_order));
            }
            if seen.len() > VISITS_MAX {
                return Verdict::Unknown;
            }
        }
    }
    Verdict::Impossible(best)
}

/// A stripe: a mark per block.
pub struct Stripe;

/// What is done to a stripe.
#[derive(Clone, Debug)]
pub enum StripeOp {
    /// Marks are written from a block on.
    Write(usize, Vec<u32>),
    /// All marks.
    Read(Vec<u32>),
}

impl Model for Stripe {
    type State = Vec<u32>;
    type Op = StripeOp;

    fn apply(&self, state: &Vec<u32>, op: &StripeOp) -> Option<Vec<u32>> {
        match op {
            StripeOp::Read(seen) => (seen == state).then(|| state.clone()),
            StripeOp::Write(at, marks) => {
                let mut next = state.clone();
                next[*at..at + marks.len()].copy_from_slice(marks);
                Some(next)
            }
        }
    }
}

/// A region of a strict file: of each block, the marks that it may have, of which nobody has seen which it is.
pub struct Region;

/// What is done to blocks of a region.
#[derive(Clone, Debug)]
pub enum RegionOp {
    /// All of them get a mark.
    Write(Range<usize>, u32),
    /// Some of them get a mark, nobody knows which.
    WriteSome(Range<usize>, u32),
    /// The marks of all of them.
    Read(usize, Vec<u32>),
}

impl Model for Region {
    type State = Vec<Vec<u32>>;
    type Op = RegionOp;

    fn apply(&self, state: &Vec<Vec<u32>>, op: &RegionOp) -> Option<Vec<Vec<u32>>> {
        let mut next = state.clone();
        match op {
            RegionOp::Write(blocks, mark) => next[blocks.clone()].fill(vec![*mark]),
            RegionOp::WriteSome(blocks, mark) => next[blocks.clone()].iter_mut().for_each(|may_have| {
                may_have.push(*mark);
                may_have.sort_unstable();
                may_have.dedup();
            }),
            RegionOp::Read(at, seen) => {
                for (may_have, mark) in next[*at..at + seen.len()].iter_mut().zip(seen) {
                    if !may_have.contains(mark) {
                        return None;
                    }
                    *may_have = vec![*mark];
                }
            }
        }
        Some(next)
    }
}

/// One value that may be missing.
pub struct Register;

/// What is done to it.
#[derive(Clone, Debug)]
pub enum RegisterOp {
    /// It is set.
    Set(u32),
    /// It is removed; whether it was there.
    Unset(Option<bool>),
    /// It is seen.
    Get(Option<u32>),
}

impl Model for Register {
    type State = Option<u32>;
    type Op = RegisterOp;

    fn apply(&self, state: &Option<u32>, op: &RegisterOp) -> Option<Option<u32>> {
        match op {
            RegisterOp::Set(value) => Some(Some(*value)),
            RegisterOp::Unset(Some(was)) => (*was == state.is_some()).then_some(None),
            RegisterOp::Unset(None) => Some(None),
            RegisterOp::Get(seen) => (seen == state).then_some(*state),
        }
    }
}

/// What a name leads to: an inode that somebody saw, or one that an operation may have made, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Its number is known.
    Seen(u64, bool),
    /// Made by this operation, whose answer nobody got.
    Unseen(usize, bool),
}

impl Target {
    fn is_dir(self) -> bool {
        match self {
            Target::Seen(_, is_dir) | Target::Unseen(_, is_dir) => is_dir,
        }
    }
}

/// All names.
pub struct Names;

/// The errors that an operation on names may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It was done.
    Ok,
    /// There is no such name.
    Absent,
    /// There is one already.
    Exists,
    /// It is a directory.
    IsDir,
    /// It is none.
    NotDir,
    /// Not of a directory.
    Refused,
}

/// What is done to names.
#[derive(Clone, Debug)]
pub enum NameOp {
    /// A file or directory is made.
    Make(u8, Target, Said),
    /// A file or a directory is removed.
    Remove(u8, bool, Said),
    /// The new name leads to what the old one does.
    RenameTo(u8, u8, Said),
    /// The old name is gone.
    RenameFrom(u8),
    /// A name for an inode.
    Link(u64, u8, Said),
    /// What a name leads to.
    Look(u8, Option<(u64, bool)>),
}

/// By name; names above this one are in the middle of a rename.
type Space = BTreeMap<u8, Target>;
const MOVING: u8 = 128;

impl Model for Names {
    type State = Space;
    type Op = NameOp;

    fn apply(&self, state: &Space, op: &NameOp) -> Option<Space> {
        let with = |name: u8, target: Target| {
            let mut next = state.clone();
            next.insert(name, target);
            next
        };
        let without = |name: u8| {
            let mut next = state.clone();
            next.remove(&name);
            next
        };
        match *op {
            NameOp::Make(name, target, said) => match (state.contains_key(&name), said) {
                (false, Said::Ok) => Some(with(name, target)),
                (true, Said::Exists) => Some(state.clone()),
                _ => None,
            },
            NameOp::Remove(name, dir, said) => match (state.get(&name), said) {
                (None, Said::Absent) => Some(state.clone()),
                (Some(found), Said::Ok) if found.is_dir() == dir => Some(without(name)),
                (Some(found), Said::IsDir) if found.is_dir() && !dir => Some(state.clone()),
                (Some(found), Said::NotDir) if !found.is_dir() && dir => Some(state.clone()),
                _ => None,
            },
            NameOp::RenameTo(from, to, said) => {
                let (source, target) = (state.get(&from), state.get(&to));
                let fits = match (source, target) {
                    (None, _) => said == Said::Absent,
                    (Some(a), Some(b)) if a.is_dir() && !b.is_dir() => said == Said::NotDir,
                    (Some(a), Some(b)) if !a.is_dir() && b.is_dir() => said == Said::IsDir,
                    _ => said == Said::Ok,
                };
                match (fits, said, source) {
                    // Two names of one inode stay both.
                    (true, Said::Ok, Some(source)) if target != Some(source) => {
                        let mut next = with(to, *source);
                        next.insert(MOVING + from, *source);
                        Some(next)
                    }
                    (true, ..) => Some(state.clone()),
                    _ => None,
                }
            }
            NameOp::RenameFrom(from) => {
                let mut next = without(from);
                let moved = next.remove(&(MOVING + from)).is_some();
                Some(if moved { next } else { state.clone() })
            }
            NameOp::Link(ino, name, said) => {
                let alive =
                    state.values().find(|target| matches!(target, Target::Seen(number, _) if *number == ino));
                match (alive, state.contains_key(&name), said) {
                    (Some(target), false, Said::Ok) => Some(with(name, *target)),
                    (_, true, Said::Exists) => Some(state.clone()),
                    (None, _, Said::Absent) => Some(state.clone()),
                    (Some(target), _, Said::Refused) if target.is_dir() => Some(state.clone()),
                    _ => None,
                }
            }
            NameOp::Look(name, seen) => match (state.get(&name), seen) {
                (None, None) => Some(state.clone()),
                (Some(Target::Seen(ino, dir)), Some(seen)) if (*ino, *dir) == seen => Some(state.clone()),
                (Some(Target::Unseen(by, dir)), Some((ino, is_dir))) if *dir == is_dir => {
                    let known = state
                        .values()
                        .any(|target| matches!(target, Target::Seen(other, _) if *other == ino));
                    let unseen = Target::Unseen(*by, *dir);
                    let learned =
                        |target: &Target| if *target == unseen { Target::Seen(ino, is_dir) } else { *target };
                    (!known).then(|| state.iter().map(|(name, target)| (*name, learned(target))).collect())
                }
                _ => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<O>(call: u64, ret: u64, op: O) -> Entry<O> {
        Entry { call, ret, maybe: false, op, after: None }
    }

    #[test]
    fn what_is_read_must_have_been_written_before() {
        let wrong = [
            entry(1, 2, RegisterOp::Set(1)),
            entry(3, 4, RegisterOp::Set(2)),
            entry(5, 6, RegisterOp::Get(Some(1))),
        ];
        assert!(matches!(explain(&Register, None, &wrong), Verdict::Impossible(_)));
        let meanwhile = [
            entry(1, 2, RegisterOp::Set(1)),
            entry(3, 6, RegisterOp::Set(2)),
            entry(5, 6, RegisterOp::Get(Some(1))),
        ];
        assert_eq!(explain(&Register, None, &meanwhile), Verdict::Explained);
    }

    #[test]
    fn what_nobody_heard_of_may_have_happened_or_not() {
        for seen in [None, Some(1)] {
            let mut entries = vec![entry(1, 9, RegisterOp::Set(1)), entry(3, 4, RegisterOp::Get(seen))];
            entries[0].maybe = true;
            assert_eq!(explain(&Register, None, &entries), Verdict::Explained);
        }
        let mut late = vec![entry(1, 5, RegisterOp::Set(1)), entry(6, 7, RegisterOp::Get(None))];
        late[0].maybe = true;
        late.push(entry(8, 9, RegisterOp::Get(Some(1))));
        assert_eq!(explain(&Register, None, &late), Verdict::Explained, "until it is over nobody knows");
    }

    #[test]
    fn a_region_is_seen_whole_unless_its_writer_was_lost() {
        let judge = |second: Entry<RegionOp>, seen: Vec<u32>| {
            let entries = [
                entry(1, 2, RegionOp::Write(0..2, 1)),
                second,
                entry(5, 6, RegionOp::Read(0, seen.clone())),
                entry(7, 8, RegionOp::Read(0, seen)),
            ];
            explain(&Region, vec![vec![0]; 2], &entries)
        };
        let under_way = entry(3, 9, RegionOp::Write(0..2, 2));
        assert_eq!(judge(under_way.clone(), vec![1, 1]), Verdict::Explained);
        assert_eq!(judge(under_way.clone(), vec![2, 2]), Verdict::Explained);
        assert!(matches!(judge(under_way, vec![2, 1]), Verdict::Impossible(_)));
        let lost = Entry { maybe: true, ..entry(3, u64::MAX, RegionOp::WriteSome(0..2, 2)) };
        assert_eq!(judge(lost.clone(), vec![2, 1]), Verdict::Explained);
        assert!(matches!(judge(lost.clone(), vec![0, 1]), Verdict::Impossible(_)));
        // It is seen at once, or in part, but not more of it later.
        let more = [
            entry(1, 2, RegionOp::Write(0..2, 1)),
            lost,
            entry(5, 6, RegionOp::Read(0, vec![2, 1])),
            entry(7, 8, RegionOp::Read(0, vec![2, 2])),
        ];
        assert!(matches!(explain(&Region, vec![vec![0]; 2], &more), Verdict::Impossible(_)));
    }

    #[test]
    fn only_one_of_several_makes_a_name() {
        let made = |ino| NameOp::Make(0, Target::Seen(ino, false), Said::Ok);
        let twice = [entry(1, 5, made(7)), entry(2, 6, made(8))];
        assert!(matches!(explain(&Names, Space::new(), &twice), Verdict::Impossible(_)));
        let gone = NameOp::Remove(0, false, Said::Ok);
        let between = [entry(1, 5, made(7)), entry(2, 6, made(8)), entry(3, 4, gone)];
        assert_eq!(explain(&Names, Space::new(), &between), Verdict::Explained);
    }

    #[test]
    fn a_rename_shows_both_names_for_a_moment_and_never_neither() {
        let made = NameOp::Make(0, Target::Seen(7, false), Said::Ok);
        let look = |name, seen| NameOp::Look(name, seen);
        let rename = |seen: Vec<NameOp>| {
            let mut entries = vec![entry(1, 2, made.clone()), entry(3, 9, NameOp::RenameTo(0, 1, Said::Ok))];
            entries.push(Entry { after: Some(1), ..entry(3, 9, NameOp::RenameFrom(0)) });
            entries.extend(seen.into_iter().zip(4..).map(|(op, at)| entry(at, at, op)));
            explain(&Names, Space::new(), &entries)
        };
        let there = Some((7, false));
        assert_eq!(rename(vec![look(1, there), look(0, there)]), Verdict::Explained);
        assert!(matches!(rename(vec![look(0, None), look(1, None)]), Verdict::Impossible(_)));
    }
}
