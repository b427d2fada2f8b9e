//! State of a mount that outlives its daemon: a memory file that the supervisor keeps open together with the device.
//!
//! ```text
//! 0     header, 64 bytes: magic 8 | version u32 | incarnation u32 | identity u64 |
//!       agreed u32 | minor u32 | flags u64 | max_write u32 | max_readahead u32 | zero 8 | check u64
//! 64    in flight: one u64 per thread channel, the number of the request it is serving, or 0
//! 2112  parked: one u64 per request that waits without a thread, its number, or 0
//! 4096  slots of open files, 32 bytes each: ino u64 | opener u64 | open flags u32 | in use u32 |
//!       generation u32 | zero u32
//! ```
//! Little-endian. `check` is the 64-bit FNV-1a hash of the header in front of it. It is read and
//! written with plain calls, whole records at a time, so a kill leaves every record old or new.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use bivouac_types::limits::CLIENT_CHANNELS_MAX;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::abi::Negotiated;

const MAGIC: [u8; 8] = *b"bvkmount";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 64;
const CHECK_AT: usize = HEADER_LEN - 8;
const IN_FLIGHT_AT: u64 = HEADER_LEN as u64;
const SLOTS_AT: u64 = 4096;
/// Length of a slot, in bytes.
const SLOT_LEN: usize = 32;
/// Most files that are open at a time.
pub const SLOTS_MAX: usize = 1 << 24;
/// Most threads of one incarnation.
pub const CHANNELS_PER_INCARNATION: u16 = 64;
/// Incarnations after which channel numbers come round again: as many as there are numbers for. A request that is under
/// way while so many daemons are killed one behind the other finds no more what became of it.
const INCARNATIONS_APART: u16 = CLIENT_CHANNELS_MAX / CHANNELS_PER_INCARNATION;
/// Places for requests that threads serve; each incarnation forgets those of the one before.
const IN_FLIGHT_MAX: u16 = 256;
const _: () = assert!(IN_FLIGHT_MAX.is_multiple_of(CHANNELS_PER_INCARNATION));
/// Behind those, requests that wait without a thread.
const PARKED_AT: u64 = IN_FLIGHT_AT + IN_FLIGHT_MAX as u64 * 8;
/// Most such requests.
pub const PARKED_MAX: u16 = ((SLOTS_AT - PARKED_AT) / 8) as u16;
const _: () = assert!(PARKED_AT < SLOTS_AT);
/// Behind all slots there can be, the pages of files under the session contract.
pub const PAGES_AT: u64 = SLOTS_AT + (SLOTS_MAX * SLOT_LEN) as u64;
/// Number of unused slots in a row that end the search for used ones. Each thread takes at most one slot that is not
/// written yet, so gaps are shorter.
const UNUSED: usize = 4096;
const _: () = assert!(UNUSED > CHANNELS_PER_INCARNATION as usize);

/// An open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Its inode.
    pub ino: u64,
    /// Number of the request that opened it.
    pub opener: u64,
    /// Flags it was opened with.
    pub flags: u32,
    /// True if it is open; if not, only the generation counts.
    pub in_use: bool,
    /// Number of times that the slot was used before.
    pub generation: u32,
}

/// Reason why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read or written.
    #[error("the state of the mount cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// Its content is not what this version writes for this mount.
    #[error("the state of the mount is {0}; unmount and mount again")]
    Alien(&'static str),
}

/// Makes an empty state. Its descriptor is to outlive the daemon.
pub fn create_state() -> io::Result<OwnedFd> {
    Ok(memfd_create("bivouac-mount", MemfdFlags::CLOEXEC)?)
}

/// Returns how many daemons have served the mount of this state; 0 if it cannot be read, which whoever opens it
/// reports.
#[must_use]
pub fn incarnations(file: &File) -> u32 {
    read_header(file).map_or(0, |header| header.incarnation)
}

/// The state, opened by one incarnation of the daemon.
#[derive(Debug)]
pub struct MountState {
    file: File,
    header: Header,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    incarnation: u32,
    identity: u64,
    negotiated: Option<Negotiated>,
}

