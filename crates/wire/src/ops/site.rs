//! Messages about files whose partition stands in front of site storage.

use bivouac_types::{Ino, Layout, PartitionId, Slot, TargetIndex, Timestamp};

/// What a target does with the marks of what was written, around a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushMark {
    /// What was written so far is about to be flushed; what is written from now on is told apart.
    Begin,
    /// It is at site storage.
    Done {
        /// The file's epoch as of when the rest was known.
        epoch: u32,
        /// What the file is there now, and how much of it is its content.
        whence: Whence,
    },
    /// It is not: it is as it was before.
    Failed,
    /// Nothing is flushed: a range of the subfile is about to be written by a step, and must be here.
    Known {
        /// The file's epoch as of when that was known.
        epoch: u32,
        /// Whence its content comes.
        whence: Whence,
        /// Where the range begins in the subfile's data.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
    },
    /// The file may have changed at site storage: if nothing was written here, no writer of an older epoch may from now on.
    Close {
        /// The epoch.
        epoch: u32,
        /// Where the file's bytes are.
        layout: Layout,
    },
    /// It has changed there, and was closed: what is here is nothing.
    Drop {
        /// The epoch.
        epoch: u32,
        /// Whence its content comes.
        whence: Whence,
    },
    /// A range of the subfile is to be nowhere but here: it is brought, and counts as written here.
    Own {
        /// The file's epoch as of when that was known.
        epoch: u32,
        /// Whence its content comes.
        whence: Whence,
        /// Where the range begins in the subfile's data.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
    },
    /// The file is pinned, or is not any more.
    Pin {
        /// The file's epoch.
        epoch: u32,
        /// Whence its content comes, with what is new.
        whence: Whence,
    },
}

/// Reason why a file is to go to site storage. Its policy says whether it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushTrigger {
    /// It was written to, and the writer waits.
    Write,
    /// It was closed.
    Close,
    /// It was synced.
    Sync,
    /// It has waited.
    Age,
    /// Its room is needed, whatever the policy says.
    Room,
}

codec_enum!(FlushTrigger, "trigger of a flush" { Write = 0, Close = 1, Sync = 2, Age = 3, Room = 4 });

codec_enum!(FlushMark, "mark of a flush" {
    Begin = 0,
    Done { epoch, whence } = 1,
    Failed = 2,
    Known { epoch, whence, offset, len } = 3,
    Close { epoch, layout } = 4,
    Drop { epoch, whence } = 5,
    Pin { epoch, whence } = 6,
    Own { epoch, whence, offset, len } = 7,
});

