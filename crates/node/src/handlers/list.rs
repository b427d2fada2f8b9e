//! Several places of one subfile in one message.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};

use bivouac_net::{Call, LaneKind, Reply};
use bivouac_store::Places;
use bivouac_types::limits::{LIST_EXTENTS_MAX, TRANSFER_MAX};
use bivouac_types::{Errno, FsError, FsResult, Ino, TargetIndex};
use bivouac_wire::{Encode, ListDone, ListRequest, WriteRequest, op};

use crate::handlers::data;
use crate::handlers::fence::check_fence;
use crate::identity::is_peer;
use crate::node::Node;
use crate::session::{context, request};

/// Reads straight into the caller's buffers, or writes.
pub fn serve(node: &Node, call: &Call<'_>, reply: &mut Reply<'_>) {
    let outcome = request::<op::AccessList>(call).and_then(|list| {
        check(&list)?;
        match (list.write, call.lane) {
            (true, LaneKind::Client) => {
                node.replies.once(&context(call, call.frame.client), || write(node, call, &list))
            }
            (true, _) => write(node, call, &list),
            (false, _) => read(node, &list, reply),
        }
    });
    match outcome {
        Ok(done) => done.encode(reply.body()),
        Err(error) => reply.fail(&error),
    }
}

fn check(list: &ListRequest) -> FsResult<()> {
    if list.extents.len() > LIST_EXTENTS_MAX || total(list) > TRANSFER_MAX as u64 {
        let text = format!("a list of {} places with {} bytes is too long", list.extents.len(), total(list));
        return Err(FsError::with(Errno::E2BIG, text));
    }
    Ok(())
}

fn total(list: &ListRequest) -> u64 {
    list.extents.iter().map(|(_, len)| u64::from(*len)).sum()
}

fn read(node: &Node, list: &ListRequest, reply: &mut Reply<'_>) -> FsResult<ListDone> {
    let mut done = ListDone { accepted: true, epoch: 0, whole: true, places: 0 };
    reply.payload(total(list) as usize, |bufs| {
        let room: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        if room < total(list) {
            return Err(FsError::with(Errno::EPROTO, "no room for the answer to a list"));
        }
        let mut rest: VecDeque<&mut [u8]> = bufs.iter_mut().map(|buf| &mut **buf).collect();
        for run in bivouac_layout::runs(list.extents.iter().map(|(offset, len)| (*offset, u64::from(*len)))) {
            let extents = list.extents.get(run).unwrap_or_default();
            let mut places: Vec<ListPart<'_>> =
                extents.iter().map(|(offset, len)| (*offset, take_front(&mut rest, *len as usize))).collect();
            read_run(node, (list.ino, list.target), &mut places, &mut done)?;
        }
        Ok(total(list) as usize)
    })?;
    Ok(done)
}

/// Offset in the subfile, and buffers for what is there.
type ListPart<'b> = (u64, Vec<&'b mut [u8]>);

fn len_of((_, parts): &ListPart<'_>) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// Reads places that are neighbours by one call. What is wrong between them is nobody's: then each is read by its own.
fn read_run(
    node: &Node,
    (ino, target): (Ino, TargetIndex),
    places: &mut [ListPart<'_>],
    done: &mut ListDone,
) -> FsResult<()> {
    let (Some(first), Some(last)) = (places.first(), places.last()) else { return Ok(()) };
    let (start, end) = (first.0, last.0.saturating_add(len_of(last)));
    let id = node.subfile(ino, target)?;
    let read = |into: &mut [IoSliceMut<'_>]| {
        let _here = node.bring(ino, target, start, end - start)?;
        Ok::<_, FsError>(node.data.read(id, start, into)?)
    };
    if let [(_, parts)] = places {
        let (len, epoch) = read(&mut parts.iter_mut().map(|part| IoSliceMut::new(part)).collect::<Vec<_>>())?;
        done.epoch = done.epoch.max(epoch);
        done.whole &= len as u64 == end - start;
        bivouac_layout::zero_behind(parts, len);
        return Ok(());
    }
    let mut bytes = vec![0; (end - start) as usize];
    match read(&mut [IoSliceMut::new(&mut bytes)]) {
        Ok((len, epoch)) => {
            done.epoch = done.epoch.max(epoch);
            bytes.truncate(len);
            for place in places {
                let wanted = len_of(place);
                let there = bivouac_layout::part_of(start, &bytes, (place.0, wanted));
                done.whole &= there.len() as u64 == wanted;
                bivouac_layout::fill(&mut place.1, there);
            }
            Ok(())
        }
        Err(_) => places
            .iter_mut()
            .try_for_each(|place| read_run(node, (ino, target), std::slice::from_mut(place), done)),
    }
}

/// Takes so many bytes from the front of a sequence of buffers.
fn take_front<'b>(rest: &mut VecDeque<&'b mut [u8]>, mut len: usize) -> Vec<&'b mut [u8]> {
    let mut taken = Vec::new();
    while len > 0
        && let Some(front) = rest.pop_front()
    {
        let (now, later) = front.split_at_mut(front.len().min(len));
        len -= now.len();
        taken.push(now);
        if !later.is_empty() {
            rest.push_front(later);
        }
    }
    taken
}

