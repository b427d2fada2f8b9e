//! Messages between a linked formation and a gateway; their bytes are in docs/protocol.md.
//!
//! A message has a head of 16 bytes, a body, and a payload of raw content. Requests carry a number that their reply
//! repeats; replies come in any order.

use bivouac_source::{
    Attrs, Cause, Entry, Listing, Meta, Piece, Precondition, PutOutcome, SourceError, Upload, Version,
};
use bivouac_types::FormationId;
use bivouac_wire::{Decode, DecodeError, Encode, Reader, codec_enum, codec_struct};

/// Version of these messages, the first field of the first one.
pub const VERSION: u16 = 3;
/// Length of a head, in bytes.
pub const HEAD_LEN: usize = 16;
/// Upper limit of a body, in bytes, but of a listing.
pub const BODY_MAX: usize = 1 << 20;
/// Upper limit of the body of a listing, in bytes: some 500,000 entries.
pub const LISTING_MAX: usize = 64 << 20;
/// Upper limit of a payload, in bytes. A longer piece is several.
pub const PAYLOAD_MAX: usize = 8 << 20;
/// Upper limit of formations in a chain of links.
pub const CHAIN_MAX: usize = 16;

/// Head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of the request.
    pub id: u32,
    /// Length of the body, in bytes.
    pub body_len: u32,
    /// Length of the payload, in bytes.
    pub payload_len: u32,
    /// 1 in a request that is sent again, else 0; in a reply 0 for success or the number of a cause.
    pub status: u8,
}

impl Head {
    /// Encodes it.
    pub fn to_bytes(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        for (at, part) in [self.id, self.body_len, self.payload_len].into_iter().enumerate() {
            if let Some(place) = bytes.get_mut(4 * at..4 * at + 4) {
                place.copy_from_slice(&part.to_le_bytes());
            }
        }
        bytes[12] = self.status;
        bytes
    }

    /// Decodes it; `None` if the reserved bytes are not zero.
    pub fn from_bytes(bytes: &[u8; HEAD_LEN]) -> Option<Head> {
        let part =
            |at: usize| bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_le_bytes);
        let head = Head { id: part(0)?, body_len: part(4)?, payload_len: part(8)?, status: bytes[12] };
        (bytes[13..] == [0; 3]).then_some(head)
    }
}

/// A type of site storage in the codec of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded<T>(pub T);

macro_rules! coded {
    ($ty:ident { $($field:ident),* }) => {
        impl Encode for Coded<$ty> {
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.0.$field.encode(out);)*
            }
        }
        impl Decode<'_> for Coded<$ty> {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                $(let $field = Decode::decode(input)?;)*
                #[allow(clippy::needless_update, reason = "an upload has a descriptor, too")]
                Ok(Coded($ty { $($field,)* ..$ty::default() }))
            }
        }
    };
}

coded!(Version { size, mtime, tag });
coded!(Upload { path, size, token, tag });
coded!(Piece { offset, len, tag });

impl Encode for Coded<Attrs> {
    fn encode(&self, out: &mut Vec<u8>) {
        let Attrs { perm, uid, gid, mtime, atime, xattrs } = &self.0;
        [perm, uid, gid].into_iter().for_each(|number| number.encode(out));
        [mtime, atime].into_iter().for_each(|time| time.encode(out));
        (xattrs.len() as u32).encode(out);
        for (name, value) in xattrs {
            name.encode(out);
            value.encode(out);
        }
    }
}

impl Decode<'_> for Coded<Attrs> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (perm, uid, gid) = (u32::decode(input)?, u32::decode(input)?, u32::decode(input)?);
        let (mtime, atime, count) = (Decode::decode(input)?, Decode::decode(input)?, u32::decode(input)?);
        let mut xattrs = Vec::new();
        for _ in 0..count {
            xattrs.push((Vec::<u8>::decode(input)?, Vec::<u8>::decode(input)?));
        }
        Ok(Coded(Attrs { perm, uid, gid, mtime, atime, xattrs }))
    }
}

impl Encode for Coded<Meta> {
    fn encode(&self, out: &mut Vec<u8>) {
        let Meta { kind, attrs, version, links, target, rdev, hides_xattrs } = &self.0;
        kind.encode(out);
        Coded(attrs.clone()).encode(out);
        Coded(version.clone()).encode(out);
        links.encode(out);
        target.encode(out);
        rdev.encode(out);
        hides_xattrs.encode(out);
    }
}

impl Decode<'_> for Coded<Meta> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (kind, attrs, version) =
            (u32::decode(input)?, Coded::<Attrs>::decode(input)?.0, Coded::<Version>::decode(input)?.0);
        let (links, target, rdev) = (Decode::decode(input)?, Decode::decode(input)?, Decode::decode(input)?);
        let hides_xattrs = Decode::decode(input)?;
        Ok(Coded(Meta { kind, attrs, version, links, target, rdev, hides_xattrs }))
    }
}

