//! Metalink (RFC 5854, RFC 6249): servers of a file and digests of its pieces.

use std::fmt::Write as _;

use bivouac_types::{FsResult, escape_markup};

use crate::announce::Announced;
use crate::cancellation::Cancellation;
use crate::open_file::OpenFile;
use crate::request_path::RequestPath;

/// Shortest piece.
const PIECE_MIN: u64 = 1 << 20;
/// About how many pieces a large file has.
const PIECES: u64 = 1024;

/// Looks up other places that have content of this digest.
pub type MirrorLookup<'a> = &'a dyn Fn(&str) -> FsResult<Vec<String>>;

/// Returns the metalink of a file: with the servers, and behind them other places with the same content. All of it is
/// read for that.
pub fn metalink(
    file: &OpenFile,
    target: &RequestPath,
    (servers, others): (&[(String, &[u16])], MirrorLookup<'_>),
    cancellation: &Cancellation,
) -> FsResult<String> {
    let size = file.attr.size;
    let piece = (size / PIECES).max(PIECE_MIN).next_multiple_of(PIECE_MIN);
    let (whole, pieces) = file.digest((0, size), Some(piece), cancellation)?;
    let name = escape_markup(&String::from_utf8_lossy(target.name().unwrap_or_default()));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\">\n\
         <generator>bivouac</generator>\n<file name=\"{name}\">\n<size>{size}</size>\n\
         <hash type=\"sha-256\">{}</hash>\n",
        whole.hex()
    );
    if !pieces.is_empty() {
        let _to_a_text = writeln!(text, "<pieces length=\"{piece}\" type=\"sha-256\">");
        for piece in pieces {
            let _to_a_text = writeln!(text, "<hash>{}</hash>", piece.hex());
        }
        text.push_str("</pieces>\n");
    }
    let path = target.encoded();
    let own = servers.iter().map(|(server, _)| format!("{server}{path}"));
    for (place, url) in own.chain(others(&whole.hex())?).enumerate() {
        let url = escape_markup(&url);
        let _to_a_text = writeln!(text, "<url priority=\"{}\">{url}</url>", place + 1);
    }
    text.push_str("</file>\n</metalink>\n");
    Ok(text)
}

/// Returns the servers from which a file can be had, those first whose nodes hold most of its stripes. `here` is what
/// the client itself calls this server, whose URL may be another one from there. With the nodes of each.
#[must_use]
pub fn servers<'a>(
    announced: &'a [Announced],
    own: &'a Announced,
    here: &str,
    holders: &[u16],
) -> Vec<(String, &'a [u16])> {
    let held = |nodes: &[u16]| holders.iter().filter(|node| nodes.contains(node)).count();
    let mut all: Vec<(String, &[u16])> = vec![(here.to_owned(), &own.nodes)];
    for server in announced.iter().filter(|server| server.nodes != own.nodes && server.url != own.url) {
        all.push((server.url.clone(), &server.nodes));
    }
    all.sort_by_key(|(_, nodes)| std::cmp::Reverse(held(nodes)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_most_comes_first() {
        let server = |url: &str, nodes: &[u16]| Announced {
            url: url.into(),
            fingerprint: None,
            nodes: nodes.to_vec(),
        };
        let all = [server("https://a", &[0]), server("https://b", &[1, 2])];
        let of = |holders: &[u16]| servers(&all, &all[0], "https://me", holders);
        let (me, b) = (("https://me".to_owned(), &[0][..]), ("https://b".to_owned(), &[1, 2][..]));
        assert_eq!(of(&[0]), [me.clone(), b.clone()]);
        assert_eq!(of(&[1, 2, 0]), [b, me]);
    }
}
