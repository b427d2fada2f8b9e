//! Places as users write them: a directory, a bucket, a web server.

use std::path::{Path, PathBuf};

use bivouac_types::{Site, Source};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str};
use url::Url;

use crate::error::{Cause, PublishError, PublishResult};

/// What a name in a URL is written with as it is (RFC 3986, 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Where catalogues and files can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory or file of a mounted file system.
    Path(PathBuf),
    /// Objects of a store that speaks S3.
    S3 {
        /// The bucket.
        bucket: String,
        /// A key, or what keys begin with; without a slash at its end.
        key: String,
        /// The store, unless the environment says it.
        endpoint: Option<String>,
        /// Its region.
        region: Option<String>,
    },
    /// What a web server has.
    Web(Url),
}

impl Place {
    /// What somebody wrote; a relative path is one of this process.
    ///
    /// # Errors
    /// [`Cause::Usage`].
    pub fn parse(text: &str) -> PublishResult<Place> {
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
                url.has_host().then_some(Place::Web(url)).ok_or_else(|| usage("names no host"))
            }
            Some(("s3" | "file", _)) => Place::of_url(text).ok_or_else(|| usage("is no such place")),
            Some((scheme, _)) => Err(usage(&format!("'{scheme}' is none of file, s3, http, https"))),
            None => match std::path::absolute(text) {
                Ok(path) => Ok(Place::Path(path)),
                Err(error) => Err(PublishError::system(text, &error)),
            },
        }
    }

    /// What a URL of an entry names; `None` if it is none that files are fetched from.
    #[must_use]
    pub fn of_url(text: &str) -> Option<Place> {
        let (scheme, rest) = text.split_once("://")?;
        match scheme {
            "http" | "https" => Url::parse(text).ok().filter(Url::has_host).map(Place::Web),
            "file" => {
                let path = decoded(rest)?;
                let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
                is_plain.then(|| Place::Path(path.into()))
            }
            "s3" => {
                let site = text.parse::<Source>().ok()?;
                let Site::S3 { bucket, prefix, endpoint, region } = site.site().clone() else { return None };
                let key = decoded(prefix.trim_end_matches('/'))?;
                Some(Place::S3 { bucket, key, endpoint, region })
            }
            _ => None,
        }
    }

    /// As a URL without a slash at its end.
    ///
    /// # Errors
    /// [`Cause::Usage`] for a path that is no text.
    pub fn url(&self) -> PublishResult<String> {
        match self {
            Place::Path(path) => file_url(path),
            Place::S3 { bucket, key, endpoint, region } => {
                let parts = key.split('/').filter(|part| !part.is_empty());
                let path: String = parts.map(|part| format!("/{}", encoded(part.as_bytes()))).collect();
                let said = [("endpoint", endpoint), ("region", region)];
                let said =
                    said.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value).as_ref()?)));
                let query = said.collect::<Vec<_>>().join("&");
                let mark = if query.is_empty() { "" } else { "?" };
                Ok(format!("s3://{bucket}{path}{mark}{query}"))
            }
            Place::Web(url) => Ok(url.as_str().trim_end_matches('/').to_owned()),
        }
    }

    /// What is below it under a name, which may have slashes.
    #[must_use]
    pub fn join(&self, name: &str) -> Place {
        match self {
            Place::Path(path) => Place::Path(path.join(name)),
            Place::S3 { bucket, key, endpoint, region } => {
                let slash = if key.is_empty() { "" } else { "/" };
                let key = format!("{key}{slash}{name}");
                Place::S3 { bucket: bucket.clone(), key, endpoint: endpoint.clone(), region: region.clone() }
            }
            Place::Web(url) => {
                let mut url = url.clone();
                let base = url.path().trim_end_matches('/').to_owned();
                let parts = name.split('/').map(|part| format!("/{}", encoded(part.as_bytes())));
                url.set_path(&parts.fold(base, |path, part| path + &part));
                Place::Web(url)
            }
        }
    }
}

/// A path as a URL.
fn file_url(path: &Path) -> PublishResult<String> {
    let text = path.to_str().ok_or_else(|| {
        PublishError::new(Cause::Usage, format_args!("{}: is no text; rename it", path.display()))
    })?;
    let parts = text.split('/').filter(|part| !part.is_empty());
    let path: String = parts.map(|part| format!("/{}", encoded(part.as_bytes()))).collect();
    Ok(format!("file://{path}"))
}

/// A name as URLs have it.
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
            let place = Place::parse(text).unwrap();
            assert_eq!(place.url().unwrap(), text);
            assert_eq!(Place::of_url(&place.url().unwrap()), Some(place));
        }
        assert_eq!(Place::parse("/a").unwrap(), Place::Path("/a".into()));
        assert!(matches!(Place::parse("x").unwrap(), Place::Path(path) if path.is_absolute()));
        for wrong in ["", "ftp://a/b", "http://", "s3://", "file://a/../b", "a\nb"] {
            assert_eq!(Place::parse(wrong).unwrap_err().cause(), Cause::Usage, "{wrong:?}");
        }
    }

    #[test]
    fn urls_of_entries_lead_to_files_and_nowhere_else() {
        for wrong in ["file://host/a", "file:///a/../b", "file:///a/%2e%2e/b", "file:///a%00b", "ftp://h/a"] {
            assert_eq!(Place::of_url(wrong), None, "{wrong}");
        }
        for wrong in ["javascript:alert(1)", "http:a", "gopher://x", "", "://", "file:/a", "s3:///a"] {
            assert_eq!(Place::of_url(wrong), None, "{wrong}");
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
            assert_eq!(Place::parse(base).unwrap().join("b c/d").url().unwrap(), joined);
        }
    }
}
