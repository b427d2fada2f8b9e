//! Choice of the formation that a command works with, by its name or by where it runs.

use crate::environment::{EnclosingFormation, Environment};
use crate::name::FormationName;
use crate::runtime_dirs::{elsewhere, way_to};
use crate::state_dir::StateDir;
use crate::{Kind, LaunchError, LaunchResult};

/// Beside [`StateDir`] itself and not in its module: to look for a formation takes what leads to other runtime
/// directories.
impl StateDir {
    /// Returns the formation to work with: the named one; else that of the job around; else that with the default name;
    /// else, outside of batch jobs, the only one. A job whose formation is gone means no other one.
    ///
    /// # Errors
    /// `NotRunning` when there is none, `Usage` with the names when there are several.
    pub fn find(here: &Environment, name: Option<&FormationName>) -> LaunchResult<(FormationName, StateDir)> {
        if name.is_none()
            && let Some(found) = StateDir::find_around(here)?
        {
            return Ok(found);
        }
        let mut found = StateDir::list(here);
        let position = |wanted: &FormationName| found.iter().position(|(name, _)| name == wanted);
        let place = match name {
            Some(name) => position(name),
            None => position(&here.default_name()),
        };
        if let Some(place) = place {
            return Ok(found.swap_remove(place));
        }
        if let Some(error) = name.and_then(|name| is_elsewhere(here, name)) {
            return Err(error);
        }
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        let own = here.default_name();
        let name = name.or((!here.may_mean_the_only_one()).then_some(&own));
        match (name, found.len()) {
            (None, 1) => Ok(found.swap_remove(0)),
            (None, 0) => Err(none_running("no formation is running")),
            (None, _) => {
                let cause = format!("several formations are running: {}", names.join(", "));
                Err(LaunchError::usage("--name is missing", cause, "choose one with --name NAME"))
            }
            (Some(name), 0) => Err(none_running(&format!("formation {name} is not running"))),
            (Some(name), _) => {
                let text = format!("formation {name} is not running; running are: {}", names.join(", "));
                Err(LaunchError::said(Kind::NotRunning, text))
            }
        }
    }

    /// Returns the formation of the job that this process is in, if it is in one.
    fn find_around(here: &Environment) -> LaunchResult<Option<(FormationName, StateDir)>> {
        let EnclosingFormation { name, dir } = &here.around;
        // By its directory first: a batch job and a login of the same user have different runtime directories.
        if let Some(dir) = dir.clone().map(StateDir::at)
            && let Ok(Some(state)) = dir.read()
            && name.as_ref().is_none_or(|name| *name == state.name)
        {
            return Ok(Some((state.name, dir)));
        }
        let Some(name) = name else { return Ok(None) };
        let found = StateDir::find(here, Some(name)).map_err(|error| {
            let remedy = "BIVOUAC_NAME names it: give another one with --name, or unset that";
            LaunchError::said(error.kind(), format!("{error}; {remedy}"))
        });
        found.map(Some)
    }

    /// Like [`StateDir::find`], for a formation over several hosts that was started here: the whole, not this host's
    /// part.
    ///
    /// # Errors
    /// As [`StateDir::find`].
    pub fn find_whole(
        here: &Environment,
        name: Option<&FormationName>,
    ) -> LaunchResult<(FormationName, StateDir)> {
        let wholes = StateDir::wholes_kept_here(here);
        let by_name = |name: &FormationName| wholes.iter().find(|(known, _)| known == name);
        let found = match name.or(here.around.name.as_ref()) {
            Some(name) => by_name(name),
            None => by_name(&here.default_name()).or_else(|| {
                let parts = StateDir::list(here);
                // Without a name, the only one that there is.
                let only = here.may_mean_the_only_one()
                    && wholes.len() == 1
                    && parts.iter().all(|(name, _)| wholes.iter().any(|whole| whole.0 == *name));
                wholes.first().filter(|_| only)
            }),
        };
        found.cloned().map_or_else(|| StateDir::find(here, name), Ok)
    }
}

/// Returns the error for a formation that is not here but in another place of this user.
fn is_elsewhere(here: &Environment, name: &FormationName) -> Option<LaunchError> {
    let (_, dir) = elsewhere(here).into_iter().find(|(known, _)| known == name)?;
    let way = way_to(here, &dir, "COMMAND");
    let text = format!(
        "formation {name} is not in this runtime directory but in {}; write: {way}",
        dir.path().display()
    );
    Some(LaunchError::said(Kind::NotRunning, text))
}

