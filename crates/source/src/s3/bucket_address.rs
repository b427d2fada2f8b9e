//! URL of a bucket: endpoint, prefix, and encoding of keys.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::error::Cause;
use crate::source::check_path;
use crate::{SourceError, SourceResult};

/// Upper limit of a key, in bytes.
const KEY_MAX: usize = 1024;
/// Default region.
const REGION: &str = "us-east-1";
/// Characters that a key keeps in a URL: the unreserved ones of request signing, and slashes.
const KEY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A bucket with a key prefix at an endpoint.
pub struct BucketAddress {
    /// URL that keys are appended to; ends with a slash.
    base: Url,
    bucket: String,
    /// Key prefix: empty, or ends with a slash.
    prefix: String,
    region: String,
}

impl BucketAddress {
    /// Creates the address of a bucket at `endpoint`, or at Amazon's.
    ///
    /// # Errors
    /// [`Cause::BadName`] for what cannot be a bucket, prefix, region or endpoint.
    pub fn new(
        bucket: &str,
        prefix: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
    ) -> SourceResult<BucketAddress> {
        let bad = |what: &str| Err(SourceError::new(Cause::BadName, format!("s3://{bucket}: {what}")));
        let is_plain = |text: &str, also: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
        };
        // As a part of a path, `.` and `..` would lead to another bucket.
        if !is_plain(bucket, ".-_") || bucket.starts_with('.') {
            return bad("is no name of a bucket: letters, digits, dots and dashes only");
        }
        let region = region.unwrap_or(REGION);
        if !is_plain(region, "-_") {
            return bad(&format!("'{}' is no region", region.escape_default()));
        }
        check_path(prefix.strip_suffix('/').unwrap_or(prefix).as_bytes())?;
        let Some(base) = base_of(bucket, endpoint, region) else {
            return bad("its endpoint is no URL as http://HOST:PORT or https://HOST, without a password");
        };
        let (bucket, prefix, region) = (bucket.to_owned(), prefix.to_owned(), region.to_owned());
        Ok(BucketAddress { base, bucket, prefix, region })
    }

    /// Returns the region.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Returns whether the connection is encrypted.
    pub fn is_https(&self) -> bool {
        self.base.scheme() == "https"
    }

    /// Returns host and port of the endpoint, for messages.
    pub fn host(&self) -> String {
        let port = self.base.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}{port}", self.base.host_str().unwrap_or_default())
    }

    /// Returns the key of a file.
    ///
    /// # Errors
    /// [`Cause::BadName`].
    pub fn key(&self, path: &[u8]) -> SourceResult<String> {
        check_path(path)?;
        self.whole_key(path, "")
    }

    /// Returns the common key prefix of a directory's entries, which is also the key of its marker object.
    ///
    /// # Errors
    /// [`Cause::BadName`].
    pub fn dir_key(&self, path: &[u8]) -> SourceResult<String> {
        check_path(path)?;
        self.whole_key(path, if path.is_empty() { "" } else { "/" })
    }

    fn whole_key(&self, path: &[u8], slash: &str) -> SourceResult<String> {
        let bad = |what: &str| SourceError::new(Cause::BadName, format!("{}: {what}", self.object(path)));
        let name = str::from_utf8(path).map_err(|_| bad("is not UTF-8, as keys of objects must be"))?;
        let key = format!("{}{name}{slash}", self.prefix);
        if key.len() > KEY_MAX {
            return Err(bad(&format!("is a key of {} bytes; stores take {KEY_MAX}", key.len())));
        }
        Ok(key)
    }

    /// Returns the URL of a key; of the bucket itself for an empty key.
    pub fn url(&self, key: &str) -> Url {
        let mut url = self.base.clone();
        // Encoded here and not by `Url`, which leaves characters as they are that the signature has encoded.
        let path = format!("{}{}", self.base.path(), utf8_percent_encode(key, KEY));
        url.set_path(&path);
        url
    }

    /// Returns the value of `x-amz-copy-source` for a key.
    pub fn copy_source(&self, key: &str) -> String {
        format!("/{}/{}", self.bucket, utf8_percent_encode(key, KEY))
    }

    /// Returns a path as it is shown to users.
    pub fn object(&self, path: &[u8]) -> String {
        format!("s3://{}/{}{}", self.bucket, self.prefix, String::from_utf8_lossy(path))
    }
}

/// Returns the base URL: path-style for an explicit endpoint and for bucket names with dots, otherwise the virtual host
/// at Amazon's.
fn base_of(bucket: &str, endpoint: Option<&str>, region: &str) -> Option<Url> {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    let (text, is_named) = match endpoint {
        Some(endpoint) => (endpoint.to_owned(), false),
        // A name with dots does not match the wildcard certificate of the virtual host.
        None if bucket.contains('.') => (format!("https://s3.{region}.{domain}/"), false),
        None => (format!("https://{bucket}.s3.{region}.{domain}/"), true),
    };
    let mut url = Url::parse(&text).ok()?;
    if !is_named {
        let path = format!("{}/{bucket}/", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    let is_bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    let is_http = matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none();
    (is_bare && is_http).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(bucket: &str, prefix: &str, endpoint: Option<&str>, path: &[u8]) -> String {
        let place = BucketAddress::new(bucket, prefix, endpoint, Some("eu-west-1")).unwrap();
        place.url(&place.key(path).unwrap()).to_string()
    }

    #[test]
    fn keys_are_urls() {
        let own = Some("http://h:9000");
        assert_eq!(url("b", "p/", own, b"d/f"), "http://h:9000/b/p/d/f");
        assert_eq!(url("b", "", Some("https://h/s3/"), b"f"), "https://h/s3/b/f");
        assert_eq!(url("b", "", None, b"f"), "https://b.s3.eu-west-1.amazonaws.com/f");
        assert_eq!(url("b.c", "", None, b"f"), "https://s3.eu-west-1.amazonaws.com/b.c/f");
        assert_eq!(
            url("b", "", own, "a b?c#d%2e+\u{20ac}".as_bytes()),
            "http://h:9000/b/a%20b%3Fc%23d%252e%2B%E2%82%AC"
        );
        assert_eq!(url("b", "", own, b"%2e%2e/x"), "http://h:9000/b/%252e%252e/x");
    }

    #[test]
    fn what_is_no_place_is_refused() {
        let refusal = |bucket: &str, prefix: &str, endpoint: &str| {
            BucketAddress::new(bucket, prefix, Some(endpoint), None).err().map(|error| error.to_string())
        };
        assert_eq!(refusal("b", "p/", "http://h"), None);
        assert!(refusal("b/..", "", "http://h").unwrap().contains("no name of a bucket"));
        assert!(refusal("b", "../x/", "http://h").unwrap().contains("no path"));
        for endpoint in ["h:9000", "ftp://h", "http://u:secret@h", "http://", "http://h?x=y", "http://h#x"] {
            let text = refusal("b", "", endpoint).unwrap();
            assert!(text.contains("no URL") && !text.contains("secret"), "{endpoint}: {text}");
        }
        let place = BucketAddress::new("b", "", None, None).unwrap();
        assert_eq!(place.key(b"a\xff").unwrap_err().cause(), Cause::BadName);
        assert_eq!(place.key(&[b'n'; 1025]).unwrap_err().cause(), Cause::BadName);
    }
}
