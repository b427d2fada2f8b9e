//! A formation over several hosts that was killed, as this host knows it: from the state of the whole, where it was
//! started, or from what any of its hosts has on its volumes.

use super::{Recovery, by_name, check_unmoved, formation_of, volumes_in};
use crate::environment::Environment;
use crate::plan::FormationRequest;
use crate::reach::{HostAccess, Launcher};
use crate::recoverable::{Recoverable, recoverable};
use crate::recovery_notes::volume_note;
use crate::state::{FormationState, HostLife, HostState};
use crate::volumes::VolumeArg;
use crate::{Kind, LaunchError, LaunchResult};

/// Input of a new start of the whole.
#[derive(Clone, Debug)]
pub struct WholeFormation {
    /// Its former state.
    pub state: FormationState,
    /// Way in which they were reached.
    pub reach: HostAccess,
}

impl WholeFormation {
    /// Returns its new settings: the former ones, except for the life time. Volumes are where they were, or where
    /// `wanted` says.
    #[must_use]
    pub fn wishes(&self, wanted: &Recovery) -> FormationRequest {
        let state = &self.state;
        let mut dirs = wanted.volumes.clone();
        if dirs.is_empty() {
            dirs.extend(state.nodes.iter().flat_map(|node| &node.volumes).map(|volume| volume.path.clone()));
            dirs.sort();
            dirs.dedup();
        }
        FormationRequest {
            name: state.name.clone(),
            nodes: 1,
            volumes: dirs.into_iter().map(|dir| VolumeArg { dir, capacity: None }).collect(),
            stripe: u64::from(state.stripe),
            width: state.width,
            spread_at: state.spread_at,
            checksum: state.checksum,
            page_pool: state.page_pool,
            names_memory: Some(state.names_memory),
            numa: state.numa,
            log_format: state.log_format,
            wait_ms: state.wait_ms,
            dead_after_ms: state.dead_after_ms,
            port: wanted.port.unwrap_or(state.port),
            in_process: state.in_process,
            secure: state.secure,
            detect_races: state.detect_races,
            protect: state.protect,
            // Its hosts know theirs.
            http: None,
            link_listen: None,
            tolerance: state.tolerance,
            ttl_ms: wanted.ttl_ms,
            owner: wanted.owner,
        }
    }
}

/// Finds the formation to recover, if that is over several hosts.
///
/// # Errors
/// As [`super::recover`].
pub fn whole(here: &Environment, wanted: &Recovery) -> LaunchResult<Option<WholeFormation>> {
    let found = choose(here, wanted)?;
    let Some(state) = found.and_then(|found| found.whole.or_else(|| whole_of_part(found.state?))) else {
        return Ok(None);
    };
    check_unmoved(&state)?;
    let Some(reach) = state.reach.clone() else {
        let cause = "what is left of it does not say how its hosts were reached";
        let remedy = "use the release that made it, or rebuild files: bivouac fsck --from-subfiles VOLUME... --out DIR";
        return Err(LaunchError::new(Kind::Refused, format_args!("formation {}", state.name), cause, remedy));
    };
    // Nobody comes by himself any more.
    let launcher = if reach.launcher == Launcher::Meet { Launcher::Ssh } else { reach.launcher };
    Ok(Some(WholeFormation { state, reach: HostAccess { launcher, ..reach } }))
}

fn choose(here: &Environment, wanted: &Recovery) -> LaunchResult<Option<Recoverable>> {
    if wanted.volumes.is_empty() {
        return by_name(here, wanted.name.as_ref()).map(Some);
    }
    // Over several hosts they name places on each of them, of which this one may be none.
    let volumes = volumes_in(&wanted.volumes).unwrap_or_default();
    if volumes.is_empty() {
        // Which one that is, is not guessed.
        let Some(name) = &wanted.name else { return Ok(None) };
        return by_name(here, Some(name)).map(|found| Some(found).filter(Recoverable::is_over_hosts));
    }
    let formation = formation_of(&volumes)?;
    let noted = volume_note::newest(&volumes).map(|state| Recoverable {
        name: state.name.clone(),
        formation: state.formation.clone(),
        created_unix_ms: state.created_unix_ms,
        dir: None,
        state: Some(state),
        whole: None,
        noted: Vec::new(),
    });
    let mut known = recoverable(here).into_iter().filter(|found| found.is_over_hosts());
    Ok(known.find(|found| found.formation == formation).or(noted))
}

