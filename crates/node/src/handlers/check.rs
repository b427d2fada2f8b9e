//! Handlers for checks of a running formation: pages of records and subfiles, and watches. None of them changes
//! anything.

use std::ops::ControlFlow;

use bivouac_store::{ListedSubfile, Records, Scrubbed, StoreError, SubfileId};
use bivouac_types::limits::{LIST_BYTES_MAX, WATCHED_MAX};
use bivouac_types::{Errno, FsError, FsResult, Slot};
use bivouac_wire::{
    HeaderFacts, Inos, ListRecordsRequest, ListSubfilesRequest, ListedRecord, RecordPage, ScrubDone,
    ScrubRequest, SubfileFacts, SubfilePage, TouchedInos, op,
};

use crate::node::Node;
use crate::session::Ctx;
use crate::step::Handle;

/// Bytes of a record on the wire besides key and value.
const RECORD_EXTRA: usize = 14;
/// Most subfiles in one reply, as each may list many places.
const SUBFILES_MAX: usize = 512;
/// Bytes of a subfile on the wire besides its places and what is wrong with it.
const SUBFILE_EXTRA: usize = 64;

impl Handle for op::ListRecords {
    fn handle(node: &Node, _: &Ctx<'_>, request: ListRecordsRequest) -> FsResult<RecordPage> {
        // A check compares sizes with subfiles, which processes have made longer already.
        node.write_down_sizes()?;
        Ok(record_page(&node.records, &request))
    }
}

/// Returns a page of a node's records.
#[must_use]
pub fn record_page(records: &Records, request: &ListRecordsRequest) -> RecordPage {
    let slots = records.slots();
    let mut page = Page::new(request);
    let last = if request.one_slot { request.slot.0.saturating_add(1).min(slots) } else { slots };
    for slot in (request.slot.0..last).map(Slot) {
        let after = if slot == request.slot { request.after.as_slice() } else { &[] };
        if let Some(key) = page.add_slot(records, slot, after) {
            return RecordPage { records: page.records, next: Some((slot, key)) };
        }
    }
    RecordPage { records: page.records, next: None }
}

struct Page<'a> {
    tables: &'a [u8],
    value_max: usize,
    bytes_left: usize,
    records: Vec<ListedRecord>,
}

impl Page<'_> {
    fn new(request: &ListRecordsRequest) -> Page<'_> {
        let bytes_left = (request.max_bytes as usize).min(LIST_BYTES_MAX);
        Page {
            tables: &request.tables,
            value_max: request.value_max as usize,
            bytes_left,
            records: Vec::new(),
        }
    }

    /// Adds the records of a slot behind a key; the last key if the page is full.
    fn add_slot(&mut self, records: &Records, slot: Slot, after: &[u8]) -> Option<Vec<u8>> {
        self.tables.iter().find_map(|letter| {
            let mut full = None;
            records.scan(slot, after, &[*letter], |key, value| {
                // The scan begins with the last key of the page before.
                if key > after {
                    self.add(slot, key, value);
                    full = (self.bytes_left == 0).then(|| key.to_vec());
                }
                if full.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            full
        })
    }

    fn add(&mut self, slot: Slot, key: &[u8], value: &[u8]) {
        let front = value.get(..self.value_max).unwrap_or(value).to_vec();
        self.bytes_left = self.bytes_left.saturating_sub(RECORD_EXTRA + key.len() + front.len());
        let value_len = value.len() as u32;
        self.records.push(ListedRecord { slot, key: key.to_vec(), value: front, value_len });
    }
}

impl Handle for op::ListSubfiles {
    fn handle(node: &Node, _: &Ctx<'_>, request: ListSubfilesRequest) -> FsResult<SubfilePage> {
        let volume = request.volume;
        let after = request.after.map(|(ino, target)| SubfileId { volume, ino, target });
        let max = (request.max as usize).clamp(1, SUBFILES_MAX);
        let (listed, mut end) = node.data.list_page(volume, after, max)?;
        let mut subfiles = Vec::with_capacity(listed.len());
        let mut bytes_left = LIST_BYTES_MAX;
        for found in listed {
            if bytes_left == 0 {
                end = false;
                break;
            }
            let facts = subfile_facts(found);
            let places = facts.header.as_ref().map_or(0, |header| header.places.len());
            bytes_left = bytes_left.saturating_sub(SUBFILE_EXTRA + 4 * places + facts.problem.len());
            subfiles.push(facts);
        }
        Ok(SubfilePage { subfiles, end })
    }
}

/// Returns what a check needs about a subfile.
#[must_use]
pub fn subfile_facts(found: ListedSubfile) -> SubfileFacts {
    let ListedSubfile { id, len, allocated, header, .. } = found;
    let lost = matches!(header, Err(StoreError::LostSubfile { .. }));
    let (header, problem) = match header {
        Ok(header) => {
            let layout = header.layout;
            (Some(HeaderFacts { layout, epoch: header.trim_epoch, places: header.places }), String::new())
        }
        Err(StoreError::Corrupt { cause, .. }) => (None, cause),
        Err(error) => (None, error.to_string()),
    };
    let SubfileId { ino, target, .. } = id;
    SubfileFacts { ino, target, len, allocated, header, problem, lost }
}

impl Handle for op::Scrub {
    fn handle(node: &Node, _: &Ctx<'_>, request: ScrubRequest) -> FsResult<ScrubDone> {
        let id = node.subfile(request.ino, request.target)?;
        let found = node.data.scrub(id, request.from, request.bytes)?;
        let Scrubbed { next, compared, settled, skipped, wrong } = found;
        let wrong = wrong.into_iter().map(|range| (range.start, range.end)).collect();
        Ok(ScrubDone { next, compared, settled, skipped, wrong })
    }
}

impl Handle for op::Watch {
    fn handle(node: &Node, ctx: &Ctx<'_>, Inos { inos }: Inos) -> FsResult<()> {
        if inos.len() > WATCHED_MAX {
            let text = format!("{} inodes are to be watched, {WATCHED_MAX} is the limit", inos.len());
            return Err(FsError::with(Errno::EINVAL, text));
        }
        node.watches.set(ctx.client, &inos);
        Ok(())
    }
}

impl Handle for op::ListTouched {
    fn handle(node: &Node, ctx: &Ctx<'_>, (): ()) -> FsResult<TouchedInos> {
        Ok(node.watches.look(ctx.client))
    }
}
