//! Metalink 4 (RFC 5854): files and their URLs. The input is untrusted.

use std::fmt::Write as _;

use bivouac_types::escape_markup;
use roxmltree::{Document, Node, ParsingOptions};

use crate::digest::{Digest, piece_len};
use crate::manifest::DataSetFile;
use crate::names::{check, clash};
use crate::place::Location;

/// Largest metalink that is read, in bytes.
pub const TEXT_MAX: usize = 64 << 20;
/// Upper limit of XML nodes, which take about a hundred bytes each.
const NODES_MAX: u32 = 4 << 20;
/// Upper limit of URLs per file.
const URLS_MAX: usize = 256;
const NAMESPACE: &str = "urn:ietf:params:xml:ns:metalink";

/// Writes files down.
#[must_use]
pub fn encode(items: &[DataSetFile]) -> String {
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<metalink xmlns=\"{NAMESPACE}\">\n<generator>bivouac</generator>\n"
    );
    items.iter().for_each(|item| encode_item(item, &mut text));
    text.push_str("</metalink>\n");
    text
}

fn encode_item(item: &DataSetFile, text: &mut String) {
    let _to_a_text =
        writeln!(text, "<file name=\"{}\">\n<size>{}</size>", escape_markup(&item.name), item.size);
    if let Some(digest) = item.digest {
        let _to_a_text = writeln!(text, "<hash type=\"sha-256\">{}</hash>", digest.hex());
    }
    if !item.pieces.is_empty() {
        let _to_a_text = writeln!(text, "<pieces length=\"{}\" type=\"sha-256\">", item.piece_len);
        for piece in &item.pieces {
            let _to_a_text = writeln!(text, "<hash>{}</hash>", piece.hex());
        }
        text.push_str("</pieces>\n");
    }
    for (place, url) in item.urls.iter().enumerate() {
        let _to_a_text = writeln!(text, "<url priority=\"{}\">{}</url>", place + 1, escape_markup(url));
    }
    text.push_str("</file>\n");
}

/// Reads files.
///
/// # Errors
/// What is wrong, with the name of the file.
pub fn decode(text: &str) -> Result<Vec<DataSetFile>, String> {
    if text.len() > TEXT_MAX {
        return Err(format!("is larger than {} MiB", TEXT_MAX >> 20));
    }
    // Entities are declared in a DTD only, and there is none.
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| error.to_string())?;
    let root = document.root_element();
    if root.tag_name().name() != "metalink" || root.tag_name().namespace() != Some(NAMESPACE) {
        return Err(format!("is no Metalink 4: its outermost element is not metalink of {NAMESPACE}"));
    }
    let items: Vec<DataSetFile> = children(root, "file").map(item).collect::<Result<_, _>>()?;
    if items.is_empty() {
        return Err("has no files".to_owned());
    }
    match clash(items.iter().map(|item| item.name.as_str())) {
        Some(name) => Err(format!("{name:?} is there twice, or a file and a directory")),
        None => Ok(items),
    }
}

fn children<'a, 'd>(node: Node<'a, 'd>, name: &'static str) -> impl Iterator<Item = Node<'a, 'd>> {
    node.children().filter(move |child| child.has_tag_name((NAMESPACE, name)))
}

