//! Listings, in the order of their keys and by pages.

use bivouac_client::Attr;
use bivouac_types::{Errno, Ino, mode};
use s3s::dto::{
    CommonPrefix, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output,
    Object as Listed,
};
use s3s::{S3Result, s3_error};

use super::objects::{e_tag, time};
use super::xml::{self, Coding};
use super::{On, bucket, error};
use crate::target::{Target, is_reserved};

/// Most keys of a page.
const KEYS_MAX: usize = 1000;

/// What is listed.
struct Page {
    prefix: String,
    /// Whether what is below a directory is one entry.
    by_directory: bool,
    after: String,
    coding: Coding,
    max: usize,
    /// How many keys cannot be written.
    left_out: usize,
    found: Vec<(String, Option<Attr>)>,
    is_truncated: bool,
}

/// A directory that a listing is in.
struct Level {
    /// What its keys begin with.
    start: String,
    entries: std::vec::IntoIter<(String, Attr)>,
}

impl Page {
    /// Whether a directory can have anything behind the last key of the page before.
    fn is_behind(&self, key: &str) -> bool {
        key > self.after.as_str()
    }
}

impl On {
    /// Entries of a directory in the order of the keys that they are, those of a name that is no text left out.
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

    fn look(&self, top: &mut Target, page: &mut Page) -> S3Result<()> {
        let dir = page.prefix.rfind('/').map_or("", |end| &page.prefix[..=end]);
        // No key has such a path.
        let Ok(below) = Target::plain(dir.as_bytes()) else { return Ok(()) };
        if dir.split_terminator('/').any(str::is_empty) {
            return Ok(());
        }
        let dir = dir.to_owned();
        top.names.extend(below.names);
        match self.tree.attr(&self.access, top) {
            Ok(attr) if attr.is_dir() => self.below(top, attr.ino, &dir, page),
            Ok(_) => Ok(()),
            Err(missing) if matches!(missing.errno(), Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            Err(other) => Err(error(other)),
        }
    }

    /// Goes through a directory and, unless they are entries themselves, the directories in it, however deep they are.
    fn below(&self, place: &Target, dir: Ino, start: &str, page: &mut Page) -> S3Result<()> {
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
                if !may_have || !(page.is_behind(&key) || page.after.starts_with(&key)) {
                    continue;
                }
                if !page.by_directory {
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

    fn found(&self, page: &mut Page, key: String, attr: Option<Attr>) {
        if !page.coding.can_write(&key) {
            page.left_out += 1;
            return;
        }
        if page.found.len() < page.max { page.found.push((key, attr)) } else { page.is_truncated = true }
    }

    /// A regular file, also where a link leads to one.
    fn file(&self, place: &Target, name: &str, attr: Attr) -> Option<Attr> {
        if attr.mode & mode::TYPE != mode::LINK {
            return attr.is_file().then_some(attr);
        }
        let mut link = place.clone();
        link.names.push(name.as_bytes().to_vec());
        link.is_dir = false;
        self.tree.attr(&self.access, &link).ok().filter(Attr::is_file)
    }

    fn listed(&self, page: Page) -> S3Result<(Vec<Listed>, Vec<CommonPrefix>)> {
        let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
        for (key, attr) in page.found {
            let key = page.coding.write(key);
            match attr {
                None => prefixes.push(CommonPrefix { prefix: Some(key) }),
                Some(attr) => contents.push(Listed {
                    key: Some(key),
                    size: i64::try_from(attr.size).ok(),
                    e_tag: Some(e_tag(&self.tag(&attr)?)),
                    last_modified: Some(time(&attr)),
                    ..Default::default()
                }),
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
        let max_keys = page.max as i32;
        self.page(&input.bucket, &mut page)?;
        let is_truncated = page.is_truncated;
        let next = page.found.last().map(|(key, _)| xml::encoded(key)).filter(|_| is_truncated);
        let key_count = i32::try_from(page.found.len()).ok();
        let (contents, common_prefixes) = self.listed(page)?;
        Ok(ListObjectsV2Output {
            common_prefixes: Some(common_prefixes),
            contents: Some(contents),
            continuation_token: input.continuation_token.and_then(xml::text),
            delimiter: input.delimiter,
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
        let max_keys = page.max as i32;
        self.page(&input.bucket, &mut page)?;
        let is_truncated = page.is_truncated;
        let next = page.found.last().map(|(key, _)| coding.write(key.clone())).filter(|_| is_truncated);
        let (contents, common_prefixes) = self.listed(page)?;
        Ok(ListObjectsOutput {
            common_prefixes: Some(common_prefixes),
            contents: Some(contents),
            delimiter: input.delimiter,
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            marker,
            max_keys: Some(max_keys),
            name: Some(input.bucket),
            next_marker: next,
            prefix,
            ..Default::default()
        })
    }
}

fn page(
    (prefix, after): (Option<String>, Option<String>),
    delimiter: Option<&str>,
    max: Option<i32>,
    coding: Coding,
) -> S3Result<Page> {
    let by_directory = match delimiter {
        None | Some("") => false,
        Some("/") => true,
        Some(_) => return Err(s3_error!(NotImplemented, "keys are paths: the delimiter is /")),
    };
    let max = usize::try_from(max.unwrap_or(KEYS_MAX as i32)).map_err(|_| s3_error!(InvalidArgument))?;
    let (prefix, after) = (prefix.unwrap_or_default(), after.unwrap_or_default());
    let (max, found) = (max.min(KEYS_MAX), Vec::new());
    Ok(Page { prefix, by_directory, after, coding, max, left_out: 0, found, is_truncated: false })
}
