//! Listings, in the order of their keys and by pages.

use bivouac_client::Attr;
use bivouac_types::{Errno, Ino, mode};
use s3s::dto::{
    CommonPrefix, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
    Object as Listed, Owner,
};
use s3s::{S3Result, s3_error};

use super::objects::{e_tag, empty_tag, time};
use super::xml::{self, Coding};
use super::{S3Context, bucket, error, marks};
use crate::request_path::{RequestPath, is_reserved};

/// Upper limit of keys per page.
const KEYS_MAX: usize = 1000;

/// A page of a listing.
struct Page {
    prefix: String,
    /// Keys that are the same up to it, behind the prefix, are one entry.
    delimiter: Option<String>,
    after: String,
    coding: Coding,
    max: usize,
    /// Number of keys that cannot be represented in XML.
    left_out: usize,
    found: Vec<(String, Option<Attr>)>,
    is_truncated: bool,
}

/// A directory that a listing is in.
struct Level {
    /// Key prefix.
    start: String,
    entries: std::vec::IntoIter<(String, Attr)>,
}

impl Page {
    /// Returns whether a directory can contain keys behind the last one of the previous page.
    fn is_behind(&self, key: &str) -> bool {
        key > self.after.as_str()
    }

    /// Returns whether everything below a directory is one common prefix.
    fn is_by_directory(&self) -> bool {
        self.delimiter.as_deref() == Some("/")
    }

    /// Returns the common prefix that a key belongs to, if any.
    fn common<'a>(&self, key: &'a str) -> Option<&'a str> {
        common_prefix(key, &self.prefix, self.delimiter.as_deref()?)
    }
}

/// Returns a key up to the first delimiter behind the prefix; `None` if it has no delimiter there.
pub fn common_prefix<'a>(key: &'a str, prefix: &str, delimiter: &str) -> Option<&'a str> {
    let at = key.strip_prefix(prefix)?.find(delimiter)?;
    key.get(..prefix.len() + at + delimiter.len())
}

