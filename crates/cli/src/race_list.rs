//! The races of a formation as they are shown.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bivouac_client::{Client, RacePage};
use bivouac_launch::StateDir;
use bivouac_monitor::connect;
use bivouac_types::units::format_count;
use bivouac_types::{Contract, FsResult, Ino, Race, RaceAccess};
use jiff::Timestamp;
use serde::Serialize;

use crate::failure::Failure;

/// Time that the node that detects races may take to answer.
pub const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Races with the paths of their files, and what is to be known of the list.
pub struct RaceList {
    page: RacePage,
    paths: HashMap<Ino, Vec<u8>>,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
pub struct RacesReport {
    since_unix_ms: u64,
    complete: bool,
    /// Reason why it is not.
    left_out: Vec<String>,
    accesses: u64,
    conflicts: u64,
    /// The weakest contract under which all accesses have a defined outcome.
    weakest_contract: &'static str,
    races: Vec<RaceReport>,
}

#[derive(Debug, Serialize)]
struct RaceReport {
    path: Option<String>,
    inode: String,
    from: u64,
    to: Option<u64>,
    pairs: u64,
    /// True if the contract of the file leaves them unordered.
    race: bool,
    ordered_by: ModelsReport,
    weakest_contract: &'static str,
    accesses: [AccessReport; 2],
}

#[derive(Debug, Serialize)]
struct ModelsReport {
    posix: bool,
    commit: bool,
    session: bool,
    mpi_io: bool,
}

#[derive(Debug, Serialize)]
struct AccessReport {
    write: bool,
    from: u64,
    /// `null` where it reaches to the end of the file, as a truncation does.
    to: Option<u64>,
    host: String,
    node: Option<u16>,
    pid: Option<u32>,
    program: String,
    rank: Option<u32>,
    first_unix_ms: u64,
    last_unix_ms: u64,
}

impl RaceList {
    /// Asks the node that detects races of a running formation.
    pub fn of_formation(dir: &StateDir) -> Result<RaceList, Failure> {
        RaceList::ask(connect(dir, &dir.read_living()?, ANSWER_WAIT)?)
    }

    /// Asks the node that detects races, by a client that ends with this.
    ///
    /// # Errors
    /// `EOPNOTSUPP` of a formation that detects none; `EIO`.
    pub fn ask(client: Client) -> Result<RaceList, Failure> {
        let list = RaceList::read(&client);
        client.leave();
        Ok(list?)
    }

    fn read(client: &Client) -> FsResult<RaceList> {
        let page = client.nodes().list_races()?;
        let files: HashSet<Ino> = page.races.iter().map(|race| race.ino).collect();
        // Files may have lost their names since.
        let paths = client.paths_to(&files, usize::MAX).unwrap_or_default();
        Ok(RaceList { page, paths })
    }

    /// Leaves out what is not at or below one of these paths from the root of the formation.
    pub fn keep_below(&mut self, tops: &[PathBuf]) {
        let is_below = |path: &Path| tops.iter().any(|top| path.starts_with(top));
        let path_of =
            |ino: Ino| self.paths.get(&ino).map(|path| Path::new(std::ffi::OsStr::from_bytes(path)));
        let kept: Vec<Race> = std::mem::take(&mut self.page.races)
            .into_iter()
            .filter(|race| path_of(race.ino).is_some_and(is_below))
            .collect();
        self.page.races = kept;
    }

    /// Returns whether accesses are left unordered by the contracts of their files.
    pub fn has_races(&self) -> bool {
        self.page.races.iter().any(Race::is_race)
    }

    /// Returns whether nothing was left out.
    pub fn is_complete(&self) -> bool {
        self.page.counts.is_complete() && !self.page.is_resumed
    }

    /// Returns the weakest contract under which all accesses have a defined outcome.
    fn weakest_contract(&self) -> Contract {
        let strength = |contract: &Contract| match contract {
            Contract::Session | Contract::Laminated => 0,
            Contract::Coherent => 1,
            Contract::Strict => 2,
        };
        self.page.races.iter().map(Race::weakest_contract).max_by_key(strength).unwrap_or(Contract::Session)
    }