owned! {
    /// How a file at site storage looked.
    SiteVersion {
        /// Its size, in bytes.
        size: u64,
        /// Last change of its content.
        mtime: Timestamp,
        /// What else tells contents apart.
        tag: String,
    }
    /// A file at site storage.
    Origin {
        /// Its path there, from the partition's directory.
        path: Vec<u8>,
        /// How it looked.
        seen: SiteVersion,
    }
    /// Where content of a file may have to be brought from.
    Whence {
        /// The file at site storage, if it has been there.
        origin: Option<Origin>,
        /// What is in front of this, in bytes of the file, is the same there unless it was written here.
        limit: u64,
        /// Where its bytes are.
        layout: Layout,
        /// Number of times that the file was pinned and unpinned: odd while it is pinned. What is greater is newer.
        pin: u32,
    }
    /// A position among the records of a node.
    ListDirtyRequest {
        /// What is behind this, in the order of slots and keys.
        after: Option<(Slot, Vec<u8>)>,
    }
    /// What a node has of a file that site storage does not have.
    Dirty {
        /// The file or directory.
        ino: Ino,
        /// Bytes of content on this node; 0 if only names or attributes differ.
        bytes: u64,
        /// Reason why it could not be flushed the last time, as far as this node knows; empty otherwise.
        why: String,
    }
    /// Some of what site storage does not have.
    DirtyPage {
        /// The files. One may come several times.
        files: Vec<Dirty>,
        /// Where to go on; nothing at the end.
        next: Option<(Slot, Vec<u8>)>,
    }
    /// A file that is to be pinned, or not any more.
    PinRequest {
        /// It.
        ino: Ino,
        /// Which of both.
        pin: bool,
    }
    /// A position among the files of a node.
    ListPinnedRequest {
        /// Files behind this one.
        after: Option<Ino>,
    }
    /// A file that is pinned.
    Pinned {
        /// It.
        ino: Ino,
        /// Its partition.
        partition: PartitionId,
        /// Its size, in bytes.
        bytes: u64,
    }
    /// Some of those that are.
    PinnedPage {
        /// They.
        files: Vec<Pinned>,
        /// Behind which one to go on; nothing at the end.
        next: Option<Ino>,
    }
    /// A file that is to be brought as a whole.
    BringRequest {
        /// It.
        ino: Ino,
        /// Where in it to begin, or to go on.
        from: u64,
        /// True if it was opened, and its policy decides; otherwise it is brought in any case.
        opened: bool,
    }
    /// A directory, and a name in it.
    FindPlaceRequest {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
    }
    /// Where a directory is at site storage.
    SitePlace {
        /// Its path there, if it has been there.
        path: Option<Vec<u8>>,
        /// The directory that it is in.
        dir: Ino,
        /// Its name there.
        name: Vec<u8>,
        /// What was seen under the name that was asked for.
        seen: Option<SiteVersion>,
        /// What that is here, or is about to be: the inode that it was brought as, or flushed from.
        by: Option<Ino>,
    }
    /// A file that is to go to site storage.
    FlushHereRequest {
        /// It.
        ino: Ino,
        /// What the occasion is.
        occasion: FlushTrigger,
        /// The flush that was begun before, if one was; otherwise 0.
        job: u64,
    }
    /// A fence before all changes.
    FenceRequest {
        /// Who holds it.
        token: u64,
        /// For how long from now on, in milliseconds; 0 lifts it.
        hold_ms: u32,
    }
    /// Names that site storage had in a directory.
    ListSeenRequest {
        /// The directory.
        dir: Ino,
        /// Names behind this.
        after: Vec<u8>,
    }
    /// A name that site storage had when it was last looked at.
    SeenName {
        /// The name.
        name: Vec<u8>,
        /// How the file looked.
        seen: SiteVersion,
    }
    /// Such names, in their order.
    SeenPage {
        /// The names.
        names: Vec<SeenName>,
        /// True if none follows.
        end: bool,
    }
    /// What site storage has under a name now.
    NoteSeenRequest {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
        /// How the file looks; nothing if there is none any more, or another is about to take its place.
        seen: Option<SiteVersion>,
        /// What that is here, or is about to be; nothing if there is none any more.
        by: Option<Ino>,
    }
    /// A file that is to have all of its content here, since another takes its place at site storage.
    OwnRequest {
        /// It.
        ino: Ino,
        /// The place: if its content does not come from there, nothing is to be done.
        origin: Origin,
        /// The work that was begun before, if it was; otherwise 0.
        job: u64,
    }
    /// A file, directory or link that is to go to site storage.
    FlushRequest {
        /// It.
        ino: Ino,
        /// The directory that it is in.
        dir: Ino,
        /// The path that it is to have there.
        path: Vec<u8>,
        /// What was last seen at that path.
        seen: Option<SiteVersion>,
        /// Overwrite whatever is there.
        force: bool,
        /// A directory: files are to be brought into it first, so its owner may do so until it is flushed again.
        open: bool,
        /// The flush that was begun before, if one was; otherwise 0.
        job: u64,
    }
    /// How far a flush is.
    FlushState {
        /// True if it is over.
        done: bool,
        /// Its number, to ask again with.
        job: u64,
        /// Bytes moved so far.
        moved: u64,
        /// How it looks at site storage, if it is there now and was not before.
        version: Option<SiteVersion>,
        /// What site storage could not keep: sentences.
        lost: Vec<String>,
    }
    /// Marks of one subfile.
    MarkFlushRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// What to do.
        mark: FlushMark,
    }
    /// Parts of a file that are to be written to its temporary file at site storage.
    FlushPartsRequest {
        /// The file.
        ino: Ino,
        /// The target whose parts these are.
        target: TargetIndex,
        /// Its origin, and where its bytes are.
        whence: Whence,
        /// Path of the file at site storage.
        path: Vec<u8>,
        /// Size of the whole, in bytes.
        size: u64,
        /// What the source calls the file in the making.
        token: String,
        /// The first part that is still to be written, as a number of a stripe of the subfile.
        from: u64,
        /// The part behind the last one.
        to: u64,
    }
    /// Names that were deleted here and are to be deleted at site storage.
    MirrorRequest {
        /// One of them alone: a directory, and the name in it; if the write policy says now.
        only: Option<(Ino, Vec<u8>)>,
        /// Otherwise those of a partition that are below a path there, or all.
        below: Option<(PartitionId, Vec<u8>)>,
        /// Behind this one.
        after: Option<(Slot, Vec<u8>)>,
        /// True if it is to be done; otherwise they are only told.
        act: bool,
        /// True if a directory that is not empty there stays, and is forgotten here.
        last: bool,
    }
    /// A name that is to be deleted at site storage.
    Removal {
        /// Its path there, as far as it is known.
        path: Vec<u8>,
        /// The partition.
        partition: PartitionId,
        /// Reason why it was not deleted; empty if nobody has tried.
        why: String,
        /// True if it stays there for good.
        kept: bool,
        /// True if it is a directory with something in it.
        filled: bool,
    }
    /// What came of it.
    MirrorPage {
        /// Names that were deleted.
        done: u64,
        /// Names that were not.
        left: Vec<Removal>,
        /// Where to go on; nothing at the end.
        next: Option<(Slot, Vec<u8>)>,
    }
    /// A part that site storage has.
    FlushedPart {
        /// Where in the file.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
        /// What the source calls it, or a digest.
        tag: String,
    }
    /// Parts that were written, and are durable unless the source makes them so for all nodes.
    FlushedParts {
        /// They.
        parts: Vec<FlushedPart>,
        /// Where to go on; nothing at the end.
        next: Option<u64>,
    }
}