impl S3Context {
    /// Returns the entries of a directory in the order of the keys that they are, those of a name that is no text left
    /// out.
    pub fn entries(&self, dir: Ino) -> S3Result<Vec<(String, Attr)>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let entries = self.tree.entries(dir, cookie).map_err(error)?;
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            let named = entries
                .into_iter()
                .filter_map(|entry| Some((String::from_utf8(entry.name).ok()?, entry.attr?)));
            all.extend(named.filter(|(name, _)| !is_reserved(name.as_bytes())));
        }
        // With their slash, as keys have it: `a.b` comes before what is in `a`.
        let key =
            |(name, attr): &(String, Attr)| if attr.is_dir() { format!("{name}/") } else { name.clone() };
        all.sort_by_cached_key(key);
        Ok(all)
    }

    fn page(&self, bucket_name: &str, page: &mut Page) -> S3Result<()> {
        let mut top = bucket(bucket_name)?;
        self.is_bucket_of(&top)?;
        if page.max == 0 {
            return Ok(());
        }
        self.look(&mut top, page)?;
        if page.left_out > 0 {
            let (left_out, ask) = (page.left_out, "ask with encoding-type=url");
            log::warn!(
                remedy:% = ask;
                "{left_out} keys of {bucket_name} have control characters and are left out of a list"
            );
        }
        Ok(())
    }

    fn look(&self, top: &mut RequestPath, page: &mut Page) -> S3Result<()> {
        let dir = page.prefix.rfind('/').map_or("", |end| &page.prefix[..=end]);
        // No key has such a path.
        let Ok(below) = RequestPath::plain(dir.as_bytes()) else { return Ok(()) };
        if dir.split_terminator('/').any(str::is_empty) {
            return Ok(());
        }
        let dir = dir.to_owned();
        top.names.extend(below.names);
        match self.tree.attr(&self.access, top) {
            Ok(attr) if attr.is_dir() => {
                self.folder(page, &dir, &attr)?;
                self.below(top, attr.ino, &dir, page)
            }
            Ok(_) => Ok(()),
            Err(missing) if matches!(missing.errno(), Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            Err(other) => Err(error(other)),
        }
    }

    /// Goes through a directory and, unless they are entries themselves, the directories in it, however deep they are.
    fn below(&self, place: &RequestPath, dir: Ino, start: &str, page: &mut Page) -> S3Result<()> {
        let mut place = place.clone();
        let mut levels = vec![Level { start: start.to_owned(), entries: self.entries(dir)?.into_iter() }];
        while let Some(level) = levels.last_mut() {
            let Some((name, attr)) = level.entries.next() else {
                levels.pop();
                place.names.pop();
                continue;
            };
            let key = format!("{}{name}", level.start);
            if attr.is_dir() {
                let key = format!("{key}/");
                let may_have = key.starts_with(&page.prefix) || page.prefix.starts_with(&key);
                // Behind the last key of the page before, more may follow in its directory.
                if !may_have || !(page.is_behind(&key) || page.after.starts_with(&key)) {
                    continue;
                }
                if !page.is_by_directory() {
                    self.folder(page, &key, &attr)?;
                    place.names.push(name.into_bytes());
                    levels.push(Level { start: key, entries: self.entries(attr.ino)?.into_iter() });
                } else if page.is_behind(&key) {
                    self.found(page, key, None);
                }
            } else if key.starts_with(&page.prefix) && page.is_behind(&key) {
                let Some(attr) = self.file(&place, &name, attr) else { continue };
                self.found(page, key, Some(attr));
            }
            if page.is_truncated {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Notes a directory that was put as an object.
    fn folder(&self, page: &mut Page, key: &str, dir: &Attr) -> S3Result<()> {
        let is_asked = !key.is_empty() && key.starts_with(&page.prefix) && page.is_behind(key);
        if is_asked && marks::is_folder(self.tree.client().map_err(error)?, dir.ino).map_err(error)? {
            self.found(page, key.to_owned(), Some(*dir));
        }
        Ok(())
    }

    fn found(&self, page: &mut Page, key: String, attr: Option<Attr>) {
        let (key, attr) = match page.common(&key) {
            Some(common) => (common.to_owned(), None),
            None => (key, attr),
        };
        let is_last = page.found.last().is_some_and(|(last, _)| *last == key);
        // A prefix that was the last entry of the page before has further keys, and is not listed again.
        if attr.is_none() && (is_last || !page.is_behind(&key)) {
            return;
        }
        if !page.coding.can_write(&key) {
            page.left_out += 1;
            return;
        }
        // The next page continues behind the last key of this one: a key that comes late would be in no page.
        let is_in_order = page.found.last().is_none_or(|(last, _)| *last <= key);
        assert!(is_in_order, "key {key} comes late in a listing");
        if page.found.len() < page.max { page.found.push((key, attr)) } else { page.is_truncated = true }
    }

    /// Returns a regular file, also where a link leads to one.
    fn file(&self, place: &RequestPath, name: &str, attr: Attr) -> Option<Attr> {
        if attr.mode & mode::TYPE != mode::LINK {
            return attr.is_file().then_some(attr);
        }
        let mut link = place.clone();
        link.names.push(name.as_bytes().to_vec());
        link.is_dir = false;
        self.tree.attr(&self.access, &link).ok().filter(Attr::is_file)
    }

    fn listed(&self, page: Page, with_owner: bool) -> S3Result<(Vec<Listed>, Vec<CommonPrefix>)> {
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        for (key, attr) in page.found {
            let key = page.coding.write(key);
            match attr {
                None => prefixes.push(CommonPrefix { prefix: Some(key) }),
                Some(attr) => {
                    let (size, tag) =
                        if attr.is_dir() { (0, empty_tag()) } else { (attr.size, self.tag(&attr)?) };
                    contents.push(Listed {
                        key: Some(key),
                        size: i64::try_from(size).ok(),
                        e_tag: Some(e_tag(&tag)),
                        last_modified: Some(time(&attr)),
                        owner: with_owner.then(|| owner(&attr)),
                        ..Default::default()
                    });
                }
            }
        }
        Ok((contents, prefixes))
    }

    pub fn list(&self, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
        let coding = Coding::wanted(input.encoding_type.as_ref())?;
        let token = input.continuation_token.as_deref().map(xml::decoded).transpose()?;
        let after = token.or_else(|| input.start_after.clone());
        let mut page =
            page((input.prefix.clone(), after), input.delimiter.as_deref(), input.max_keys, coding)?;
        let (prefix, start_after) = (coding.repeat(input.prefix)?, coding.repeat(input.start_after)?);
        let delimiter = coding.repeat(input.delimiter)?;
        let max_keys = page.max as i32;
        self.page(&input.bucket, &mut page)?;
        let is_truncated = page.is_truncated;
        let next = page.found.last().map(|(key, _)| xml::encoded(key)).filter(|_| is_truncated);
        let key_count = i32::try_from(page.found.len()).ok();
        let (contents, common_prefixes) = self.listed(page, input.fetch_owner.unwrap_or(false))?;
        Ok(ListObjectsV2Output {
            common_prefixes: Some(common_prefixes),
            contents: Some(contents),
            continuation_token: input.continuation_token.and_then(xml::text),
            delimiter,
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            key_count,
            max_keys: Some(max_keys),
            name: Some(input.bucket),
            next_continuation_token: next,
            prefix,
            start_after,
            ..Default::default()
        })
    }

    pub fn list_old(&self, input: ListObjectsInput) -> S3Result<ListObjectsOutput> {
        let coding = Coding::wanted(input.encoding_type.as_ref())?;
        let at = (input.prefix.clone(), input.marker.clone());
        let mut page = page(at, input.delimiter.as_deref(), input.max_keys, coding)?;
        let (prefix, marker) = (coding.repeat(input.prefix)?, coding.repeat(input.marker)?);
        let delimiter = coding.repeat(input.delimiter)?;
        let max_keys = page.max as i32;
        self.page(&input.bucket, &mut page)?;
        let is_truncated = page.is_truncated;
        let next = page.found.last().map(|(key, _)| coding.write(key.clone())).filter(|_| is_truncated);
        let (contents, common_prefixes) = self.listed(page, true)?;
        Ok(ListObjectsOutput {
            common_prefixes: Some(common_prefixes),
            contents: Some(contents),
            delimiter,
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            marker: Some(marker.unwrap_or_default()),
            max_keys: Some(max_keys),
            name: Some(input.bucket),
            next_marker: next,
            prefix,
            ..Default::default()
        })
    }
}

/// Returns the user that a file is of, by its number: there are no accounts.
fn owner(attr: &Attr) -> Owner {
    let id = attr.uid.to_string();
    Owner { display_name: Some(id.clone()), id: Some(id) }
}

fn page(
    (prefix, after): (Option<String>, Option<String>),
    delimiter: Option<&str>,
    max: Option<i32>,
    coding: Coding,
) -> S3Result<Page> {
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty()).map(str::to_owned);
    let max = usize::try_from(max.unwrap_or(KEYS_MAX as i32)).map_err(|_| s3_error!(InvalidArgument))?;
    let (prefix, after) = (prefix.unwrap_or_default(), after.unwrap_or_default());
    let (max, found) = (max.min(KEYS_MAX), Vec::new());
    Ok(Page { prefix, delimiter, after, coding, max, left_out: 0, found, is_truncated: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_in_common_what_is_up_to_a_delimiter() {
        for (key, prefix, delimiter, common) in [
            ("a/b/c", "", "/", Some("a/")),
            ("a/b/c", "a/", "/", Some("a/b/")),
            ("a/b", "a/", "/", None),
            ("a/", "a/", "/", None),
            ("foo-1.h5", "", "-", Some("foo-")),
            ("foo-1-2", "foo-", "-", Some("foo-1-")),
            ("foo/bar-1", "foo", "r-", Some("foo/bar-")),
            ("ä€x", "ä", "€", Some("ä€")),
            ("b", "a", "/", None),
        ] {
            assert_eq!(common_prefix(key, prefix, delimiter), common, "{key} {prefix} {delimiter}");
        }
    }
}
