//! Partitions with their use.

use bivouac_client::{Client, Partition};
use bivouac_types::FsResult;
use bivouac_types::table::layout;
use bivouac_types::units::{format_count, format_size};
use serde::Serialize;

/// A partition with its use. Sizes in bytes.
#[derive(Debug, Serialize)]
pub struct PartitionReport {
    id: u16,
    path: String,
    /// Node and volume of each target, in their order.
    targets: Vec<(u16, u16)>,
    settings: Vec<(&'static str, String)>,
    used_bytes: u64,
    capacity_bytes: u64,
    pinned_files: usize,
    pinned_bytes: u64,
}

impl PartitionReport {
    /// Asks for the use of a partition whose directory has this path.
    #[must_use]
    pub fn of(client: &Client, partition: &Partition, path: &str) -> PartitionReport {
        let places = partition.places(client.map());
        let space = client.homes.statfs(partition.dir).unwrap_or_default();
        let bytes = |blocks: u64| blocks.saturating_mul(u64::from(space.block_size));
        // Pins are asked of every node, and only partitions with a source have any.
        let pinned =
            partition.settings.source.as_ref().and_then(|_| client.site.pinned().ok()).unwrap_or_default();
        let pinned = || pinned.iter().filter(|file| file.partition == partition.id);
        PartitionReport {
            id: partition.id.0,
            path: path.to_owned(),
            targets: places.iter().map(|place| (place.node.0, place.volume)).collect(),
            settings: partition.settings.pairs(),
            used_bytes: bytes(space.blocks.saturating_sub(space.blocks_free)),
            capacity_bytes: bytes(space.blocks),
            pinned_files: pinned().count(),
            pinned_bytes: pinned().fold(0, |sum, file| file.bytes.saturating_add(sum)),
        }
    }

    fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str())
    }

    /// Returns whether it stands in front of site storage.
    #[must_use]
    pub fn has_source(&self) -> bool {
        self.setting("source").is_some()
    }

    /// Returns the pinned content as text, if there is any.
    #[must_use]
    pub fn pinned_text(&self) -> Option<String> {
        let (files, bytes) = (format_count(self.pinned_files as u64, "file"), format_size(self.pinned_bytes));
        (self.pinned_files > 0).then(|| format!("pinned in {}: {files}, {bytes}\n", self.path))
    }

    fn nodes_text(&self) -> String {
        nodes_of(self.targets.iter().map(|(node, _)| *node))
    }

    /// Returns the partition for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "partition {}: {}\n{}, on nodes {}\n{} of {} used\n",
            self.id,
            self.path,
            format_count(self.targets.len() as u64, "target"),
            self.nodes_text(),
            format_size(self.used_bytes),
            format_size(self.capacity_bytes)
        );
        text.extend(self.pinned_text());
        self.settings.iter().for_each(|(key, value)| text.push_str(&format!("{key} = {value}\n")));
        text
    }
}

/// Returns all partitions whose directory is there, with their paths.
///
/// # Errors
/// When a node on the way does not answer.
pub fn list_partitions(client: &Client) -> FsResult<Vec<PartitionReport>> {
    let mut all = Vec::new();
    for partition in client.partitions.list()? {
        // A partition whose directory was removed has nothing, and is forgotten.
        if let Some(path) = client.path_of_dir(partition.dir)? {
            all.push(PartitionReport::of(client, &partition, &path));
        }
    }
    Ok(all)
}

/// Partitions in columns, for a terminal of so many.
#[must_use]
pub fn partition_table(all: &[PartitionReport], columns: Option<usize>) -> String {
    let row = |one: &PartitionReport| {
        let of = |key: &str| one.setting(key).unwrap_or("-").to_owned();
        let used = format!("{} of {}", format_size(one.used_bytes), format_size(one.capacity_bytes));
        vec![
            one.id.to_string(),
            one.path.clone(),
            one.nodes_text(),
            of("stripe"),
            if of("width") == "0" { "all".to_owned() } else { of("width") },
            of("placement"),
            used,
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    layout(columns, &["ID", "PATH", "NODES", "STRIPE", "WIDTH", "PLACEMENT", "USED"], &[0, 3, 4], &rows)
}

/// Returns the numbers of a partition's nodes, each once, in the order of the first targets.
#[must_use]
pub fn partition_nodes(client: &Client, partition: &Partition) -> String {
    nodes_of(partition.places(client.map()).iter().map(|place| place.node.0))
}

/// Returns each node once, in the order of the first targets.
fn nodes_of(nodes: impl Iterator<Item = u16>) -> String {
    let mut seen = Vec::new();
    nodes.for_each(|node| {
        if !seen.contains(&node) {
            seen.push(node)
        }
    });
    seen.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PartitionReport {
        PartitionReport {
            id: 3,
            path: "/chk".into(),
            targets: vec![(2, 0), (0, 0), (2, 1)],
            settings: vec![("stripe", "1m".into()), ("width", "0".into()), ("placement", "striped".into())],
            used_bytes: 1 << 20,
            capacity_bytes: 1 << 30,
            pinned_files: 0,
            pinned_bytes: 0,
        }
    }

    #[test]
    fn partitions_are_shown_in_lines_and_columns() {
        let text = sample().to_text();
        assert!(
            text.starts_with(
                "partition 3: /chk\n3 targets, on nodes 2, 0\n1 MiB of 1 GiB used\nstripe = 1m\n"
            ),
            "{text}"
        );
        let pinned = PartitionReport { pinned_files: 2, pinned_bytes: 3 << 20, ..sample() }.to_text();
        assert!(pinned.contains("used\npinned in /chk: 2 files, 3 MiB\nstripe"), "{pinned}");
        let table = partition_table(&[sample()], None);
        assert_eq!(
            table.lines().nth(1),
            Some(" 3  /chk  2, 0       1m    all  striped    1 MiB of 1 GiB"),
            "{table}"
        );
    }
}
