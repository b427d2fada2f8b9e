//! Bytes at rest that turned out not to be what was written.

use std::collections::{HashMap, HashSet};

use bivouac_client::{Client, DamageStatus, NodeStatus};
use bivouac_types::Ino;
use bivouac_types::units::{format_count, format_size};
use serde::Serialize;

/// Entries of the formation that are looked through for names, at most.
const ENTRIES_MAX: usize = 100_000;
/// Stretches that are shown to people.
const SHOWN_MAX: usize = 10;

/// Damage that a node has found.
#[derive(Debug, Serialize)]
pub struct DamageReport {
    /// Reads and writes that were refused for it, since the daemon started.
    pub refused: u64,
    /// Bytes of whole blocks.
    pub wrong_bytes: u64,
    /// Subfiles that were made, and are known not to be there any more.
    pub lost: u64,
    /// The first stretches.
    wrong: Vec<WrongReport>,
}

/// A stretch of a file's content on a node.
#[derive(Debug, Serialize)]
struct WrongReport {
    #[serde(skip)]
    ino: Ino,
    /// The file, if its name was found.
    path: Option<String>,
    inode: String,
    /// First byte, in the data of the local file.
    from: u64,
    /// Behind the last one.
    to: u64,
    /// The local file.
    subfile: String,
}

/// Returns the names of the files that are concerned, as far as they are found quickly.
pub fn names<'a>(client: &Client, answers: impl Iterator<Item = &'a NodeStatus>) -> HashMap<Ino, Vec<u8>> {
    let wrong: HashSet<Ino> =
        answers.flat_map(|status| &status.damage.wrong).map(|wrong| wrong.ino).collect();
    client.paths_to(&wrong, ENTRIES_MAX).unwrap_or_default()
}

impl DamageReport {
    /// Returns the damage in a node's status, if there is any.
    pub fn of(status: &NodeStatus) -> Option<DamageReport> {
        let damage = &status.damage;
        let wrong = damage.wrong.iter().map(|wrong| WrongReport {
            ino: wrong.ino,
            path: None,
            inode: wrong.ino.to_string(),
            from: wrong.from,
            to: wrong.to,
            subfile: wrong.path.clone(),
        });
        let wrong: Vec<WrongReport> = wrong.collect();
        let DamageStatus { refused, wrong_bytes, lost, .. } = *damage;
        let report = DamageReport { refused, wrong_bytes, lost, wrong };
        (refused > 0 || wrong_bytes > 0 || lost > 0).then_some(report)
    }

    /// Takes in the names of files.
    pub fn name(&mut self, names: &HashMap<Ino, Vec<u8>>) {
        for wrong in &mut self.wrong {
            wrong.path = names.get(&wrong.ino).map(|path| format!("/{}", String::from_utf8_lossy(path)));
        }
    }

    /// Returns it in the form for people.
    pub fn to_text(&self, node: u16, host: &str) -> String {
        let (bytes, refused) = (format_size(self.wrong_bytes), format_count(self.refused, "refusal"));
        let mut text = self.lost_to_text(node, host);
        match self.wrong_bytes {
            0 if self.refused == 0 => return text,
            0 => {
                let gone = format!("node {node} ({host}): {refused} for wrong bytes that are gone since\n");
                return text + &gone;
            }
            _ => text.push_str(&format!(
                "node {node} ({host}): {bytes} on its volumes are not what was written, {refused}; restore the files, \
                 and see what else is wrong with bivouac scrub\n"
            )),
        }
        for WrongReport { path, inode, from, to, subfile, .. } in self.wrong.iter().take(SHOWN_MAX) {
            let path = path.clone().unwrap_or_else(|| format!("inode {inode}"));
            text.push_str(&format!("  {path}: bytes {from} to {to} of the data in {subfile}\n"));
        }
        let others = self.wrong.len().saturating_sub(SHOWN_MAX);
        if others > 0 {
            text.push_str(&format!("  and {others} more\n"));
        }
        text
    }

    fn lost_to_text(&self, node: u16, host: &str) -> String {
        if self.lost == 0 {
            return String::new();
        }
        let lost = format_count(self.lost, "subfile");
        format!(
            "node {node} ({host}): {lost} that its volumes had, and nobody removed by bivouac: parts of files cannot be read; \
             bivouac fsck names the files\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = WrongReport {
            ino: Ino(7),
            path: None,
            inode: "7".into(),
            from: 4096,
            to: 8192,
            subfile: "/v/07/7-0".into(),
        };
        let mut report = DamageReport { refused: 2, wrong_bytes: 4096, lost: 0, wrong: vec![wrong] };
        assert!(report.to_text(1, "n1").contains("inode 7: bytes 4096 to 8192 of the data in /v/07/7-0"));
        report.name(&HashMap::from([(Ino(7), b"d/f".to_vec())]));
        let text = report.to_text(1, "n1");
        assert!(text.starts_with("node 1 (n1): 4 KiB") && text.contains("2 refusals"), "{text}");
        assert!(text.contains("  /d/f: bytes 4096"), "{text}");
        let gone = DamageReport { refused: 1, wrong_bytes: 0, lost: 0, wrong: vec![] };
        assert!(gone.to_text(1, "n1").contains("gone since"));
        let lost = DamageReport { refused: 0, lost: 2, ..gone }.to_text(1, "n1");
        assert!(lost.starts_with("node 1 (n1): 2 subfiles") && lost.lines().count() == 1, "{lost}");
    }
}
