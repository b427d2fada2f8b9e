//! Description of a data set.

use crate::digest::Digest;
use crate::place::encoded;

/// Kind of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The servers of a formation, which ends.
    Formation {
        /// Its name.
        name: String,
        /// Its id, which no other formation has.
        id: String,
    },
    /// Site storage, or any other place.
    Site,
}

/// A place that has all files of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetLocation {
    /// Its kind.
    pub kind: Kind,
    /// URL of the directory, or of the one file, without a slash at its end.
    pub base: String,
    /// SHA-256 of the server's certificate, if no authority vouches for it.
    pub fingerprint: Option<String>,
}

impl DatasetLocation {
    /// Returns whether a URL belongs to this holder.
    #[must_use]
    pub fn has(&self, url: &str) -> bool {
        let (base, query) = split_query(&self.base);
        let rest = url.strip_suffix(query).and_then(|url| url.strip_prefix(base));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns the URL of a file; the name is empty for a data set of one file.
    #[must_use]
    pub fn url(&self, name: &str) -> String {
        let parts = name.split('/').filter(|part| !part.is_empty());
        let (base, query) = split_query(&self.base);
        parts.fold(base.to_owned(), |url, part| format!("{url}/{}", encoded(part.as_bytes()))) + query
    }
}

/// Splits off the query, which names the store.
fn split_query(base: &str) -> (&str, &str) {
    base.split_at(base.find('?').unwrap_or(base.len()))
}

/// A file of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSetFile {
    /// Its name, with directories, as [`check_name`](crate::check_name) has it.
    pub name: String,
    /// Its size, in bytes.
    pub size: u64,
    /// SHA-256 of all of it; only missing where every piece has one.
    pub digest: Option<Digest>,
    /// Length of the pieces, but for the last.
    pub piece_len: u64,
    /// Digests of the pieces; empty if only that of the file is known.
    pub pieces: Vec<Digest>,
    /// URLs, the best first.
    pub urls: Vec<String>,
}

impl DataSetFile {
    /// Returns the number of pieces.
    #[must_use]
    pub fn piece_count(&self) -> usize {
        match self.size {
            0 => 0,
            _ => self.pieces.len().max(1),
        }
    }

    /// Returns offset and length of a piece.
    #[must_use]
    pub fn piece(&self, index: usize) -> (u64, u64) {
        if self.pieces.is_empty() {
            return (0, self.size);
        }
        let begin = self.piece_len.saturating_mul(index as u64).min(self.size);
        (begin, self.piece_len.min(self.size - begin))
    }

    /// Returns the expected digest of a piece.
    #[must_use]
    pub fn piece_digest(&self, index: usize) -> Option<Digest> {
        if self.pieces.is_empty() { self.digest } else { self.pieces.get(index).copied() }
    }
}

/// A data set as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Id in the catalogue.
    pub id: String,
    /// Title.
    pub title: String,
    /// Words that it is found by.
    pub words: String,
    /// Licence.
    pub licence: Option<String>,
    /// Publisher.
    pub who: String,
    /// The last name of the path that was published.
    pub name: String,
    /// True if it is a single file.
    pub is_file: bool,
    /// Time of publication, in seconds since 1970.
    pub created: u64,
    /// Expiry, in seconds since 1970.
    pub expires: Option<u64>,
    /// Holders.
    pub holders: Vec<DatasetLocation>,
    /// Number of files.
    pub files: u64,
    /// Total size, in bytes.
    pub bytes: u64,
}

impl Manifest {
    /// Returns whether it has expired.
    #[must_use]
    pub fn has_expired(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| end <= now)
    }

    /// Returns whether its description contains all of these words.
    #[must_use]
    pub fn is_meant_by(&self, words: &[String]) -> bool {
        let said = [&self.id, &self.title, &self.words, &self.who, &self.name];
        let said = said.map(|text| text.to_lowercase()).join("\n");
        words.iter().all(|word| said.contains(&word.to_lowercase()))
    }
}

/// Returns a data set of one file, for tests.
#[cfg(test)]
pub(crate) fn sample(holders: Vec<DatasetLocation>) -> (Manifest, Vec<DataSetFile>) {
    let item = DataSetFile {
        name: "b".into(),
        size: 3,
        digest: Some(Digest::of(b"abc")),
        piece_len: 1 << 20,
        pieces: vec![Digest::of(b"abc")],
        urls: holders.iter().map(|holder| holder.url("b")).collect(),
    };
    let manifest = Manifest {
        id: "wing-0011".into(),
        title: "Wing \"fine\"".into(),
        words: "mesh, wing".into(),
        licence: Some("CC-BY-4.0".into()),
        who: "ada@host".into(),
        name: "a".into(),
        is_file: false,
        created: 1_700_000_000,
        expires: Some(1_800_000_000),
        holders,
        files: 1,
        bytes: 3,
    };
    (manifest, vec![item])
}

/// Returns site storage that has it.
#[cfg(test)]
pub(crate) fn site() -> DatasetLocation {
    DatasetLocation { kind: Kind::Site, base: "file:///site/a".into(), fingerprint: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_know_their_urls() {
        let holder = DatasetLocation { kind: Kind::Site, base: "http://h/a".into(), fingerprint: None };
        assert_eq!(holder.url("b c/ä"), "http://h/a/b%20c/%C3%A4");
        assert_eq!(holder.url(""), "http://h/a");
        assert!(holder.has("http://h/a/b") && holder.has("http://h/a") && !holder.has("http://h/ab"));
        let holder = DatasetLocation { base: "s3://b/p?region=x".into(), ..holder };
        assert_eq!(holder.url("c"), "s3://b/p/c?region=x");
        assert!(holder.has(&holder.url("c")) && !holder.has("s3://b/p/c"));
    }

    #[test]
    fn pieces_cover_a_file() {
        let mut item = DataSetFile {
            name: "a".into(),
            size: 25,
            digest: Some(Digest::of(b"")),
            piece_len: 10,
            pieces: vec![Digest::of(b"x"); 3],
            urls: Vec::new(),
        };
        assert_eq!([item.piece(0), item.piece(1), item.piece(2)], [(0, 10), (10, 10), (20, 5)]);
        item.pieces.clear();
        assert_eq!((item.piece_count(), item.piece(0), item.piece_digest(0)), (1, (0, 25), item.digest));
        item.size = 0;
        assert_eq!(item.piece_count(), 0);
    }
}
