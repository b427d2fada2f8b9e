//! What happens in a run: who is there, what each client does, and what goes wrong when. Drawn from a seed, written and read
//! as text, made shorter line by line.

use std::fmt::{self, Display, Write as _};

use bivouac_sim_kernel::Chance;

/// Names that clients use; those of `d/` are in a directory.
pub const NAMES: [&str; 6] = ["a", "b", "c", "d/a", "d/b", "d/c"];
/// Stripes of the file that is written over and over.
pub const STRIPES: u8 = 3;
/// Blocks of a stripe, each of which has one mark.
pub const BLOCKS: u8 = 4;
/// Attributes that are set and removed.
pub const KEYS: u8 = 2;
/// Regions of files under the strict contract, each of which is read and written as a whole: two beside each other in one
/// file, and one of a file whose contract is changed.
pub const REGIONS: u8 = 3;
/// The one of the file whose contract is changed.
pub const CHANGING: u8 = 2;

/// One thing that a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Makes a file that must not be there.
    Make(u8),
    /// Makes a directory.
    Mkdir(u8),
    /// Removes a file.
    Unlink(u8),
    /// Removes a directory.
    Rmdir(u8),
    /// Renames.
    Rename(u8, u8),
    /// Looks a name up and gives what it finds another one.
    Link(u8, u8),
    /// Looks a name up.
    Stat(u8),
    /// Writes blocks of a stripe.
    Write(u8, u8, u8),
    /// Reads a stripe.
    Read(u8),
    /// Appends a record.
    Append,
    /// Reads all records.
    Records,
    /// Sets an attribute.
    Set(u8),
    /// Removes an attribute.
    Unset(u8),
    /// Asks for an attribute.
    Get(u8),
    /// Does nothing for some milliseconds.
    Rest(u16),
    /// Writes a region of a strict file.
    Fill(u8),
    /// Reads one.
    Look(u8),
    /// Has a file be strict, or coherent.
    Contract(bool),
}

impl Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |n: &u8| NAMES[usize::from(*n)];
        match self {
            Deed::Make(n) => write!(f, "make {}", name(n)),
            Deed::Mkdir(n) => write!(f, "mkdir {}", name(n)),
            Deed::Unlink(n) => write!(f, "unlink {}", name(n)),
            Deed::Rmdir(n) => write!(f, "rmdir {}", name(n)),
            Deed::Rename(n, m) => write!(f, "rename {} {}", name(n), name(m)),
            Deed::Link(n, m) => write!(f, "link {} {}", name(n), name(m)),
            Deed::Stat(n) => write!(f, "stat {}", name(n)),
            Deed::Write(s, b, l) => write!(f, "write {s} {b} {l}"),
            Deed::Read(s) => write!(f, "read {s}"),
            Deed::Append => write!(f, "append"),
            Deed::Records => write!(f, "records"),
            Deed::Set(k) => write!(f, "set {k}"),
            Deed::Unset(k) => write!(f, "unset {k}"),
            Deed::Get(k) => write!(f, "get {k}"),
            Deed::Rest(ms) => write!(f, "rest {ms}"),
            Deed::Fill(r) => write!(f, "fill {r}"),
            Deed::Look(r) => write!(f, "look {r}"),
            Deed::Contract(strict) => write!(f, "contract {}", if *strict { "strict" } else { "coherent" }),
        }
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// A node's daemon is killed, and started again after so many milliseconds.
    KillNode(u8, u16),
    /// A client is killed; what it had still to do another does in its place.
    KillClient(u8),
    /// Nothing goes from one host to another for so many milliseconds; hosts of nodes first, then those of clients.
    Cut(u8, u8, u16),
    /// Connections of one host to another end for the first alone, which connects again; the other one notices that after so
    /// many milliseconds, and until then may receive what was sent before.
    HalfOpen(u8, u8, u16),
    /// One in so many writes of a node fails for so many milliseconds.
    WriteFails(u8, u16, u16),
    /// One in so many writes of a node finds no space.
    Full(u8, u16, u16),
    /// One in so many syncs of a node fails.
    SyncFails(u8, u16, u16),
    /// One in so many calls of a node takes long.
    Slow(u8, u16, u16),
    /// A host is lost for good with all that is on it; its nodes move so many milliseconds later. Only where volumes are
    /// mirrored, and while their replicas have everything.
    LoseHost(u8, u16),
    /// The same of a host that lives on, and that no host of a node reaches any more: clients do.
    CutOffHost(u8, u16),
}

