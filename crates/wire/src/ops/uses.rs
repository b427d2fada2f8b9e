//! Uses of files: reports of clients to homes, and of homes to whoever asks.

use bivouac_record::{Bin, Counts, History, HistoryInterval, MINUTES, Pattern, SECONDS};
use bivouac_types::limits::{PROGRAM_LEN_MAX, USE_PROCESSES_MAX};
use bivouac_types::{ClientId, Ino, OpId, OpenId, PartitionId};

use crate::{CloseRequest, Decode, DecodeError, Encode, Reader};

owned! {
    /// Use of a file by one process, since its client's last report of it.
    FileUseDelta {
        /// The file.
        ino: Ino,
        /// The process, on its host.
        pid: u32,
        /// Its program, as the kernel names it.
        program: Program,
        /// Age of the first use, in milliseconds. Clocks of hosts differ, so no times are sent.
        first_ago_ms: u64,
        /// Age of the last use, in milliseconds.
        last_ago_ms: u64,
        /// Its accesses.
        pattern: Pattern,
    }
}

/// Name of a process's program: at most [`PROGRAM_LEN_MAX`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program(pub Vec<u8>);

owned! {
    /// Uses of a node's files. Times are milliseconds since its first daemon was started.
    #[derive(Default)]
    UseTable {
        /// Time covered, in milliseconds.
        uptime_ms: u64,
        /// Files.
        files: Vec<FileUse>,
        /// Processes.
        processes: Vec<ProcessUse>,
        /// Number of times that a file was dropped that was used less than others, and what had been done to it by
        /// then.
        dropped: u64,
        /// The same as a whole.
        rest: Pattern,
        /// Notes that daemons were killed in the middle of, and that are lost.
        torn: u64,
    }
    /// Asks what was done when.
    #[derive(Copy)]
    HistoryRequest {
        /// Of requests that the node served; else of programs with files whose home it is.
        served: bool,
        /// Time to cover, back from now, in milliseconds.
        back_ms: u64,
    }
    /// History. Times are as in [`UseTable`]. Of requests, `read` are bytes of replies, `written` those of requests,
    /// and `spent_ns` is their duration.
    #[derive(Default)]
    HistoryTable {
        /// Time covered, in milliseconds.
        uptime_ms: u64,
        /// The history.
        history: History,
    }
    /// Use of a file.
    FileUse {
        /// The file.
        ino: Ino,
        /// The directory that it was made in; 0 if it was gone before anything was told.
        parent: Ino,
        /// Its partition.
        partition: PartitionId,
        /// Its stripe, in bytes.
        stripe: u32,
        /// Its users, each process as a number of its own; [`USE_PROCESSES_MAX`] at most.
        users: Vec<u64>,
        /// Time of its first use.
        first_ms: u64,
        /// Time of its last use.
        last_ms: u64,
        /// Time of the first read and of the last write, if there were any and they are known separately.
        read_from_ms: Option<u64>,
        /// See there.
        written_until_ms: Option<u64>,
        /// Sum over all processes of the time from first to last use.
        held_ms: u64,
        /// Reads and writes that came through mounts.
        mounted: u64,
        /// Accesses.
        pattern: Pattern,
    }
    /// Use by a process.
    ProcessUse {
        /// Its client.
        client: ClientId,
        /// The process, on the client's host.
        pid: u32,
        /// Its program.
        program: Program,
        /// Time of its first use of any file.
        first_ms: u64,
        /// Time of its last use of any file.
        last_ms: u64,
        /// Its accesses.
        pattern: Pattern,
    }
}

/// Marks numbers of messages that no other message of that client has, not even of an earlier process of it.
const NUMBERED: u64 = 1 << 63;

impl CloseRequest {
    /// Returns the id of a request with uses, made of a number of the client's opens, so that a retransmission is
    /// counted once.
    #[must_use]
    pub fn id(number: OpenId) -> OpId {
        OpId(number.0 | NUMBERED)
    }

    /// Returns whether a request has a number of that kind.
    #[must_use]
    pub fn is_numbered(id: OpId) -> bool {
        id.0 & NUMBERED != 0
    }
}

impl FileUse {
    /// Returns whether several processes used it, and it was read while it was written.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        let (read, written) = (self.read_from_ms, self.written_until_ms);
        self.users.len() > 1 && read.zip(written).is_some_and(|(read, written)| read < written)
    }

    /// Adds a user, up to [`USE_PROCESSES_MAX`].
    pub fn add_user(&mut self, user: u64) {
        if self.users.len() < USE_PROCESSES_MAX && !self.users.contains(&user) {
            self.users.push(user);
        }
    }
}

impl Encode for Program {
    fn encode(&self, out: &mut Vec<u8>) {
        // The decoder refuses a longer one, and with it all uses that are in the message.
        self.0.get(..self.0.len().min(PROGRAM_LEN_MAX)).unwrap_or_default().encode(out);
    }
}

impl Decode<'_> for Program {
    fn decode(input: &mut Reader<'_>) -> Result<Program, DecodeError> {
        let bytes = <&[u8]>::decode(input)?;
        let fits = bytes.len() <= PROGRAM_LEN_MAX;
        if fits { Ok(Program(bytes.to_vec())) } else { Err(DecodeError::Invalid("program")) }
    }
}

