//! Invariants of the file system, a file per group. A check only compares what has been gathered.

mod links;
mod numbers;
mod records;
mod shards;
mod subfiles;
mod tree;

use std::collections::HashSet;

use bivouac_types::Ino;

use crate::facts::{FormationFacts, InodeRow};
use crate::finding::Finding;
use crate::paths::Paths;
use crate::source::{Source, has_all_records};

/// State of a check run.
pub struct Check<'a> {
    pub source: &'a dyn Source,
    pub facts: &'a FormationFacts,
    pub paths: Paths<'a>,
    /// True if the records of every home were read; otherwise there may be names that were not seen.
    pub complete: bool,
    /// The gathered inodes, if not all; nothing is known of others.
    pub only: Option<&'a HashSet<Ino>>,
    pub found: Vec<Finding>,
}

/// Runs all checks on what was gathered. With `named` objects are reported by their paths, which takes a look-up of
/// each name on the way.
pub fn run(
    source: &dyn Source,
    facts: &FormationFacts,
    only: Option<&HashSet<Ino>>,
    named: bool,
) -> Vec<Finding> {
    let mut check = Check {
        source,
        facts,
        paths: Paths { source, facts, named },
        complete: has_all_records(source),
        only,
        found: Vec::new(),
    };
    check.records();
    check.links();
    check.tree();
    check.shards();
    check.subfiles();
    check.numbers();
    check.found
}

impl<'a> Check<'a> {
    /// Returns whether the records of the inode's home were read.
    pub fn is_known(&self, ino: Ino) -> bool {
        self.source.map().home(ino).is_some_and(|node| self.source.has_records(node))
    }

    /// Returns whether an inode number can belong to this formation.
    pub fn is_possible(&self, ino: Ino) -> bool {
        self.source.map().home(ino).is_some()
    }

    /// Returns whether everything about an inode was gathered.
    pub fn wants(&self, ino: Ino) -> bool {
        self.only.is_none_or(|only| only.contains(&ino))
    }

    /// Returns the inodes of which everything was gathered.
    pub fn wanted(&self) -> impl Iterator<Item = &'a InodeRow> + use<'a> {
        let only = self.only;
        self.facts.inodes.iter().filter(move |row| only.is_none_or(|only| only.contains(&row.ino)))
    }

    pub fn report(&mut self, finding: Finding) {
        self.found.push(finding);
    }
}
