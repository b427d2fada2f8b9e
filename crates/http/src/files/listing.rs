//! Directories as HTML and as JSON. They are read and sent piece by piece, however large they are.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use bivouac_client::Attr;
use bivouac_types::{Errno, FsResult, escape_markup};
use bytes::Bytes;

use crate::body::BodySource;
use crate::conditions::modified;
use crate::json_entry::{UNKNOWN, object, unknown_object};
use crate::request_path::{RequestPath, encoded, is_reserved};
use crate::tree::{Access, ListedEntry, Tree};

/// A directory with at most so many entries is shown in the order of its names; of larger ones this many are, then the
/// rest.
const SORTED_MAX: usize = 10_000;

/// Format of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingFormat {
    /// For people.
    Html,
    /// For programs.
    Json,
}

/// A listing in progress.
pub struct Listing {
    tree: Arc<Tree>,
    dir: Attr,
    form: ListingFormat,
    cookie: u64,
    /// True if an entry has been sent.
    begun: bool,
    done: bool,
}

impl Listing {
    /// Returns a directory's listing, with its beginning. It leads to the directory above unless that is out of the
    /// key's reach.
    pub fn begin(
        tree: Arc<Tree>,
        dir: Attr,
        (access, target): (&Access, &RequestPath),
        form: ListingFormat,
    ) -> FsResult<(Bytes, Listing)> {
        let mut listing = Listing { tree, dir, form, cookie: 0, begun: false, done: false };
        let mut entries = Vec::new();
        while !listing.done && entries.len() < SORTED_MAX {
            entries.extend(listing.next()?);
        }
        entries.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        let mut text = match form {
            ListingFormat::Html => head(target, target.names.len() > access.prefix.names.len()),
            ListingFormat::Json => "[".to_owned(),
        };
        listing.write(&entries, &mut text);
        if listing.done {
            text.push_str(listing.end());
        }
        Ok((text.into(), listing))
    }

    fn next(&mut self) -> FsResult<Vec<ListedEntry>> {
        let entries = self.tree.entries_there(self.dir.ino, self.cookie)?;
        match entries.last() {
            Some(last) => self.cookie = last.entry.cookie,
            None => self.done = true,
        }
        Ok(entries)
    }

    fn write(&mut self, entries: &[ListedEntry], text: &mut String) {
        for ListedEntry { entry, attr } in entries {
            // Entries that are gone are omitted, and hidden names.
            let is_gone = attr.as_ref().is_err_and(|error| error.errno() == Errno::ENOENT);
            if is_gone || is_reserved(&entry.name) {
                continue;
            }
            if let Err(error) = attr {
                log::warn!(error:%; "inode {} is listed without attributes", entry.ino);
            }
            if self.form == ListingFormat::Json {
                text.push_str(if self.begun { ",\n" } else { "\n" });
            }
            match (self.form, attr) {
                (ListingFormat::Html, Ok(attr)) => row(&entry.name, attr, text),
                (ListingFormat::Json, Ok(attr)) => text.push_str(&object(&entry.name, attr).to_string()),
                (ListingFormat::Html, Err(_)) => unknown_row(&entry.name, text),
                (ListingFormat::Json, Err(_)) => text.push_str(&unknown_object(&entry.name).to_string()),
            }
            self.begun = true;
        }
    }

    fn end(&self) -> &'static str {
        match self.form {
            ListingFormat::Html => "</table>\n",
            ListingFormat::Json => "\n]\n",
        }
    }
}

impl BodySource for Listing {
    fn produce(&mut self) -> io::Result<Bytes> {
        let entries = self.next().map_err(io::Error::other)?;
        let mut text = String::new();
        self.write(&entries, &mut text);
        if self.done {
            text.push_str(self.end());
        }
        Ok(text.into())
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

fn head(target: &RequestPath, goes_up: bool) -> String {
    let title = escape_markup(&String::from_utf8_lossy(&target.path()));
    let style = "body{font:16px/1.5 sans-serif;margin:2em auto;max-width:60em;padding:0 1em}\
                 td{padding:0 1em 0 0}td:nth-child(2){text-align:right}:root{color-scheme:light dark}";
    let up = if goes_up { "<tr><td><a href=\"../\">../</a><td><td>\n" } else { "" };
    format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>{style}</style>\n<h1>{title}</h1>\n\
         <table><tr><th align=left>Name<th align=right>Size<th align=left>Changed\n{up}"
    )
}

fn row(name: &[u8], attr: &Attr, text: &mut String) {
    let slash = if attr.is_dir() { "/" } else { "" };
    let size = if attr.is_file() { attr.size.to_string() } else { String::new() };
    let changed = httpdate::fmt_http_date(modified(attr));
    let (link, shown) = (encoded(name), escape_markup(&String::from_utf8_lossy(name)));
    // With `./`: a colon in a name would end the scheme of a URL.
    let _to_a_text =
        writeln!(text, "<tr><td><a href=\"./{link}{slash}\">{shown}{slash}</a><td>{size}<td>{changed}");
}

fn unknown_row(name: &[u8], text: &mut String) {
    let (link, shown) = (encoded(name), escape_markup(&String::from_utf8_lossy(name)));
    let _to_a_text = writeln!(text, "<tr><td><a href=\"./{link}\">{shown}</a><td><td>{UNKNOWN}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_titles_are_no_markup() {
        let target = RequestPath::plain(b"/<script>/").unwrap();
        let shown = head(&target, true);
        assert!(shown.contains("&lt;script&gt;") && !shown.contains("<script") && shown.contains("../"));
        assert!(!head(&target, false).contains("../"), "that is out of reach");
    }
}
