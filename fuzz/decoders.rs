//! What is tried with every input, by the fuzzer and by tests: decoders return, and what they accept is consistent.

#![allow(dead_code, reason = "every target uses a part of it")]

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;

use bivouac_store::{MemVolume, OpenMode, Records, RecordsOptions, Volume};
use bivouac_types::limits::FRAME_HEADER_LEN;
use bivouac_types::{FormationId, NodeId, PartitionSettings, Slot, units};
use bivouac_wire::subfile::SubfileHeader;
use bivouac_wire::{Decode, Encode, FormationMap, Frame, Op, Operation, op, rendezvous};

/// Where a frame header has its checksum.
const FRAME_CRC_AT: usize = 60;
/// Where a subfile header has its checksum.
/// Where the checksums of subfile headers of version 1 and 2 are.
const SUBFILE_CRC_AT: [usize; 2] = [4092, 2044];
/// Length of a record log's header, its checksum included.
const LOG_HEADER_LEN: usize = 64;
/// Length of the head of a log's entry.
const ENTRY_HEAD_LEN: usize = 20;
/// Slots of the records that are opened.
pub const SLOTS: u16 = 4;
/// Whose records those are.
pub const FORMATION: FormationId = FormationId([7; 16]);
/// The name of their log.
pub const LOG: &str = "records/log-0000000000000001";

/// A message between a linked formation and a gateway.
pub fn link(bytes: &[u8]) {
    bivouac_link::fuzzed::message(bytes);
}

