//! Messages about races: what clients report while they are detected, and what was found.

use bivouac_types::{
    FileAccess, OrderedBy, Race, RaceAccess, RaceCounts, RaceEvent, RaceProcess, Refresh, SyncObject,
};

use crate::{Decode, DecodeError, Encode, Reader};

codec_struct!(FileAccess { ino, range, is_write, is_in_stripe, is_session, process, first_ms, last_ms });
codec_struct!(OrderedBy { posix, commit, session, mpi_io });
codec_struct!(RaceAccess { host, node, process, is_write, range, first_ms, last_ms });
codec_struct!(Race { ino, range, count, ordered, is_in_stripe, is_session, first, second });
codec_struct!(RaceCounts { accesses, conflicts, unlisted, forgotten, lost_reports, merged, shared_clients });

impl Encode for RaceProcess {
    fn encode(&self, out: &mut Vec<u8>) {
        self.pid.encode(out);
        self.rank.encode(out);
        self.program.as_slice().encode(out);
    }
}

impl<'a> Decode<'a> for RaceProcess {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (pid, rank) = (Decode::decode(input)?, Decode::decode(input)?);
        Ok(RaceProcess { pid, rank, program: <&[u8]>::decode(input)?.to_vec() })
    }
}

codec_enum!(SyncObject, "object of synchronisation" { Name(dir, hash) = 0, Names(dir) = 1, Point(number) = 2 });

codec_enum!(Refresh, "way of taking in what is published" { Open = 0, Lock = 1, Sync = 2 });

codec_enum!(RaceEvent, "event of a client" {
    Access(access) = 0,
    Release(object) = 1,
    Acquire(object) = 2,
    Publish(ino) = 3,
    Refresh(ino, by) = 4,
    Close(ino) = 5,
});

owned! {
    /// The next events of a client, in their order.
    ReportAccessesRequest {
        /// The client's host.
        host: String,
        /// True if earlier events of it were lost.
        is_incomplete: bool,
        /// The processes that accesses name.
        processes: Vec<RaceProcess>,
        /// The events.
        events: Vec<RaceEvent>,
    }
    /// Selection of races.
    ListRacesRequest {
        /// Number of races to skip.
        from: u32,
    }
    /// A page of races.
    RacePage {
        /// Time since which races are detected, in milliseconds since 1970.
        since_ms: u64,
        /// True if an earlier daemon had detected races before, of which nothing is left.
        is_resumed: bool,
        /// Numbers of accesses, and of what was left out.
        counts: RaceCounts,
        /// The races.
        races: Vec<Race>,
        /// The position to continue from, if there are more.
        next: Option<u32>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_types::{ByteRange, Ino};

    #[test]
    fn every_event_travels() {
        let access = FileAccess {
            ino: Ino(3),
            range: ByteRange::at(4, 5),
            is_write: true,
            is_in_stripe: false,
            is_session: true,
            process: 1,
            first_ms: 7,
            last_ms: 8,
        };
        let events = vec![
            RaceEvent::Access(access),
            RaceEvent::Release(SyncObject::Name(Ino(1), 2)),
            RaceEvent::Acquire(SyncObject::Names(Ino(1))),
            RaceEvent::Release(SyncObject::Point(9)),
            RaceEvent::Publish(Ino(5)),
            RaceEvent::Refresh(Ino(6), Refresh::Open),
            RaceEvent::Refresh(Ino(6), Refresh::Lock),
            RaceEvent::Refresh(Ino(6), Refresh::Sync),
            RaceEvent::Close(Ino(7)),
        ];
        let process = RaceProcess { pid: 7, rank: Some(3), program: b"app".to_vec() };
        let (host, processes) = ("h".to_owned(), vec![process]);
        let request = ReportAccessesRequest { host, is_incomplete: true, processes, events };
        let mut bytes = request.to_bytes();
        assert_eq!(ReportAccessesRequest::from_bytes(&bytes), Ok(request));
        // The number of the last event.
        let at = bytes.len() - 9;
        bytes[at] = 6;
        assert_eq!(ReportAccessesRequest::from_bytes(&bytes), Err(DecodeError::Invalid("event of a client")));
    }
}
