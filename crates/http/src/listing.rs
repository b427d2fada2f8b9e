//! Directories as HTML and as JSON. They are read and sent piece by piece, however large they are.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use bivouac_client::{Attr, DirEntry};
use bivouac_types::{FsResult, mode};
use bytes::Bytes;

use crate::body::Producer;
use crate::conditions::modified;
use crate::target::{Target, encoded, is_reserved};
use crate::tree::Tree;

/// A directory with at most so many entries is shown in the order of its names; of larger ones this many are, then the rest.
const SORTED_MAX: usize = 10_000;

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Html,
    /// For programs.
    Json,
}

/// What of a directory is still to be sent.
pub struct Listing {
    tree: Arc<Tree>,
    dir: Attr,
    form: Form,
    cookie: u64,
    /// Whether an entry was sent.
    begun: bool,
    done: bool,
}

impl Listing {
    /// A directory's listing, with its beginning.
    ///
    /// # Errors
    /// What the formation says.
    pub fn begin(tree: Arc<Tree>, dir: Attr, target: &Target, form: Form) -> FsResult<(Bytes, Listing)> {
        let mut listing = Listing { tree, dir, form, cookie: 0, begun: false, done: false };
        let mut entries = Vec::new();
        while !listing.done && entries.len() < SORTED_MAX {
            entries.extend(listing.next()?);
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut text = match form {
            Form::Html => head(target),
            Form::Json => "[".to_owned(),
        };
        listing.write(&entries, &mut text);
        if listing.done {
            text.push_str(listing.end());
        }
        Ok((text.into(), listing))
    }

    fn next(&mut self) -> FsResult<Vec<DirEntry>> {
        let entries = self.tree.entries(self.dir.ino, self.cookie)?;
        match entries.last() {
            Some(last) => self.cookie = last.cookie,
            None => self.done = true,
        }
        Ok(entries)
    }

    fn write(&mut self, entries: &[DirEntry], text: &mut String) {
        for entry in entries {
            // What is gone meanwhile is left out, and so are the server's own.
            let Some(attr) = entry.attr.as_ref().filter(|_| !is_reserved(&entry.name)) else { continue };
            match self.form {
                Form::Html => row(&entry.name, attr, text),
                Form::Json => {
                    text.push_str(if self.begun { ",\n" } else { "\n" });
                    text.push_str(&object(&entry.name, attr).to_string());
                }
            }
            self.begun = true;
        }
    }

    fn end(&self) -> &'static str {
        match self.form {
            Form::Html => "</table>\n",
            Form::Json => "\n]\n",
        }
    }
}

impl Producer for Listing {
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

fn head(target: &Target) -> String {
    let title = escaped(&String::from_utf8_lossy(&target.path()));
    let style = "body{font:16px/1.5 sans-serif;margin:2em auto;max-width:60em;padding:0 1em}\
                 td{padding:0 1em 0 0}td:nth-child(2){text-align:right}:root{color-scheme:light dark}";
    let up = if target.names.is_empty() { "" } else { "<tr><td><a href=\"../\">../</a><td><td>\n" };
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
    let (link, shown) = (encoded(name), escaped(&String::from_utf8_lossy(name)));
    let _to_a_text =
        writeln!(text, "<tr><td><a href=\"./{link}{slash}\">{shown}{slash}</a><td>{size}<td>{changed}");
}

/// An entry for programs. A name that is no UTF-8 is there with its bytes as a URL writes them.
#[must_use]
pub fn object(name: &[u8], attr: &Attr) -> serde_json::Value {
    let kind = match attr.mode & mode::TYPE {
        mode::DIR => "directory",
        mode::FILE => "file",
        mode::LINK => "link",
        _ => "other",
    };
    serde_json::json!({
        "name": String::from_utf8_lossy(name),
        "href": encoded(name),
        "type": kind,
        "size": attr.size,
        "modified": attr.mtime.secs,
        "mode": attr.mode & mode::PERM,
    })
}

/// As text of HTML or XML.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // A reader would take it for the end of a line, and for a line feed.
            '\r' => escaped.push_str("&#13;"),
            // What XML cannot have at all.
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() && !matches!(control, '\n' | '\t') => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_markup() {
        assert_eq!(escaped("<a href='x'>&\"\u{1}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}");
        assert_eq!(escaped("a\r\u{fffe}\u{ffff}\u{fffc}"), "a&#13;\u{fffd}\u{fffd}\u{fffc}");
        let target = Target::plain(b"/<script>/").unwrap();
        assert!(head(&target).contains("&lt;script&gt;") && !head(&target).contains("<script"));
    }
}