/// A frame header, also with its checksum put right.
pub fn frame(bytes: &[u8], crc32c: fn(&[u8]) -> u32) {
    let Some(header) = bytes.first_chunk::<FRAME_HEADER_LEN>() else { return };
    let mut sealed = *header;
    let crc = crc32c(&sealed[..FRAME_CRC_AT]);
    sealed[FRAME_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    for header in [header, &sealed] {
        if let Ok(frame) = Frame::from_bytes(header) {
            assert_eq!(Frame::from_bytes(&frame.to_bytes()), Ok(frame));
        }
    }
}

macro_rules! by_number {
    ($number:expr, $bytes:expr, $($name:ident)*) => {
        match Op::from_number($number) {
            $(Some(Op::$name) => both::<op::$name>($bytes),)*
            None => {}
        }
    };
}

/// Request and reply of the operation that the first byte names.
pub fn message(bytes: &[u8]) {
    let Some((number, body)) = bytes.split_first() else { return };
    by_number!(
        u16::from(*number), body,
        Ping HasGrown TakeTokens ReturnTokens RecallTokens ReclaimTokens CancelTokens ListTokens ReportAccesses ListRaces GetMap Lookup GetAttr SetAttr Make Put Unlink Rmdir Rename Link ReadLink ReadDir ListHashes Parent GetXattr ListXattr
        SetXattr RemoveXattr SetContract Open Close Reassert Extend Append Claim Touch StatFs Status SyncRecords Read Write
        StatSubfile SyncSubfile CutTail Shutdown Leave PutInode DropInode RemoveDir AdjustLinks InstallEntry SetParent Trim
        RemoveSubfiles LockRename UnlockRename RestoreDir DropDir InstallShard DropShard SealShard UnsealShard FoldShard DirChanged
        UpdateShard ChangePartition ListPartitions PutPartition BindDirectory ListRecords ListSubfiles Watch ListTouched
        ChangeSpace FindData MakeUnnamed CopyRange ExtendOver Count WhichGone
        SetLock CancelLock TestLock ListLocks ReleaseLocks LockHolders LockWaits LookAgain SettleLocks LocksGranted ServesClient Invalidate Probe ProbeFor Reached FindOrigin ListDirty
        ListSeen NoteSeen Flush MarkFlush FlushParts FindPlace BringFile FlushHere Own Fence SendUnsent Mirror Pin ListPinned
        OpenSession GrantDirect WidenDirect AccessList LendSize MakeRoom Scrub ListUses ListHistory AskHost
        BeginReplica ApplyChanges RenewReplica SealReplica SetBackup
    );
    match u16::from(*number) {
        rendezvous::JOIN => same::<rendezvous::Join>(body),
        rendezvous::BEGIN => same::<rendezvous::FormationStart>(body),
        rendezvous::ORDER => same::<rendezvous::Order>(body),
        rendezvous::REPORT => same::<rendezvous::Report>(body),
        rendezvous::RESUME => same::<rendezvous::Resume>(body),
        rendezvous::MAP => same::<rendezvous::NewMap>(body),
        _ => {}
    }
}

fn same<T: Encode + for<'a> Decode<'a>>(bytes: &[u8]) {
    if let Ok(message) = T::from_bytes(bytes) {
        assert_eq!(message.to_bytes(), bytes);
    }
}

fn both<O: Operation>(bytes: &[u8]) {
    if let Ok(request) = O::Request::from_bytes(bytes) {
        let again = request.to_bytes();
        assert!(O::Request::from_bytes(&again).is_ok_and(|request| request.to_bytes() == again));
    }
    if let Ok(reply) = O::Reply::from_bytes(bytes) {
        let again = reply.to_bytes();
        assert!(O::Reply::from_bytes(&again).is_ok_and(|reply| reply.to_bytes() == again));
    }
}

/// A map; one that is accepted answers every question.
pub fn map(bytes: &[u8]) {
    let Ok(map) = FormationMap::from_bytes(bytes) else { return };
    if map.check().is_ok() {
        for slot in 0..map.slot_count() {
            assert!(map.slot_node(Slot(slot)).is_some_and(|node| usize::from(node.0) < map.nodes.len()));
        }
        assert_eq!(usize::from(map.target_count()), map.targets.len());
        assert_eq!(FormationMap::from_bytes(&map.to_bytes()), Ok(map));
    }
}

/// The header of a subfile, also with its checksum put right.
pub fn subfile(bytes: &[u8], crc32c: fn(&[u8]) -> u32) {
    let sealed = SUBFILE_CRC_AT.map(|at| {
        let mut sealed = bytes.to_vec();
        sealed.resize(4096, 0);
        let crc = crc32c(&sealed[..at]);
        sealed[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        sealed
    });
    for header in [bytes, &sealed[0], &sealed[1]] {
        if let Ok(header) = SubfileHeader::from_bytes(header) {
            let _none_for_a_target_that_is_not_used = header.column();
            assert_eq!(SubfileHeader::from_bytes(&header.to_bytes()), Ok(header));
        }
    }
}

/// A record log as it is, and with its checksums put right. What opens can be written to and opened again.
pub fn log(bytes: &[u8], crc32c: fn(&[u8]) -> u32) {
    for log in [bytes.to_vec(), sealed_log(bytes, crc32c)] {
        let volume = MemVolume::default();
        let made = volume.make_dir("records").and_then(|()| volume.open(LOG, OpenMode::Create));
        let written = made.and_then(|file| file.write_vectored_at(&[IoSlice::new(&log)], 0));
        assert!(written.is_ok_and(|len| len == log.len()));
        let volume: Arc<dyn Volume> = Arc::new(volume);
        let Ok(records) = open(&volume) else { continue };
        let mut txn = records.txn(&[Slot(0)]);
        txn.put(Slot(0), b"key", b"value");
        assert!(txn.commit().is_ok());
        let before = records.stats();
        drop(records);
        let after = open(&volume).map(|records| records.stats());
        assert!(after.is_ok_and(|after| (after.records, after.bytes) == (before.records, before.bytes)));
    }
}

/// The records on a volume.
///
/// # Errors
/// What is wrong with them.
pub fn open(volume: &Arc<dyn Volume>) -> Result<Records, bivouac_store::StoreError> {
    let options = RecordsOptions { slots: SLOTS, ..RecordsOptions::default() };
    Records::open(volume.clone(), FORMATION, NodeId(0), options).map(|(records, _)| records)
}

/// Puts every checksum right that can be found by the lengths that the log names.
fn sealed_log(bytes: &[u8], crc32c: fn(&[u8]) -> u32) -> Vec<u8> {
    let mut log = bytes.to_vec();
    if log.len() < LOG_HEADER_LEN {
        return log;
    }
    let crc = crc32c(&log[..LOG_HEADER_LEN - 4]);
    log[LOG_HEADER_LEN - 4..LOG_HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
    let mut at = LOG_HEADER_LEN;
    while let Some(head) = log.get(at..at + ENTRY_HEAD_LEN) {
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let body = log.get(at + ENTRY_HEAD_LEN..).unwrap_or_default();
        let body = crc32c(&body[..len.min(body.len())]);
        log[at + 4..at + 8].copy_from_slice(&body.to_le_bytes());
        let head = crc32c(&[&1u64.to_le_bytes()[..], &log[at..at + 16]].concat());
        log[at + 16..at + 20].copy_from_slice(&head.to_le_bytes());
        at = at.saturating_add(ENTRY_HEAD_LEN).saturating_add(len);
    }
    log
}

/// What is published by anybody: names that are accepted lead nowhere else, and what is written again is the same.
fn published(text: &str) {
    if let Ok(items) = bivouac_publish::metalink::decode(text) {
        for item in &items {
            let parts = Path::new(&item.name).components();
            assert!(parts.into_iter().all(|part| matches!(part, Component::Normal(_))));
        }
        assert_eq!(bivouac_publish::metalink::decode(&bivouac_publish::metalink::encode(&items)), Ok(items));
    }
    if let Ok((catalogue, known)) = bivouac_publish::CachedEntry::decode_any(text, 0) {
        let again = known.encode(&catalogue).map(|text| bivouac_publish::CachedEntry::decode_any(&text, 0));
        assert!(again.is_none_or(|again| again == Ok((catalogue, known))));
    }
    if let Ok((manifest, _)) = bivouac_publish::ro_crate::decode(text) {
        assert!(bivouac_publish::ro_crate::is_id(&manifest.id));
    }
}

/// What users and files say: sizes, durations, places to copy from and to, volumes, names, the state of a formation.
pub fn text(bytes: &[u8]) {
    let argument = OsStr::from_bytes(bytes);
    let transfers = [
        bivouac_stage::parse_in(argument).map(|transfer| (transfer.dst, transfer.src)),
        bivouac_stage::parse_out(argument).map(|transfer| (transfer.src, transfer.dst)),
    ];
    for (inside, outside) in transfers.into_iter().flatten() {
        assert!(inside.components().all(|part| matches!(part, Component::Normal(_))));
        assert!(!outside.as_os_str().is_empty());
    }
    if let Ok(volume) = bivouac_launch::parse_volume(argument) {
        assert!(!volume.dir.as_os_str().is_empty());
    }
    let _damaged_or_not = bivouac_launch::FormationState::parse(bytes, Path::new("state.json"));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    published(text);
    if let Ok(size) = units::parse_size(text) {
        assert!(!units::format_size(size).is_empty());
    }
    let _a_duration_or_not = units::parse_duration_ms(text);
    if let Ok(settings) = text.parse::<PartitionSettings>() {
        assert_eq!(settings.to_string().parse(), Ok(settings));
    }
    if let Ok(name) = text.parse::<bivouac_launch::FormationName>() {
        assert_eq!(name.as_str(), text);
    }
    if let Ok(tolerance) = text.parse::<bivouac_launch::RestartLimit>() {
        assert_eq!(tolerance.to_string().parse(), Ok(tolerance));
    }
}