fn none_running(what: &str) -> LaunchError {
    LaunchError::said(Kind::NotRunning, format!("{what}; start one with: bivouac up"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::tests::environment;
    use crate::state::FormationState;
    use crate::state::tests::sample;

    fn name(text: &str) -> FormationName {
        text.parse().unwrap()
    }

    #[test]
    fn the_one_that_is_meant_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let find = |wanted: Option<&str>| StateDir::find(&here, wanted.map(name).as_ref());
        let begin = |wanted: &str| {
            let claim = StateDir::claim(&here, &name(wanted)).unwrap();
            claim.dir.write(&sample()).unwrap();
        };
        assert!(find(None).unwrap_err().to_string().contains("no formation is running"));
        assert_eq!(find(Some("x")).unwrap_err().kind(), Kind::NotRunning);
        begin("one");
        assert_eq!(find(None).unwrap().0.as_str(), "one");
        begin("two");
        assert!(find(None).unwrap_err().to_string().contains("one, two"));
        assert!(find(Some("x")).unwrap_err().to_string().contains("running are: one, two"));
        begin("default");
        assert_eq!(find(None).unwrap().0.as_str(), "default");
        assert_eq!(find(Some("two")).unwrap().0.as_str(), "two");
    }

    /// S819.
    #[test]
    fn the_part_is_meant_where_another_hosts_keeper_may_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let here = environment(Some(dir.path()));
        let found = || StateDir::find_whole(&here, Some(&name("x"))).unwrap().1;
        let part = StateDir::claim(&here, &name("x")).unwrap();
        let whole = StateDir::claim_whole(&here, &name("x")).unwrap();
        [&part, &whole].iter().for_each(|claim| claim.dir.write(&sample()).unwrap());
        part.dir.write_keepers(&["192.0.2.1:7000".into()]).unwrap();
        assert_eq!(found(), whole.dir, "its keeper lives");
        let (dir_of_part, dir_of_whole) = (part.dir.clone(), whole.dir.clone());
        // What another test starts just then has a copy of the lock for a moment.
        let released = |dir: &StateDir| assert!(dir.wait_released(60_000));
        drop(whole);
        released(&dir_of_whole);
        assert_eq!(found(), part.dir);
        part.dir.write_keepers(&[]).unwrap();
        assert_eq!(found(), dir_of_whole, "no other keeper is known");
        part.dir.write_keepers(&["192.0.2.1:7000".into()]).unwrap();
        drop(part);
        released(&dir_of_part);
        assert_eq!(found(), dir_of_whole, "nothing lives here");
    }

    #[test]
    fn a_job_means_its_own_formation_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut here = environment(Some(dir.path()));
        let begin = |here: &Environment, wanted: &str| {
            let claim = StateDir::claim(here, &name(wanted)).unwrap();
            claim.dir.write(&FormationState { name: name(wanted), ..sample() }).unwrap();
            claim.dir
        };
        let [default, job, mine] = ["default", "job-7", "mine"].map(|name| begin(&here, name));
        let found = |here: &Environment| StateDir::find(here, None).map(|(_, dir)| dir);
        let whole = |here: &Environment| StateDir::find_whole(here, None).map(|(_, dir)| dir);
        assert_eq!((found(&here).unwrap(), whole(&here).unwrap()), (default.clone(), default.clone()));
        here.batch.job = Some("7".into());
        assert_eq!((found(&here).unwrap(), whole(&here).unwrap()), (job.clone(), job));
        here.batch.job = Some("8".into());
        let error = found(&here).unwrap_err().to_string();
        assert!(
            error.contains("formation job-8 is not running; running are: default, job-7, mine"),
            "{error}"
        );
        assert_eq!(whole(&here).unwrap_err().kind(), Kind::NotRunning);
        here.around.name = Some(name("mine"));
        assert_eq!((found(&here).unwrap(), whole(&here).unwrap()), (mine.clone(), mine.clone()));
        // Whoever names another one in the variable means that.
        here.around = EnclosingFormation { name: Some(name("default")), dir: Some(mine.path().into()) };
        assert_eq!(found(&here).unwrap(), default);
        let elsewhere = tempfile::tempdir().unwrap();
        here.runtime_dir = Some(elsewhere.path().into());
        here.around.name = Some(name("mine"));
        assert_eq!(found(&here).unwrap(), mine, "by its directory");
        here.around = EnclosingFormation { name: Some(name("gone")), dir: Some("/nonexistent".into()) };
        begin(&here, "default");
        let error = found(&here).unwrap_err();
        assert_eq!((error.kind(), whole(&here).unwrap_err().kind()), (Kind::NotRunning, Kind::NotRunning));
        assert!(error.to_string().contains("formation gone is not running"), "{error}");
        assert!(error.to_string().contains("BIVOUAC_NAME names it"), "{error}");
        assert_eq!(StateDir::find(&here, Some(&name("default"))).unwrap().0.as_str(), "default");
    }
}