/// When it does: so many steps after so many deeds have begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Deeds that have begun.
    pub deeds: u16,
    /// Steps after that.
    pub steps: u32,
    /// What.
    pub mishap: Mishap,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.deeds, self.steps)?;
        match self.mishap {
            Mishap::KillNode(n, ms) => write!(f, "kill-node {n} {ms}"),
            Mishap::KillClient(c) => write!(f, "kill-client {c}"),
            Mishap::Cut(a, b, ms) => write!(f, "cut {a} {b} {ms}"),
            Mishap::HalfOpen(a, b, ms) => write!(f, "half-open {a} {b} {ms}"),
            Mishap::WriteFails(n, one_in, ms) => write!(f, "write-fails {n} {one_in} {ms}"),
            Mishap::Full(n, one_in, ms) => write!(f, "full {n} {one_in} {ms}"),
            Mishap::SyncFails(n, one_in, ms) => write!(f, "sync-fails {n} {one_in} {ms}"),
            Mishap::Slow(n, one_in, ms) => write!(f, "slow {n} {one_in} {ms}"),
            Mishap::LoseHost(h, ms) => write!(f, "lose-host {h} {ms}"),
            Mishap::CutOffHost(h, ms) => write!(f, "cut-off-host {h} {ms}"),
        }
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Of the schedule.
    pub seed: u64,
    /// Nodes.
    pub nodes: u8,
    /// Clients, each a process of its own.
    pub clients: u8,
    /// One in so many steps another thread goes on.
    pub switch: u64,
    /// Shortest and longest way between hosts, in microseconds.
    pub latency: (u64, u64),
    /// Entries at which directories spread.
    pub spread: u64,
    /// After how many milliseconds nodes take each other for dead; 0 is never.
    pub dead_after: u64,
    /// Whether clients take leases, as mounts do.
    pub leases: bool,
    /// Whether there are files under the strict contract.
    pub strict: bool,
    /// Whether the volumes of each node are mirrored to the next one.
    pub mirrored: bool,
    /// So many of the clients, the first, are mounts: part of a node's daemon.
    pub mounts: u8,
    /// Who does what: the actor (its client is the remainder by their number), and the deed.
    pub deeds: Vec<(u8, Deed)>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