impl MountState {
    /// Opens the state for the next incarnation, or begins a new one in an empty file.
    ///
    /// # Errors
    /// `Alien` for a file that something else wrote, or for another mount than `identity`.
    pub fn open(file: File, identity: u64) -> Result<MountState, StateError> {
        let mut header = match file.metadata()?.len() {
            0 => Header { incarnation: 0, identity, negotiated: None },
            _ => read_header(&file)?,
        };
        if header.identity != identity {
            return Err(StateError::Alien("that of another mount"));
        }
        // Never 0, which stands for a state that nobody has served yet.
        header.incarnation = header.incarnation.wrapping_add(1).max(1);
        let state = MountState { file, header };
        state.write_header()?;
        Ok(state)
    }

    /// Returns whether an earlier incarnation served this mount.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.header.incarnation > 1
    }

    /// Returns the result of the negotiation with the kernel, if that has taken place.
    #[must_use]
    pub fn negotiated(&self) -> Option<Negotiated> {
        self.header.negotiated
    }

    /// Keeps what was agreed with the kernel.
    pub fn set_negotiated(&mut self, negotiated: Negotiated) -> Result<(), StateError> {
        self.header.negotiated = Some(negotiated);
        self.write_header()
    }

    /// Returns the channel number of a thread. Those of the last incarnations are not used, so a request that is sent
    /// again finds its outcome where the dead daemon left it.
    #[must_use]
    pub fn channel(&self, thread: u16) -> u16 {
        let incarnation = (self.header.incarnation % u32::from(INCARNATIONS_APART)) as u16;
        let channel = incarnation * CHANNELS_PER_INCARNATION + thread % CHANNELS_PER_INCARNATION;
        assert!(channel < CLIENT_CHANNELS_MAX, "nodes keep no replies for channel {channel}");
        channel
    }

    /// Notes that a channel serves the request with this number; 0 is none.
    pub fn set_in_flight(&self, channel: u16, unique: u64) -> io::Result<()> {
        let at = IN_FLIGHT_AT + u64::from(channel % IN_FLIGHT_MAX) * 8;
        self.file.write_all_at(&unique.to_le_bytes(), at)
    }

    /// Returns the requests that the dead daemon was serving. Forgets them.
    pub fn take_in_flight(&self) -> io::Result<Vec<u64>> {
        // Up to the slots: behind those of threads lie the requests that were parked.
        let mut bytes = vec![0; (SLOTS_AT - IN_FLIGHT_AT) as usize];
        let len = read_up_to(&self.file, &mut bytes, IN_FLIGHT_AT)?;
        bytes.truncate(len);
        let uniques =
            bytes.as_chunks().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).filter(|&u| u != 0).collect();
        self.file.write_all_at(&vec![0; len], IN_FLIGHT_AT)?;
        Ok(uniques)
    }

    /// Returns the part for requests that wait without a thread.
    pub fn notes(&self) -> io::Result<ParkedRecords> {
        Ok(ParkedRecords(self.file.try_clone()?))
    }

    /// Writes a slot.
    pub fn write_slot(&self, index: u32, slot: &Slot) -> io::Result<()> {
        // Behind the last slot lie pages of files under the session contract.
        assert!((index as usize) < SLOTS_MAX, "slot {index} of an open file is none of the {SLOTS_MAX}");
        self.file.write_all_at(&encode_slot(slot), SLOTS_AT + u64::from(index) * SLOT_LEN as u64)
    }

    /// Returns all slots.
    ///
    /// # Errors
    /// `Alien` for slots that make no sense.
    pub fn read_slots(&self) -> Result<Vec<Slot>, StateError> {
        let end = self.file.metadata()?.len().min(PAGES_AT);
        if !end.saturating_sub(SLOTS_AT).is_multiple_of(SLOT_LEN as u64) {
            return Err(StateError::Alien("cut in the middle of a slot"));
        }
        let (mut slots, mut at) = (Vec::new(), SLOTS_AT);
        while at < end {
            let mut bytes = vec![0; (UNUSED * SLOT_LEN).min((end - at) as usize)];
            self.file.read_exact_at(&mut bytes, at)?;
            // The file is as long as its last page of content: without an end to the search all of it would be read.
            if bytes.iter().all(|byte| *byte == 0) {
                break;
            }
            for slot in bytes.as_chunks::<SLOT_LEN>().0 {
                slots.push(decode_slot(slot)?);
            }
            at += bytes.len() as u64;
        }
        // A slot that was ever used has a generation.
        let used =
            slots.iter().rposition(|slot| slot.generation > 0 || slot.in_use).map_or(0, |last| last + 1);
        slots.truncate(used);
        Ok(slots)
    }

    fn write_header(&self) -> Result<(), StateError> {
        Ok(self.file.write_all_at(&encode_header(&self.header), 0)?)
    }
}

