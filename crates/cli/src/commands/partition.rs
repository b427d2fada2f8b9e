//! `bivouac partition`.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_client::{Client, Partition};
use bivouac_launch::mounts::{mount_of, mounted};
use bivouac_launch::{Environment, FormationName, State, StateDir};
use bivouac_types::units::{format_count, format_size};
use bivouac_types::{Errno, Ino, PartitionId, PartitionSettings};
use serde::Serialize;

use crate::bringing::bring_at_start;
use crate::failure::Failure;
use crate::options::{CreateArgs, ListArgs, PartitionCommand, PathArgs, RemoveArgs, SetArgs, ShowArgs};
use crate::partitioning::{Made, Maker, Plan, path_of};
use crate::reach;
use crate::table::layout;
use crate::unflushed;

/// How long a node may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Does what a command says.
pub fn run(here: &Environment, command: &PartitionCommand) -> Result<ExitCode, Failure> {
    match command {
        PartitionCommand::Create(args) => create(here, args),
        PartitionCommand::List(args) => list(here, args),
        PartitionCommand::Show(args) => show(here, args),
        PartitionCommand::Set(args) => set(here, args),
        PartitionCommand::Remove(args) => remove(here, args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A path in a formation, and the way there.
struct Target {
    client: Client,
    dir: StateDir,
    state: State,
    /// From the formation's own directory on.
    path: Vec<u8>,
    uid: u32,
    gid: u32,
}

impl Target {
    fn find(here: &Environment, place: &PathArgs) -> Result<Target, Failure> {
        let (name, path) = match &place.which.name {
            Some(name) => (name.clone(), place.path.as_os_str().as_bytes().to_vec()),
            None => find_mounted(&place.path)?,
        };
        let (_, dir) = StateDir::find_whole(here, Some(&name))?;
        let state = reach::living(&dir)?;
        let client = reach::client(&dir, &state, ANSWER_WAIT)?;
        Ok(Target { client, dir, state, path, uid: here.uid, gid: rustix::process::getegid().as_raw() })
    }

    fn maker(&self) -> Maker<'_> {
        Maker { client: &self.client, uid: self.uid, gid: self.gid, state: &self.state }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// The partition that the path is in, and the inode at the path.
    fn partition(&self) -> Result<(Partition, Ino), Failure> {
        let shown = self.shown();
        let failed = |error| Failure::new(1, format_args!("{shown}: {error}"));
        let attr = self.client.find(&self.path, false).map_err(failed)?;
        match attr.layout.partition() {
            PartitionId::ROOT => {
                let text = format!(
                    "{shown}: is in no partition but the formation's own; `bivouac partition list` shows the others"
                );
                Err(Failure::new(1, text))
            }
            id => Ok(((*self.client.partitions.now(id).map_err(failed)?).clone(), attr.ino)),
        }
    }

    /// The partition whose directory is at the path.
    fn root(&self) -> Result<Partition, Failure> {
        let (partition, ino) = self.partition()?;
        if partition.dir == ino {
            return Ok(partition);
        }
        let dir = path_of(&self.client, partition.dir)?.unwrap_or_else(|| "(gone)".into());
        let text = format!("{}: is inside a partition, not its directory; name {dir}", self.shown());
        Err(Failure::new(1, text))
    }
}

/// The formation that a path is mounted from, and the path there. Its last name need not exist.
fn find_mounted(path: &Path) -> Result<(FormationName, Vec<u8>), Failure> {
    let absolute = std::path::absolute(path)?;
    let failed = |e: io::Error| Failure::new(1, format_args!("{}: {e}; check its path", path.display()));
    let resolved = match (absolute.canonicalize(), absolute.parent(), absolute.file_name()) {
        (Ok(resolved), _, _) => resolved,
        (Err(_), Some(parent), Some(name)) => parent.canonicalize().map_err(failed)?.join(name),
        (Err(error), _, _) => return Err(failed(error)),
    };
    let entry = mount_of(&resolved).ok_or_else(|| {
        let places: Vec<String> = mounted().iter().map(|entry| entry.dir.display().to_string()).collect();
        let known = if places.is_empty() { "none is mounted".into() } else { places.join(", ") };
        Failure::new(
            1,
            format_args!(
                "{}: is not in a mounted formation ({known}); name one with --name and give the path inside it",
                path.display()
            ),
        )
    })?;
    let name = entry.source.strip_prefix("bivouac:").and_then(|name| name.parse().ok());
    let unknown = format!("{}: the mount's source '{}' names no formation", path.display(), entry.source);
    let inside = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
    let inside = [b"/", inside.as_os_str().as_bytes()].concat();
    Ok((name.ok_or_else(|| Failure::new(1, unknown))?, inside))
}

fn create(here: &Environment, args: &CreateArgs) -> Result<(), Failure> {
    let target = Target::find(here, &args.place)?;
    let mut settings = PartitionSettings::default();
    args.settings.apply(&mut settings).map_err(|error| Failure::new(2, error))?;
    let plan = Plan {
        path: target.path.clone(),
        nodes: args.seats.nodes.clone(),
        sizing: args.seats.sizing(),
        sharing: args.seats.sharing(),
        settings,
        says_stripe: args.settings.stripe.is_some(),
    };
    let made = target.maker().make(&plan)?;
    for made in &made {
        if let Some(source) = &made.partition.settings.source {
            unflushed::note_source(&target.dir, &made.path, source.as_str())?;
            bring_at_start(&target.client, &made.partition, &made.path)?;
        }
    }
    if args.json {
        let shown: Vec<Shown> =
            made.iter().map(|made| shown(&target.client, &made.partition, &made.path)).collect();
        return print_json(&shown);
    }
    made.iter().for_each(|made| out!("{}", created(&target.client, made)));
    Ok(())
}

fn created(client: &Client, made: &Made) -> String {
    let reason = made.reason.as_ref().map_or(String::new(), |reason| format!("{reason}\n"));
    let seats = format_count(made.partition.seats.len() as u64, "seat");
    format!(
        "{reason}partition {} is {} over {seats}, on nodes {}\n",
        made.partition.id.0,
        made.path,
        nodes(client, &made.partition)
    )
}

fn list(here: &Environment, args: &ListArgs) -> Result<(), Failure> {
    let (_, dir) = StateDir::find(here, args.which.name.as_ref())?;
    let client = reach::client(&dir, &reach::living(&dir)?, ANSWER_WAIT)?;
    let all = list_all(&client)?;
    if args.json {
        return print_json(&all);
    }
    if all.is_empty() {
        outln!("no partitions but the formation's own, over all seats");
        return Ok(());
    }
    out!("{}", table_of(&all));
    Ok(())
}

/// All partitions whose directory is there, with their paths.
///
/// # Errors
/// When a node on the way does not answer.
pub fn list_all(client: &Client) -> Result<Vec<Shown>, Failure> {
    let mut all = Vec::new();
    for partition in client.partitions.list()? {
        // A partition whose directory was removed has nothing, and is forgotten.
        if let Some(path) = path_of(client, partition.dir)? {
            all.push(shown(client, &partition, &path));
        }
    }
    Ok(all)
}

/// Partitions in columns.
pub fn table_of(all: &[Shown]) -> String {
    let row = |one: &Shown| {
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
    layout(&["ID", "PATH", "NODES", "STRIPE", "WIDTH", "PLACEMENT", "USED"], &[0, 3, 4], &rows)
}

fn show(here: &Environment, args: &ShowArgs) -> Result<(), Failure> {
    let target = Target::find(here, &args.place)?;
    let (partition, _) = target.partition()?;
    let path = path_of(&target.client, partition.dir)?.unwrap_or_else(|| "(removed)".into());
    let shown = shown(&target.client, &partition, &path);
    if args.json {
        return print_json(&shown);
    }
    out!("{}", shown.to_text());
    Ok(())
}

fn set(here: &Environment, args: &SetArgs) -> Result<(), Failure> {
    let target = Target::find(here, &args.place)?;
    let partition = target.root()?;
    let mut settings = partition.settings.clone();
    args.settings.apply(&mut settings).map_err(|error| Failure::new(2, error))?;
    if args.settings.pairs().is_empty() {
        let text = "nothing is to be set; `bivouac partition set --help` shows the settings";
        return Err(Failure::new(2, text));
    }
    let ctx = target.client.new_op(0, target.uid, target.gid);
    let changed = target.client.partitions.set(&ctx, partition.id, partition.version, settings)?;
    out!("{}", shown(&target.client, &changed, &target.shown()).to_text());
    Ok(())
}

fn remove(here: &Environment, args: &RemoveArgs) -> Result<(), Failure> {
    let target = Target::find(here, &args.place)?;
    let partition = target.root()?;
    let shown = target.shown();
    target.maker().remove_directory(&target.path).map_err(|error| match error.errno() {
        Errno::ENOTEMPTY => {
            let text = format!(
                "{shown}: has files, which belong to the partition; copy them elsewhere or remove them first"
            );
            Failure::new(1, text)
        }
        _ => Failure::new(1, format_args!("{shown}: {error}")),
    })?;
    let ctx = target.client.new_op(0, target.uid, target.gid);
    target.client.partitions.forget(&ctx, partition.id)?;
    outln!("partition {} is gone, with its directory {shown}", partition.id.0);
    Ok(())
}

/// A partition as it is shown. Sizes in bytes.
#[derive(Debug, Serialize)]
pub struct Shown {
    id: u16,
    path: String,
    /// Node and volume of each seat, in their order.
    seats: Vec<(u16, u16)>,
    settings: Vec<(&'static str, String)>,
    used_bytes: u64,
    capacity_bytes: u64,
    pinned_files: usize,
    pinned_bytes: u64,
}

fn shown(client: &Client, partition: &Partition, path: &str) -> Shown {
    let places = partition.places(client.map());
    let space = client.homes.statfs(partition.dir).unwrap_or_default();
    let bytes = |blocks: u64| blocks * u64::from(space.block_size);
    let pinned =
        partition.settings.source.as_ref().and_then(|_| client.site.pinned().ok()).unwrap_or_default();
    let pinned = || pinned.iter().filter(|file| file.partition == partition.id);
    Shown {
        id: partition.id.0,
        path: path.to_owned(),
        seats: places.iter().map(|place| (place.node.0, place.volume)).collect(),
        settings: partition.settings.pairs(),
        used_bytes: bytes(space.blocks.saturating_sub(space.blocks_free)),
        capacity_bytes: bytes(space.blocks),
        pinned_files: pinned().count(),
        pinned_bytes: pinned().map(|file| file.bytes).sum(),
    }
}

impl Shown {
    fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_str())
    }

    /// Whether it stands in front of site storage.
    pub fn has_source(&self) -> bool {
        self.setting("source").is_some()
    }

    /// What is pinned, if anything is.
    pub fn pinned_text(&self) -> Option<String> {
        let (files, bytes) = (format_count(self.pinned_files as u64, "file"), format_size(self.pinned_bytes));
        (self.pinned_files > 0).then(|| format!("pinned in {}: {files}, {bytes}\n", self.path))
    }

    fn nodes_text(&self) -> String {
        nodes_of(self.seats.iter().map(|(node, _)| *node))
    }

    fn to_text(&self) -> String {
        let mut text = format!(
            "partition {}: {}\n{}, on nodes {}\n{} of {} used\n",
            self.id,
            self.path,
            format_count(self.seats.len() as u64, "seat"),
            self.nodes_text(),
            format_size(self.used_bytes),
            format_size(self.capacity_bytes)
        );
        text.extend(self.pinned_text());
        self.settings.iter().for_each(|(key, value)| text.push_str(&format!("{key} = {value}\n")));
        text
    }
}

fn nodes(client: &Client, partition: &Partition) -> String {
    nodes_of(partition.places(client.map()).iter().map(|place| place.node.0))
}

/// Each node once, in the order of the first seats.
fn nodes_of(nodes: impl Iterator<Item = u16>) -> String {
    let mut seen = Vec::new();
    nodes.for_each(|node| {
        if !seen.contains(&node) {
            seen.push(node)
        }
    });
    seen.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    outln!("{}", serde_json::to_string_pretty(value).map_err(io::Error::from)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Shown {
        Shown {
            id: 3,
            path: "/chk".into(),
            seats: vec![(2, 0), (0, 0), (2, 1)],
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
            text.starts_with("partition 3: /chk\n3 seats, on nodes 2, 0\n1 MiB of 1 GiB used\nstripe = 1m\n"),
            "{text}"
        );
        let pinned = Shown { pinned_files: 2, pinned_bytes: 3 << 20, ..sample() }.to_text();
        assert!(pinned.contains("used\npinned in /chk: 2 files, 3 MiB\nstripe"), "{pinned}");
        let table = table_of(&[sample()]);
        assert_eq!(
            table.lines().nth(1),
            Some(" 3  /chk  2, 0       1m    all  striped    1 MiB of 1 GiB"),
            "{table}"
        );
    }

    #[test]
    fn a_path_outside_is_said() {
        let failure = find_mounted(Path::new("/etc/none")).unwrap_err().to_string();
        assert!(failure.starts_with("/etc/none: is not in a mounted formation"), "{failure}");
        assert!(
            find_mounted(Path::new("/nonexistent/x/y")).unwrap_err().to_string().contains("check its path")
        );
    }
}
