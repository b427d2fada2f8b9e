//! File attributes in object metadata, with the names and formats of s3fs; those of rclone are read, too.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bivouac_types::{Timestamp, mode};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Map, Value};

use crate::Attrs;

/// Prefix of user metadata.
pub const PREFIX: &str = "x-amz-meta-";
/// Identifies the upload that created an object.
pub const UPLOAD: &str = "x-amz-meta-bivouac-upload";
const MODE: &str = "x-amz-meta-mode";
const UID: &str = "x-amz-meta-uid";
const GID: &str = "x-amz-meta-gid";
const MTIME: &str = "x-amz-meta-mtime";
const ATIME: &str = "x-amz-meta-atime";
const XATTR: &str = "x-amz-meta-xattr";
/// Metadata names of file attributes.
const ATTR_HEADERS: [&str; 7] = [MODE, UID, GID, MTIME, ATIME, XATTR, UPLOAD];
/// Upper limit of encoded extended attributes, in bytes: stores accept 2 KiB of metadata in total.
const XATTR_MAX: usize = 1536;
/// Nanoseconds per second.
const NANOS: i128 = 1_000_000_000;
/// Headers that a copy of an object onto itself drops unless they are sent again.
const DROPPED_BY_COPY: [&str; 7] = [
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "x-amz-storage-class",
];

/// Headers by their lower-case names.
pub type Headers = BTreeMap<String, String>;

/// Encodes attributes as headers, with messages for those that do not fit.
pub fn headers_of(kind: u32, attrs: &Attrs, object: &str) -> (Headers, Vec<String>) {
    let mut headers = Headers::new();
    let mut give = |name: &str, value: String| headers.insert(name.to_owned(), value);
    give(MODE, (kind | attrs.perm).to_string());
    give(UID, attrs.uid.to_string());
    give(GID, attrs.gid.to_string());
    give(MTIME, time_text(attrs.mtime));
    give(ATIME, time_text(attrs.atime));
    let (xattrs, lost) = xattrs_text(attrs, object);
    if let Some(xattrs) = xattrs {
        give(XATTR, xattrs);
    }
    (headers, lost)
}

/// Returns the headers that are not file attributes and must be sent again when an object is copied onto itself.
pub fn other_headers(found: &Headers) -> Headers {
    let is_besides = |name: &str| {
        name.starts_with(PREFIX) && !ATTR_HEADERS.contains(&name) || DROPPED_BY_COPY.contains(&name)
    };
    found.iter().filter(|(name, _)| is_besides(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
}

/// Decodes type and attributes of an object; `kind` is the default type. Without metadata the object belongs to `owner`
/// and is world-readable.
pub fn attrs_of(found: &Headers, kind: u32, changed: Timestamp, owner: (u32, u32)) -> (u32, Attrs) {
    let text = |name: &str| found.get(name).map(|text| text.trim());
    let number = |name: &str| text(name)?.parse().ok();
    let said = text(MODE).and_then(mode_of);
    // A key that ends with a slash is a directory whatever its metadata says, so the type must agree with it.
    let is_like = |said: u32| (said & mode::TYPE == mode::DIR) == (kind == mode::DIR);
    let full = said.filter(|said| is_like(*said));
    let perm = if kind == mode::DIR { 0o755 } else { 0o644 };
    let mtime = text(MTIME).and_then(time_of).unwrap_or(changed);
    let attrs = Attrs {
        perm: said.map_or(perm, |said| said & mode::PERM),
        uid: number(UID).unwrap_or(owner.0),
        gid: number(GID).unwrap_or(owner.1),
        mtime,
        atime: text(ATIME).and_then(time_of).unwrap_or(mtime),
        xattrs: text(XATTR).and_then(xattrs_of).unwrap_or_default(),
    };
    (full.map_or(kind, |full| full & mode::TYPE), attrs)
}

/// Parses type and permissions: s3fs writes a decimal number, rclone an octal one. No valid number is both.
fn mode_of(text: &str) -> Option<u32> {
    let has_kind = |bits: &u32| {
        let kinds = [mode::FILE, mode::DIR, mode::LINK, mode::FIFO, mode::SOCKET];
        bits & !(mode::TYPE | mode::PERM) == 0 && kinds.contains(&(bits & mode::TYPE))
    };
    // A leading zero marks an octal number; the type bits decide the rest.
    let decimal = text.parse().ok().filter(|_| !text.starts_with('0')).filter(has_kind);
    decimal.or_else(|| u32::from_str_radix(text, 8).ok().filter(has_kind))
}

/// Formats a time as seconds with nine decimals.
fn time_text(time: Timestamp) -> String {
    let nanos = i128::from(time.secs) * NANOS + i128::from(time.nanos);
    let sign = if nanos < 0 { "-" } else { "" };
    format!("{sign}{}.{:09}", nanos.abs() / NANOS, nanos.abs() % NANOS)
}

fn time_of(text: &str) -> Option<Timestamp> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) {
        return None;
    }
    let part: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos = sign * (i128::from(whole.parse::<i64>().ok()?) * NANOS + part.parse::<i128>().ok()?);
    // Nanoseconds count upwards from the second, also before 1970.
    let secs = i64::try_from(nanos.div_euclid(NANOS)).ok()?;
    Some(Timestamp { secs, nanos: u32::try_from(nanos.rem_euclid(NANOS)).ok()? })
}

