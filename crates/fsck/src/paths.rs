//! Paths of reported objects, looked up on demand.

use bivouac_node::record::{Dentry, dentry_from, dentry_of_key};
use bivouac_types::Ino;
use bivouac_wire::{Decode, ListRecordsRequest};

use crate::facts::{EntryRow, FormationFacts};
use crate::source::Source;

/// Depth up to which a path is shown.
const DEPTH_MAX: usize = 64;
/// Bytes read to find one name; several names may share a hash.
const NAME_BYTES: u32 = 2048;

/// Resolver of names.
pub struct Paths<'a> {
    pub source: &'a dyn Source,
    pub facts: &'a FormationFacts,
    /// True if names are looked up.
    pub named: bool,
}

impl Paths<'_> {
    /// Returns the name of an entry; its hash if it cannot be read any more.
    pub fn name(&self, entry: &EntryRow) -> String {
        let unknown = || format!("?{:016x}", entry.hash);
        if !self.named {
            return unknown();
        }
        self.name_bytes(entry).map_or_else(unknown, |name| String::from_utf8_lossy(&name).into_owned())
    }

    /// Returns the name of an entry as stored.
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

    /// Returns a path of an inode; its number if there is none.
    pub fn path(&self, ino: Ino) -> String {
        if !self.named {
            return format!("inode {ino}");
        }
        let (mut at, mut names) = (ino, Vec::new());
        while at != Ino::ROOT {
            // Directories that are in a loop lead nowhere for ever.
            let Some(entry) = self.facts.names_of(at).first().filter(|_| names.len() < DEPTH_MAX) else {
                return format!("inode {ino}");
            };
            names.push(self.name(entry));
            at = entry.parent;
        }
        let path: String = names.iter().rev().map(|name| format!("/{name}")).collect();
        if path.is_empty() { "/".into() } else { path }
    }

    /// Returns the path of an entry.
    pub fn entry(&self, entry: &EntryRow) -> String {
        let dir = self.path(entry.parent);
        let separator = if dir.ends_with('/') { "" } else { "/" };
        format!("{dir}{separator}{}", self.name(entry))
    }
}