/// The part of a state for requests that wait without a thread.
#[derive(Debug)]
pub struct ParkedRecords(File);

impl ParkedRecords {
    /// Sets a place to the number of a request; 0 is none.
    pub fn set(&self, index: u16, unique: u64) -> io::Result<()> {
        // Behind the last place lie the slots of open files.
        assert!(index < PARKED_MAX, "place {index} of a parked request is none of the {PARKED_MAX}");
        self.0.write_all_at(&unique.to_le_bytes(), PARKED_AT + u64::from(index) * 8)
    }
}

fn read_header(file: &File) -> Result<Header, StateError> {
    let mut bytes = [0; HEADER_LEN];
    if read_up_to(file, &mut bytes, 0)? < HEADER_LEN {
        return Err(StateError::Alien("too short"));
    }
    decode_header(&bytes)
}

fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let len = file.metadata()?.len().saturating_sub(at).min(bytes.len() as u64) as usize;
    let bytes = bytes.get_mut(..len).unwrap_or_default();
    file.read_exact_at(bytes, at)?;
    Ok(len)
}

fn encode_header(header: &Header) -> [u8; HEADER_LEN] {
    let agreed =
        header.negotiated.unwrap_or(Negotiated { minor: 0, flags: 0, max_write: 0, max_readahead: 0 });
    let mut bytes = Vec::with_capacity(HEADER_LEN);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(header.incarnation.to_le_bytes());
    bytes.extend(header.identity.to_le_bytes());
    bytes.extend(u32::from(header.negotiated.is_some()).to_le_bytes());
    bytes.extend(agreed.minor.to_le_bytes());
    bytes.extend(agreed.flags.to_le_bytes());
    bytes.extend(agreed.max_write.to_le_bytes());
    bytes.extend(agreed.max_readahead.to_le_bytes());
    bytes.resize(CHECK_AT, 0);
    bytes.extend(fnv1a(&bytes).to_le_bytes());
    let mut header = [0; HEADER_LEN];
    header.copy_from_slice(&bytes);
    header
}

fn decode_header(bytes: &[u8; HEADER_LEN]) -> Result<Header, StateError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(StateError::Alien("not a state of a mount"));
    }
    // The check comes before the version: of a damaged header nothing can be believed.
    if long(bytes, CHECK_AT) != fnv1a(&bytes[..CHECK_AT]) {
        return Err(StateError::Alien("damaged"));
    }
    if word(bytes, 8) != VERSION {
        return Err(StateError::Alien("of another version"));
    }
    let agreed = Negotiated {
        minor: word(bytes, 28),
        flags: long(bytes, 32),
        max_write: word(bytes, 40),
        max_readahead: word(bytes, 44),
    };
    let negotiated = (word(bytes, 24) == 1).then_some(agreed);
    Ok(Header { incarnation: word(bytes, 12), identity: long(bytes, 16), negotiated })
}

fn encode_slot(slot: &Slot) -> [u8; SLOT_LEN] {
    let mut bytes = [0; SLOT_LEN];
    bytes[..8].copy_from_slice(&slot.ino.to_le_bytes());
    bytes[8..16].copy_from_slice(&slot.opener.to_le_bytes());
    bytes[16..20].copy_from_slice(&slot.flags.to_le_bytes());
    bytes[20..24].copy_from_slice(&u32::from(slot.in_use).to_le_bytes());
    bytes[24..28].copy_from_slice(&slot.generation.to_le_bytes());
    bytes
}

fn decode_slot(bytes: &[u8; SLOT_LEN]) -> Result<Slot, StateError> {
    let in_use = match word(bytes, 20) {
        0 => false,
        // Inode 0 is none: a slot in use without a file was not written here.
        1 if long(bytes, 0) != 0 => true,
        _ => return Err(StateError::Alien("damaged in its slots")),
    };
    Ok(Slot {
        ino: long(bytes, 0),
        opener: long(bytes, 8),
        flags: word(bytes, 16),
        in_use,
        generation: word(bytes, 24),
    })
}

/// Returns the 32 bits at `at`, which the caller keeps within the record.
fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(part.copied().unwrap_or_default())
}

/// Returns the 64 bits at `at`, which the caller keeps within the record.
fn long<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_le_bytes(part.copied().unwrap_or_default())
}