impl Encode for Coded<Entry> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.name.encode(out);
        Coded(self.0.meta.clone()).encode(out);
    }
}

impl Decode<'_> for Coded<Entry> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (name, meta) = (Decode::decode(input)?, Coded::<Meta>::decode(input)?.0);
        Ok(Coded(Entry { name, meta }))
    }
}

impl Encode for Coded<Listing> {
    fn encode(&self, out: &mut Vec<u8>) {
        let Listing { dir, entries, digest } = &self.0;
        Coded(dir.clone()).encode(out);
        (entries.len() as u32).encode(out);
        entries.iter().for_each(|entry| Coded(entry.clone()).encode(out));
        digest.to_le_bytes().encode(out);
    }
}

impl Decode<'_> for Coded<Listing> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let dir = Coded::<Meta>::decode(input)?.0;
        let entries = Vec::<Coded<Entry>>::decode(input)?.into_iter().map(|entry| entry.0).collect();
        Ok(Coded(Listing { dir, entries, digest: u128::from_le_bytes(Decode::decode(input)?) }))
    }
}

impl Encode for Coded<PutOutcome> {
    fn encode(&self, out: &mut Vec<u8>) {
        Coded(self.0.version.clone()).encode(out);
        self.0.lost.encode(out);
    }
}

impl Decode<'_> for Coded<PutOutcome> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (version, lost) = (Coded::<Version>::decode(input)?.0, Decode::decode(input)?);
        Ok(Coded(PutOutcome { version, lost }))
    }
}

impl Encode for Coded<Precondition> {
    fn encode(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Precondition::Absent => 0_u8.encode(out),
            Precondition::Version(version) => {
                1_u8.encode(out);
                Coded(version.clone()).encode(out);
            }
            Precondition::Anything => 2_u8.encode(out),
        }
    }
}

impl Decode<'_> for Coded<Precondition> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Coded(match u8::decode(input)? {
            0 => Precondition::Absent,
            1 => Precondition::Version(Coded::<Version>::decode(input)?.0),
            2 => Precondition::Anything,
            _ => return Err(DecodeError::Invalid("precondition")),
        }))
    }
}

/// Attributes of a directory that [`Request::PutDir`] sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirChange {
    /// All attributes.
    All,
    /// All but times, as entries follow.
    Open,
    /// Times alone.
    Times,
}

codec_enum!(DirChange, "change of a directory" { All = 0, Open = 1, Times = 2 });

/// A directory to list, unless it has this digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedDir {
    /// Its path.
    pub path: Vec<u8>,
    /// Digest of what is known of it, 0 for nothing.
    pub known: [u8; 16],
}
codec_struct!(WantedDir { path, known });

/// The state of a directory that was to be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedDir {
    /// Its path.
    pub path: Vec<u8>,
    /// `None` if it has the digest that is known.
    pub listing: Option<Coded<Listing>>,
}
codec_struct!(ListedDir { path, listing });

/// A connection of a process that asks. Its other ones that it does not name have ended for it: what they had asked for
/// and is not begun is not carried out any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// The asking side, the same after a restart: a node, or a command.
    pub asker: u64,
    /// Its process.
    pub process: u64,
    /// Number of the connection; later ones have greater numbers.
    pub number: u32,
    /// Numbers of its other connections that it uses or is making.
    pub others: Vec<u32>,
}
codec_struct!(Session { asker, process, number, others });

