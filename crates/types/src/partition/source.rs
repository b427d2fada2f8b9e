//! What a partition stands in front of.

use std::fmt;
use std::str::FromStr;

/// Site storage of a partition, as it was written: `/data/set`, `file:///data/set`, or
/// `s3://bucket/prefix?endpoint=http://host:9000&region=here`. Names no secrets: those come from the environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    text: String,
    site: Site,
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// A directory of a file system that every node of the partition has mounted.
    Directory {
        /// Its absolute path.
        path: String,
    },
    /// Objects of a store that speaks S3.
    S3 {
        /// The bucket.
        bucket: String,
        /// What their keys begin with; empty, or ends with a slash.
        prefix: String,
        /// Where the store is, unless the environment says so.
        endpoint: Option<String>,
        /// Its region.
        region: Option<String>,
    },
}

impl Source {
    /// What it says.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        if text.contains(char::is_control) {
            return Err("source has a control character".to_owned());
        }
        let site = match text.split_once("://") {
            Some(("s3", rest)) => objects(rest),
            Some(("file", path)) => directory(path),
            Some((scheme, _)) => Err(format!("kind '{scheme}' is none of file, s3")),
            None => directory(text),
        };
        let site = site.map_err(|why| format!("source '{text}': {why}"))?;
        Ok(Source { text: text.to_owned(), site })
    }
}

fn directory(path: &str) -> Result<Site, String> {
    let has_up = path.split('/').any(|name| name == "..");
    match path.starts_with('/') && !has_up {
        true => Ok(Site::Directory { path: path.to_owned() }),
        false => {
            Err("not an absolute path without '..': nodes need not have the same working directory".into())
        }
    }
}

fn objects(rest: &str) -> Result<Site, String> {
    let (place, words) = rest.split_once('?').unwrap_or((rest, ""));
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if bucket.is_empty() {
        return Err("names no bucket: write s3://BUCKET/PREFIX".to_owned());
    }
    let (mut endpoint, mut region) = (None, None);
    for word in words.split('&').filter(|word| !word.is_empty()) {
        match word.split_once('=') {
            Some(("endpoint", value)) if !value.is_empty() => endpoint = Some(value.to_owned()),
            Some(("region", value)) if !value.is_empty() => region = Some(value.to_owned()),
            _ => return Err(format!("'{word}' is none of endpoint=URL, region=NAME")),
        }
    }
    let slash = if prefix.is_empty() || prefix.ends_with('/') { "" } else { "/" };
    Ok(Site::S3 { bucket: bucket.to_owned(), prefix: format!("{prefix}{slash}"), endpoint, region })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_read() {
        let site = |text: &str| text.parse::<Source>().map(|source| source.site);
        let directory = |path: &str| Ok(Site::Directory { path: path.to_owned() });
        assert_eq!(site("/data/set"), directory("/data/set"));
        assert_eq!(site("file:///data/set"), directory("/data/set"));
        let (bucket, prefix) = ("b".to_owned(), "p/q/".to_owned());
        let endpoint = Some("http://h:9000".to_owned());
        assert_eq!(
            site("s3://b/p/q?endpoint=http://h:9000"),
            Ok(Site::S3 { bucket, prefix, endpoint, region: None })
        );
    }

    #[test]
    fn bad_sources_are_refused_by_name() {
        let refusal = |text: &str| text.parse::<Source>().unwrap_err();
        assert!(refusal("data").contains("absolute path"));
        assert!(refusal("/a/../b").contains("'..'"));
        assert!(refusal("ftp://x").contains("'ftp' is none of file, s3"));
        assert!(refusal("s3:///p").contains("names no bucket"));
        assert!(refusal("s3://b?key=secret").contains("'key=secret' is none of"));
    }
}