/// Returns the FNV-1a hash, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AGREED: Negotiated =
        Negotiated { minor: 45, flags: 1 << 39 | 5, max_write: 1 << 20, max_readahead: 131_072 };

    fn memory() -> File {
        File::from(create_state().unwrap())
    }

    #[test]
    fn the_next_incarnation_finds_what_was_kept() {
        let file = memory();
        let mut first = MountState::open(file.try_clone().unwrap(), 7).unwrap();
        assert_eq!((first.is_resumed(), first.negotiated()), (false, None));
        first.set_negotiated(AGREED).unwrap();
        let slot = Slot { ino: 99, opener: 4, flags: 2, in_use: true, generation: 3 };
        first.write_slot(1, &slot).unwrap();
        assert_eq!((incarnations(&memory()), incarnations(&file)), (0, 1));
        let second = MountState::open(file, 7).unwrap();
        assert_eq!((second.is_resumed(), second.negotiated()), (true, Some(AGREED)));
        assert_eq!(second.read_slots().unwrap(), [Slot::default(), slot]);
    }

    #[test]
    fn requests_in_flight_are_handed_over_once() {
        let state = MountState::open(memory(), 7).unwrap();
        assert!(state.take_in_flight().unwrap().is_empty());
        state.set_in_flight(3, 18).unwrap();
        state.set_in_flight(255, 20).unwrap();
        state.set_in_flight(4, 22).unwrap();
        state.set_in_flight(4, 0).unwrap();
        assert_eq!(state.take_in_flight().unwrap(), [18, 20]);
        assert!(state.take_in_flight().unwrap().is_empty());
    }

    #[test]
    fn channels_of_neighbouring_incarnations_differ() {
        let file = memory();
        let channels: Vec<u16> =
            (0..17).map(|_| MountState::open(file.try_clone().unwrap(), 1).unwrap().channel(5)).collect();
        assert_eq!(channels[..2], [69, 133]);
        let differ: std::collections::HashSet<u16> = channels[..16].iter().copied().collect();
        assert!(differ.len() == 16 && differ.iter().all(|channel| *channel < CLIENT_CHANNELS_MAX));
        assert_eq!(channels[16], 69);
    }

    #[test]
    fn alien_states_are_refused_with_a_reason() {
        let refusal = |bytes: &[u8], identity| {
            let file = memory();
            file.write_all_at(bytes, 0).unwrap();
            MountState::open(file, identity).unwrap_err().to_string()
        };
        let good = encode_header(&Header { incarnation: 1, identity: 7, negotiated: Some(AGREED) });
        let mut damaged = good;
        damaged[40] ^= 1;
        let mut newer = good;
        newer[8] = 2;
        let check = fnv1a(&newer[..CHECK_AT]);
        newer[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        assert!(refusal(&good, 8).contains("another mount"));
        assert!(refusal(&damaged, 7).contains("damaged"));
        assert!(refusal(&newer, 7).contains("another version"));
        assert!(refusal(&good[..63], 7).contains("too short"));
        assert!(refusal(&[1; 64], 7).contains("not a state"));
    }

    #[test]
    fn slots_that_make_no_sense_are_refused() {
        let state = MountState::open(memory(), 7).unwrap();
        state.write_slot(0, &Slot { ino: 0, in_use: true, ..Slot::default() }).unwrap();
        assert!(state.read_slots().unwrap_err().to_string().contains("damaged in its slots"));
        let state = MountState::open(memory(), 7).unwrap();
        state.file.write_all_at(&[0; 5], SLOTS_AT).unwrap();
        assert!(state.read_slots().unwrap_err().to_string().contains("cut in the middle"));
    }

    proptest! {
        #[test]
        fn any_file_is_a_state_or_refused(bytes in proptest::collection::vec(any::<u8>(), 1..5000), good: bool) {
            let file = memory();
            file.write_all_at(&bytes, 0).unwrap();
            if good {
                let header = Header { incarnation: 1, identity: 7, negotiated: Some(AGREED) };
                file.write_all_at(&encode_header(&header), 0).unwrap();
            }
            let opened = MountState::open(file, 7);
            prop_assert_eq!(opened.is_ok(), good);
            if let Ok(state) = opened {
                let _ = state.read_slots();
                prop_assert!(state.take_in_flight().is_ok());
            }
        }

        #[test]
        fn slots_survive_encoding(ino in 1u64.., opener: u64, flags: u32, generation: u32) {
            let slot = Slot { ino, opener, flags, in_use: true, generation };
            prop_assert_eq!(decode_slot(&encode_slot(&slot)).unwrap(), slot);
        }
    }
}
