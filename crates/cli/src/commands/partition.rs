//! `bivouac partition`.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_client::{Client, Partition};
use bivouac_launch::mounts::{mount_of, mounted};
use bivouac_launch::{Environment, FormationName, FormationState, StateDir};
use bivouac_monitor::{PartitionReport, connect, list_partitions, partition_nodes, partition_table};
use bivouac_types::units::format_count;
use bivouac_types::{Errno, Ino, PartitionId, PartitionSettings};
use serde::Serialize;

use crate::bringing::bring_at_start;
use crate::failure::Failure;
use crate::options::{CreateArgs, ListArgs, PartitionCommand, PathArgs, RemoveArgs, SetArgs, ShowArgs};
use crate::partitioning::{MadePartition, PartitionMaker, Plan};
use crate::reach;
use crate::unflushed;

/// Longest wait for a node's answer.
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
struct PartitionPath {
    client: Client,
    dir: StateDir,
    state: FormationState,
    /// Path from the formation's root.
    path: Vec<u8>,
    uid: u32,
    gid: u32,
}

impl PartitionPath {
    fn find(here: &Environment, place: &PathArgs) -> Result<PartitionPath, Failure> {
        let (name, path) = match &place.which.name {
            Some(name) => (name.clone(), place.path.as_os_str().as_bytes().to_vec()),
            None => find_mounted(here, &place.path)?,
        };
        let (_, dir) = StateDir::find_whole(here, Some(&name))?;
        let state = dir.read_living()?;
        let client = connect(&dir, &state, ANSWER_WAIT)?;
        Ok(PartitionPath {
            client,
            dir,
            state,
            path,
            uid: here.uid,
            gid: rustix::process::getegid().as_raw(),
        })
    }

    fn maker(&self) -> PartitionMaker<'_> {
        PartitionMaker { client: &self.client, uid: self.uid, gid: self.gid, state: &self.state }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// Returns the partition that the path is in, and the inode at the path.
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

    /// Returns the partition whose directory is at the path.
    fn root(&self) -> Result<Partition, Failure> {
        let (partition, ino) = self.partition()?;
        if partition.dir == ino {
            return Ok(partition);
        }
        let dir = self.client.path_of_dir(partition.dir)?.unwrap_or_else(|| "(gone)".into());
        let text = format!("{}: is inside a partition, not its directory; name {dir}", self.shown());
        Err(Failure::new(1, text))
    }
}

impl Drop for PartitionPath {
    fn drop(&mut self) {
        // Nodes keep the results of changes until their client has said that it ends.
        self.client.leave();
    }
}

/// Returns the formation that a path is mounted from, and the path there. Its last name need not exist.
fn find_mounted(here: &Environment, path: &Path) -> Result<(FormationName, Vec<u8>), Failure> {
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
    let (_, state) = reach::behind(here, &entry, path)?;
    let inside = resolved.strip_prefix(&entry.dir).unwrap_or(&resolved);
    let inside = [b"/", inside.as_os_str().as_bytes()].concat();
    Ok((state.name, inside))
}

fn create(here: &Environment, args: &CreateArgs) -> Result<(), Failure> {
    let partition_path = PartitionPath::find(here, &args.place)?;
    let mut settings = PartitionSettings::default();
    args.settings.apply(&mut settings).map_err(|error| Failure::new(2, error))?;
    let plan = Plan {
        path: partition_path.path.clone(),
        nodes: args.targets.nodes.clone(),
        sizing: args.targets.sizing(),
        sharing: args.targets.sharing(),
        settings,
        says_stripe: args.settings.stripe.is_some(),
    };
    // Before there is anything to flush: killed in between, this leaves a note too many.
    unflushed::note_source_of(&partition_path.dir, &plan)?;
    let made = partition_path.maker().make(&plan)?;
    for made in &made {
        if made.partition.settings.source.is_some() {
            bring_at_start(&partition_path.client, &made.partition, &made.path)?;
        }
    }
    if args.json {
        let shown: Vec<PartitionReport> = made
            .iter()
            .map(|made| PartitionReport::of(&partition_path.client, &made.partition, &made.path))
            .collect();
        return print_json(&shown);
    }
    made.iter().for_each(|made| out!("{}", created(&partition_path.client, made)));
    Ok(())
}

