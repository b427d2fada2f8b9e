//! Files by words in their names.

use std::collections::VecDeque;
use std::sync::Arc;

use bivouac_client::DirEntry;
use bivouac_types::{Errno, FsError, Ino};
use serde_json::{Value, json};

use super::asked::target;
use crate::cancellation::Cancellation;
use crate::error_response::ErrorResponse;
use crate::json_entry::object;
use crate::query::value;
use crate::request_path::{RequestPath, is_reserved};
use crate::tree::{Access, READ, Tree};

/// Entries that are looked at, at most.
const LOOKED_MAX: u64 = 200_000;
/// Upper limit of search results.
const FOUND_MAX: usize = 500;

/// Searches below a directory for names with all words, case-insensitively, nearest first. Links are not followed. The
/// result says whether the search was complete.
pub fn find(
    tree: &Arc<Tree>,
    access: &Access,
    query: Option<&str>,
    cancellation: &Cancellation,
) -> Result<Value, ErrorResponse> {
    let words = value(query, "words")?.unwrap_or_default().to_lowercase();
    let words: Vec<&str> = words.split_whitespace().collect();
    if words.is_empty() {
        return Err(ErrorResponse::bad_request("there are no words to search for"));
    }
    let top = target(query, "dir")?;
    let attr = tree.attr(access, &top)?;
    tree.may(&attr, READ)?;
    if !attr.is_dir() {
        return Err(FsError::from(Errno::ENOTDIR).into());
    }
    let mut search =
        Search { tree, words, found: Vec::new(), looked: 0, dirs: VecDeque::from([(attr.ino, top)]) };
    while let Some((ino, dir)) = search.dirs.pop_front() {
        cancellation.check_cancelled()?;
        search.look_into(ino, &dir)?;
        if search.is_enough() {
            break;
        }
    }
    let complete = !search.is_enough();
    Ok(json!({ "found": search.found, "looked": search.looked, "complete": complete }))
}

struct Search<'a> {
    tree: &'a Tree,
    words: Vec<&'a str>,
    found: Vec<Value>,
    looked: u64,
    dirs: VecDeque<(Ino, RequestPath)>,
}

impl Search<'_> {
    fn is_enough(&self) -> bool {
        self.looked >= LOOKED_MAX || self.found.len() >= FOUND_MAX
    }

    fn look_into(&mut self, ino: Ino, dir: &RequestPath) -> Result<(), ErrorResponse> {
        let mut cookie = 0;
        while !self.is_enough() {
            let entries = match self.tree.entries(ino, cookie) {
                // Removed since the listing.
                Err(error) if error.errno() == Errno::ENOENT => return Ok(()),
                entries => entries?,
            };
            let Some(last) = entries.last() else { return Ok(()) };
            cookie = last.cookie;
            entries.iter().for_each(|entry| self.look_at(dir, entry));
        }
        Ok(())
    }

    fn look_at(&mut self, dir: &RequestPath, entry: &DirEntry) {
        let Some(attr) = entry.attr.as_ref().filter(|_| !is_reserved(&entry.name)) else { return };
        self.looked += 1;
        let mut names = dir.names.clone();
        names.push(entry.name.clone());
        let target = RequestPath { names, is_dir: attr.is_dir() };
        if self.found.len() < FOUND_MAX && has_all(&entry.name, &self.words) {
            let mut found = object(&entry.name, attr);
            if let Some(found) = found.as_object_mut() {
                found.insert("href".into(), target.encoded().into());
                found.insert("path".into(), String::from_utf8_lossy(&target.path()).into());
            }
            self.found.push(found);
        }
        // Unreadable directories are skipped, and their content is not revealed.
        if attr.is_dir() && self.tree.may(attr, READ).is_ok() {
            self.dirs.push_back((attr.ino, target));
        }
    }
}

fn has_all(name: &[u8], words: &[&str]) -> bool {
    let name = String::from_utf8_lossy(name).to_lowercase();
    words.iter().all(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_words_are_in_the_name() {
        assert!(has_all("Größe-RUN7.h5".as_bytes(), &["größe", "run7"]));
        assert!(!has_all(b"run7.h5", &["run7", "run8"]));
        assert!(has_all(b"\xff.dat", &["dat"]));
    }
}