    /// Returns what was left out, a sentence each.
    fn left_out(&self) -> Vec<String> {
        let counts = &self.page.counts;
        let mut left = Vec::new();
        if self.page.is_resumed {
            let since = time(self.page.since_ms);
            left.push(format!(
                "the daemon that detects races was started again at {since}: earlier ones are lost"
            ));
        }
        let mut add = |count: u64, things: String, text: &str| {
            if count > 0 {
                left.push(format!("{things} {text}"));
            }
        };
        let times = |count| format_count(count, "time");
        add(
            counts.unlisted,
            format_count(counts.unlisted, "pair"),
            "not listed: there were too many different ones",
        );
        add(
            counts.forgotten,
            format_accesses(counts.forgotten),
            "forgotten for lack of memory, and compared with nothing later",
        );
        add(
            counts.lost_reports,
            format!("reports of clients were lost {},", times(counts.lost_reports)),
            "and all accesses before were forgotten",
        );
        add(
            counts.merged,
            format!("names were merged {}", times(counts.merged)),
            "for lack of memory: they may order more than they did",
        );
        add(
            counts.shared_clients,
            format_count(counts.shared_clients, "client"),
            "counted with others as one: races between them are not found",
        );
        left
    }

    /// Returns it as text; with `all`, including conflicting accesses that the contracts of their files order.
    pub fn to_text(&self, all: bool) -> String {
        let mut text = String::new();
        let shown: Vec<&Race> = self.page.races.iter().filter(|race| all || race.is_race()).collect();
        for race in &shown {
            text.push_str(&self.race_text(race));
        }
        let files = |races: &[&Race]| races.iter().map(|race| race.ino).collect::<HashSet<_>>().len();
        let races: Vec<&Race> = self.page.races.iter().filter(|race| race.is_race()).collect();
        let accesses = self.page.counts.accesses;
        text.push_str(&match races.len() {
            0 => format!("no races among {}\n", format_accesses(accesses)),
            count => format!(
                "{} in {}\n",
                format_count(count as u64, "race"),
                format_count(files(&races) as u64, "file")
            ),
        });
        let ordered = self.page.races.len() - races.len();
        let hint = if ordered > 0 && !all { " (races --all shows why)" } else { "" };
        text.push_str(&format!(
            "the weakest contract under which this is right: {}{hint}\n",
            self.weakest_contract().word()
        ));
        for left in self.left_out() {
            text.push_str(&format!("not complete: {left}\n"));
        }
        text
    }

    fn path_of(&self, ino: Ino) -> Option<String> {
        self.paths.get(&ino).map(|path| format!("/{}", String::from_utf8_lossy(path)))
    }

    fn race_text(&self, race: &Race) -> String {
        let path = self.path_of(race.ino).unwrap_or_else(|| format!("inode {}", race.ino));
        let pairs = if race.count == 1 { String::new() } else { format!(", {} pairs", race.count) };
        let mut sides = [&race.first, &race.second];
        // What is ordered stays in its order, whatever clocks of different hosts say.
        if !race.ordered.posix {
            sides.sort_by_key(|side| side.first_ms);
        }
        let order = if race.ordered.posix { "ordered, but not by a close and an open" } else { "unordered" };
        let mut text = format!(
            "{path}: {}{pairs}: {order}; right under {}\n",
            bytes(race.range.start, race.range.end),
            race.weakest_contract().word()
        );
        for side in sides {
            text.push_str(&format!("  {}\n", side_text(side)));
        }
        text
    }

    /// Returns it as JSON.
    pub fn to_report(&self) -> RacesReport {
        let counts = &self.page.counts;
        RacesReport {
            since_unix_ms: self.page.since_ms,
            complete: self.is_complete(),
            left_out: self.left_out(),
            accesses: counts.accesses,
            conflicts: counts.conflicts,
            weakest_contract: self.weakest_contract().word(),
            races: self.page.races.iter().map(|race| self.race_report(race)).collect(),
        }
    }