fn created(client: &Client, made: &MadePartition) -> String {
    let reason = made.reason.as_ref().map_or(String::new(), |reason| format!("{reason}\n"));
    let targets = format_count(made.partition.targets.len() as u64, "target");
    format!(
        "{reason}partition {} is {} over {targets}, on nodes {}\n",
        made.partition.id.0,
        made.path,
        partition_nodes(client, &made.partition)
    )
}

fn list(here: &Environment, args: &ListArgs) -> Result<(), Failure> {
    let (_, dir) = StateDir::find(here, args.which.name.as_ref())?;
    let client = connect(&dir, &dir.read_living()?, ANSWER_WAIT)?;
    let all = list_partitions(&client)?;
    if args.json {
        return print_json(&all);
    }
    if all.is_empty() {
        outln!("no partitions but the formation's own, over all targets");
        return Ok(());
    }
    out!("{}", partition_table(&all, crate::output::columns()));
    Ok(())
}

fn show(here: &Environment, args: &ShowArgs) -> Result<(), Failure> {
    let partition_path = PartitionPath::find(here, &args.place)?;
    let (partition, _) = partition_path.partition()?;
    let path = partition_path.client.path_of_dir(partition.dir)?.unwrap_or_else(|| "(removed)".into());
    let shown = PartitionReport::of(&partition_path.client, &partition, &path);
    if args.json {
        return print_json(&shown);
    }
    out!("{}", shown.to_text());
    Ok(())
}

fn set(here: &Environment, args: &SetArgs) -> Result<(), Failure> {
    let partition_path = PartitionPath::find(here, &args.place)?;
    let partition = partition_path.root()?;
    let mut settings = partition.settings.clone();
    args.settings.apply(&mut settings).map_err(|error| Failure::new(2, error))?;
    if args.settings.pairs().is_empty() {
        let text = "nothing is to be set; `bivouac partition set --help` shows the settings";
        return Err(Failure::new(2, text));
    }
    let ctx = partition_path.client.new_op(0, partition_path.uid, partition_path.gid);
    // With the version that was read: what somebody else has changed since is refused, not lost.
    let changed = partition_path.client.partitions.set(&ctx, partition.id, partition.version, settings)?;
    out!("{}", PartitionReport::of(&partition_path.client, &changed, &partition_path.shown()).to_text());
    Ok(())
}

fn remove(here: &Environment, args: &RemoveArgs) -> Result<(), Failure> {
    let partition_path = PartitionPath::find(here, &args.place)?;
    let partition = partition_path.root()?;
    let shown = partition_path.shown();
    // The directory first: while it has files the partition is theirs, and stays.
    partition_path.maker().remove_directory(&partition_path.path).map_err(|error| match error.errno() {
        Errno::ENOTEMPTY => {
            let text = format!(
                "{shown}: has files, which belong to the partition; copy them elsewhere or remove them first"
            );
            Failure::new(1, text)
        }
        _ => Failure::new(1, format_args!("{shown}: {error}")),
    })?;
    let ctx = partition_path.client.new_op(0, partition_path.uid, partition_path.gid);
    partition_path.client.partitions.forget(&ctx, partition.id)?;
    outln!("partition {} is gone, with its directory {shown}", partition.id.0);
    Ok(())
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    outln!("{}", crate::output::json(value, true)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_outside_is_said() {
        let failure =
            find_mounted(&crate::environment::read(), Path::new("/etc/none")).unwrap_err().to_string();
        assert!(failure.starts_with("/etc/none: is not in a mounted formation"), "{failure}");
        assert!(
            find_mounted(&crate::environment::read(), Path::new("/nonexistent/x/y"))
                .unwrap_err()
                .to_string()
                .contains("check its path")
        );
    }
}
