//! Report of `up` and `recover` about a formation that was just started.

use std::collections::BTreeSet;
use std::path::PathBuf;

use bivouac_launch::{FormationName, FormationState, Phase, StateDir};
use bivouac_types::units::{format_count, format_size};
use serde::Serialize;

use crate::failure::Failure;

/// A mount as JSON has it everywhere: where it is, and the node that serves it, if that is known here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountLocation {
    /// The mount point.
    pub dir: PathBuf,
    pub node: Option<u16>,
}

/// A formation that has just been started.
#[derive(Debug, Serialize)]
pub struct StartReport {
    name: FormationName,
    directory: PathBuf,
    mounts: Vec<MountLocation>,
    nodes: Option<usize>,
    capacity_bytes: Option<u64>,
    steps: Vec<Phase>,
    /// Kinds of its volumes, in words.
    #[serde(skip)]
    kinds: String,
    #[serde(skip)]
    is_over_hosts: bool,
}

/// Returns the mounts of a formation on this host, by number.
pub fn mount_places(state: &FormationState) -> Vec<MountLocation> {
    let mut mounts: Vec<_> = state.mounts.iter().collect();
    mounts.sort_by_key(|mount| mount.id);
    mounts.into_iter().map(|mount| MountLocation { dir: mount.dir.clone(), node: Some(mount.node) }).collect()
}

impl StartReport {
    /// Creates the report of the formation whose directory on this host is `part`, mounted at `mounts`; `whole` is the
    /// directory of one over several hosts.
    pub fn new(
        name: &FormationName,
        part: &StateDir,
        whole: Option<&StateDir>,
        mounts: &[PathBuf],
        steps: &[Phase],
    ) -> Result<StartReport, Failure> {
        let here = part.read()?.map(|state| mount_places(&state)).filter(|places| !places.is_empty());
        let unknown = || mounts.iter().map(|dir| MountLocation { dir: dir.clone(), node: None }).collect();
        // A part knows only the volumes of its own host.
        let all = whole.unwrap_or(part).read()?.filter(|state| state.part.is_none());
        let volumes = || all.iter().flat_map(|state| &state.nodes).flat_map(|node| &node.volumes);
        let kinds: BTreeSet<&str> = volumes().map(|volume| volume.kind.as_str()).collect();
        Ok(StartReport {
            name: name.clone(),
            directory: part.path().to_owned(),
            mounts: here.unwrap_or_else(unknown),
            nodes: all.as_ref().map(|state| state.nodes.len()),
            capacity_bytes: all.as_ref().map(|_| volumes().map(|volume| volume.capacity_bytes).sum()),
            steps: steps.to_vec(),
            kinds: kinds.into_iter().rev().collect::<Vec<_>>().join(" and "),
            is_over_hosts: whole.is_some(),
        })
    }

    /// Returns it in the form for people: what was started (`is up`), how much it takes, and where it is.
    pub fn to_text(&self, what: &str) -> String {
        let mut text = format!("formation {} {what}\n", self.name);
        if let (Some(nodes), Some(bytes)) = (self.nodes, self.capacity_bytes) {
            let (verb, nodes) =
                (if nodes == 1 { "lends" } else { "lend" }, format_count(nodes as u64, "node"));
            text.push_str(&format!("{nodes} {verb} {} of {}\n", format_size(bytes), self.kinds));
        }
        for mount in &self.mounts {
            let on = if self.is_over_hosts { " on each host" } else { "" };
            text.push_str(&format!("mounted at {}{on}\n", mount.dir.display()));
        }
        text
    }

    /// Returns the duration of the start, for people; empty if another host started it.
    pub fn time_text(&self) -> String {
        let us: u64 = self.steps.iter().map(|step| step.us).sum();
        if self.steps.is_empty() {
            String::new()
        } else {
            format!("started in {:.1} ms\n", us as f64 / 1000.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> StartReport {
        StartReport {
            name: "x".parse().unwrap(),
            directory: "/run/b/x".into(),
            mounts: ["/m/0", "/m/1"].map(|dir| MountLocation { dir: dir.into(), node: None }).into(),
            nodes: Some(2),
            capacity_bytes: Some(3 << 30),
            steps: [("bind", 500), ("daemons", 2000)]
                .map(|(name, us)| Phase { name: name.into(), us })
                .into(),
            kinds: "memory and disk".into(),
            is_over_hosts: false,
        }
    }

    #[test]
    fn people_see_how_much_it_takes_and_where() {
        let text = report().to_text("is up") + &report().time_text();
        assert_eq!(
            text,
            "formation x is up\n2 nodes lend 3 GiB of memory and disk\nmounted at /m/0\nmounted at /m/1\nstarted in 2.5 ms\n"
        );
        let attended = StartReport { nodes: None, steps: Vec::new(), is_over_hosts: true, ..report() };
        let text = attended.to_text("is up") + &attended.time_text();
        assert_eq!(text, "formation x is up\nmounted at /m/0 on each host\nmounted at /m/1 on each host\n");
    }

    #[test]
    fn scripts_see_the_same() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(
            (&json["mounts"][1]["dir"], &json["capacity_bytes"]),
            (&"/m/1".into(), &(3_u64 << 30).into())
        );
        assert_eq!((&json["steps"][0]["us"], &json["directory"]), (&500.into(), &"/run/b/x".into()));
    }
}