/// Returns the whole by what one of its parts knows; `None` for a formation on one host.
fn whole_of_part(part: FormationState) -> Option<FormationState> {
    let map = part.part.as_ref().and_then(|_| part.map())?;
    let mut hosts: Vec<HostState> = Vec::new();
    for (node, id) in map.nodes.iter().zip(0..) {
        // Nodes of a host follow each other in the map.
        match hosts.last_mut().filter(|host| host.name == node.host) {
            Some(host) => host.nodes.push(id),
            None => hosts.push(HostState {
                name: node.host.clone(),
                life: HostLife::Called,
                message: None,
                nodes: vec![id],
                mount: None,
            }),
        }
    }
    Some(FormationState {
        part: None,
        hosts,
        nodes: Vec::new(),
        stripe: map.stripe,
        width: map.width,
        ..part
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::first_map::first_map;
    use crate::hex::to_hex;
    use crate::state::tests::sample;
    use crate::state::{NodeState, PartState};
    use crate::state_dir::StateDir;
    use bivouac_types::FormationId;
    use bivouac_wire::Encode;

    /// The part of host b, which is the last node of three on a and b.
    fn part() -> FormationState {
        let mut state = FormationState { width: 2, ..sample() };
        let node = |(id, host): (u16, &str)| NodeState { id, host: host.into(), ..state.nodes[0].clone() };
        state.nodes = [(0, "a"), (1, "a"), (2, "b")].map(node).to_vec();
        state.map = to_hex(&first_map(&state, FormationId([7; 16])).to_bytes());
        let (bind, started_from) = ("10.0.0.1".parse().unwrap(), "a".into());
        state.part = Some(PartState { bind, started_from, leaves_volumes: false });
        state.reach = Some(HostAccess {
            launcher: Launcher::Meet,
            program: "/bin/b".into(),
            send: None,
            network: None,
            silence_ms: 9,
            domains: None,
        });
        // What a host plans for itself.
        FormationState { nodes: vec![state.nodes[2].clone()], width: 0, ..state }
    }

    /// S302.
    #[test]
    fn any_host_knows_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let home = StateDir::claim(&here, &part().name).unwrap().dir;
        home.write(&part()).unwrap();
        // Others may have something in memory here.
        let wanted = Recovery { name: Some(part().name), ..Recovery::default() };
        let whole = whole(&here, &wanted).unwrap().unwrap();
        let hosts: Vec<(&str, &[u16])> =
            whole.state.hosts.iter().map(|host| (host.name.as_str(), host.nodes.as_slice())).collect();
        assert_eq!(hosts, [("a", &[0, 1][..]), ("b", &[2])]);
        assert_eq!((whole.reach.launcher.clone(), whole.reach.silence_ms), (Launcher::Ssh, 9));
        let wishes = whole.wishes(&Recovery { port: Some(7), ..Recovery::default() });
        assert_eq!((wishes.width, wishes.port, wishes.nodes), (2, 7, 1));
        let alone = FormationState { part: None, reach: None, ..part() };
        home.write(&alone).unwrap();
        assert!(super::whole(&here, &wanted).unwrap().is_none(), "one host is no whole");
        let unknown = FormationState { reach: None, ..part() };
        home.write(&unknown).unwrap();
        let error = super::whole(&here, &wanted).unwrap_err().to_string();
        assert!(error.contains("does not say how its hosts were reached"), "{error}");
    }
}
