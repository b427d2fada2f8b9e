//! Parsers of XML responses. The input is untrusted: its depth, size and form are limited.

use percent_encoding::percent_decode_str;
use roxmltree::{Document, Node, ParsingOptions};

/// Upper limit of elements and texts in one response.
const NODES_MAX: u32 = 200_000;
/// Upper limit of an error code that is shown, in bytes.
const CODE_MAX: usize = 64;

/// One page of an object listing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Object keys.
    pub keys: Vec<String>,
    /// Common prefixes up to the next slash.
    pub prefixes: Vec<String>,
    /// Continuation token of the next page.
    pub next: Option<String>,
}

/// One page of a listing of unfinished multipart uploads.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UploadsPage {
    /// Target key and upload id of each.
    pub uploads: Vec<(String, String)>,
    /// Key marker and upload id marker of the next page.
    pub next: Option<(String, String)>,
}

/// Parses one page of a listing; `None` if it is malformed.
pub fn page_of(text: &str) -> Option<ListPage> {
    let document = parse(text)?;
    let root = document.root_element();
    if root.tag_name().name() != "ListBucketResult" {
        return None;
    }
    let decode = decoder(root);
    let all = |outer: &'static str, inner: &'static str| {
        let found = root.children().filter(move |child| child.tag_name().name() == outer);
        found.filter_map(move |child| text_in(child, inner))
    };
    let keys = all("Contents", "Key").map(&decode).collect::<Option<_>>()?;
    let prefixes = all("CommonPrefixes", "Prefix").map(&decode).collect::<Option<_>>()?;
    let is_truncated = text_in(root, "IsTruncated") == Some("true");
    let next = text_in(root, "NextContinuationToken").filter(|_| is_truncated).map(str::to_owned);
    // Otherwise the files of further pages would be taken for removed.
    if is_truncated && next.is_none() {
        return None;
    }
    Some(ListPage { keys, prefixes, next })
}

/// Parses one page of a listing of uploads; `None` if it is malformed.
pub fn unfinished_of(text: &str) -> Option<UploadsPage> {
    let document = parse(text)?;
    let root = document.root_element();
    if root.tag_name().name() != "ListMultipartUploadsResult" {
        return None;
    }
    let decode = decoder(root);
    let found = root.children().filter(|child| child.tag_name().name() == "Upload");
    let upload = |upload| Some((decode(text_in(upload, "Key")?)?, text_in(upload, "UploadId")?.to_owned()));
    let uploads = found.map(upload).collect::<Option<_>>()?;
    let next =
        || Some((decode(text_in(root, "NextKeyMarker")?)?, text_in(root, "NextUploadIdMarker")?.to_owned()));
    let next = if text_in(root, "IsTruncated") == Some("true") { Some(next()?) } else { None };
    Some(UploadsPage { uploads, next })
}

/// Returns the decoder of keys in a listing.
fn decoder(root: Node<'_, '_>) -> impl Fn(&str) -> Option<String> + use<> {
    // Stores that do not know the option send keys as they are, and then do not name it.
    let is_encoded = text_in(root, "EncodingType") == Some("url");
    move |text| match is_encoded {
        true => percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned()),
        false => Some(text.to_owned()),
    }
}

/// Returns a first-level element of a response whose root element is `name`.
pub fn value_of(text: &str, name: &str, value: &str) -> Option<String> {
    let document = parse(text)?;
    let root = document.root_element();
    (root.tag_name().name() == name).then(|| text_in(root, value).map(str::to_owned))?
}

/// Returns the error code of a response, if it is a plausible one.
pub fn error_code(text: &str) -> Option<String> {
    let code = value_of(text, "Error", "Code")?;
    (code.len() <= CODE_MAX && code.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')).then_some(code)
}

/// Serializes the request that completes a multipart upload.
pub fn parts_xml<'a>(parts: impl Iterator<Item = (u64, &'a str)>) -> String {
    let part = |(number, tag): (u64, &str)| {
        // The store's own word, with whatever it is made of.
        let tag = tag.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>")
    };
    let parts: String = parts.map(part).collect();
    format!(
        "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{parts}</CompleteMultipartUpload>"
    )
}

fn parse(text: &str) -> Option<Document<'_>> {
    // Entities of a document type can grow to any size when they are expanded.
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).ok()
}

fn text_in<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    node.children().find(|child| child.tag_name().name() == name)?.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIST: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
        <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><EncodingType>url</EncodingType>\
        <IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;1</NextContinuationToken>\
        <Contents><Key>a%20b%01</Key><Size>3</Size></Contents><Contents><Key>c</Key></Contents>\
        <CommonPrefixes><Prefix>d%2F</Prefix></CommonPrefixes></ListBucketResult>";

    #[test]
    fn listings_are_read_in_any_namespace() {
        let expected = ListPage {
            keys: vec!["a b\u{1}".into(), "c".into()],
            prefixes: vec!["d/".into()],
            next: Some("t&1".into()),
        };
        assert_eq!(page_of(LIST), Some(expected));
        assert!(page_of(&LIST.replace(" xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"", "")).is_some());
    }

    #[test]
    fn what_says_that_there_is_more_must_say_where() {
        assert_eq!(page_of("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"), None);
        assert_eq!(page_of("<html><body>Login</body></html>"), None);
    }

    #[test]
    fn uploads_are_listed_with_their_names() {
        let text = "<ListMultipartUploadsResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>\
            <NextKeyMarker>b</NextKeyMarker><NextUploadIdMarker>2</NextUploadIdMarker>\
            <Upload><Key>a%20b</Key><UploadId>1</UploadId></Upload></ListMultipartUploadsResult>";
        let expected =
            UploadsPage { uploads: vec![("a b".into(), "1".into())], next: Some(("b".into(), "2".into())) };
        assert_eq!(unfinished_of(text), Some(expected));
        assert_eq!(unfinished_of(&text.replace("<UploadId>1</UploadId>", "")), None);
        assert_eq!(unfinished_of(&text.replace("<NextKeyMarker>b</NextKeyMarker>", "")), None);
        assert_eq!(unfinished_of(LIST), None);
    }

    #[test]
    fn bombs_do_not_go_off() {
        let entities =
            "<!DOCTYPE a [<!ENTITY b \"bbbbbbbb\"><!ENTITY c \"&b;&b;&b;\">]><Error><Code>&c;</Code></Error>";
        assert_eq!(error_code(entities), None);
        let deep = "<a>".repeat(1 << 20);
        assert_eq!(page_of(&deep), None);
        let nested = format!("{deep}{}", "</a>".repeat(1 << 20));
        assert_eq!(page_of(&nested), None);
        let wide = format!("<ListBucketResult>{}</ListBucketResult>", "<Contents/>".repeat(300_000));
        assert_eq!(page_of(&wide), None);
        assert_eq!(error_code(&format!("<Error><Code>{}</Code></Error>", "A".repeat(65))), None);
        assert_eq!(error_code("<Error><Code>Bad\u{1b}[31m</Code></Error>"), None);
    }

    proptest! {
        #[test]
        fn damaged_answers_do_no_harm(at in 0..LIST.len(), with in any::<u8>(), cut in 0..LIST.len()) {
            let mut bytes = LIST.as_bytes().to_vec();
            bytes[at] = with;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let _ = (page_of(&text), error_code(&text), text.get(..cut).map(page_of));
        }
    }
}