    fn race_report(&self, race: &Race) -> RaceReport {
        let by = race.ordered;
        RaceReport {
            path: self.path_of(race.ino),
            inode: race.ino.to_string(),
            from: race.range.start,
            to: end(race.range.end),
            pairs: race.count,
            race: race.is_race(),
            ordered_by: ModelsReport {
                posix: by.posix,
                commit: by.commit,
                session: by.session,
                mpi_io: by.mpi_io,
            },
            weakest_contract: race.weakest_contract().word(),
            accesses: [&race.first, &race.second].map(access_report),
        }
    }
}

/// Writes a number of accesses.
fn format_accesses(count: u64) -> String {
    if count == 1 { "1 access".to_owned() } else { format!("{count} accesses") }
}

fn access_report(side: &RaceAccess) -> AccessReport {
    AccessReport {
        write: side.is_write,
        from: side.range.start,
        to: end(side.range.end),
        host: side.host.clone(),
        node: side.node.map(|node| node.0),
        pid: (side.process.pid != 0).then_some(side.process.pid),
        program: String::from_utf8_lossy(&side.process.program).into_owned(),
        rank: side.process.rank,
        first_unix_ms: side.first_ms,
        last_unix_ms: side.last_ms,
    }
}

fn end(end: u64) -> Option<u64> {
    (end != u64::MAX).then_some(end)
}

fn bytes(start: u64, end: u64) -> String {
    match end {
        u64::MAX => format!("bytes {start} to the end"),
        end => format!("bytes {start} to {}", end.saturating_sub(1)),
    }
}

fn side_text(side: &RaceAccess) -> String {
    let RaceAccess { host, node, process, is_write, range, first_ms, last_ms } = side;
    let kind = if *is_write { "write" } else { "read" };
    let node = node.map_or(String::new(), |node| format!(" ({node})"));
    let rank = process.rank.map_or(String::new(), |rank| format!(", rank {rank}"));
    let program = String::from_utf8_lossy(&process.program);
    let process = match process.pid {
        0 => "a process that the daemon cannot see".to_owned(),
        pid => format!("process {pid} ({program}{rank})"),
    };
    let until = if first_ms == last_ms { String::new() } else { format!(" to {}", time(*last_ms)) };
    format!(
        "{kind} of {} by {process} on {host}{node} at {}{until}",
        bytes(range.start, range.end),
        time(*first_ms)
    )
}

/// Returns a time as people and programs read it, in UTC.
fn time(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| format!("{unix_ms} ms"), |at| format!("{at:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{ByteRange, NodeId, OrderedBy, RaceCounts, RaceProcess};

    fn side(pid: u32, is_write: bool, first_ms: u64) -> RaceAccess {
        let process = RaceProcess { pid, rank: (pid == 7).then_some(3), program: b"solver".to_vec() };
        let (host, node, range) = ("a".to_owned(), Some(NodeId(1)), ByteRange::at(0, 4096));
        RaceAccess { host, node, process, is_write, range, first_ms, last_ms: 1_000_000_000_123 }
    }

    fn list(ordered: OrderedBy, counts: RaceCounts) -> RaceList {
        let race = Race {
            ino: Ino(9),
            range: ByteRange::at(0, 4096),
            count: 2,
            ordered,
            is_in_stripe: false,
            is_session: false,
            first: side(8, false, 1_000_000_000_123),
            second: side(7, true, 1_000_000_000_000),
        };
        let page = RacePage { since_ms: 0, is_resumed: false, counts, races: vec![race], next: None };
        RaceList { page, paths: [(Ino(9), b"dir/f".to_vec())].into() }
    }

    #[test]
    fn a_race_is_told_with_both_sides() {
        let list = list(OrderedBy::default(), RaceCounts::default());
        let text = "/dir/f: bytes 0 to 4095, 2 pairs: unordered; right under strict\n  write of bytes 0 to 4095 by process \
                    7 (solver, rank 3) on a (node 1) at 2001-09-09T01:46:40.000Z to 2001-09-09T01:46:40.123Z\n  read of \
                    bytes 0 to 4095 by process 8 (solver) on a (node 1) at 2001-09-09T01:46:40.123Z\n1 race in 1 file\nthe weakest contract under which this is right: strict\n";
        assert_eq!(list.to_text(false), text);
        assert!(list.has_races() && list.is_complete());
    }

    #[test]
    fn what_is_ordered_is_shown_if_asked_for() {
        let ordered = OrderedBy { posix: true, commit: true, ..OrderedBy::default() };
        let list = list(ordered, RaceCounts { accesses: 5, forgotten: 2, ..RaceCounts::default() });
        let text = list.to_text(false);
        assert!(text.starts_with("no races among 5 accesses\n"), "{text}");
        assert!(text.contains("right: coherent (races --all shows why)\nnot complete: 2 accesses"), "{text}");
        assert_eq!((format_accesses(0), format_accesses(1)), ("0 accesses".into(), "1 access".into()));
        let text = list.to_text(true);
        assert!(text.starts_with("/dir/f: bytes 0 to 4095, 2 pairs: ordered, but not by a close"), "{text}");
        assert!(!list.has_races() && !list.is_complete());
    }

    #[test]
    fn paths_choose_files() {
        let kept = |top: &str| {
            let mut list = list(OrderedBy::default(), RaceCounts::default());
            list.keep_below(&[PathBuf::from(top)]);
            list.has_races()
        };
        assert!(kept("") && kept("dir") && kept("dir/f") && !kept("di") && !kept("dir/f/g"));
    }
}