codec_struct!(Counts { ops, bytes, sequential, strided, off_page, crossing, spent_ns, sizes });
codec_struct!(Pattern { reads, writes });
codec_struct!(Bin { read, written, ops, spent_ns });

codec_struct!(HistoryInterval { at_ms, bin });

impl Encode for History {
    fn encode(&self, out: &mut Vec<u8>) {
        self.minute_ms.encode(out);
        self.seconds.encode(out);
        self.minutes.encode(out);
    }
}

impl Decode<'_> for History {
    fn decode(input: &mut Reader<'_>) -> Result<History, DecodeError> {
        let history = History {
            minute_ms: Decode::decode(input)?,
            seconds: Decode::decode(input)?,
            minutes: Decode::decode(input)?,
        };
        // The last interval is taken for the latest one, which says how long the history is.
        let is_sorted = |slots: &[HistoryInterval]| slots.is_sorted_by(|a, b| a.at_ms < b.at_ms);
        let is_one = history.minute_ms > 0
            && (history.seconds.len() <= SECONDS && is_sorted(&history.seconds))
            && (history.minutes.len() <= MINUTES && is_sorted(&history.minutes));
        if is_one { Ok(history) } else { Err(DecodeError::Invalid("history")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::limits::{FRAME_BODY_MAX, USES_FILES_MAX, USES_PER_MESSAGE_MAX, USES_PROCESSES_MAX};

    fn pattern() -> Pattern {
        let counts =
            |ops| Counts { ops, bytes: 2, sequential: 3, spent_ns: 4, sizes: [5; 9], ..Counts::default() };
        Pattern { reads: counts(6), writes: counts(7) }
    }

    fn used() -> FileUseDelta {
        let program = Program(vec![b'x'; PROGRAM_LEN_MAX]);
        FileUseDelta { ino: Ino(1), pid: 2, program, first_ago_ms: 3, last_ago_ms: 4, pattern: pattern() }
    }

    fn file() -> FileUse {
        let mut file = FileUse {
            ino: Ino(1),
            parent: Ino(2),
            partition: PartitionId::ROOT,
            stripe: 4096,
            users: Vec::new(),
            first_ms: 3,
            last_ms: 4,
            read_from_ms: Some(3),
            written_until_ms: Some(4),
            held_ms: 1,
            mounted: 5,
            pattern: pattern(),
        };
        (0..1000).for_each(|user| file.add_user(user / 2));
        file
    }

    #[test]
    fn the_fullest_messages_fit() {
        let FileUseDelta { program, pattern, .. } = used();
        let process = ProcessUse { client: ClientId(1), pid: 2, program, first_ms: 3, last_ms: 4, pattern };
        let table = UseTable {
            files: vec![file(); USES_FILES_MAX],
            processes: vec![process; USES_PROCESSES_MAX],
            ..UseTable::default()
        };
        let bytes = table.to_bytes();
        assert!(bytes.len() <= FRAME_BODY_MAX, "{}", bytes.len());
        assert_eq!(UseTable::from_bytes(&bytes), Ok(table));
        let uses = vec![used(); USES_PER_MESSAGE_MAX];
        assert!(uses.to_bytes().len() + (1 << 17) <= FRAME_BODY_MAX);
    }

    #[test]
    fn users_are_told_apart_up_to_a_number() {
        assert_eq!(file().users, (0..USE_PROCESSES_MAX as u64).collect::<Vec<_>>());
    }

    #[test]
    fn golden_bytes_of_a_use() {
        let bytes = used().to_bytes();
        assert_eq!(bytes.len(), 8 + 4 + 4 + 15 + 16 + 2 * 128);
        assert_eq!(bytes[..19], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 15, 0, 0, 0, b'x', b'x', b'x']);
        assert_eq!(bytes[31..40], [3, 0, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(bytes[47..56], [6, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(FileUseDelta::from_bytes(&bytes), Ok(used()));
    }

    #[test]
    fn the_longest_history_fits() {
        let slots = |count: usize| -> Vec<HistoryInterval> {
            (0..count as u64).map(|at_ms| HistoryInterval { at_ms, ..HistoryInterval::default() }).collect()
        };
        let history = History { minute_ms: 1, seconds: slots(SECONDS), minutes: slots(MINUTES) };
        let table = HistoryTable { uptime_ms: 7, history };
        let bytes = table.to_bytes();
        assert!(bytes.len() <= FRAME_BODY_MAX, "{}", bytes.len());
        assert_eq!(HistoryTable::from_bytes(&bytes), Ok(table.clone()));
        let wrong = [
            History { minute_ms: 0, ..table.history.clone() },
            History { seconds: slots(SECONDS + 1), ..table.history.clone() },
            History { minutes: slots(3).into_iter().rev().collect(), ..table.history },
        ];
        for history in wrong {
            let bytes = HistoryTable { uptime_ms: 7, history }.to_bytes();
            assert_eq!(HistoryTable::from_bytes(&bytes), Err(DecodeError::Invalid("history")));
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let long = [&16_u32.to_le_bytes()[..], &[b'x'; 16]].concat();
        assert_eq!(Program::from_bytes(&long), Err(DecodeError::Invalid("program")));
    }
}
