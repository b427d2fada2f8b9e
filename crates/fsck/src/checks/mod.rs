//! What must hold, a file per group of invariants. Each check only compares what was read.

mod links;
mod numbers;
mod records;
mod shards;
mod subfiles;
mod tree;

use std::collections::HashSet;

use bivouac_types::Ino;

use crate::facts::{Facts, InodeRow};
use crate::finding::Finding;
use crate::paths::Paths;
use crate::source::{Source, has_all_records};

/// What a check works on.
pub struct Check<'a> {
    pub source: &'a dyn Source,
    pub facts: &'a Facts,
    pub paths: Paths<'a>,
    /// Whether every home's records were read: otherwise there may be names that nobody has seen.
    pub complete: bool,
    /// The inodes that were read, if not all: of the others nothing is known.
    pub only: Option<&'a HashSet<Ino>>,
    pub found: Vec<Finding>,
}

/// Compares everything, or what was read, with everything it must agree with. With `named` things are called by
/// their paths, which takes a look at each name on the way.
pub fn run(source: &dyn Source, facts: &Facts, only: Option<&HashSet<Ino>>, named: bool) -> Vec<Finding> {
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
    /// Whether the home of an inode could be asked.
    pub fn is_known(&self, ino: Ino) -> bool {
        self.source.map().home(ino).is_some_and(|node| self.source.has_records(node))
    }

    /// Whether a number can be of this formation at all.
    pub fn is_possible(&self, ino: Ino) -> bool {
        self.source.map().home(ino).is_some()
    }

    /// Whether what is known of an inode is everything.
    pub fn wants(&self, ino: Ino) -> bool {
        self.only.is_none_or(|only| only.contains(&ino))
    }

    /// The inodes of which everything is known.
    pub fn wanted(&self) -> impl Iterator<Item = &'a InodeRow> + use<'a> {
        let only = self.only;
        self.facts.inodes.iter().filter(move |row| only.is_none_or(|only| only.contains(&row.ino)))
    }

    pub fn report(&mut self, finding: Finding) {
        self.found.push(finding);
    }
}
