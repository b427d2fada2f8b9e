//! Messages about range tokens, the rights to bytes of files under the strict contract.

use bivouac_types::limits::FRAME_BODY_MAX;
use bivouac_types::{Attr, ByteRange, ClientId, Ino, TokenMode};

/// Most tokens, and most requests, of a list.
pub const TOKENS_LISTED_MAX: usize = 64;

// Two lists travel in one body, with 25 bytes for each of a list.
const _: () = assert!(2 * TOKENS_LISTED_MAX * 25 + 1024 <= FRAME_BODY_MAX);

codec_struct!(ByteRange { start, end });

codec_enum!(TokenMode, "mode of a token" { Read = 0, Write = 1 });

owned! {
    /// An append, whose bytes are the payload.
    AppendRequest {
        /// The file.
        ino: Ino,
        /// The epoch of which the client has tokens for it, if it needs any; `ERESTART` if the file has another one.
        epoch: Option<u32>,
        /// Offset from which on the tokens cover bytes; `ECANCELED` if the file ends before.
        from: u64,
    }
    /// A call needs tokens.
    TakeTokensRequest {
        /// The file.
        ino: Ino,
        /// Number of the call; later calls of a client have higher numbers.
        call: u64,
        /// True if the client, or an earlier process of it, has done part of the call already: as long as it has the
        /// tokens, nobody else comes first.
        renews: bool,
        /// The use that is to be made of them.
        mode: TokenMode,
        /// The bytes that the call needs.
        required: ByteRange,
        /// The bytes that the client expects to need next.
        desired: Vec<ByteRange>,
    }
    /// Tokens that a home grants.
    TokenGrant {
        /// The life of the home's daemon: what an earlier one granted it does not know.
        life: u64,
        /// Number of the grant in that life.
        serial: u64,
        /// The bytes.
        ranges: Vec<ByteRange>,
    }
    /// Outcome of a request for tokens.
    TakenTokens {
        /// The file. Without a grant, it may have another contract by now.
        attr: Attr,
        /// The tokens; without, the request keeps its place in the queue, and is to be sent again.
        grant: Option<TokenGrant>,
    }
    /// A call does not wait for tokens any more.
    CancelTokensRequest {
        /// The file.
        ino: Ino,
        /// Number of the call.
        call: u64,
        /// Bytes of which it has no tokens, if it was granted any: of a client that cannot be asked for them.
        ranges: Vec<ByteRange>,
    }
    /// Use of bytes of a file by a client.
    ClientToken {
        /// The client.
        client: ClientId,
        /// Use that it may make of them, or wants to make.
        mode: TokenMode,
        /// The bytes.
        range: ByteRange,
    }
    /// Tokens of a file, and requests for some.
    TokenList {
        /// Number of tokens, of which at most [`TOKENS_LISTED_MAX`] are listed.
        held_count: u32,
        /// Tokens of clients.
        held: Vec<ClientToken>,
        /// Number of requests that wait, of which at most [`TOKENS_LISTED_MAX`] are listed.
        waiting_count: u32,
        /// Requests that wait, in their order.
        waiting: Vec<ClientToken>,
    }
    /// Tokens that a client has no more.
    ReturnTokensRequest {
        /// The file.
        ino: Ino,
        /// The life of the home that granted them; another one does nothing.
        life: u64,
        /// The last grant that is concerned.
        upto: u64,
        /// For readers: the right to read stays.
        mode: TokenMode,
        /// The bytes.
        ranges: Vec<ByteRange>,
        /// True if what the client has sent for a call on these bytes may still arrive: then the file is fenced.
        is_lost: bool,
    }
    /// A client is to give tokens back.
    RecallTokensRequest {
        /// The client.
        client: ClientId,
        /// The file.
        ino: Ino,
        /// The life of the home.
        life: u64,
        /// The last grant that is concerned.
        upto: u64,
        /// The use that is to be made of them.
        mode: TokenMode,
        /// The bytes that somebody else needs.
        required: ByteRange,
        /// Bytes that are welcome besides.
        desired: Vec<ByteRange>,
        /// Calls of the client whose requests are not granted yet.
        waiting: Vec<u64>,
    }
    /// Answer of a client to that.
    RecalledTokens {
        /// Of these bytes, those of which it keeps its tokens until it gives them back or is asked again.
        kept: Vec<ByteRange>,
        /// True if it gives back what is required by itself.
        gives_back: bool,
    }
    /// A token by file.
    FileToken {
        /// The file.
        ino: Ino,
        /// The epoch of the file that it is of.
        epoch: u32,
        /// The use that it allows.
        mode: TokenMode,
        /// The bytes.
        range: ByteRange,
    }
    /// Tokens that a client has of files whose home is asked, after a connection was lost.
    ReclaimTokensRequest {
        /// The life of the home that granted the last of them.
        life: u64,
        /// The last grant that the client has seen.
        seen: u64,
        /// All of them.
        tokens: Vec<FileToken>,
    }
    /// The tokens that it still has.
    ReclaimedTokens {
        /// The life of the home.
        life: u64,
        /// They belong to this grant from now on.
        serial: u64,
        /// The tokens that are left.
        tokens: Vec<FileToken>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, DecodeError, Encode};

    #[test]
    fn golden_bytes_of_tokens() {
        let token = FileToken { ino: Ino(2), epoch: 9, mode: TokenMode::Write, range: ByteRange::at(3, 4) };
        let bytes = [2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(token.to_bytes(), bytes);
        assert_eq!(FileToken::from_bytes(&bytes), Ok(token));
        assert_eq!(TokenMode::from_bytes(&[2]), Err(DecodeError::Invalid("mode of a token")));
    }
}