impl Scenario {
    /// What follows from a seed.
    #[must_use]
    pub fn drawn(seed: u64, steps: u64) -> Scenario {
        let mut chance = Chance::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xb1f0);
        let nodes = *chance.pick(&[1, 2, 2, 3, 3]);
        let clients = *chance.pick(&[1, 2, 2, 3]);
        let actors = clients * *chance.pick(&[1, 1, 2]);
        let latency = *chance.pick(&[(20, 60), (50, 500), (200, 3000), (1000, 20_000)]);
        let count = steps / 2 + chance.below(steps.max(1));
        // What a run is about: names, content, or both.
        let about = chance.below(4);
        let deeds = (0..count).map(|_| (chance.below(actors) as u8, deed(&mut chance, about))).collect();
        let wild = *chance.pick(&[0, 1, 2, 2, 3, 5]);
        let mut faults: Vec<Fault> = (0..wild).map(|_| fault(&mut chance, count, nodes, clients)).collect();
        // Drawn apart: all else of a run is as without them.
        let mut apart = Chance::new(seed.wrapping_mul(0x9e6c_63d0_876a_3f6b) ^ 0x4a1f);
        let half_open = if apart.one_in(3) { *apart.pick(&[1, 1, 2, 4]) } else { 0 };
        faults.extend((0..half_open).map(|_| half_open_fault(&mut apart, count, nodes, clients)));
        let scenario = Scenario {
            seed,
            nodes: nodes as u8,
            clients: clients as u8,
            switch: *chance.pick(&[2, 4, 16, 64]),
            latency,
            spread: *chance.pick(&[2, 1024, 1024]),
            dead_after: *chance.pick(&[0, 0, 2000]),
            leases: chance.below(3) > 0,
            strict: false,
            mirrored: false,
            mounts: 0,
            deeds,
            faults,
        };
        // Likewise.
        let mut apart = Chance::new(seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ 0x57a1);
        let scenario = if apart.one_in(3) { scenario.with_strict(&mut apart) } else { scenario };
        let mut apart = Chance::new(seed.wrapping_mul(0xa076_1d64_78bd_642f) ^ 0x3c11);
        let may_be_mirrored = scenario.nodes > 1 && !scenario.strict;
        if may_be_mirrored && apart.one_in(2) { scenario.with_mirrors(&mut apart) } else { scenario }
    }

    /// The same with mirrored volumes, of which hosts are lost.
    fn with_mirrors(mut self, chance: &mut Chance) -> Scenario {
        let deeds = self.deeds.len() as u64;
        for _ in 0..*chance.pick(&[0, 1, 1, 2]) {
            let host = chance.below(u64::from(self.nodes)) as u8;
            let span = *chance.pick(&[5, 500, 8000]);
            let time = chance.within(1, span) as u16;
            let mishap =
                if chance.one_in(2) { Mishap::LoseHost(host, time) } else { Mishap::CutOffHost(host, time) };
            let reach = *chance.pick(&[30, 300, 3000]);
            let steps = chance.below(reach) as u32;
            self.faults.push(Fault { deeds: chance.below(deeds.max(1)) as u16, steps, mishap });
        }
        Scenario { mirrored: true, ..self }
    }

    /// The same with strict files, at least two clients, and mounts among them.
    fn with_strict(self, chance: &mut Chance) -> Scenario {
        let clients = u64::from(self.clients).max(*chance.pick(&[2, 2, 3]));
        let mounts = chance.below(clients + 1);
        let actors = clients * *chance.pick(&[1, 1, 2]);
        let (first, last) = *chance.pick(&[(0, 2), (0, 2), (0, 0), (0, 1), (2, 2)]);
        let others = *chance.pick(&[0, 2, 4]);
        let one = |(_, deed): (u8, Deed)| {
            let actor = chance.below(actors) as u8;
            if matches!(deed, Deed::Rest(_)) || others > 0 && chance.one_in(others) {
                return (actor, deed);
            }
            let region = chance.within(first, last) as u8;
            let is_change = region == CHANGING && chance.one_in(4);
            let deed = match chance.below(2) {
                half if is_change => Deed::Contract(half == 0),
                0 => Deed::Fill(region),
                _ => Deed::Look(region),
            };
            (actor, deed)
        };
        let deeds = self.deeds.into_iter().map(one).collect();
        Scenario { clients: clients as u8, strict: true, mounts: mounts as u8, deeds, ..self }
    }

    /// Reads what [`Display`] wrote.
    ///
    /// # Errors
    /// The line that makes no sense.
    pub fn parse(text: &str) -> Result<Scenario, String> {
        let mut scenario = Scenario::drawn(0, 0);
        (scenario.deeds, scenario.faults) = (Vec::new(), Vec::new());
        (scenario.strict, scenario.mirrored, scenario.mounts) = (false, false, 0);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            scenario.take(line).ok_or_else(|| format!("this line makes no sense: {line}"))?;
        }
        Ok(scenario)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        match *words.first()? {
            "seed" => self.seed = number(1)?,
            "nodes" => self.nodes = number(1)? as u8,
            "clients" => self.clients = number(1)? as u8,
            "switch" => self.switch = number(1)?,
            "latency" => self.latency = (number(1)?, number(2)?),
            "spread" => self.spread = number(1)?,
            "dead-after" => self.dead_after = number(1)?,
            "leases" => self.leases = number(1)? != 0,
            "strict" => self.strict = number(1)? != 0,
            "mirrored" => self.mirrored = number(1)? != 0,
            "mounts" => self.mounts = number(1)? as u8,
            "do" => self.deeds.push((number(1)? as u8, parse_deed(words.get(2..)?)?)),
            "fault" => {
                let mishap = parse_mishap(words.get(3..)?)?;
                self.faults.push(Fault { deeds: number(1)? as u16, steps: number(2)? as u32, mishap });
            }
            _ => return None,
        }
        Some(())
    }
}

