//! Explanations of files: where their bytes are, and why there; which way the calls of a process on them go.

mod placed;
mod process;
mod tokens;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bivouac_client::{Client, Partition, TargetReport};
use bivouac_launch::mount_table::MountEntry;
use bivouac_launch::mounts::mount_of;
use bivouac_launch::{Environment, FormationState};
use bivouac_layout::{locate, subfile_len};
use bivouac_monitor::connect;
use bivouac_types::limits::SUBFILE_HEADER_LEN;
use bivouac_types::units::format_size;
use bivouac_types::{Attr, Contract, Ino, Layout, PartitionId, Site, Source, mode};
use bivouac_wire::FormationMap;
use serde::Serialize;

use crate::failure::Failure;
use crate::reach::{self, not_in_a_formation};
use crate::table::layout;
use placed::PlacementReason;
pub use process::{ProcessExplanation, process};
use tokens::TokensExplanation;

/// Longest wait for a node's answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Explains what is at a path, and where the byte at an offset of it is.
///
/// # Errors
/// When nothing is there, or its formation does not answer.
pub fn file(here: &Environment, path: &Path, offset: Option<u64>) -> Result<Explanation, Failure> {
    let (entry, ino, dir) = find(path)?;
    let (client, through, state) = behind(here, &entry, path)?;
    let formation = FormationView { client: &client, through, state: Some(&state) };
    explain(&formation, (path, dir), ino, offset)
}

/// Explains a file or directory as `--json` says it, for somebody who has no mount. Without places it is not said where
/// on the nodes the subfiles are.
pub fn json(
    client: &Client,
    (path, dir): (&str, Option<Ino>),
    ino: Ino,
    has_places: bool,
) -> Result<String, Failure> {
    let formation = FormationView { client, through: None, state: None };
    // What a new file would get shows rules, which are settings.
    let mut explanation = explain(&formation, (Path::new(path), dir.filter(|_| has_places)), ino, None)?;
    if !has_places {
        explanation.targets.iter_mut().for_each(|target| target.subfile = None);
        explanation.partition.iter_mut().for_each(|partition| {
            partition.settings.clear();
            partition.link = None;
        });
        explanation.tokens = None;
    }
    Ok(crate::output::json(&explanation, false)?)
}

/// A formation that can be asked, as seen from one of its mounts.
struct FormationView<'a> {
    client: &'a Client,
    /// The node that serves the mount, if that is known.
    through: Option<u16>,
    /// The formation's state, as known to this host.
    state: Option<&'a FormationState>,
}

impl FormationView<'_> {
    /// Returns the switch of a host, if it was known when the formation was made.
    fn switch_of(&self, host: &str) -> Option<String> {
        self.state?.domains()?.switch_of(host).map(str::to_owned)
    }

    /// Returns how the daemon behind the mount reaches a node.
    fn way_to(&self, node: u16) -> Option<&'static str> {
        let through = self.through?;
        let entry = |node: u16| self.client.map().nodes.get(usize::from(node));
        let (here, there) = (entry(through)?, entry(node)?);
        Some(match node == through {
            true => "itself",
            false if here.host == there.host && !there.unix_path.is_empty() => "Unix socket",
            false => "TCP",
        })
    }
}

/// Returns the formation behind a mount, the node that serves it, if that is known, and what this host knows of it.
fn behind(
    here: &Environment,
    mount: &MountEntry,
    path: &Path,
) -> Result<(Client, Option<u16>, FormationState), Failure> {
    let (dir, state) = reach::behind(here, mount, path)?;
    let through =
        state.mounts.iter().find(|known| known.connection == mount.connection).map(|known| known.node);
    Ok((connect(&dir, &state, ANSWER_WAIT)?, through, state))
}

