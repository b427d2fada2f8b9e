//! Property tests of all request parsers with arbitrary text: input is refused or accepted, and never ends the server.
//! Regressions are kept in proptest-regressions.

use bivouac_client::Attr;
use bivouac_types::{Ino, Layout, TargetIndex, Timestamp, escape_markup, mode};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request};
use proptest::prelude::*;
use s3s::access::{S3Access, S3AccessContext};
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Result};

use crate::conditions::{check, range_holds, tag, validators};
use crate::dav;
use crate::digests::{is_wanted, said};
use crate::keys::Deriver;
use crate::origin;
use crate::page;
use crate::query::has_parameter;
use crate::ranges::{SelectedRanges, content_range, wanted};
use crate::request_path::{RequestPath, is_reserved};
use crate::s3::fuzzed;

/// Returns the text of the letters that mean something, and others.
fn near(letters: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::string::string_regex(&format!("[{letters}]{{0,40}}")).unwrap(),
        proptest::string::string_regex(&format!("(bytes[= ])?[{letters}]{{0,24}}")).unwrap(),
        any::<String>(),
    ]
}

fn time() -> impl Strategy<Value = Timestamp> {
    let secs = prop_oneof![any::<i64>(), -2..3_i64, 253_402_300_797..253_402_300_802_i64];
    (secs, 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
}

fn attr() -> impl Strategy<Value = Attr> {
    (any::<u64>(), any::<u64>(), time(), time(), any::<u32>()).prop_map(|(ino, size, mtime, ctime, epoch)| {
        Attr {
            ino: Ino(ino),
            mode: mode::FILE | 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            atime: mtime,
            mtime,
            ctime,
            epoch,
            layout: Layout { stripe: 4096, width: 1, base: TargetIndex(0), targets: 1 },
            holes: 0,
            data_version: ctime.secs.unsigned_abs() & !bivouac_types::BEING_WRITTEN,
            contract: None,
        }
    })
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    const NAMES: [&str; 5] =
        ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"];
    let value = prop_oneof![
        near("*\"W/, a-z0-9").boxed(),
        Just("*".to_owned()).boxed(),
        "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT".boxed(),
    ];
    proptest::collection::vec((0..NAMES.len(), value), 0..6).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                headers.append(NAMES[name], value);
            }
        }
        headers
    })
}

/// XML that is nearly what S3 sends.
fn xml() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&str; 22] = [
        "<?xml version=\"1.0\"?>",
        "<Delete>",
        "</Delete>",
        "<Object>",
        "</Object>",
        "<Key>",
        "</Key>",
        "a/b",
        "&amp;",
        "&#0;",
        "&x;",
        "<!DOCTYPE x [<!ENTITY x \"&x;&x;\">]>",
        "<CompleteMultipartUpload>",
        "</CompleteMultipartUpload>",
        "<Part><PartNumber>1</PartNumber><ETag>\"x\"</ETag></Part>",
        "<PartNumber>-99999999999999999999</PartNumber>",
        "<Tagging><TagSet>",
        "<Tag><Key>k</Key><Value>v</Value></Tag>",
        "</TagSet></Tagging>",
        "<![CDATA[",
        "]]>",
        "<",
    ];
    let piece = prop_oneof![
        8 => (0..PIECES.len()).prop_map(|piece| PIECES[piece].as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ];
    proptest::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

/// XML that is nearly what file managers send.
fn dav_xml() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&str; 18] = [
        "<D:set><D:prop>",
        "</D:prop></D:set>",
        "<D:remove><D:prop>",
        "</D:prop></D:remove>",
        "<D:prop>",
        "</D:prop>",
        "<D:allprop/>",
        "<x:a xmlns:x='urn:x' x:k='&lt;' xml:lang='de'>t<b/>u</x:a>",
        "<a xml:space='preserve'> &#xd;&#9;<![CDATA[<]]></a>",
        "<D:getetag/>",
        "<n xmlns=''/>",
        "<D:lockscope><D:exclusive/></D:lockscope>",
        "<D:locktype><D:write/></D:locktype>",
        "<D:owner><D:href>me</D:href></D:owner>",
        "&x;",
        "<!-- -->",
        "<?p?>",
        "<",
    ];
    const ROOTS: [&str; 3] = ["propfind", "propertyupdate", "lockinfo"];
    let piece = (0..PIECES.len()).prop_map(|piece| PIECES[piece]);
    (0..ROOTS.len(), proptest::collection::vec(piece, 0..8)).prop_map(|(root, pieces)| {
        let root = ROOTS[root];
        format!("<D:{root} xmlns:D='DAV:'>{}</D:{root}>", pieces.concat()).into_bytes()
    })
}

struct Anybody;

#[async_trait::async_trait]
impl S3Access for Anybody {
    async fn check(&self, _: &mut S3AccessContext<'_>) -> S3Result<()> {
        Ok(())
    }
}

struct Nothing;

impl S3 for Nothing {}