impl Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = self.latency;
        writeln!(f, "seed {}\nnodes {}\nclients {}", self.seed, self.nodes, self.clients)?;
        writeln!(f, "switch {}\nlatency {least} {most}\nspread {}", self.switch, self.spread)?;
        writeln!(f, "dead-after {}\nleases {}", self.dead_after, u8::from(self.leases))?;
        let mut text = String::new();
        if self.strict {
            let _ = writeln!(text, "strict 1\nmounts {}", self.mounts);
        }
        if self.mirrored {
            let _ = writeln!(text, "mirrored 1");
        }
        for (actor, deed) in &self.deeds {
            let _ = writeln!(text, "do {actor} {deed}");
        }
        for fault in &self.faults {
            let _ = writeln!(text, "fault {fault}");
        }
        f.write_str(&text)
    }
}

fn deed(chance: &mut Chance, about: u64) -> Deed {
    let name = |chance: &mut Chance| chance.below(NAMES.len() as u64) as u8;
    let is_name = match about {
        0 => true,
        1 => false,
        _ => chance.one_in(2),
    };
    if chance.one_in(12) {
        return Deed::Rest(chance.within(1, 400) as u16);
    }
    if is_name {
        return match chance.below(16) {
            0..=3 => Deed::Make(name(chance)),
            4 => Deed::Mkdir(name(chance)),
            5..=6 => Deed::Unlink(name(chance)),
            7 => Deed::Rmdir(name(chance)),
            8..=9 => Deed::Rename(name(chance), name(chance)),
            10 => Deed::Link(name(chance), name(chance)),
            _ => Deed::Stat(name(chance)),
        };
    }
    let stripe = chance.below(u64::from(STRIPES)) as u8;
    match chance.below(16) {
        0..=5 => {
            let at = chance.below(u64::from(BLOCKS)) as u8;
            Deed::Write(stripe, at, chance.within(1, u64::from(BLOCKS - at)) as u8)
        }
        6..=8 => Deed::Read(stripe),
        9..=11 => Deed::Append,
        12 => Deed::Records,
        13 => Deed::Set(chance.below(u64::from(KEYS)) as u8),
        14 => Deed::Unset(chance.below(u64::from(KEYS)) as u8),
        _ => Deed::Get(chance.below(u64::from(KEYS)) as u8),
    }
}

fn fault(chance: &mut Chance, deeds: u64, nodes: u64, clients: u64) -> Fault {
    let node = chance.below(nodes) as u8;
    let span = *chance.pick(&[5, 50, 500, 5000]);
    let time = chance.within(1, span) as u16;
    let often = *chance.pick(&[1, 3, 10]);
    let mishap = match chance.below(12) {
        0..=3 => Mishap::KillNode(node, time),
        4..=5 => Mishap::KillClient(chance.below(clients) as u8),
        6..=8 => {
            let hosts = nodes + clients;
            let from = chance.below(hosts);
            let to = (from + 1 + chance.below(hosts - 1)) % hosts;
            let longest = *chance.pick(&[100, 3000, 30_000]);
            Mishap::Cut(from as u8, to as u8, chance.within(1, longest) as u16)
        }
        9 => Mishap::WriteFails(node, often, time),
        10 => Mishap::Full(node, often, time),
        _ if chance.one_in(2) => Mishap::SyncFails(node, often, time),
        _ => Mishap::Slow(node, often, time),
    };
    let reach = *chance.pick(&[30, 300, 3000]);
    Fault { deeds: chance.below(deeds.max(1)) as u16, steps: chance.below(reach) as u32, mishap }
}

