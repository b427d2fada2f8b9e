//! Places as users write them: a directory, a bucket, a web server.

use std::path::{Path, PathBuf};

use bivouac_types::{Site, Source};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str};
use url::Url;

use crate::error::{Cause, PublishError, PublishResult};

/// Characters that are escaped in a URL (RFC 3986, 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Location of a catalogue or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A directory or file of a mounted file system.
    Path(PathBuf),
    /// Objects of a store that speaks S3.
    S3 {
        /// The bucket.
        bucket: String,
        /// A key, or what keys begin with; without a slash at its end.
        key: String,
        /// Endpoint, if it is not that of the environment.
        endpoint: Option<String>,
        /// Its region.
        region: Option<String>,
    },
    /// An HTTP server.
    Web(Url),
}

impl Location {
    /// Parses a location; a relative path refers to the working directory.
    ///
    /// # Errors
    /// [`Cause::Usage`].
    pub fn parse(text: &str) -> PublishResult<Location> {
        let usage = |why: &str| PublishError::new(Cause::Usage, format_args!("{text}: {why}"));
        if text.is_empty() {
            return Err(usage("is no place; write a directory, s3://BUCKET/PREFIX, or a URL"));
        }
        if text.contains(char::is_control) {
            return Err(usage("has a control character"));
        }
        match text.split_once("://") {
            Some(("http" | "https", _)) => {
                let url = Url::parse(text).map_err(|error| usage(&error.to_string()))?;
                url.has_host().then_some(Location::Web(url)).ok_or_else(|| usage("names no host"))
            }
            Some(("s3" | "file", _)) => Location::of_url(text).ok_or_else(|| usage("is no such place")),
            Some((scheme, _)) => Err(usage(&format!("'{scheme}' is none of file, s3, http, https"))),
            // An absolute path: an entry or a cache is read from other working directories.
            None => match std::path::absolute(text) {
                Ok(path) => Ok(Location::Path(path)),
                Err(error) => Err(PublishError::system(text, &error)),
            },
        }
    }

    /// Parses the URL of an entry; `None` if files cannot be fetched from it.
    #[must_use]
    pub fn of_url(text: &str) -> Option<Location> {
        let (scheme, rest) = text.split_once("://")?;
        match scheme {
            "http" | "https" => Url::parse(text).ok().filter(Url::has_host).map(Location::Web),
            "file" => {
                let path = decoded(rest)?;
                // Names in entries come from anybody, and `..` would leave what they seem to name.
                let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
                is_plain.then(|| Location::Path(path.into()))
            }
            "s3" => {
                let site = text.parse::<Source>().ok()?;
                let Site::S3 { bucket, prefix, endpoint, region } = site.site().clone() else { return None };
                let key = decoded(prefix.trim_end_matches('/'))?;
                Some(Location::S3 { bucket, key, endpoint, region })
            }
            _ => None,
        }
    }

    /// Returns the URL without a slash at its end.
    ///
    /// # Errors
    /// [`Cause::Usage`] for a path that is no text.
    pub fn url(&self) -> PublishResult<String> {
        match self {
            Location::Path(path) => file_url(path),
            Location::S3 { bucket, key, endpoint, region } => {
                let parts = key.split('/').filter(|part| !part.is_empty());
                let path: String = parts.map(|part| format!("/{}", encoded(part.as_bytes()))).collect();
                let said = [("endpoint", endpoint), ("region", region)];
                let said =
                    said.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value).as_ref()?)));
                let query = said.collect::<Vec<_>>().join("&");
                let mark = if query.is_empty() { "" } else { "?" };
                Ok(format!("s3://{bucket}{path}{mark}{query}"))
            }
            Location::Web(url) => Ok(url.as_str().trim_end_matches('/').to_owned()),
        }
    }

    /// Returns the location of a name, which may contain slashes, below this one.
    #[must_use]
    pub fn join(&self, name: &str) -> Location {
        match self {
            Location::Path(path) => Location::Path(path.join(name)),
            Location::S3 { bucket, key, endpoint, region } => {
                let slash = if key.is_empty() { "" } else { "/" };
                let key = format!("{key}{slash}{name}");
                Location::S3 {
                    bucket: bucket.clone(),
                    key,
                    endpoint: endpoint.clone(),
                    region: region.clone(),
                }
            }
            Location::Web(url) => {
                let mut url = url.clone();
                let base = url.path().trim_end_matches('/').to_owned();
                let parts = name.split('/').map(|part| format!("/{}", encoded(part.as_bytes())));
                url.set_path(&parts.fold(base, |path, part| path + &part));
                Location::Web(url)
            }
        }
    }
}

/// Returns a path as a URL.
fn file_url(path: &Path) -> PublishResult<String> {
    let text = path.to_str().ok_or_else(|| {
        PublishError::new(Cause::Usage, format_args!("{}: is no text; rename it", path.display()))
    })?;
    let parts = text.split('/').filter(|part| !part.is_empty());
    let path: String = parts.map(|part| format!("/{}", encoded(part.as_bytes()))).collect();
    Ok(format!("file://{path}"))
}

/// Returns a name as URLs have it.
#[must_use]
pub fn encoded(name: &[u8]) -> String {
    percent_encoding::percent_encode(name, ESCAPED).to_string()
}

fn decoded(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8().ok()?.into_owned();
    (!text.contains(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written() {
        for text in [
            "file:///a/b%20c",
            "s3://bucket/a/b%20c",
            "s3://bucket",
            "s3://bucket/a?endpoint=http://127.0.0.1:9&region=here",
            "https://h:8443/a%20b",
        ] {
            let place = Location::parse(text).unwrap();
            assert_eq!(place.url().unwrap(), text);
            assert_eq!(Location::of_url(&place.url().unwrap()), Some(place));
        }
        assert_eq!(Location::parse("/a").unwrap(), Location::Path("/a".into()));
        assert!(matches!(Location::parse("x").unwrap(), Location::Path(path) if path.is_absolute()));
        for wrong in ["", "ftp://a/b", "http://", "s3://", "file://a/../b", "a\nb"] {
            assert_eq!(Location::parse(wrong).unwrap_err().cause(), Cause::Usage, "{wrong:?}");
        }
    }

    #[test]
    fn urls_of_entries_lead_to_files_and_nowhere_else() {
        for wrong in ["file://host/a", "file:///a/../b", "file:///a/%2e%2e/b", "file:///a%00b", "ftp://h/a"] {
            assert_eq!(Location::of_url(wrong), None, "{wrong}");
        }
        for wrong in ["javascript:alert(1)", "http:a", "gopher://x", "", "://", "file:/a", "s3:///a"] {
            assert_eq!(Location::of_url(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_are_put_behind_places() {
        for (base, joined) in [
            ("file:///a", "file:///a/b%20c/d"),
            ("s3://bucket/p?region=x", "s3://bucket/p/b%20c/d?region=x"),
            ("s3://bucket", "s3://bucket/b%20c/d"),
            ("http://h/a/", "http://h/a/b%20c/d"),
        ] {
            assert_eq!(Location::parse(base).unwrap().join("b c/d").url().unwrap(), joined);
        }
    }
}
