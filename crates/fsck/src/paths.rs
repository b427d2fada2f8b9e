//! What users call the things that are found: paths, looked up only for what is reported.

use bivouac_node::record::{Dentry, dentry_from, dentry_of_key};
use bivouac_types::Ino;
use bivouac_wire::{Decode, ListRecordsRequest};

use crate::facts::{EntryRow, Facts};
use crate::source::Source;

/// Deepest path that is shown as one.
const DEPTH_MAX: usize = 64;
/// Bytes that are asked for to find one name: some, should names have one hash.
const NAME_BYTES: u32 = 2048;

/// Names what was read.
pub struct Paths<'a> {
    pub source: &'a dyn Source,
    pub facts: &'a Facts,
    /// Whether names are looked up at all.
    pub named: bool,
}

impl Paths<'_> {
    /// The name of an entry; its hash where it cannot be read any more.
    pub fn name(&self, entry: &EntryRow) -> String {
        let unknown = || format!("?{:016x}", entry.hash);
        if !self.named {
            return unknown();
        }
        self.name_bytes(entry).map_or_else(unknown, |name| String::from_utf8_lossy(&name).into_owned())
    }

    /// The same as it is kept.
    pub fn name_bytes(&self, entry: &EntryRow) -> Option<Vec<u8>> {
        let request = ListRecordsRequest {
            slot: entry.slot,
            after: dentry_from(entry.parent, entry.hash).to_vec(),
            tables: b"D".to_vec(),
            one_slot: true,
            max_bytes: NAME_BYTES,
            value_max: NAME_BYTES,
        };
        let page = self.source.records(entry.node, &request).ok()?;
        page.records.into_iter().find_map(|record| {
            let (hash, name) = dentry_of_key(&record.key)?;
            let leads_there = Dentry::from_bytes(&record.value).is_ok_and(|found| found.ino == entry.ino);
            (hash == entry.hash && leads_there).then(|| name.to_vec())
        })
    }

    /// A path to an inode, or its number if there is none.
    pub fn path(&self, ino: Ino) -> String {
        if !self.named {
            return format!("inode {ino}");
        }
        let (mut at, mut names) = (ino, Vec::new());
        while at != Ino::ROOT {
            let Some(entry) = self.facts.names_of(at).first().filter(|_| names.len() < DEPTH_MAX) else {
                return format!("inode {ino}");
            };
            names.push(self.name(entry));
            at = entry.parent;
        }
        let path: String = names.iter().rev().map(|name| format!("/{name}")).collect();
        if path.is_empty() { "/".into() } else { path }
    }

    /// The path of an entry.
    pub fn entry(&self, entry: &EntryRow) -> String {
        let dir = self.path(entry.parent);
        let separator = if dir.ends_with('/') { "" } else { "/" };
        format!("{dir}{separator}{}", self.name(entry))
    }
}