/// Clients, or nodes among each other, lose their connections to a node.
fn half_open_fault(chance: &mut Chance, deeds: u64, nodes: u64, clients: u64) -> Fault {
    let to = chance.below(nodes);
    let other_nodes = nodes - 1;
    let from = chance.below(other_nodes + clients);
    let from = if from < other_nodes { (to + 1 + from) % nodes } else { nodes + from - other_nodes };
    let longest = *chance.pick(&[100, 3000, 60_000]);
    let mishap = Mishap::HalfOpen(from as u8, to as u8, chance.within(1, longest) as u16);
    let reach = *chance.pick(&[30, 300, 3000]);
    Fault { deeds: chance.below(deeds.max(1)) as u16, steps: chance.below(reach) as u32, mishap }
}

fn parse_deed(words: &[&str]) -> Option<Deed> {
    let name = |at: usize| Some(NAMES.iter().position(|name| words.get(at) == Some(name))? as u8);
    let number = |at: usize| words.get(at)?.parse::<u16>().ok();
    let small = |at: usize| words.get(at)?.parse::<u8>().ok();
    Some(match *words.first()? {
        "make" => Deed::Make(name(1)?),
        "mkdir" => Deed::Mkdir(name(1)?),
        "unlink" => Deed::Unlink(name(1)?),
        "rmdir" => Deed::Rmdir(name(1)?),
        "rename" => Deed::Rename(name(1)?, name(2)?),
        "link" => Deed::Link(name(1)?, name(2)?),
        "stat" => Deed::Stat(name(1)?),
        "write" => Deed::Write(small(1)?, small(2)?, small(3)?),
        "read" => Deed::Read(small(1)?),
        "append" => Deed::Append,
        "records" => Deed::Records,
        "set" => Deed::Set(small(1)?),
        "unset" => Deed::Unset(small(1)?),
        "get" => Deed::Get(small(1)?),
        "rest" => Deed::Rest(number(1)?),
        "fill" => Deed::Fill(small(1)?),
        "look" => Deed::Look(small(1)?),
        "contract" => Deed::Contract(*words.get(1)? == "strict"),
        _ => return None,
    })
}

fn parse_mishap(words: &[&str]) -> Option<Mishap> {
    let number = |at: usize| words.get(at)?.parse::<u16>().ok();
    let small = |at: usize| words.get(at)?.parse::<u8>().ok();
    Some(match *words.first()? {
        "kill-node" => Mishap::KillNode(small(1)?, number(2)?),
        "kill-client" => Mishap::KillClient(small(1)?),
        "cut" => Mishap::Cut(small(1)?, small(2)?, number(3)?),
        "half-open" => Mishap::HalfOpen(small(1)?, small(2)?, number(3)?),
        "write-fails" => Mishap::WriteFails(small(1)?, number(2)?, number(3)?),
        "full" => Mishap::Full(small(1)?, number(2)?, number(3)?),
        "sync-fails" => Mishap::SyncFails(small(1)?, number(2)?, number(3)?),
        "slow" => Mishap::Slow(small(1)?, number(2)?, number(3)?),
        "lose-host" => Mishap::LoseHost(small(1)?, number(2)?),
        "cut-off-host" => Mishap::CutOffHost(small(1)?, number(2)?),
        _ => return None,
    })
}