/// Everything that is shown. Sizes and offsets are in bytes.
#[derive(Debug, Serialize)]
pub struct Explanation {
    path: PathBuf,
    formation: String,
    inode: String,
    kind: &'static str,
    slot: u16,
    home: u16,
    size: u64,
    stripe_bytes: u32,
    width: u16,
    /// Of a directory: how new files in it are placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    base_target: u16,
    /// Targets that there are to choose from: those of the partition.
    targets_of_partition: u16,
    partition: Option<PartitionExplanation>,
    /// Of a file, or of what is made in a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    contract: Option<ContractExplanation>,
    /// Tokens of a file under the strict contract.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<TokensExplanation>,
    /// True if what is here of it stays however full the volumes are; of files in front of a source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pinned: Option<bool>,
    /// The node whose daemon serves the mount that the path is below.
    mounted_through: Option<u16>,
    /// Of a formation over several hosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    placed: Option<PlacementReason>,
    /// Targets of a regular file, in the order of its stripes.
    targets: Vec<TargetExplanation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte: Option<ByteExplanation>,
}

/// Contract in force, and whether it comes from the inode or its partition.
#[derive(Debug, Serialize)]
struct ContractExplanation {
    contract: &'static str,
    from: &'static str,
    /// For a file, the contract that a new file at the same place would get.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_file: Option<NewFile>,
}

/// The contract of a file that is made at a path now, and what gives it that: `directory`, `rule` or `partition`.
#[derive(Debug, Serialize)]
struct NewFile {
    contract: &'static str,
    from: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

impl NewFile {
    fn of(
        client: &Client,
        path: &Path,
        dir: Ino,
        attr: &Attr,
        partition: Option<&Partition>,
    ) -> Option<NewFile> {
        let name = path.file_name().filter(|_| attr.is_file())?;
        let new = |contract: Contract, from, rule| Some(NewFile { contract: contract.word(), from, rule });
        if let Some(own) = client.getattr(dir).ok()?.contract {
            return new(own, "directory", None);
        }
        let settings = partition.map(|partition| &partition.settings);
        let rule = settings.and_then(|settings| settings.contract_rule(name.as_bytes()));
        match rule.and_then(|rule| Some((rule.contract?, rule.to_string()))) {
            Some((contract, rule)) => new(contract, "rule", Some(rule)),
            None => {
                new(settings.map_or(Contract::default(), |settings| settings.contract), "partition", None)
            }
        }
    }

    fn to_text(&self) -> String {
        let from = match (self.from, &self.rule) {
            (_, Some(rule)) => format!("by the rule '{rule}' of its partition"),
            ("directory", _) => "from its directory".to_owned(),
            _ => "from its partition".to_owned(),
        };
        format!("contract of a new file of this name: {}, {from}\n", self.contract)
    }
}

impl ContractExplanation {
    fn of(attr: &Attr, partition: Option<&Partition>) -> Option<ContractExplanation> {
        let has_one = attr.is_file() || attr.is_dir();
        let of_partition = || partition.map_or(Contract::default(), |partition| partition.settings.contract);
        let from = if attr.contract.is_some() { "own" } else { "partition" };
        let contract = attr.contract.unwrap_or_else(of_partition).word();
        has_one.then_some(ContractExplanation { contract, from, new_file: None })
    }