impl Whence {
    /// Returns whether what is here is to stay.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pin % 2 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, Encode};
    use proptest::prelude::*;

    #[test]
    fn marks_travel() {
        let seen = SiteVersion { size: 1, mtime: Timestamp { secs: 2, nanos: 3 }, tag: "4".into() };
        let origin = Origin { path: b"a/b".to_vec(), seen };
        let layout = Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 };
        let whence = Whence { origin: Some(origin), limit: 5, layout, pin: 3 };
        let marks = [
            FlushMark::Begin,
            FlushMark::Done { epoch: 1, whence: whence.clone() },
            FlushMark::Failed,
            FlushMark::Known { epoch: 2, whence: whence.clone(), offset: 3, len: 4 },
            FlushMark::Close { epoch: 3, layout },
            FlushMark::Drop { epoch: 4, whence: whence.clone() },
            FlushMark::Pin { epoch: 5, whence },
        ];
        for mark in marks {
            assert_eq!(FlushMark::from_bytes(&mark.to_bytes()), Ok(mark));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MarkFlushRequest::from_bytes(&bytes);
            let _ = FlushPartsRequest::from_bytes(&bytes);
            let _ = FlushRequest::from_bytes(&bytes);
            let _ = FlushState::from_bytes(&bytes);
            let _ = FlushedParts::from_bytes(&bytes);
            let _ = DirtyPage::from_bytes(&bytes);
            let _ = PinRequest::from_bytes(&bytes);
            let _ = ListPinnedRequest::from_bytes(&bytes);
            let _ = PinnedPage::from_bytes(&bytes);
            let _ = SeenPage::from_bytes(&bytes);
            let _ = MirrorRequest::from_bytes(&bytes);
            let _ = MirrorPage::from_bytes(&bytes);
        }
    }
}