/// Encodes extended attributes in the form of s3fs: percent-encoded JSON of Base64 values.
fn xattrs_text(attrs: &Attrs, object: &str) -> (Option<String>, Vec<String>) {
    let (mut map, mut lost, mut text) = (Map::new(), Vec::new(), None);
    for (name, value) in &attrs.xattrs {
        let shown = String::from_utf8_lossy(name);
        let Ok(key) = str::from_utf8(name) else {
            lost.push(format!("{object}: extended attribute {shown}: its name is not UTF-8"));
            continue;
        };
        map.insert(key.to_owned(), Value::String(STANDARD.encode(value)));
        let longer = Value::Object(map.clone()).to_string();
        let longer = utf8_percent_encode(&longer, NON_ALPHANUMERIC).to_string();
        if longer.len() > XATTR_MAX {
            // The attribute is dropped and reported; later, smaller ones may still fit.
            map.remove(key);
            lost.push(format!("{object}: extended attribute {shown}: no room in an object's metadata"));
        } else {
            text = Some(longer);
        }
    }
    (text, lost)
}

fn xattrs_of(text: &str) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let json = percent_decode_str(text).decode_utf8().ok()?;
    let map: Map<String, Value> = serde_json::from_str(&json).ok()?;
    // Whoever may write to the store is not to set what has a meaning for the kernel.
    let is_users = |name: &&(String, Value)| name.0.starts_with("user.");
    let entries: Vec<_> = map.into_iter().collect();
    let decode = |(name, value): &(String, Value)| {
        Some((name.clone().into_bytes(), STANDARD.decode(value.as_str()?).ok()?))
    };
    let mut found: Vec<_> = entries.iter().filter(is_users).filter_map(decode).collect();
    // In one order, so that the same attributes compare as equal.
    found.sort();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(pairs: &[(&str, &str)], kind: u32) -> (u32, Attrs) {
        let headers = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        attrs_of(&headers, kind, Timestamp { secs: 9, nanos: 0 }, (7, 8))
    }

    #[test]
    fn forms_of_other_tools_are_read() {
        let (kind, attrs) = read(&[(MODE, "33188"), (UID, "1000"), (MTIME, "1546300800")], mode::FILE);
        assert_eq!((kind, attrs.perm, attrs.uid, attrs.gid), (mode::FILE, 0o644, 1000, 8));
        assert_eq!(attrs.mtime, Timestamp { secs: 1_546_300_800, nanos: 0 });
        let (kind, attrs) = read(&[(MODE, "100640"), (MTIME, "1546300800.123456789")], mode::FILE);
        assert_eq!((kind, attrs.perm, attrs.mtime.nanos), (mode::FILE, 0o640, 123_456_789));
        assert_eq!(read(&[(MODE, "40755")], mode::DIR).1.perm, 0o755);
        assert_eq!(read(&[(MODE, "0120777")], mode::FILE).0, mode::LINK);
        assert_eq!(read(&[(MODE, "41471")], mode::FILE).0, mode::LINK, "0120777 as s3fs writes it");
        let (kind, attrs) = read(&[], mode::FILE);
        assert_eq!((kind, attrs.perm, attrs.uid, attrs.mtime.secs), (mode::FILE, 0o644, 7, 9));
    }

    #[test]
    fn nonsense_is_not_believed() {
        for text in ["", "99999999999", "-1", "rwx", "61440", "0"] {
            assert_eq!(read(&[(MODE, text), (MTIME, text)], mode::FILE).0, mode::FILE, "{text}");
        }
        assert_eq!(read(&[(MODE, "16877")], mode::FILE).0, mode::FILE, "a file is no directory");
        assert_eq!(time_of("9999999999999999999999"), None);
        assert_eq!(time_of("1e9"), None);
        assert_eq!(read(&[(XATTR, "%7B%22user.a%22%3A3%7D")], mode::FILE).1.xattrs, []);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let xattrs = vec![
            (b"user.large".to_vec(), vec![1; 1500]),
            (b"user.n\xff".to_vec(), vec![1]),
            (b"user.small".to_vec(), b"v".to_vec()),
        ];
        let (headers, lost) = headers_of(mode::FILE, &Attrs { xattrs, ..Attrs::default() }, "s3://b/f");
        assert!(lost[0].starts_with("s3://b/f: extended attribute user.large: no room"), "{lost:?}");
        assert!(lost[1].contains("not UTF-8") && lost.len() == 2);
        let (_, attrs) = attrs_of(&headers, mode::FILE, Timestamp::default(), (0, 0));
        assert_eq!(attrs.xattrs, [(b"user.small".to_vec(), b"v".to_vec())]);
    }

    #[test]
    fn what_others_put_there_stays() {
        let names = ["x-amz-meta-mode", "x-amz-meta-colour", "content-type", "etag", "date"];
        let headers = names.iter().map(|name| ((*name).to_owned(), "v".to_owned())).collect();
        let kept: Vec<_> = other_headers(&headers).into_keys().collect();
        assert_eq!(kept, ["content-type", "x-amz-meta-colour"]);
    }

    proptest! {
        #[test]
        fn attributes_come_back(
            perm in 0..0o10000u32, uid: u32, gid: u32, secs in -(1i64 << 40)..1 << 40, nanos in 0..1_000_000_000u32,
            value in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let time = Timestamp { secs, nanos };
            let xattrs = vec![("user.näme =\"".as_bytes().to_vec(), value)];
            let attrs = Attrs { perm, uid, gid, mtime: time, atime: time, xattrs };
            let (headers, lost) = headers_of(mode::FILE, &attrs, "o");
            prop_assert_eq!(lost, Vec::<String>::new());
            prop_assert!(headers.values().all(|value| value.is_ascii()));
            let back = attrs_of(&headers, mode::FILE, Timestamp::default(), (1, 1));
            prop_assert_eq!(back, (mode::FILE, attrs));
        }

        #[test]
        fn any_text_is_survived(text in ".{0,60}") {
            let _ = (mode_of(&text), time_of(&text), xattrs_of(&text));
        }
    }
}
