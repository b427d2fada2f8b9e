//! Sources of partitions.

use std::fmt;
use std::str::FromStr;

/// Site storage of a partition, as it was written: `/data/set`, `file:///data/set`, or
/// `s3://bucket/prefix?endpoint=http://host:9000&region=here`, or, as `bivouac link add` writes it,
/// `bivouac://host:port/name?key=sealed`, with `&read-only` for a key that permits no changes. Names no secrets that
/// others could use: those of object stores come from the environment, a link's key is encrypted for its own formation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    text: String,
    site: Site,
}

/// Kind and location of a source.
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
        /// Prefix of their keys; empty, or ends with a slash.
        prefix: String,
        /// Address of the store, unless the environment has it.
        endpoint: Option<String>,
        /// Its region.
        region: Option<String>,
    },
    /// A directory of another formation, behind its gateway.
    Formation {
        /// Address of the gateway: `host:port`.
        address: String,
        /// The link's name.
        name: String,
        /// The key, encrypted for the formation that the partition is in.
        key: String,
        /// True if the key permits no changes.
        read_only: bool,
    },
}

/// The scheme of links.
const LINK_SCHEME: &str = "bivouac";
/// Stands for the key of a link that is being removed.
const DETACHED: &str = "-";
/// Behind a key that permits no changes.
const READ_ONLY: &str = "&read-only";

impl Source {
    /// Returns the source of a link.
    ///
    /// # Errors
    /// A sentence about what cannot be an address, a name or a key.
    pub fn of_link(address: &str, name: &str, key: &str, read_only: bool) -> Result<Source, String> {
        let rights = if read_only { READ_ONLY } else { "" };
        format!("{LINK_SCHEME}://{address}/{name}?key={key}{rights}").parse()
    }

    /// Returns the source of a link that is being removed: nothing of it is brought or listed any more. `None` for what
    /// is no link.
    #[must_use]
    pub fn detached(&self) -> Option<Source> {
        let Site::Formation { address, name, .. } = &self.site else { return None };
        Source::of_link(address, name, DETACHED, false).ok()
    }

    /// Returns whether it is another formation, to which a link is kept.
    #[must_use]
    pub fn is_link(&self) -> bool {
        matches!(self.site, Site::Formation { .. }) && !self.is_detached()
    }

    /// Returns whether it is a link whose key permits no changes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        matches!(self.site, Site::Formation { read_only: true, .. })
    }

    /// Returns whether it is a link that is being removed.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        matches!(&self.site, Site::Formation { key, .. } if key == DETACHED)
    }

    /// Returns its kind and location.
    #[must_use]
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// Returns its text, as it was written.
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
            Some((LINK_SCHEME, rest)) => formation(rest),
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

/// Returns a directory behind a gateway.
fn formation(rest: &str) -> Result<Site, String> {
    let odd = || "is no link; make one with: bivouac link add NAME ADDR:PORT --key-file FILE".to_owned();
    let (place, key) = rest.split_once("?key=").ok_or_else(odd)?;
    let (address, name) = place.split_once('/').ok_or_else(odd)?;
    let (key, read_only) = key.strip_suffix(READ_ONLY).map_or((key, false), |key| (key, true));
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_key = !key.contains(['&', '?', '/']) && is_word(key);
    if !has_port || !is_word(address) || !is_word(name) || name.contains(['/', '?', '&']) || !is_key {
        return Err(odd());
    }
    let (address, name, key) = (address.to_owned(), name.to_owned(), key.to_owned());
    Ok(Site::Formation { address, name, key, read_only })
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
    fn a_detached_link_has_no_key() {
        let link = Source::of_link("h:1", "far", "k", true).unwrap();
        let detached = link.detached().unwrap();
        assert!(detached.is_detached() && !link.is_detached());
        assert!(link.is_link() && link.is_read_only() && !detached.is_link() && !detached.is_read_only());
        assert_eq!(detached.as_str(), "bivouac://h:1/far?key=-");
        assert_eq!("/data".parse::<Source>().unwrap().detached(), None);
    }

    #[test]
    fn links_are_read() {
        for read_only in [false, true] {
            let link = Source::of_link("[::1]:7000", "far", "BVK.x-_", read_only).unwrap();
            let (address, name, key) = ("[::1]:7000".to_owned(), "far".to_owned(), "BVK.x-_".to_owned());
            assert_eq!(link.site(), &Site::Formation { address, name, key, read_only });
            assert_eq!(link.as_str().parse(), Ok(link.clone()));
        }
        for (address, name, key) in [
            ("host", "far", "k"),
            ("host:0", "far", "k"),
            (":7000", "far", "k"),
            ("host:7000", "", "k"),
            ("host:7000", "a/b", "k"),
            ("host:7000", "far", ""),
            ("host:7000", "far", "k&x=y"),
            ("host:70 00", "far", "k"),
        ] {
            assert!(
                Source::of_link(address, name, key, false).unwrap_err().contains("link add"),
                "{address} {name} {key}"
            );
        }
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
