//! What an unfinished intent affects, for checks of records: it explains inconsistencies that are not damage.

use bivouac_types::{Ino, TargetIndex};
use bivouac_wire::{Decode, DecodeError};

use crate::intent_record::{Intent, LoggedIntent, OldEntry};

/// Scope of an intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentScope {
    /// The kind of change, in words.
    pub what: &'static str,
    /// The name, for changes of entries.
    pub name: Vec<u8>,
    /// Every inode whose record, entries or subfiles it may change.
    pub inos: Vec<Ino>,
    /// Targets that it cuts.
    pub targets: Vec<TargetIndex>,
}

/// Reads an intent's record.
///
/// # Errors
/// For bytes that are none.
pub fn concerns(record: &[u8]) -> Result<IntentScope, DecodeError> {
    Ok(of_intent(LoggedIntent::from_bytes(record)?.intent))
}

fn of_intent(intent: Intent) -> IntentScope {
    match intent {
        Intent::Undo(intent) => of_intent(*intent),
        Intent::MakeDir(new) => {
            let inos = vec![new.inode.attr.ino, new.inode.parent];
            IntentScope { what: "mkdir", name: new.name, inos, targets: Vec::new() }
        }
        Intent::RemoveDir(old) => of_entry("rmdir", old),
        Intent::Unlink(old) => of_entry("unlink", old),
        Intent::Link(old) => of_entry("link", old),
        Intent::Rename(moved) => {
            let inos = [moved.ino, moved.parent, moved.new_parent].into_iter().chain(moved.replaced);
            IntentScope { what: "rename", name: moved.name, inos: inos.collect(), targets: Vec::new() }
        }
        Intent::Spread(dir) => of_dir("spread", dir),
        Intent::Inherit(dir) => of_dir("inherit", dir),
        Intent::MakePartition(new) => of_dir("partition", new.dir),
        Intent::Renew(new) => {
            let targets = bivouac_layout::targets_of(&new.layout).collect();
            IntentScope { what: "renew", name: Vec::new(), inos: vec![new.ino], targets }
        }
        Intent::Cut(cut) => {
            let targets = bivouac_layout::targets_of(&cut.layout).collect();
            IntentScope { what: "truncate", name: Vec::new(), inos: vec![cut.ino], targets }
        }
    }
}

fn of_dir(what: &'static str, dir: Ino) -> IntentScope {
    IntentScope { what, name: Vec::new(), inos: vec![dir], targets: Vec::new() }
}

fn of_entry(what: &'static str, entry: OldEntry) -> IntentScope {
    IntentScope { what, name: entry.name, inos: vec![entry.ino, entry.parent], targets: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::logged;

    #[test]
    fn an_intent_names_all_that_it_touches() {
        let old = OldEntry { parent: Ino(5), name: b"n".to_vec(), ino: Ino(6) };
        let found = concerns(&logged(Intent::Unlink(old))).unwrap();
        assert_eq!((found.what, found.inos), ("unlink", vec![Ino(6), Ino(5)]));
        assert!(concerns(b"none").is_err());
    }
}
