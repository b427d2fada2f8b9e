//! Messages about files whose partition stands in front of site storage.

use bivouac_types::{Ino, Layout, PartitionId, Slot, TargetIndex, Timestamp};

/// Change of a target's marks of what was written, around a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushMark {
    /// A flush begins; what is written from now on is marked apart.
    Begin,
    /// The content is at site storage.
    Done {
        /// The file's epoch as of when the rest was known.
        epoch: u32,
        /// The file's object at site storage, and how much of the content is that of the object.
        whence: Whence,
    },
    /// The flush failed: marks are as before.
    Failed,
    /// No flush: a step is about to write a range of the subfile, which must be here.
    Known {
        /// The file's epoch as of when that was known.
        epoch: u32,
        /// Whence its content comes.
        whence: Whence,
        /// Start of the range in the subfile's data.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
    },
    /// The file may have changed at site storage: if nothing was written here, no writer of an older epoch may from now
    /// on.
    Close {
        /// The epoch.
        epoch: u32,
        /// Layout of the file.
        layout: Layout,
    },
    /// The file has changed there, and was closed: what is here is invalid.
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
        /// Start of the range in the subfile's data.
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
    /// A write, whose writer waits.
    Write,
    /// A close.
    Close,
    /// A sync.
    Sync,
    /// Its age.
    Age,
    /// Its space is needed, whatever the policy says.
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
    /// Version of a file at site storage.
    SiteVersion {
        /// Its size, in bytes.
        size: u64,
        /// Last change of its content.
        mtime: Timestamp,
        /// Anything else by which versions differ.
        tag: String,
    }
    /// A file at site storage.
    Origin {
        /// Its path there, from the partition's directory.
        path: Vec<u8>,
        /// Its version.
        seen: SiteVersion,
    }
    /// The object at site storage that content of a file may have to be brought from.
    Whence {
        /// The file at site storage, if it has been there.
        origin: Option<Origin>,
        /// End, in bytes of the file, of the range whose content is that of site storage unless it was written here.
        limit: u64,
        /// Layout of the file.
        layout: Layout,
        /// Number of times that the file was pinned and unpinned: odd while it is pinned. What is greater is newer.
        pin: u32,
    }
    /// A position among the records of a node.
    ListDirtyRequest {
        /// Position to continue after, in the order of slots and keys.
        after: Option<(Slot, Vec<u8>)>,
    }
    /// A file with content here that site storage lacks.
    Dirty {
        /// The file or directory.
        ino: Ino,
        /// Bytes of content on this node; 0 if only names or attributes differ.
        bytes: u64,
        /// Reason why it could not be flushed the last time, as far as this node knows; empty otherwise.
        why: String,
        /// True from the home of what has a temporary name, or is below one: it goes nowhere, whatever nodes have of it.
        is_temporary: bool,
    }
    /// A page of what site storage lacks.
    DirtyPage {
        /// The files. One may come several times.
        files: Vec<Dirty>,
        /// Position to continue at; `None` at the end.
        next: Option<(Slot, Vec<u8>)>,
    }
    /// A file that is to be pinned, or not any more.
    PinRequest {
        /// The file.
        ino: Ino,
        /// True to pin, false to unpin.
        pin: bool,
    }
    /// A position among the files of a node.
    ListPinnedRequest {
        /// Files behind this one.
        after: Option<Ino>,
    }
    /// A file that is pinned.
    Pinned {
        /// The file.
        ino: Ino,
        /// Its partition.
        partition: PartitionId,
        /// Its size, in bytes.
        bytes: u64,
    }
    /// A page of pinned files.
    PinnedPage {
        /// The files.
        files: Vec<Pinned>,
        /// Behind which one to go on; nothing at the end.
        next: Option<Ino>,
    }
    /// A file that is to be brought as a whole.
    BringRequest {
        /// The file.
        ino: Ino,
        /// Offset to begin or to go on at.
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
    /// Place of a directory at site storage.
    SitePlace {
        /// Its path there, if it has been there.
        path: Option<Vec<u8>>,
        /// The directory that it is in.
        dir: Ino,
        /// Its name there.
        name: Vec<u8>,
        /// Version seen under the requested name.
        seen: Option<SiteVersion>,
        /// Inode that this is here, or is about to be: it was brought as that, or flushed from it.
        by: Option<Ino>,
    }
    /// A file that is to go to site storage.
    FlushHereRequest {
        /// The file.
        ino: Ino,
        /// The reason of the flush.
        occasion: FlushTrigger,
        /// The flush that was begun before, if one was; otherwise 0.
        job: u64,
    }
    /// A fence before all changes.
    FenceRequest {
        /// Token of the process that holds it.
        token: u64,
        /// Time from now on, in milliseconds; 0 ends it.
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
        /// The file's version.
        seen: SiteVersion,
    }
    /// A page of such names, in order.
    SeenPage {
        /// The names.
        names: Vec<SeenName>,
        /// True if none follows.
        end: bool,
    }
    /// Records the version that site storage has under a name now.
    NoteSeenRequest {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Vec<u8>,
        /// The file's version; `None` if it is gone, or about to be replaced.
        seen: Option<SiteVersion>,
        /// Inode that this is here, or is about to be; `None` if it is gone.
        by: Option<Ino>,
    }
    /// A file that is to have all of its content here, since another takes its place at site storage.
    OwnRequest {
        /// The file.
        ino: Ino,
        /// The place: if its content does not come from there, nothing is to be done.
        origin: Origin,
        /// The work that was begun before, if it was; otherwise 0.
        job: u64,
    }
    /// A file, directory or link that is to go to site storage.
    FlushRequest {
        /// The file.
        ino: Ino,
        /// The directory that it is in.
        dir: Ino,
        /// The path that it is to have there.
        path: Vec<u8>,
        /// Version last seen at that path.
        seen: Option<SiteVersion>,
        /// Overwrite whatever is there.
        force: bool,
        /// A directory: files are to be brought into it first, so its owner may do so until it is flushed again.
        open: bool,
        /// The flush that was begun before, if one was; otherwise 0.
        job: u64,
    }
    /// Progress of a flush.
    FlushState {
        /// True if it is over.
        done: bool,
        /// Its number, for repeating the request.
        job: u64,
        /// Bytes moved so far.
        moved: u64,
        /// Its version at site storage, if it is there now and was not before.
        version: Option<SiteVersion>,
        /// Sentences about what site storage could not keep.
        lost: Vec<String>,
    }
    /// Marks of one subfile.
    MarkFlushRequest {
        /// The file.
        ino: Ino,
        /// The target that holds the subfile.
        target: TargetIndex,
        /// The change.
        mark: FlushMark,
    }
    /// Parts of a file that are to be written to its temporary file at site storage.
    FlushPartsRequest {
        /// The file.
        ino: Ino,
        /// The target whose parts these are.
        target: TargetIndex,
        /// Its origin and layout.
        whence: Whence,
        /// Path of the file at site storage.
        path: Vec<u8>,
        /// Size of the whole, in bytes.
        size: u64,
        /// The source's name for the upload.
        token: String,
        /// The first part that is still to be written, as a number of a stripe of the subfile.
        from: u64,
        /// The part behind the last one.
        to: u64,
    }
    /// Names that were deleted here and are to be deleted at site storage.
    MirrorRequest {
        /// Only this one: a directory, and a name in it; if the write policy says so now.
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
    /// Result of repeating deletions.
    MirrorPage {
        /// Names that were deleted.
        done: u64,
        /// Names that were not.
        left: Vec<Removal>,
        /// Position to continue at; `None` at the end.
        next: Option<(Slot, Vec<u8>)>,
    }
    /// A part that site storage has.
    FlushedPart {
        /// Offset in the file.
        offset: u64,
        /// Its length, in bytes.
        len: u64,
        /// Its name at the source, or a digest.
        tag: String,
    }
    /// Parts that were written, and are durable unless the source makes them so for all nodes.
    FlushedParts {
        /// The parts.
        parts: Vec<FlushedPart>,
        /// Position to continue at; `None` at the end.
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