fn item(node: Node<'_, '_>) -> Result<DataSetFile, String> {
    let name = node.attribute("name").unwrap_or_default();
    check(name).map_err(|why| format!("the name {name:?} {why}"))?;
    let wrong = |why: &str| format!("{name:?}: {why}");
    let size = children(node, "size").next().and_then(|size| size.text()?.trim().parse::<u64>().ok());
    let size = size
        // Offsets of files are signed in system calls.
        .filter(|size| *size <= i64::MAX as u64)
        .ok_or_else(|| wrong("its size is missing or no number"))?;
    let is_sha256 =
        |hash: &Node<'_, '_>| hash.attribute("type").is_some_and(|kind| kind.eq_ignore_ascii_case("sha-256"));
    let digest = children(node, "hash")
        .find(is_sha256)
        .map(|hash| digest(hash).ok_or_else(|| wrong("its SHA-256 is none")));
    let digest = digest.transpose()?;
    let (piece_len, pieces) = match children(node, "pieces").find(is_sha256) {
        Some(pieces) => pieces_of(pieces, size).map_err(|why| wrong(&why))?,
        None => (piece_len(size), Vec::new()),
    };
    if digest.is_none() && pieces.is_empty() {
        return Err(wrong("has no SHA-256, so nothing tells whether what comes is right"));
    }
    // A URL of a kind that is unknown here is no fault of the entry: others may fetch from it.
    let urls: Vec<String> = urls(node).into_iter().filter(|url| is_place(url)).collect();
    if urls.is_empty() {
        return Err(wrong("has no place that it can be fetched from: http, https, s3 or file"));
    }
    Ok(DataSetFile { name: name.to_owned(), size, digest, piece_len, pieces, urls })
}

/// Returns whether files can be fetched from a URL. Control characters are refused, whatever parsers make of them.
fn is_place(url: &str) -> bool {
    !url.contains(char::is_control) && Location::of_url(url).is_some()
}

fn digest(node: Node<'_, '_>) -> Option<Digest> {
    Digest::parse(node.text()?)
}

fn pieces_of(node: Node<'_, '_>, size: u64) -> Result<(u64, Vec<Digest>), String> {
    let len = node.attribute("length").and_then(|len| len.trim().parse::<u64>().ok()).filter(|len| *len > 0);
    let len = len.ok_or("the length of its pieces is missing or no number")?;
    let digests: Option<Vec<Digest>> = children(node, "hash").map(digest).collect();
    let digests = digests.ok_or("a piece's SHA-256 is none")?;
    if digests.len() as u64 != size.div_ceil(len) {
        return Err(format!("has {} digests of pieces, and not {}", digests.len(), size.div_ceil(len)));
    }
    // Without pieces their length says nothing.
    Ok((if digests.is_empty() { piece_len(size) } else { len }, digests))
}

