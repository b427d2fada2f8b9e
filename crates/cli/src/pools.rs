//! Work pools: where the database is, who asks, and how formations attach pools.

use std::ffi::OsStr;
use std::fmt::{Display, Formatter};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use bivouac_launch::{Environment, FormationName, ProcessId, StateDir, recoverable};
use bivouac_pool::{
    Access, AttachRequest, AttachingFormation, Attachment, Caller, ChangeOrigin, PoolError, Pools,
};
use bivouac_types::PartitionSettings;

use crate::environment;
use crate::failure::Failure;
use crate::options::{AttachArgs, DatabaseArgs};
use crate::partitioning::Plan;

impl From<PoolError> for Failure {
    fn from(error: PoolError) -> Failure {
        let code = if matches!(error, PoolError::Url { .. }) { 2 } else { 1 };
        Failure::new(code, error)
    }
}

/// The user's own database, in bivouac's directory of the user's state.
const OWN_FILE: &str = "pools.sqlite";

/// Returns the time, in seconds since 1970.
pub fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Returns the user that asks.
pub fn who(here: &Environment) -> Result<Caller, Failure> {
    let mut gids = vec![rustix::process::getegid().as_raw()];
    let others = rustix::process::getgroups().map_err(std::io::Error::from)?;
    gids.extend(others.iter().map(|gid| gid.as_raw()));
    Ok(Caller { uid: here.uid, gids })
}

/// Opens the database that is meant, having forgotten what was attached by formations of this user here that are no
/// more.
pub fn open(here: &Environment, args: &DatabaseArgs) -> Result<Pools, Failure> {
    if let Some(url) = &args.db {
        return Ok(Pools::within(url, &environment::of_servers(here.batch.home.as_deref()))?);
    }
    let no_home = "neither XDG_STATE_HOME nor HOME is set; name a database: --db sqlite://FILE";
    let home = here.state_home.as_ref().ok_or_else(|| Failure::new(1, no_home))?;
    let dir = home.join("bivouac");
    let failed = |e| Failure::new(1, format_args!("{}: {e}; name a database: --db", dir.display()));
    std::fs::create_dir_all(&dir).map_err(failed)?;
    Ok(Pools::open(&dir.join(OWN_FILE))?)
}

/// Returns whether there may be a database: the user's own is made by the first command that needs it.
pub fn is_there(here: &Environment, args: &DatabaseArgs) -> bool {
    let own = here.state_home.as_ref().map(|home| home.join("bivouac").join(OWN_FILE));
    args.db.is_some() || own.is_some_and(|file| file.exists())
}

/// Forgets what formations of this user here have attached that are no more. A formation counts as long as anything of
/// it is known here, also of a killed one, and one that is being formed as long as its process lives.
pub fn forget_gone(here: &Environment, pools: &mut Pools) -> Result<(), Failure> {
    let known = pools.attachments_on(&here.host, here.uid)?;
    if known.is_empty() {
        return Ok(());
    }
    let base = here.existing_base();
    let is_seen = |one: &Attachment| {
        let of_it = Path::new(OsStr::from_bytes(&one.base));
        if one.view.is_empty() {
            base.as_deref() == Some(of_it)
        } else {
            HostView::from(of_it).sees(&one.view)
        }
    };
    let others: Vec<Attachment> = known.into_iter().filter(|one| ProcessId::of(one.pid).is_none()).collect();
    let names = names(here);
    let is_gone = |one: &&Attachment| is_seen(one) && !names.contains(&one.formation);
    let gone: Vec<i64> = others.iter().filter(is_gone).map(|one| one.id).collect();
    let who = who(here)?;
    Ok(pools.detach(&ChangeOrigin { who: &who, now_s: now_s(), request: None }, &gone)?)
}

/// Returns the formations of which anything is known here.
fn names(here: &Environment) -> Vec<String> {
    let parts = StateDir::list(here).into_iter().chain(StateDir::wholes(here)).map(|(name, _)| name);
    let all = parts.chain(recoverable(here).into_iter().map(|found| found.name));
    all.map(|name| name.as_str().to_owned()).collect()
}

/// Returns whether a formation that has a pool is known here.
pub fn is_known(here: &Environment, one: &Attachment) -> bool {
    one.host == here.host && names(here).contains(&one.formation)
}

/// A process's view of its host: boot id, process namespace, and the directory that a path leads to. A private `/tmp`,
/// as from batch systems, differs from job to job.
#[derive(Debug, PartialEq, Eq)]
struct HostView {
    boot: String,
    processes: u64,
    parent: (u64, u64),
}

