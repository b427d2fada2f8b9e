//! A tree of small files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::pattern::mix;
use crate::{BenchError, BenchResult};

/// Text of one of fifty files of a tree that was made for it.
pub const NEEDLE: &str = "bivouac_needle";
const HAS_NEEDLE: u32 = 50;
/// Files of a directory, and directories of one.
const FILES_EACH: u32 = 25;
const DIRS_EACH: u32 = 20;
/// Sizes are spread evenly over so many doublings of the least one, in bytes; and one of so many files is large.
const LEAST: u64 = 200;
const DOUBLINGS: u64 = 8;
const LARGE: (u32, u64) = (100, 300 << 10);
/// Words of the files.
const WORDS: [&str; 16] = [
    "static", "int", "return", "struct", "node", "->next", "if (", ") {", "}\n", "for", "size_t", "=",
    "len;\n", "/*", "*/", "NULL",
];

/// Regular files below a directory.
#[derive(Debug)]
pub struct Tree {
    /// The directory.
    pub dir: PathBuf,
    /// Number of files, without those of git.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tree {
    /// Counts the files of a directory.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn of(dir: &Path) -> BenchResult<Tree> {
        let mut tree = Tree { dir: dir.to_owned(), files: 0, bytes: 0 };
        let mut left = vec![dir.to_owned()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(&dir).map_err(BenchError::system(dir.display()))? {
                let entry = entry.map_err(BenchError::system(dir.display()))?;
                let kind = entry.file_type().map_err(BenchError::system(dir.display()))?;
                // Its own objects are no part of what was copied, and there are more of them after each step.
                if kind.is_dir() && entry.file_name() != ".git" {
                    left.push(entry.path());
                } else if kind.is_file() {
                    let found = entry.metadata().map_err(BenchError::system(entry.path().display()))?;
                    (tree.files, tree.bytes) = (tree.files + 1, tree.bytes + found.len());
                }
            }
        }
        Ok(tree)
    }

    /// Makes one, the same each time: sizes as of source code, text that can be compressed.
    pub fn make(dir: &Path, files: u32) -> BenchResult<Tree> {
        for number in 0..files {
            let leaf = number / FILES_EACH;
            let parent = dir.join(format!("d{}", leaf / DIRS_EACH)).join(format!("d{}", leaf % DIRS_EACH));
            if number.is_multiple_of(FILES_EACH) {
                fs::create_dir_all(&parent).map_err(BenchError::system(parent.display()))?;
            }
            let path = parent.join(format!("file{number}.c"));
            fs::write(&path, content(number)).map_err(BenchError::system(path.display()))?;
        }
        Tree::of(dir)
    }
}

fn content(number: u32) -> String {
    let len = match number % LARGE.0 {
        0 => LARGE.1,
        _ => LEAST << (mix(u64::from(number)) % DOUBLINGS),
    };
    let mut text = format!("/* file {number} */\n");
    if number.is_multiple_of(HAS_NEEDLE) {
        text.push_str(NEEDLE);
        text.push('\n');
    }
    // From its number: trees of different days have the same files, so their figures compare.
    let mut state = u64::from(number);
    while (text.len() as u64) < len {
        state = mix(state.wrapping_add(1));
        text.push_str(WORDS[state as usize % WORDS.len()]);
        text.push(' ');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_same_each_time() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (a, b) = (Tree::make(one.path(), 130).unwrap(), Tree::make(two.path(), 130).unwrap());
        assert_eq!((a.files, a.bytes), (130, b.bytes));
        assert!(a.bytes / a.files > 4000, "{a:?}");
        let read = |dir: &Path| fs::read(dir.join("d0/d4/file101.c")).unwrap();
        assert_eq!(read(one.path()), read(two.path()));
        assert!(content(50).contains(NEEDLE) && !content(51).contains(NEEDLE));
        let error = Tree::of(&one.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none: "), "{error}");
    }
}