fn write(node: &Node, call: &Call<'_>, list: &ListRequest) -> FsResult<ListDone> {
    // Requests of this kind do not go through `run`, which checks the others.
    check_fence(node, call)?;
    let _passing = node.proxy.fence.pass()?;
    let payload: usize = call.payload.iter().map(|slice| slice.len()).sum();
    if payload as u64 != total(list) {
        return Err(FsError::with(Errno::EPROTO, "payload and list differ in length"));
    }
    let mut done = ListDone { accepted: true, epoch: 0, whole: true, places: 0 };
    let mut rest: VecDeque<&[u8]> = call.payload.iter().map(|slice| &**slice).collect();
    let extents: Vec<(u64, u32)> = list.extents.iter().copied().filter(|(_, len)| *len > 0).collect();
    for run in bivouac_layout::runs(extents.iter().map(|(offset, len)| (*offset, u64::from(*len)))) {
        let run = extents.get(run).unwrap_or_default();
        let parts = front_of(&mut rest, run.iter().map(|(_, len)| *len as usize).sum());
        let places = Places::new(run, &parts)
            .ok_or_else(|| FsError::with(Errno::EFBIG, "places of a list lie behind the end of any file"))?;
        let ListRequest { ino, target, layout, epoch, .. } = *list;
        let request = WriteRequest { ino, target, layout, epoch, offset: places.span().start };
        let who = (call.connection, !is_peer(call.frame.client));
        let written = match places.count() {
            1 => data::write(node, &request, &parts, who),
            _ => data::write_places(node, &request, &places, who),
        };
        // Whoever asks for the rest again must not write these once more: others may have replaced them.
        let written = match written {
            Err(_) if done.places > 0 => return Ok(ListDone { whole: false, ..done }),
            written => written?,
        };
        (done.accepted, done.epoch) = (written.accepted, written.epoch);
        if !written.accepted {
            break;
        }
        done.places += run.len() as u32;
    }
    Ok(done)
}

/// Like [`take_front`], for memory that is only read.
fn front_of<'b>(rest: &mut VecDeque<&'b [u8]>, mut len: usize) -> Vec<IoSlice<'b>> {
    let mut taken = Vec::new();
    while len > 0
        && let Some(front) = rest.pop_front()
    {
        let (now, later) = front.split_at(front.len().min(len));
        len -= now.len();
        taken.push(IoSlice::new(now));
        if !later.is_empty() {
            rest.push_front(later);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_cut_at_any_place() {
        let (mut a, mut b, mut c) = ([0u8; 3], [0u8; 0], [0u8; 5]);
        let mut rest: VecDeque<&mut [u8]> = [&mut a[..], &mut b[..], &mut c[..]].into();
        for (fill, len) in [(1, 2), (2, 4), (3, 2)] {
            take_front(&mut rest, len).into_iter().for_each(|part| part.fill(fill));
        }
        assert!(rest.is_empty());
        assert_eq!((a, c), ([1, 1, 2], [2, 2, 2, 3, 3]));
        let mut rest: VecDeque<&[u8]> = [&a[..], &b[..], &c[..]].into();
        let parts = front_of(&mut rest, 6);
        assert_eq!(parts.iter().flat_map(|part| part.to_vec()).collect::<Vec<_>>(), [1, 1, 2, 2, 2, 2]);
        assert_eq!(rest.iter().map(|part| part.len()).sum::<usize>(), 2);
    }
}