impl HostView {
    /// Returns the view of the place of the directory that formations are in, which goes with the last of them.
    fn from(base: &Path) -> HostView {
        let of = |path: &Path| std::fs::metadata(path).map_or((0, 0), |found| (found.dev(), found.ino()));
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        HostView {
            boot: boot.trim().to_owned(),
            processes: of(Path::new("/proc/self/ns/pid")).1,
            parent: base.parent().map_or((0, 0), of),
        }
    }

    /// Returns whether what can be found from here is all there is of a formation with that view. None outlives its
    /// host; what can be recovered is found also after that.
    fn sees(&self, noted: &str) -> bool {
        self.parent != (0, 0) && noted == self.to_string()
            || noted.split_once(' ').is_some_and(|(boot, _)| !self.boot.is_empty() && boot != self.boot)
    }
}

impl Display for HostView {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}:{}", self.boot, self.processes, self.parent.0, self.parent.1)
    }
}

/// Notes that a formation attaches pools; answers the partitions that they are, with what a formation file says of
/// them.
pub fn attach(
    here: &Environment,
    name: &FormationName,
    args: &AttachArgs,
    said: &[Plan],
) -> Result<Vec<Plan>, Failure> {
    if args.pools.is_empty() {
        return Ok(Vec::new());
    }
    let mut pools = open(here, &args.database)?;
    forget_gone(here, &mut pools)?;
    let who = who(here)?;
    let change = ChangeOrigin { who: &who, now_s: now_s(), request: None };
    // Each of them once before any is noted: one that cannot be attached leaves no notes of the others.
    for one in &args.pools {
        let pool = pools.find(&who, &one.pool)?;
        pool.must_be_on_site()?;
        plan(one, &pool.source, said)?;
    }
    let base = here.base()?;
    let view = HostView::from(&base).to_string();
    let by = AttachingFormation {
        formation: name.as_str(),
        host: &here.host,
        base: base.as_os_str().as_bytes(),
        view: &view,
        pid: std::process::id(),
    };
    let attached = pools.attach(&change, &by, &args.pools)?;
    args.pools.iter().zip(&attached).map(|(one, pool)| plan(one, &pool.source, said)).collect()
}

fn plan(wanted: &AttachRequest, source: &[u8], said: &[Plan]) -> Result<Plan, Failure> {
    let failed = |cause: &dyn std::fmt::Display| {
        Failure::new(1, format_args!("pool {}: cannot be attached: {cause}", wanted.pool))
    };
    let text = std::str::from_utf8(source)
        .map_err(|_| failed(&"its path is not UTF-8; make a link to it and a pool of that"))?;
    let is_there = text.contains("://") || is_dir(Path::new(OsStr::from_bytes(source)));
    if !is_there {
        return Err(failed(&format_args!(
            "{text} is no directory any more; put it back, or release the pool"
        )));
    }
    let path = wanted.path.clone().into_bytes();
    let mut plan = match said.iter().find(|plan| plan.path == path) {
        Some(said) => said.clone(),
        None => {
            let settings = PartitionSettings::default();
            Plan { path, nodes: None, sizing: None, sharing: None, settings, says_stripe: false }
        }
    };
    if let Some(other) = plan.settings.source.as_ref().filter(|other| other.as_str() != text) {
        let at = &wanted.path;
        return Err(failed(&format_args!(
            "the formation file has {other} at {at}; leave that source out, or attach it elsewhere: {}@PATH",
            wanted.pool
        )));
    }
    if plan.sharing.is_some() {
        let at = &wanted.path;
        return Err(failed(&format_args!(
            "the formation file has several partitions at {at}; leave sharing out"
        )));
    }
    plan.settings.assign("source", text).map_err(|error| failed(&error))?;
    if wanted.access == Access::Ro {
        plan.settings.assign("write", "never").map_err(|error| failed(&error))?;
    }
    Ok(plan)
}

fn is_dir(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_of_another_boot_sees_that_nothing_is_left() {
        let here = HostView { boot: "b1".into(), processes: 1, parent: (2, 3) };
        for (noted, sees) in [
            ("b1 1 2:3", true),
            ("b0 1 2:3", true),
            ("b0 7 7:7", true),
            ("b1 7 2:3", false),
            ("b1 1 2:4", false),
            ("b1 1 4:3", false),
            ("", false),
        ] {
            assert_eq!(here.sees(noted), sees, "{noted}");
        }
        let nowhere = HostView { parent: (0, 0), ..here };
        assert!(!nowhere.sees("b1 1 0:0"));
    }
}