    fn to_text(&self, kind: &str) -> String {
        let of = if kind == "directory" { " of what is made in it" } else { "" };
        let from = match self.from {
            _ if self.contract == Contract::Laminated.word() => {
                "its content does not change; bivouac laminate --undo makes it writable again"
            }
            "own" => "its own; bivouac contract set changes it",
            _ => "its partition's; bivouac contract set gives it one of its own",
        };
        let new_file = self.new_file.as_ref().map(NewFile::to_text).unwrap_or_default();
        format!("contract{of}: {}, {from}\n{new_file}", self.contract)
    }
}

/// The partition of a file or directory, unless it is the root partition.
#[derive(Debug, Serialize)]
struct PartitionExplanation {
    id: u16,
    /// Nodes of its targets, in the order of the targets.
    nodes: Vec<u16>,
    settings: Vec<(&'static str, String)>,
    /// The link that it is of, and its gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<(String, String)>,
}

#[derive(Debug, Serialize)]
struct TargetExplanation {
    column: u16,
    target: u16,
    node: u16,
    host: String,
    /// Switch of the host, if it was known when the formation was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    switch: Option<String>,
    /// How the daemon that serves the mount reaches its bytes.
    way: Option<&'static str>,
    volume: u16,
    subfile: Option<String>,
    data_bytes: u64,
    allocated_bytes: u64,
    /// Offset of data in the local file; larger if blocks have checksums.
    data_at: u64,
    /// Its size if the file had no holes.
    full_bytes: u64,
    /// Reason why its node does not say what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct ByteExplanation {
    offset: u64,
    stripe: u64,
    target: u16,
    node: Option<u16>,
    subfile_offset: u64,
    local_file_offset: u64,
}

/// Returns the mount that a path is in, its inode there, and that of its directory, if that is in the mount.
fn find(path: &Path) -> Result<(MountEntry, Ino, Option<Ino>), Failure> {
    let absolute = std::path::absolute(path)?;
    let failed = |e| Failure::new(1, format_args!("{}: {e}; check its path", path.display()));
    // The parent is resolved, not the file: a symbolic link is explained as such.
    let resolved = match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map_err(failed)?.join(name),
        _ => absolute,
    };
    let entry = mount_of(&resolved).ok_or_else(|| not_in_a_formation(path))?;
    let seen = std::fs::symlink_metadata(&resolved).map_err(failed)?;
    let dir = resolved.parent().and_then(|dir| std::fs::symlink_metadata(dir).ok());
    // Above the mount point numbers of inodes are those of another file system.
    let dir = dir.filter(|dir| dir.dev() == seen.dev()).map(|dir| Ino(dir.ino()));
    Ok((entry, Ino(seen.ino()), dir))
}

fn explain(
    formation: &FormationView,
    (path, dir): (&Path, Option<Ino>),
    ino: Ino,
    offset: Option<u64>,
) -> Result<Explanation, Failure> {
    let client = formation.client;
    let map = client.map();
    let attr = client.getattr(ino)?;
    let partition = match attr.layout.partition() {
        PartitionId::ROOT => None,
        id => Some(client.partitions.now(id)?),
    };
    // What a directory keeps itself may be older than what its partition says.
    let said = client.getxattr(ino, b"user.bivouac.layout").ok().filter(|_| attr.is_dir());
    let said = said.map(|text| String::from_utf8_lossy(&text).into_owned());
    let layout = said.as_deref().map_or(attr.layout, |text| as_said(text, attr.layout));
    let is_bound = partition.as_ref().is_some_and(|partition| partition.settings.source.is_some());
    let pinned = if is_bound && attr.is_file() { Some(client.site.is_pinned(ino)?) } else { None };
    let reports = if attr.is_file() { client.content.targets_there(&attr)? } else { Vec::new() };
    Ok(Explanation {
        path: path.to_owned(),
        formation: map.name.clone(),
        inode: ino.to_string(),
        kind: kind_of(&attr),
        slot: ino.slot().0,
        home: map.home(ino).map_or(u16::MAX, |node| node.0),
        size: attr.size,
        stripe_bytes: layout.stripe,
        width: layout.width,
        placement: said.as_deref().and_then(|text| word_of(text, "placement")).map(str::to_owned),
        base_target: attr.layout.base.position(),
        targets_of_partition: attr.layout.targets,
        contract: ContractExplanation::of(&attr, partition.as_deref()).map(|contract| ContractExplanation {
            new_file: dir.and_then(|dir| NewFile::of(client, path, dir, &attr, partition.as_deref())),
            ..contract
        }),
        tokens: TokensExplanation::of(client, &attr, partition.as_deref()),
        partition: partition.as_deref().map(|partition| explain_partition(map, partition)),
        pinned,
        mounted_through: formation.through,
        placed: formation.state.and_then(|state| PlacementReason::of(state, map, formation.through)),
        byte: offset.filter(|_| attr.is_file()).map(|offset| byte(client, &attr, offset, &reports)),
        targets: reports.into_iter().map(|report| target(formation, &attr, report)).collect(),
    })
}

/// Returns a layout with stripe and width as the attribute of a directory says them.
fn as_said(text: &str, layout: Layout) -> Layout {
    let said = |key: &str| word_of(text, key)?.parse::<u32>().ok();
    let width = said("width").and_then(|width| u16::try_from(width).ok());
    Layout { stripe: said("stripe").unwrap_or(layout.stripe), width: width.unwrap_or(layout.width), ..layout }
}

/// Returns the value that the attribute gives a word.
fn word_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn explain_partition(map: &FormationMap, partition: &Partition) -> PartitionExplanation {
    let nodes = partition.places(map).iter().map(|place| place.node.0).collect();
    let link = match partition.settings.source.as_ref().map(Source::site) {
        Some(Site::Formation { name, address, .. }) => Some((name.clone(), address.clone())),
        _ => None,
    };
    PartitionExplanation { id: partition.id.0, nodes, settings: partition.settings.pairs(), link }
}

fn target(formation: &FormationView, attr: &Attr, report: TargetReport) -> TargetExplanation {
    let node = formation.client.map().nodes.get(usize::from(report.node.0));
    TargetExplanation {
        column: report.column,
        target: report.target.position(),
        node: report.node.0,
        switch: node.and_then(|node| formation.switch_of(&node.host)),
        host: node.map_or_else(String::new, |node| node.host.clone()),
        way: formation.way_to(report.node.0),
        volume: report.volume,
        subfile: report.subfile.exists.then_some(report.subfile.path),
        data_bytes: report.subfile.len,
        allocated_bytes: report.subfile.allocated,
        data_at: if report.subfile.exists { report.subfile.data_at } else { SUBFILE_HEADER_LEN },
        full_bytes: subfile_len(&attr.layout, report.column, attr.size),
        error: report.error.map(|error| error.to_string()),
    }
}

fn byte(client: &Client, attr: &Attr, offset: u64, targets: &[TargetReport]) -> ByteExplanation {
    let location = locate(&attr.layout, offset);
    let subfile =
        targets.iter().find(|report| report.target == location.target).map(|report| &report.subfile);
    let data_at =
        subfile.filter(|subfile| subfile.exists).map_or(SUBFILE_HEADER_LEN, |subfile| subfile.data_at);
    ByteExplanation {
        offset,
        stripe: location.stripe,
        target: location.target.position(),
        node: client.partitions.target_place(location.target).ok().map(|entry| entry.node.0),
        subfile_offset: location.subfile_offset,
        local_file_offset: location.subfile_offset.saturating_add(data_at),
    }
}

fn kind_of(attr: &Attr) -> &'static str {
    match attr.mode & mode::TYPE {
        mode::FILE => "file",
        mode::DIR => "directory",
        mode::LINK => "symbolic link",
        mode::FIFO => "named pipe",
        mode::SOCKET => "socket",
        mode::CHAR | mode::BLOCK => "device",
        _ => "unknown",
    }
}

