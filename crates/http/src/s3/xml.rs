//! Keys in answers, which are XML 1.0: it has no way to write most control characters, and whoever reads it takes a
//! carriage return for a line's end.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use s3s::dto::EncodingType;
use s3s::{S3Result, s3_error};

/// Characters that `encoding-type=url` does not encode.
const LEFT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'_').remove(b'.').remove(b'*');

/// Returns whether XML can represent a text without change.
pub fn is_text(text: &str) -> bool {
    text.chars().all(|letter| match letter {
        '\t' | '\n' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        letter => letter >= ' ',
    })
}

/// Returns a request's text for its response; `None` if XML cannot represent it.
pub fn text(said: String) -> Option<String> {
    Some(said).filter(|said| is_text(said))
}

/// Encodes as in a URL.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, LEFT).to_string()
}

/// Decodes a marker of the previous page.
///
/// # Errors
/// For what no page says.
pub fn decoded(text: &str) -> S3Result<String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded
        .map(Into::into)
        .map_err(|_| s3_error!(InvalidArgument, "no page has said this continuation-token"))
}

/// Encoding of keys in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Plain,
    Url,
}

impl Coding {
    /// # Errors
    /// For one that there is not.
    pub fn wanted(wanted: Option<&EncodingType>) -> S3Result<Coding> {
        match wanted.map(EncodingType::as_str) {
            None => Ok(Coding::Plain),
            Some(EncodingType::URL) => Ok(Coding::Url),
            Some(_) => Err(s3_error!(InvalidArgument, "encoding-type is url")),
        }
    }

    pub fn can_write(self, key: &str) -> bool {
        self == Coding::Url || is_text(key)
    }

    pub fn write(self, key: String) -> String {
        if self == Coding::Url { encoded(&key) } else { key }
    }

    /// Returns a parameter of the request in this encoding.
    ///
    /// # Errors
    /// For what can only be written as in a URL.
    pub fn repeat(self, said: Option<String>) -> S3Result<Option<String>> {
        if said.as_deref().is_some_and(|said| !self.can_write(said)) {
            return Err(s3_error!(InvalidArgument, "control characters need encoding-type=url"));
        }
        Ok(said.map(|said| self.write(said)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_cannot_say_is_encoded_or_left_out() {
        for (key, is_plain) in [
            ("a/b c+d&<>ä€", true),
            ("tab\tand\nline", true),
            ("\u{1}", false),
            ("a\rb", false),
            ("\u{b}", false),
            ("\u{fffe}", false),
            ("\u{7f}", true),
        ] {
            assert_eq!(Coding::Plain.can_write(key), is_plain, "{key:?}");
            assert_eq!(text(key.to_owned()).is_some(), is_plain, "{key:?}");
            assert_eq!(Coding::Plain.repeat(Some(key.to_owned())).is_ok(), is_plain, "{key:?}");
            let url = Coding::Url.repeat(Some(key.to_owned())).unwrap().unwrap();
            assert!(
                Coding::Url.can_write(key) && url.bytes().all(|byte| (b'!'..0x7f).contains(&byte)),
                "{url}"
            );
            assert_eq!(decoded(&url).unwrap(), key);
        }
        assert_eq!(encoded("a/b c+\u{1}%"), "a/b%20c%2B%01%25");
        assert!(decoded("%ff").is_err());
        assert!(Coding::wanted(Some(&EncodingType::from("xml".to_owned()))).is_err());
    }
}
