//! Formations of this user in runtime directories of this host other than that of this process.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::environment::Environment;
use crate::name::FormationName;
use crate::recovery_notes::noted_directories;
use crate::state::FormationState;
use crate::state_dir::StateDir;
use crate::{grant_tables, memory_root};

/// Returns the directories of this user's formations on this host but that of `here`, as far as anything leads to them.
#[must_use]
pub fn other_bases(here: &Environment) -> Vec<PathBuf> {
    let homes = memory_root::homes(here).into_iter().chain(grant_tables::homes(here.uid));
    let homes = homes.chain(noted_directories(here));
    let bases = homes.filter_map(|home| Some(home.parent()?.to_owned())).chain(here.usual_bases());
    let real = |base: PathBuf| base.canonicalize().ok();
    let own = here.existing_base().and_then(real);
    // What leads there may be old: others may have made a directory at the place since.
    let found: BTreeSet<PathBuf> = bases.filter(|base| here.is_base(base)).filter_map(real).collect();
    found.into_iter().filter(|base| Some(base) != own.as_ref()).collect()
}

/// Formations whose state is in another runtime directory than that of `here`: of those over several hosts both what
/// this host has and, where it was started here, the whole.
pub(crate) fn elsewhere(here: &Environment) -> Vec<(FormationName, StateDir)> {
    let bases = other_bases(here).into_iter();
    bases.flat_map(|base| StateDir::list_in(&base).into_iter().chain(StateDir::wholes_in(&base))).collect()
}

/// Returns the states in other runtime directories, with what is written there.
pub(crate) fn states_elsewhere(here: &Environment) -> Vec<(StateDir, FormationState)> {
    elsewhere(here).into_iter().filter_map(|(_, dir)| Some((dir.clone(), dir.read().ok()??))).collect()
}

/// Returns the directory where a formation was recovered whose state here is an old one: what is outside of its
/// directory is another place's now, and the state there has come further.
pub(crate) fn gone_on(state: &FormationState) -> Option<StateDir> {
    let nodes = |state: &FormationState| state.nodes.iter().map(|node| node.id).collect::<Vec<_>>();
    let is_later = |other: &FormationState| {
        other.formation == state.formation
            && other.recoveries > state.recoveries
            && other.is_over_hosts() == state.is_over_hosts()
            && nodes(other) == nodes(state)
    };
    let tables = state.nodes.iter().filter_map(|node| grant_tables::home_of(&state.formation, node.id));
    let homes = tables.chain(state.own_dirs.iter().filter_map(|root| memory_root::home_of(root)));
    let dirs = homes.collect::<BTreeSet<_>>().into_iter().map(StateDir::at);
    dirs.into_iter().find(|dir| dir.read().is_ok_and(|other| other.as_ref().is_some_and(is_later)))
}

/// Returns the command line that reaches a formation of that directory from any runtime directory.
pub(crate) fn way_to(here: &Environment, dir: &StateDir, command: &str) -> String {
    let base = dir.path().parent().unwrap_or(dir.path());
    format!("BIVOUAC_RUNTIME_DIR={} bivouac {command}", here.runtime_dir_of(base).display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::state::tests::sample;

    #[test]
    fn an_old_state_of_what_has_gone_on_elsewhere_is_told() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (here, there) = (environment(Some(a.path())), environment(Some(b.path())));
        let mut state = FormationState { formation: "0b".repeat(16), ..sample() };
        let claims = [&here, &there].map(|place| StateDir::claim(place, &state.name).unwrap());
        claims[0].dir.write(&state).unwrap();
        let table = grant_tables::open(&state.formation, 0, claims[1].dir.path()).unwrap();
        assert_eq!(gone_on(&state), None);
        claims[1].dir.write(&state).unwrap();
        assert_eq!(gone_on(&state), None, "neither has come further");
        state.recoveries += 1;
        claims[1].dir.write(&state).unwrap();
        let old = claims[0].dir.read().unwrap().unwrap();
        let dir = gone_on(&old).unwrap();
        assert_eq!(dir.path().canonicalize().unwrap(), claims[1].dir.path().canonicalize().unwrap());
        assert_eq!(gone_on(&state), None);
        assert!(other_bases(&here).iter().any(|base| dir.path().starts_with(base)));
        let way = way_to(&here, &dir, "list");
        assert!(way.ends_with(" bivouac list") && way.contains(b.path().to_str().unwrap()), "{way}");
        drop(table);
        grant_tables::remove_all(&state);
    }
}