impl Explanation {
    /// Returns the explanation for people.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{}: {} of formation {}\ninode {}: slot {}, home node {}\n",
            self.path.display(),
            self.kind,
            self.formation,
            self.inode,
            self.slot,
            self.home
        );
        text.extend(self.partition.as_ref().map(PartitionExplanation::to_text));
        text.extend(self.contract.as_ref().map(|contract| contract.to_text(self.kind)));
        text.extend(self.tokens.as_ref().map(TokensExplanation::to_text));
        if self.pinned == Some(true) {
            text.push_str("pinned: what is here of it stays, however full the volumes are\n");
        }
        match self.kind {
            "file" => text.push_str(&self.file_text()),
            "directory" => text.push_str(&self.directory_text()),
            _ => {}
        }
        text.extend(self.placed.as_ref().map(PlacementReason::to_text));
        text
    }

    /// Describes the layout of new files in a directory.
    fn directory_text(&self) -> String {
        let stripe = format_size(self.stripe_bytes.into());
        let (width, all) = (self.width, self.targets_of_partition);
        match self.placement.as_deref() {
            Some("local") => {
                format!(
                    "new files lie wholly on the node that makes them (placement=local), in stripes of {stripe}\n"
                )
            }
            Some("hashed") => {
                format!(
                    "new files lie wholly on one target each, spread over all {all} (placement=hashed), in stripes of {stripe}\n"
                )
            }
            _ => format!(
                "new files get stripes of {stripe} over {width} of {all} targets, unless told otherwise\n"
            ),
        }
    }

    fn data_at(&self) -> u64 {
        self.targets.iter().map(|target| target.data_at).max().unwrap_or(SUBFILE_HEADER_LEN)
    }

    fn file_text(&self) -> String {
        let (stripe, width, base, all) =
            (self.stripe_bytes, self.width, self.base_target, self.targets_of_partition);
        let mut text = format!(
            "size {} bytes ({}) in stripes of {stripe} bytes ({}) over {width} of {all} targets, the first on target {base}\n",
            self.size,
            format_size(self.size),
            format_size(stripe.into()),
        );
        text.push_str(&format!(
            "stripe k = offset div {stripe} is on target ({base} + k mod {width}) mod {all}, at (k div {width}) · {stripe} of its \
             subfile; a subfile's data begins at byte {} of the local file{}\n\n",
            self.data_at(),
            if self.data_at() > SUBFILE_HEADER_LEN { ", behind its checksums" } else { "" },
        ));
        text.push_str(&self.targets_text());
        if let Some(node) = self.mounted_through {
            text.push_str(&format!(
                "WAY is how the daemon of node {node}, which serves this mount, comes to the bytes; the library and the \
                 preload have the subfiles of this machine themselves (explain --pid shows it for a process)\n"
            ));
        }
        if let Some(byte) = &self.byte {
            let ByteExplanation { offset, stripe, target, subfile_offset, local_file_offset, .. } = byte;
            text.push_str(&format!(
                "\nbyte {offset} is in stripe {stripe}: target {target}, byte {subfile_offset} of the subfile's data, byte \
                 {local_file_offset} of the local file\n"
            ));
        }
        text
    }
}

