//! Files by the directories that settings are of: partitions, and directories of the root directory.

use std::collections::{HashMap, HashSet};

use bivouac_client::FileUse;
use bivouac_record::Group;
use bivouac_types::PartitionId;

use super::FileRow;

/// A partition.
pub struct PartitionPlace {
    pub path: String,
    pub is_session: bool,
    pub has_source: bool,
}

/// A directory, while its files are put together.
struct DirectorySum {
    group: Group,
    users: HashSet<u64>,
    first_ms: u64,
    last_ms: u64,
}

/// Returns the directories, what was used most first. So are the files.
pub fn places(used: &[(FileRow, &FileUse)], partitions: &HashMap<PartitionId, PartitionPlace>) -> Vec<Group> {
    let mut sums: HashMap<String, DirectorySum> = HashMap::new();
    for (row, file) in used {
        let partition = partitions.get(&file.partition);
        let path = partition.map_or_else(|| top(&row.path), |place| place.path.clone());
        // Files come with the most used first, so that one's stripe stands for the directory.
        let sum = sums.entry(path).or_insert_with_key(|path| DirectorySum::new(path, partition, row));
        sum.add(row, file);
    }
    let mut groups: Vec<Group> = sums.into_values().map(DirectorySum::group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.pattern.weight()));
    groups
}

impl DirectorySum {
    /// Creates the sum of a directory with the stripe of the file that was used most.
    fn new(path: &str, partition: Option<&PartitionPlace>, file: &FileRow) -> DirectorySum {
        let group = Group {
            place: path.into(),
            is_partition: partition.is_some(),
            is_session: partition.is_some_and(|place| place.is_session),
            has_source: partition.is_some_and(|place| place.has_source),
            stripe: file.stripe,
            ..Group::default()
        };
        DirectorySum { group, users: HashSet::new(), first_ms: u64::MAX, last_ms: 0 }
    }

    fn add(&mut self, row: &FileRow, file: &FileUse) {
        let group = &mut self.group;
        group.files += 1;
        group.shared += u64::from(file.users.len() > 1);
        group.mixed += u64::from(file.is_mixed());
        group.held_ms = group.held_ms.saturating_add(file.held_ms);
        group.mounted = group.mounted.saturating_add(file.mounted);
        group.pattern.add(&file.pattern);
        self.users.extend(&file.users);
        self.first_ms = self.first_ms.min(row.first_ms);
        self.last_ms = self.last_ms.max(row.last_ms);
    }

    fn group(self) -> Group {
        let (processes, span_ms) = (self.users.len() as u64, self.last_ms.saturating_sub(self.first_ms));
        Group { processes, span_ms, ..self.group }
    }
}

/// Returns the directory of the root directory that a path is in; of a file there `/`.
fn top(path: &str) -> String {
    let mut names = path.split('/').skip(1);
    match (names.next(), names.next()) {
        (Some(first), Some(_)) => format!("/{first}"),
        _ => "/".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_directories_of_the_root() {
        assert_eq!(["/a/b/c", "/a/b", "/a", "/", "/?"].map(top), ["/a", "/a", "/", "/", "/"]);
    }
}