/// A request of a linked formation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The first request of every stream. Reply: [`Welcome`].
    Join {
        /// [`VERSION`] of the asking side.
        version: u16,
        /// The asking formation.
        formation: FormationId,
        /// The process that asks, and its connection.
        session: Session,
    },
    /// Checks that the exported directory is there. Reply: nothing.
    Check {},
    /// Directories with all of their entries, and as much of the trees below the first as fits. Reply: [`ListedDir`]s.
    List {
        /// The directories that are wanted.
        dirs: Vec<WantedDir>,
        /// Entries below the first that may come with it, at most.
        below_max: u32,
    },
    /// Metadata of a path, with the content of a file that is not longer. Reply: metadata; payload: content.
    Stat {
        /// The path.
        path: Vec<u8>,
        /// Longest content that is wanted, in bytes.
        inline_max: u32,
    },
    /// A range of a file. Reply: nothing; payload: content.
    Read {
        /// Its path.
        path: Vec<u8>,
        /// The version that it must have.
        version: Coded<Version>,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: u32,
    },
    /// Begins an upload. Reply: it.
    Start {
        /// The upload as planned.
        upload: Coded<Upload>,
        /// Attributes that the file is to have.
        attrs: Coded<Attrs>,
    },
    /// Writes a piece, the payload. Reply: it.
    Put {
        /// The upload.
        upload: Coded<Upload>,
        /// From here on.
        offset: u64,
    },
    /// Makes pieces durable and compares them. Reply: nothing.
    Verify {
        /// The upload.
        upload: Coded<Upload>,
        /// The pieces.
        pieces: Vec<Coded<Piece>>,
    },
    /// Moves an upload to its target, once pieces that were not verified are. Reply: its outcome.
    Commit {
        /// The upload.
        upload: Coded<Upload>,
        /// The pieces.
        pieces: Vec<Coded<Piece>>,
        /// Attributes of the file.
        attrs: Coded<Attrs>,
        /// The precondition on what the target has under the name.
        expect: Coded<Precondition>,
    },
    /// Discards an upload. Reply: nothing.
    Abort {
        /// The upload.
        upload: Coded<Upload>,
    },
    /// Decides what became of an upload. Reply: the version at its target, if it has reached it.
    Resume {
        /// The upload.
        upload: Coded<Upload>,
        /// The precondition that the target checked.
        expect: Coded<Precondition>,
    },
    /// Makes a directory or sets its attributes. Reply: the outcome.
    PutDir {
        /// Its path.
        path: Vec<u8>,
        /// Its attributes.
        attrs: Coded<Attrs>,
        /// The attributes that are set.
        change: DirChange,
    },
    /// Makes a link under a temporary name. Reply: its upload.
    StartLink {
        /// The upload as planned.
        upload: Coded<Upload>,
        /// The path that the symbolic link leads to.
        target: Vec<u8>,
    },
    /// Moves it to its target. Reply: the outcome.
    PutLink {
        /// The link.
        upload: Coded<Upload>,
        /// The path that the symbolic link leads to.
        target: Vec<u8>,
        /// Its attributes.
        attrs: Coded<Attrs>,
        /// The precondition on what the target has under the name.
        expect: Coded<Precondition>,
    },
    /// Sets attributes. Reply: the outcome.
    SetAttrs {
        /// Path of the file.
        path: Vec<u8>,
        /// If it has this version.
        version: Coded<Version>,
        /// The attributes.
        attrs: Coded<Attrs>,
    },
    /// Completes a removal that was cut off. Reply: nothing.
    FinishRemoval {
        /// Path of the file.
        path: Vec<u8>,
        /// The version to be removed.
        version: Coded<Version>,
    },
    /// Removes a file or an empty directory. Reply: nothing.
    Remove {
        /// Its path.
        path: Vec<u8>,
        /// The version that it must have.
        version: Option<Coded<Version>>,
    },
    /// A whole file, the payload: begun, written, compared and moved to its target. Reply: the outcome.
    PutWhole {
        /// The upload as planned, with the digest of its content as its tag.
        upload: Coded<Upload>,
        /// Attributes of the file.
        attrs: Coded<Attrs>,
        /// The precondition on what the target has under the name.
        expect: Coded<Precondition>,
    },
    /// Refuses if links of the far formation lead to one of these. Reply: nothing.
    Reach {
        /// The formations on the way, the first one asks.
        chain: Vec<FormationId>,
    },
    /// Figures of the key's links. Reply: [`Usage`].
    Usage {},
    /// Figures of all keys, for the gateway's own formation. Reply: [`KeyFigures`].
    Figures {},
}
codec_enum!(Request, "request" {
    Join { version, formation, session } = 1,
    Check {} = 2,
    List { dirs, below_max } = 3,
    Stat { path, inline_max } = 4,
    Read { path, version, offset, len } = 5,
    Start { upload, attrs } = 6,
    Put { upload, offset } = 7,
    Verify { upload, pieces } = 8,
    Commit { upload, pieces, attrs, expect } = 9,
    Abort { upload } = 10,
    Resume { upload, expect } = 11,
    PutDir { path, attrs, change } = 12,
    StartLink { upload, target } = 13,
    PutLink { upload, target, attrs, expect } = 14,
    SetAttrs { path, version, attrs } = 15,
    FinishRemoval { path, version } = 16,
    Remove { path, version } = 17,
    PutWhole { upload, attrs, expect } = 18,
    Reach { chain } = 19,
    Usage {} = 20,
    Figures {} = 21,
});

impl Request {
    /// Returns whether it changes something at the far side.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Request::Join { .. }
                | Request::Check {}
                | Request::List { .. }
                | Request::Stat { .. }
                | Request::Read { .. }
                | Request::Reach { .. }
                | Request::Usage {}
                | Request::Figures {}
        )
    }
}