proptest! {
    #[test]
    fn parts_of_the_page_are_asked_for_by_any_text(part in near("./a-z%2e"), query in near("path=%2F.&words\\+")) {
        let path = format!("{}{part}", page::PLACE);
        prop_assert!(page::part_of(&path).is_none_or(|named| named == part));
        if let Ok(target) = page::target(Some(&query), "path") {
            prop_assert!(target.names.iter().all(|name| !is_reserved(name) && name != b".." && !name.contains(&b'/')));
        }
        let origin = [(header::ORIGIN, &part), (header::HOST, &query)];
        let headers = origin.into_iter().filter_map(|(name, text)| Some((name, text.parse().ok()?)));
        let is_own = origin::check(&headers.collect()).is_ok();
        prop_assert!(!is_own || part.parse::<HeaderValue>().is_err() || part.to_lowercase().ends_with(&query.to_lowercase()));
    }

    #[test]
    fn ranges_are_in_the_file(header in near("0-9, -"), size in prop_oneof![0..50_u64, any::<u64>()]) {
        for header in [header.clone(), format!("bytes={header}")] {
            if let SelectedRanges::Parts(parts) = wanted(&header, size) {
                prop_assert!(!parts.is_empty());
                prop_assert!(parts.iter().all(|(start, end)| start < end && *end <= size));
                let total: u128 = parts.iter().map(|(start, end)| u128::from(end - start)).sum();
                prop_assert!(parts.len() == 1 || total <= u128::from(size));
            }
        }
    }

    #[test]
    fn parts_are_in_the_whole(header in near("0-9*/ -")) {
        for header in [header.clone(), format!("bytes {header}")] {
            if let Some(range) = content_range(&header) {
                prop_assert!(range.part.is_none_or(|(first, end)| first < end && end <= range.total));
            }
        }
    }

    #[test]
    fn conditions_are_looked_at(headers in headers(), attr in attr(), is_there: bool) {
        let found = is_there.then_some(&attr);
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE] {
            let checked = check(&method, &headers, found);
            let first = headers.get("if-match").and_then(|value| value.to_str().ok());
            if !is_there && first.is_some() {
                prop_assert!(checked.is_err());
            }
        }
        let _ = range_holds(&headers, &attr);
        let mut own = HeaderMap::new();
        validators(&attr, &mut own);
        prop_assert!(own.contains_key("etag") && own.contains_key("last-modified"));
        let mut same = HeaderMap::new();
        same.insert("if-match", HeaderValue::from_str(&tag(&attr)).unwrap());
        prop_assert!(check(&Method::PUT, &same, Some(&attr)).is_ok());
    }

    #[test]
    fn digests_are_read(header in near("sha\\-256=:A-Z/+;,0-9 ")) {
        let _ = is_wanted(&header);
        if let Ok(Some(digest)) = said(&header) {
            prop_assert_eq!(said(&digest.header()), Ok(Some(digest)));
        }
    }

    #[test]
    fn paths_lead_nowhere_else(path in near("/.%0-9a-fA-F2ec"), query in near("&=%a-z")) {
        for path in [path.clone(), format!("/{path}")] {
            if let Ok(target) = RequestPath::parse(&path) {
                for name in &target.names {
                    prop_assert!(!name.is_empty() && name != b"." && name != b"..");
                    prop_assert!(!name.contains(&b'/') && !name.contains(&0) && !is_reserved(name));
                }
                prop_assert_eq!(RequestPath::parse(&target.encoded()).unwrap(), target.clone());
                prop_assert_eq!(RequestPath::plain(&target.path()).unwrap(), target);
            }
        }
        let _ = has_parameter(Some(&query), "a");
    }

    #[test]
    fn names_are_encoded_and_decoded(name in proptest::collection::vec(prop_oneof![1..b'/', b'/' + 1..=255_u8], 1..40)) {
        let target = RequestPath { names: vec![name.clone()], is_dir: false };
        match RequestPath::parse(&target.encoded()) {
            Ok(parsed) => prop_assert_eq!(parsed, target),
            Err(_) => prop_assert!(name == b"." || name == b".." || is_reserved(&name)),
        }
        let shown = escape_markup(&String::from_utf8_lossy(&name));
        prop_assert!(!shown.contains(['<', '>', '"', '\'']));
    }

    #[test]
    fn keys_are_told_from_other_text(text in near("BVK.A-Z2-7a-z_-")) {
        prop_assert_eq!(Deriver::new(&[7; 32]).id_of(&text), None);
    }

    #[test]
    fn what_is_of_s3_is_read(text in near("a-z/.%=&+ "), bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzzed::read(&text, &bytes);
    }

    #[test]
    fn what_is_of_webdav_is_read(
        text in near("()<>\\[\\]\"/.%0-9a-zNT ,"),
        body in prop_oneof![dav_xml().boxed(), proptest::collection::vec(any::<u8>(), 0..200).boxed()],
    ) {
        dav::fuzzed::read(&text, &body);
        dav::fuzzed::read(&format!("(<{text}>)"), &body);
    }

    #[test]
    fn bodies_of_xml_are_read(body in xml(), which in 0..5_usize) {
        let (method, path) = [
            ("POST", "/bucket?delete"),
            ("POST", "/bucket/key?uploadId=0"),
            ("PUT", "/bucket/key?tagging"),
            ("PUT", "/bucket"),
            ("PUT", "/bucket/key?acl"),
        ][which];
        let mut builder = S3ServiceBuilder::new(Nothing);
        builder.set_access(Anybody);
        let request = Request::builder().method(method).uri(path).header("host", "x");
        let request = request.header("content-length", body.len()).body(s3s::Body::from(Bytes::from(body))).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(async {
            let answer = builder.build().call(request).await.unwrap();
            (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
        });
        // What may take long is answered with 200 at once, and says in the body what became of it.
        let is_refused = answer.1.windows(7).any(|window| window == b"<Error>");
        prop_assert!(is_refused || answer.0.is_client_error(), "{:?}", answer);
    }
}
