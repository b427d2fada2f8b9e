//! What may be done to the file.

use super::Plan;
use crate::random::Random;

/// One operation; `mount` says through which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads a part.
    Read { mount: usize, at: u64, len: usize },
    /// Writes a part.
    Write { mount: usize, at: u64, len: usize, seed: u64 },
    /// Writes at the end.
    Append { mount: usize, len: usize, seed: u64 },
    /// Makes it shorter or longer.
    Truncate { mount: usize, size: u64 },
    /// Opens it with `O_TRUNC`.
    Empty { mount: usize },
    /// Reads a part through a mapping.
    MapRead { mount: usize, at: u64, len: usize },
    /// Writes a part through a shared mapping and waits for it.
    MapWrite { mount: usize, at: u64, len: usize, seed: u64 },
    /// Has the kernel copy a part to another place, which do not overlap.
    Copy { mount: usize, from: u64, to: u64, len: usize },
    /// Reserves space, and with it extends the file.
    Allocate { mount: usize, at: u64, len: u64 },
    /// Reserves space behind the end, without extending it.
    Reserve { mount: usize, at: u64, len: u64 },
    /// Makes a hole.
    Punch { mount: usize, at: u64, len: u64 },
    /// Makes zeros.
    Zero { mount: usize, at: u64, len: u64 },
    /// Closes and opens the file.
    Reopen { mount: usize },
    /// Waits until the content is stored.
    Sync { mount: usize },
    /// Gives the file another name.
    Rename { mount: usize },
}

/// Places and lengths that matter: pages, stripes, and one byte off.
const UNITS: [u64; 4] = [512, 4096, 16_384, 65_536];

impl Operation {
    /// A random one that keeps within the plan; `size` is that of the file.
    pub fn random(random: &mut Random, plan: &Plan, size: u64) -> Operation {
        let mount = random.below(plan.dirs.len() as u64) as usize;
        let at = place(random, plan.size_max - 1);
        let len = 1 + place(random, (plan.size_max - at - 1).min(100_000)) as usize;
        let seed = random.next() >> 32;
        let inside = random.below(size.max(1));
        let part = 1 + random.below((size - inside.min(size)).clamp(1, 100_000)) as usize;
        match random.below(100) {
            0..12 => Operation::Read { mount, at, len },
            12..34 => Operation::Write { mount, at, len, seed },
            34..42 => {
                let len = len.min((plan.size_max - size.min(plan.size_max)) as usize);
                Operation::Append { mount, len, seed }
            }
            42..54 => Operation::Truncate { mount, size: at },
            54..56 => Operation::Empty { mount },
            56..62 => Operation::MapRead { mount, at: inside, len: part },
            62..70 => Operation::MapWrite { mount, at: inside, len: part, seed },
            70..76 => copy(mount, inside, part, at),
            76..79 => Operation::Allocate { mount, at, len: len as u64 },
            79..81 => Operation::Reserve { mount, at, len: len as u64 },
            81..85 => Operation::Punch { mount, at, len: len as u64 },
            85..89 => Operation::Zero { mount, at, len: len as u64 },
            89..95 => Operation::Reopen { mount },
            95..97 => Operation::Sync { mount },
            _ => Operation::Rename { mount },
        }
    }
}

/// A copy of what is there to a place that it does not overlap, or a read if there is none.
fn copy(mount: usize, from: u64, len: usize, to: u64) -> Operation {
    let apart = to + len as u64 <= from || from + len as u64 <= to;
    if apart { Operation::Copy { mount, from, to, len } } else { Operation::Read { mount, at: from, len } }
}

/// A number up to `max`, often at or beside a multiple of a unit.
fn place(random: &mut Random, max: u64) -> u64 {
    let any = random.below(max + 1);
    let unit = UNITS[random.below(UNITS.len() as u64) as usize];
    let near = match random.below(6) {
        0 => any / unit * unit,
        1 => any / unit * unit + 1,
        2 => (any / unit * unit).saturating_sub(1),
        _ => any,
    };
    near.min(max)
}