/// A gateway's answer to [`Request::Join`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// [`VERSION`] of the gateway.
    pub version: u16,
    /// Its formation.
    pub formation: FormationId,
    /// The name of that formation.
    pub name: String,
    /// The exported directory.
    pub path: Vec<u8>,
    /// True if the key permits no changes.
    pub read_only: bool,
    /// Time when the key expires, in seconds since 1970.
    pub expires: Option<u64>,
    /// Users and groups: those of the gateway are those of the asking side there.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Connections that a process may have, at least one: those of a key are shared evenly.
    pub streams: u32,
}
codec_struct!(Welcome { version, formation, name, path, read_only, expires, uid, gid, streams });

/// Figures of one key at a gateway, since the gateway was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Streams that are open.
    pub streams: u64,
    /// Bytes of content that came.
    pub bytes_in: u64,
    /// Bytes of content that were sent.
    pub bytes_out: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The last failure.
    pub last_error: String,
}
codec_struct!(Usage { streams, bytes_in, bytes_out, requests, errors, last_error });

/// Figures of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFigures {
    /// The key's id.
    pub id: String,
    /// Its figures.
    pub usage: Usage,
}
codec_struct!(KeyFigures { id, usage });

/// Causes by their number on the wire, which is one more than their place here.
const CAUSES: [Cause; 12] = [
    Cause::NotFound,
    Cause::Exists,
    Cause::Denied,
    Cause::Full,
    Cause::ReadOnly,
    Cause::BadName,
    Cause::Changed,
    Cause::WrongKind,
    Cause::NotEmpty,
    Cause::Lost,
    Cause::Unsupported,
    Cause::Other,
];

/// Returns the number of a cause.
pub fn status_of(cause: Cause) -> u8 {
    CAUSES.iter().position(|known| *known == cause).map_or(CAUSES.len() as u8, |at| at as u8 + 1)
}

/// Returns the cause with a number, [`Cause::Other`] for an unknown one.
pub fn cause_of(status: u8) -> Cause {
    CAUSES.get(usize::from(status).wrapping_sub(1)).copied().unwrap_or(Cause::Other)
}

/// Returns the failure that a reply with a status reports.
pub fn failure(status: u8, text: &[u8]) -> SourceError {
    SourceError::new(cause_of(status), plain(&String::from_utf8_lossy(text)))
}

/// Returns the text of the other side, which may come to a terminal: cut, and without control characters.
pub fn plain(text: &str) -> String {
    const TEXT_MAX: usize = 1000;
    text.chars().filter(|one| !one.is_control()).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use bivouac_types::{Timestamp, mode};

    use super::*;

    #[test]
    fn messages_come_back() {
        let version = Version { size: 5, mtime: Timestamp { secs: -1, nanos: 7 }, tag: "a1".into() };
        let xattrs = vec![(b"user.x".to_vec(), b"\0y".to_vec())];
        let attrs = Attrs { perm: 0o640, uid: 1, gid: 2, xattrs, ..Attrs::default() };
        let meta = Meta {
            kind: mode::FILE,
            attrs: attrs.clone(),
            version: version.clone(),
            links: 1,
            hides_xattrs: true,
            ..Meta::default()
        };
        let entries = vec![Entry { name: b"n".to_vec(), meta: meta.clone() }];
        let listing = Listing { dir: meta, entries, digest: u128::MAX - 1 };
        let listed = ListedDir { path: b"d".to_vec(), listing: Some(Coded(listing)) };
        assert_eq!(ListedDir::from_bytes(&listed.to_bytes()).unwrap(), listed);
        let upload =
            Upload { path: b"d/f".to_vec(), size: 5, token: ".bivouac-1".into(), ..Upload::default() };
        let request = Request::Commit {
            upload: Coded(upload),
            pieces: vec![Coded(Piece { offset: 1, len: 2, tag: "t".into() })],
            attrs: Coded(attrs),
            expect: Coded(Precondition::Version(version)),
        };
        assert_eq!(Request::from_bytes(&request.to_bytes()).unwrap(), request);
        let head = Head { id: 7, body_len: 8, payload_len: 9, status: 1 };
        assert_eq!(Head::from_bytes(&head.to_bytes()), Some(head));
        let mut odd = head.to_bytes();
        odd[14] = 1;
        assert_eq!(Head::from_bytes(&odd), None);
    }

    #[test]
    fn causes_are_numbers_and_back() {
        for cause in CAUSES {
            assert_eq!(cause_of(status_of(cause)), cause);
            assert_ne!(status_of(cause), 0);
        }
        assert_eq!(cause_of(200), Cause::Other);
        assert_eq!(failure(4, b"no\nspace").to_string(), "nospace");
    }

    #[test]
    fn changes_are_told_from_questions() {
        assert!(!Request::Check {}.is_change());
        assert!(Request::Remove { path: Vec::new(), version: None }.is_change());
    }
}