impl Explanation {
    fn targets_text(&self) -> String {
        let rows: Vec<Vec<String>> = self.targets.iter().map(TargetExplanation::row).collect();
        let head = ["TARGET", "NODE", "HOST", "WAY", "VOLUME", "DATA", "ALLOCATED", "SUBFILE"];
        if self.targets.iter().all(|target| target.switch.is_none()) {
            return layout(&head, &[0, 1, 4, 5, 6], &rows);
        }
        let beside = |row: Vec<String>, switch: &str| {
            let (front, behind) = row.split_at(row.len().min(3));
            front.iter().cloned().chain([switch.to_owned()]).chain(behind.iter().cloned()).collect()
        };
        let switches = self.targets.iter().map(|target| target.switch.as_deref().unwrap_or("-"));
        let rows: Vec<Vec<String>> =
            rows.into_iter().zip(switches).map(|(row, switch)| beside(row, switch)).collect();
        let head: Vec<String> = beside(head.map(str::to_owned).to_vec(), "SWITCH");
        let head: Vec<&str> = head.iter().map(String::as_str).collect();
        layout(&head, &[0, 1, 5, 6, 7], &rows)
    }
}

impl PartitionExplanation {
    fn to_text(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(u16::to_string).collect();
        let mut text =
            format!("partition {}: {} targets, on nodes {}\n", self.id, nodes.len(), nodes.join(", "));
        if let Some((name, gateway)) = &self.link {
            text.push_str(&format!("link {name}: a directory of another formation, behind {gateway}\n"));
        }
        text
    }
}