/// Returns the URLs of a file, the best first.
fn urls(node: Node<'_, '_>) -> Vec<String> {
    let priority = |url: &Node<'_, '_>| url.attribute("priority").and_then(|number| number.parse().ok());
    let found = children(node, "url").take(URLS_MAX);
    let mut found: Vec<(u32, String)> = found
        // RFC 5854: a URL without a priority comes last.
        .filter_map(|url| Some((priority(&url).unwrap_or(999_999), url.text()?.trim().to_owned())))
        .collect();
    found.sort_by_key(|(priority, _)| *priority);
    found.into_iter().map(|(_, url)| url).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(name: &str, size: u64) -> DataSetFile {
        let len = 1 << 20;
        DataSetFile {
            name: name.to_owned(),
            size,
            digest: Some(Digest::of(name.as_bytes())),
            piece_len: len,
            pieces: (0..size.div_ceil(len)).map(|at| Digest::of(&at.to_le_bytes())).collect(),
            urls: vec!["http://h/a%20b?x&y".into(), "s3://bucket/key".into(), "file:///a".into()],
        }
    }

    fn with_file(inside: &str) -> String {
        format!("<metalink xmlns=\"{NAMESPACE}\"><file name=\"a\">{inside}</file></metalink>")
    }

    #[test]
    fn what_is_written_is_read() {
        let items = [sample("a/<b> & \"c\"", (5 << 20) + 1), sample("d", 0), sample("e ä", 1)];
        let read = decode(&encode(&items)).unwrap();
        // A file without bytes has no pieces, and their length says nothing.
        assert_eq!(read, items);
    }

    #[test]
    fn others_write_it_too() {
        let text = with_file(&format!(
            "<identity>x</identity><size>3</size><hash type=\"md5\">00</hash><hash type=\"SHA-256\">{}</hash>\
             <url location=\"de\">ftp://f/a</url><url priority=\"2\">http://b/a</url><url priority=\"1\">http://a/a</url>",
            Digest::of(b"abc").hex()
        ));
        let items = decode(&text).unwrap();
        assert_eq!(items[0].urls, ["http://a/a", "http://b/a"]);
        assert_eq!((items[0].piece_count(), items[0].digest), (1, Some(Digest::of(b"abc"))));
    }

    #[test]
    fn hostile_ones_are_refused_by_name() {
        let hash = format!("<hash type=\"sha-256\">{}</hash>", Digest::of(b"").hex());
        let url = "<url>http://a/a</url>";
        let pieces = |len: &str, count: usize| {
            let hashes = format!("<hash>{}</hash>", Digest::of(b"").hex()).repeat(count);
            format!("<size>3</size><pieces type=\"sha-256\" length=\"{len}\">{hashes}</pieces>{url}")
        };
        for (inside, says) in [
            (format!("<size>3</size>{url}"), "no SHA-256"),
            (format!("<size>3</size><hash type=\"sha-256\">12</hash>{url}"), "SHA-256 is none"),
            (format!("<size>-1</size>{hash}{url}"), "size"),
            (format!("<size>99999999999999999999</size>{hash}{url}"), "size"),
            (format!("<size>18446744073709551615</size>{hash}{url}"), "size"),
            (format!("{hash}{url}"), "size"),
            (format!("<size>3</size>{hash}"), "no place"),
            (format!("<size>3</size>{hash}<url>file:///a/../b</url><url>data:x</url>"), "no place"),
            (pieces("0", 1), "length of its pieces"),
            (pieces("1", 2), "has 2 digests of pieces, and not 3"),
            (pieces("18446744073709551615", 2), "and not 1"),
        ] {
            let refusal = decode(&with_file(&inside)).unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
        let good = format!("<size>0</size>{hash}{url}");
        for name in ["../x", "/x", "a/../../x", "", "a&#0;b", "a&#10;b", "x/./y", "a//b"] {
            let text = with_file(&good).replace("name=\"a\"", &format!("name=\"{name}\""));
            assert!(decode(&text).is_err(), "{name}");
        }
        let twice =
            with_file(&good).replace("</metalink>", &format!("<file name=\"a/b\">{good}</file></metalink>"));
        assert!(decode(&twice).unwrap_err().contains("a file and a directory"));
        let bomb = format!(
            "<!DOCTYPE m [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;\">]>{}",
            with_file("<size>&b;</size>")
        );
        assert!(decode(&bomb).unwrap_err().contains("DTD"));
        let outside = format!("<!DOCTYPE m [<!ENTITY a SYSTEM \"file:///etc/passwd\">]>{}", with_file("&a;"));
        assert!(decode(&outside).unwrap_err().contains("DTD"));
        assert!(decode("<metalink/>").unwrap_err().contains("no Metalink 4"));
        assert!(decode(&format!("<metalink xmlns=\"{NAMESPACE}\"/>")).unwrap_err().contains("no files"));
    }

    #[test]
    fn huge_ones_are_refused_in_bounded_time_and_memory() {
        let many = format!("<metalink xmlns=\"{NAMESPACE}\">{}</metalink>", "<a/>".repeat(5 << 20));
        assert!(decode(&many).unwrap_err().contains("nodes"));
        let deep = format!("<metalink xmlns=\"{NAMESPACE}\">{}", "<a>".repeat(1 << 20));
        assert!(decode(&deep).is_err());
        assert!(decode(&" ".repeat(TEXT_MAX + 1)).unwrap_err().contains("larger"));
    }

    proptest! {
        #[test]
        fn bytes_of_strangers_never_panic(text in "(<|>|/|\"|=|&|#|;|metalink|file|name|size|hash|url|[ -~]|\\PC){0,200}") {
            let _ = decode(&text);
            let _ = decode(&with_file(&text));
        }

        #[test]
        fn names_and_places_come_back(name in "[^/\\x00-\\x1f\\x7f-\\x9f]{1,40}", size in 0u64..9 << 20) {
            prop_assume!(check(&name).is_ok() && !name.contains(['\u{fffe}', '\u{ffff}']));
            let items = [sample(&name, size)];
            prop_assert_eq!(decode(&encode(&items)).unwrap(), items);
        }
    }
}