impl TargetExplanation {
    fn row(&self) -> Vec<String> {
        vec![
            self.target.to_string(),
            self.node.to_string(),
            self.host.clone(),
            self.way.unwrap_or("-").to_owned(),
            self.volume.to_string(),
            match &self.error {
                Some(_) => format!("? of {}", self.full_bytes),
                None => format!("{} of {}", self.data_bytes, self.full_bytes),
            },
            if self.error.is_some() { "?".into() } else { self.allocated_bytes.to_string() },
            match &self.error {
                Some(error) => format!("({error})"),
                None => self.subfile.clone().unwrap_or_else(|| "(none: never written)".into()),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Explanation {
        let target = |column, target| TargetExplanation {
            column,
            target,
            node: target,
            host: "h".into(),
            switch: None,
            way: Some("Unix socket"),
            volume: 0,
            subfile: (column == 0).then(|| format!("/v/n{target}/2f/x")),
            data_bytes: 4096,
            allocated_bytes: 8192,
            data_at: SUBFILE_HEADER_LEN,
            full_bytes: 4096,
            error: None,
        };
        Explanation {
            path: "/m/f".into(),
            formation: "x".into(),
            inode: "000000000000002f".into(),
            kind: "file",
            slot: 0,
            home: 0,
            size: 8192,
            stripe_bytes: 4096,
            width: 2,
            placement: None,
            base_target: 3,
            targets_of_partition: 4,
            contract: Some(ContractExplanation { contract: "strict", from: "own", new_file: None }),
            tokens: None,
            partition: None,
            pinned: None,
            mounted_through: Some(2),
            placed: None,
            targets: vec![target(0, 3), target(1, 0)],
            byte: None,
        }
    }

    #[test]
    fn the_arithmetic_is_written_out() {
        let text = sample().to_text();
        assert!(text.contains("stripe k = offset div 4096 is on target (3 + k mod 2) mod 4"), "{text}");
        assert!(text.contains("\ncontract: strict, its own; bivouac contract set changes it\n"), "{text}");
        assert!(text.contains("/v/n3/2f/x") && text.contains("(none: never written)"), "{text}");
        assert!(
            text.contains("   3     3  h     Unix socket       0  4096 of 4096       8192  /v/n3/2f/x"),
            "{text}"
        );
    }

    /// S539.
    #[test]
    fn switches_are_shown_where_they_are_known() {
        let mut explanation = sample();
        assert!(!explanation.to_text().contains("SWITCH"));
        explanation.targets[1].switch = Some("leaf2".into());
        let text = explanation.to_text();
        assert!(text.contains("TARGET  NODE  HOST  SWITCH  WAY"), "{text}");
        assert!(text.contains("   0     0  h     leaf2   Unix socket"), "{text}");
        assert!(text.contains("   3     3  h     -       Unix socket"), "{text}");
    }

    #[test]
    fn a_byte_is_located() {
        let layout =
            bivouac_types::Layout { stripe: 4096, width: 2, base: bivouac_types::TargetIndex(3), targets: 4 };
        let location = locate(&layout, 3 * 4096 + 5);
        let byte = ByteExplanation {
            offset: 3 * 4096 + 5,
            stripe: 3,
            target: location.target.position(),
            node: Some(0),
            subfile_offset: location.subfile_offset,
            local_file_offset: location.subfile_offset + SUBFILE_HEADER_LEN,
        };
        let text = Explanation { byte: Some(byte), ..sample() }.to_text();
        assert!(
            text.contains("byte 12293 is in stripe 3: target 0, byte 4101 of the subfile's data, byte 8197"),
            "{text}"
        );
    }

    #[test]
    fn a_path_outside_is_said() {
        let failure = find(Path::new("/etc/passwd")).unwrap_err().to_string();
        assert!(failure.starts_with("/etc/passwd: is not in a formation"), "{failure}");
        assert!(find(Path::new("/nonexistent/x")).unwrap_err().to_string().contains("check its path"));
    }
}
