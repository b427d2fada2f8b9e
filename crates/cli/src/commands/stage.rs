//! `bivouac stage`: copies into a formation and out of it that survive whatever happens to them.

use std::io::IsTerminal;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use bivouac_launch::{CAUGHT, Environment, FormationName, FormationState, LaunchError, Signals, StateDir};
use bivouac_monitor::job_json;
use bivouac_stage::jobs::{ChangeFilter, Direction, JobSpec, JobState, JobStatus, Jobs, LockedJob};
use bivouac_stage::{PathFilter, Totals, Transfer, escape, refuse_url};
use bivouac_types::units::{format_count, format_duration, format_size};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::options::{
    NameArgs, StageAction, StageArgs, StageCopyArgs, StageHowArgs, StageOutArgs, StageResumeArgs,
    StageStatusArgs, TalkArgs,
};
use crate::progress::print_line;
use crate::slots::{BegunSlot, awaited};
use crate::staging::{CopySettings, UsableMounts, enter_mounts, mounts_of, save_incoming, way_on, work};
use crate::table::layout;
use crate::unflushed::has_sources;
use crate::unsaved::drained;

/// Copies in or out, or looks after jobs that do.
pub fn run(here: &Environment, args: &StageArgs) -> Result<ExitCode, Failure> {
    match &args.action {
        StageAction::In(args) => {
            let outside =
                |_: &Jobs| all_but_last(&args.paths).iter().chain(&args.how.manifest).cloned().collect();
            StageSession::open(here, &args.which, outside)?.copy_in(here, args)
        }
        StageAction::Out(args) => {
            let promised =
                |jobs: &Jobs| jobs.promises().unwrap_or_default().into_iter().map(|promise| promise.dst);
            let outside = |jobs: &Jobs| match args.paths.last() {
                Some(dst) => std::iter::once(dst).chain(&args.how.manifest).cloned().collect(),
                None => promised(jobs).chain(args.how.manifest.clone()).collect(),
            };
            StageSession::open(here, &args.which, outside)?.copy_out(here, args)
        }
        StageAction::Status(args) => status(here, args),
        StageAction::Resume(args) => {
            let outside = |jobs: &Jobs| outside_of(jobs, args.job.id);
            StageSession::open(here, &args.job.which, outside)?.resume(here, args)
        }
        StageAction::Cancel(args) => cancel(here, &args.which, args.id),
    }
}

fn all_but_last(paths: &[PathBuf]) -> &[PathBuf] {
    paths.split_last().map_or(&[], |(_, all)| all)
}

/// Returns the paths of a job that are not in the formation.
fn outside_of(jobs: &Jobs, id: u64) -> Vec<PathBuf> {
    let Some(job) = jobs.list().into_iter().find(|job| job.number == id) else { return Vec::new() };
    let JobSpec { way, transfers, manifest, .. } = job.order;
    let outside =
        transfers.into_iter().map(|transfer| if way == Direction::In { transfer.src } else { transfer.dst });
    outside.chain(manifest).collect()
}

/// A formation that can be copied to and from.
struct StageSession {
    formation: FormationName,
    dir: StateDir,
    jobs: Jobs,
    mounts: Vec<PathBuf>,
    signals: Signals,
    /// True if it makes room by itself while files come in.
    has_sources: bool,
}

impl StageSession {
    /// Opens the jobs of a formation; `outside` names what is to be read or written outside the formation.
    fn open(
        here: &Environment,
        which: &NameArgs,
        outside: impl FnOnce(&Jobs) -> Vec<PathBuf>,
    ) -> Result<StageSession, Failure> {
        let (formation, dir) = StateDir::find(here, which.name.as_ref())?;
        let state = dir.read_living()?;
        let jobs = Jobs::at(dir.stage_path());
        // Before the first thread: a namespace is entered by a process with one alone.
        enter_mounts(&dir, &state, outside(&jobs))?;
        let signals = Signals::catch(&CAUGHT).map_err(|e| LaunchError::system("signals", e))?;
        let usable = UsableMounts::find(&state);
        let (mounts, has_sources) = (usable.places(&state)?, has_sources(&dir, &state));
        assert!(!mounts.is_empty(), "formation {formation} is copied to or from without a mount");
        for (mount, why) in &usable.left_out {
            errln!("bivouac: mount {} is not used: {why}", mount.dir.display());
        }
        Ok(StageSession { has_sources, formation, jobs, dir, mounts, signals })
    }

    fn copy_in(&self, here: &Environment, args: &StageCopyArgs) -> Result<ExitCode, Failure> {
        let (sources, dst) = split(&args.paths)?;
        let place = |src: &Path| self.inside(&target(src, &dst, sources.len())?);
        let transfers = sources.iter().map(|src| Ok(Transfer { src: outside(src)?, dst: place(src)? }));
        let order = JobSpec::new(Direction::In, transfers.collect::<Result<_, Failure>>()?);
        sources.iter().try_for_each(|src| is_there(src, src))?;
        self.start(here, order, &args.how)
    }

    fn copy_out(&self, here: &Environment, args: &StageOutArgs) -> Result<ExitCode, Failure> {
        let mut order = if args.paths.is_empty() {
            let promises = self.jobs.promises().map_err(|failure| Failure::new(1, failure))?;
            if promises.is_empty() {
                return Err(usage(
                    "SRC and DST are missing: nothing was named with up --out; write SRC... DST",
                ));
            }
            let there = self.that_exist(promises);
            if there.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            let mut order = JobSpec::new(Direction::Out, there);
            order.changed = ChangeFilter::SinceStaged;
            order
        } else {
            let (sources, dst) = split(&args.paths)?;
            let place = |src: &Path| outside(&target(src, &dst, sources.len())?);
            let transfers =
                sources.iter().map(|src| Ok(Transfer { src: self.inside(src)?, dst: place(src)? }));
            let order = JobSpec::new(Direction::Out, transfers.collect::<Result<_, Failure>>()?);
            let seen = |src: &PathBuf| is_there(src, &self.mounted().join(self.inside(src)?));
            sources.iter().try_for_each(seen)?;
            order
        };
        order.changed = args.changed_since.unwrap_or(order.changed);
        self.start(here, order, &args.how)
    }

    /// Promises of what was never made are kept: `down` does not wait for it either. The others are named.
    fn that_exist(&self, promises: Vec<Transfer>) -> Vec<Transfer> {
        let is_missing = |promise: &Transfer| {
            let seen = std::fs::symlink_metadata(self.mounted().join(&promise.src));
            seen.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        let (missing, there): (Vec<_>, Vec<_>) = promises.into_iter().partition(is_missing);
        for promise in missing {
            errln!(" out {}: is not there, so there is nothing to copy", Direction::Out.describe(&promise));
        }
        there
    }

    fn start(&self, here: &Environment, mut order: JobSpec, how: &StageHowArgs) -> Result<ExitCode, Failure> {
        // What is wrong with the filter is said before a job is written down for it.
        PathFilter::new(&how.include, &how.exclude).map_err(|text| usage(&text))?;
        order.way.check_targets(&order.transfers).map_err(|text| usage(&text))?;
        order.include.clone_from(&how.include);
        order.exclude.clone_from(&how.exclude);
        (order.verify, order.jobs, order.limit) = (!how.no_verify, how.jobs, how.limit.unwrap_or(0));
        order.manifest = how.manifest.as_deref().map(outside).transpose()?;
        if how.dry_run {
            return self.preview(&order, how);
        }
        // Before the job is written down: one that waits for its slot has left nothing unfinished.
        let kept = awaited(here, &how.slot, way_of(&order), how.talk.quiet)?;
        let mut held = self.jobs.create(order).map_err(|failure| Failure::new(1, failure))?;
        self.work_in(&mut held, kept, how.json, how.talk)
    }

    fn resume(&self, here: &Environment, args: &StageResumeArgs) -> Result<ExitCode, Failure> {
        let mut held = take(&self.jobs, &self.formation, args.job.id)?;
        let kept = awaited(here, &args.slot, way_of(&held.order), args.talk.quiet)?;
        self.work_in(&mut held, kept, args.json, args.talk)
    }

    /// Works in a slot, if there is one: it is over when all is copied, so that what was interrupted can go on in it.
    fn work_in(
        &self,
        held: &mut LockedJob,
        kept: Option<BegunSlot>,
        json: bool,
        talk: TalkArgs,
    ) -> Result<ExitCode, Failure> {
        let Some(mut kept) = kept else { return self.work(held, json, talk) };
        let code = kept.paced(held.order.limit, |limiter| {
            held.pace = Some(limiter);
            self.work(held, json, talk)
        })?;
        kept.done()?;
        Ok(code)
    }

    /// Says what an order would copy.
    fn preview(&self, order: &JobSpec, how: &StageHowArgs) -> Result<ExitCode, Failure> {
        let previews =
            self.jobs.preview(order, self.mounted()).map_err(|failure| Failure::new(1, failure))?;
        for preview in &previews {
            let what = order.way.describe(&preview.transfer);
            if how.json {
                let paths: Vec<_> = preview.paths.iter().map(|path| path.to_string_lossy()).collect();
                let Totals { files, bytes } = preview.totals;
                let (src, dst) = order.way.absolute(&preview.transfer);
                print_line(&json!({
                    "event": "would-copy", "src": src, "dst": dst, "files": files, "bytes": bytes, "paths": paths,
                }));
                continue;
            }
            if !how.talk.quiet {
                preview
                    .paths
                    .iter()
                    .for_each(|path| outln!("{}", escape(&joined(&preview.transfer.src, path))));
            }
            let (files, bytes) =
                (format_count(preview.totals.files, "file"), format_size(preview.totals.bytes));
            outln!("{what}: would copy {files}, {bytes}");
            for skipped in &preview.skipped {
                errln!(
                    "{:>4} would not be copied: {} ({})",
                    order.way.word(),
                    escape(&skipped.path),
                    skipped.what
                );
            }
        }
        let failures: Vec<String> =
            previews.iter().flat_map(|preview| &preview.failures).map(ToString::to_string).collect();
        if failures.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(Failure::new(1, failures.join("\n"))) }
    }

    fn work(&self, held: &LockedJob, json: bool, talk: TalkArgs) -> Result<ExitCode, Failure> {
        if json {
            print_line(&json!({"event": "job", "job": held.number}));
        } else if !talk.quiet {
            errln!("{:>4} job {}", held.order.way.word(), held.number);
        }
        // Where there are sources, room is made while it is copied in: clean content is evicted.
        let manner =
            CopySettings { json, talk, checks_room: held.order.way == Direction::Out || !self.has_sources };
        let worked = work(held, &self.mounts, manner, &self.signals);
        if json {
            let known = self.jobs.list().into_iter().find(|job| job.number == held.number);
            let state = match &worked {
                Ok(_) => JobState::Done,
                Err(failed) if failed.is_stopped => JobState::Interrupted,
                Err(_) => JobState::Incomplete,
            };
            let manifest = known.and_then(|job| job.manifest).map(|path| path.to_string_lossy().into_owned());
            print_line(
                &json!({"event": "end", "job": held.number, "state": state.word(), "manifest": manifest}),
            );
        }
        match worked {
            Ok(ended) => {
                save_incoming(&self.dir, &held.order)?;
                drained(&self.dir, held.number)?;
                if !json && !talk.quiet && std::io::stderr().is_terminal() {
                    errln!("{:>4} manifest {}", held.order.way.word(), ended.manifest.display());
                }
                Ok(ExitCode::SUCCESS)
            }
            Err(failed) => {
                let code = failed.signal.map_or(1, bivouac_types::code_of_signal);
                Err(Failure::new(
                    code,
                    format_args!("{}\n{}", failed.text, way_on(&self.formation, held.number)),
                ))
            }
        }
    }

    /// Returns a place where the formation is mounted.
    fn mounted(&self) -> &Path {
        self.mounts.first().map(PathBuf::as_path).unwrap_or(Path::new("/"))
    }

    /// Returns a path in the formation, relative to its root: one below a mount point is meant to be there.
    fn inside(&self, path: &Path) -> Result<PathBuf, Failure> {
        let absolute = std::path::absolute(path)?;
        let below = self.mounts.iter().find_map(|mount| absolute.strip_prefix(mount).ok());
        let mut relative = PathBuf::new();
        for component in below.unwrap_or(path).components() {
            match component {
                Component::Normal(name) => relative.push(name),
                Component::ParentDir => {
                    let text = format!(
                        "'{}' has .. in its path in the formation; write that path without it",
                        path.display()
                    );
                    return Err(usage(&text));
                }
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Ok(relative)
    }
}

fn way_of(order: &JobSpec) -> bivouac_pool::Direction {
    match order.way {
        Direction::In => bivouac_pool::Direction::In,
        Direction::Out => bivouac_pool::Direction::Out,
    }
}

/// Splits the operands, of which the last is the target.
fn split(paths: &[PathBuf]) -> Result<(&[PathBuf], PathBuf), Failure> {
    paths.iter().try_for_each(|path| refuse_url(path.as_os_str())).map_err(|text| usage(&text))?;
    match paths.split_last() {
        Some((dst, sources)) if !sources.is_empty() => Ok((sources, dst.clone())),
        _ => Err(usage("SRC or DST is missing; write SRC... DST")),
    }
}

/// Checks that a source exists, before a job is recorded for it.
fn is_there(named: &Path, at: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::new(1, format_args!("{}: {error}; check its path", named.display()));
    std::fs::symlink_metadata(at).map(|_| ()).map_err(failed)
}

/// Returns a path below a source; the source itself, of a file that is copied alone.
fn joined(src: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { src.to_owned() } else { src.join(below) }
}

/// Returns the path that the copy of a source gets.
fn target(src: &Path, dst: &Path, sources: usize) -> Result<PathBuf, Failure> {
    use std::os::unix::ffi::OsStrExt;
    if sources == 1 && !dst.as_os_str().as_bytes().ends_with(b"/") {
        return Ok(dst.to_owned());
    }
    let nameless =
        || usage(&format!("'{}' does not end in a name; write one SRC and its DST", src.display()));
    src.file_name().map(|name| dst.join(name)).ok_or_else(nameless)
}

/// Returns a path of this machine, for whoever resumes from elsewhere.
fn outside(path: &Path) -> Result<PathBuf, Failure> {
    Ok(std::path::absolute(path)?)
}

fn usage(text: &str) -> Failure {
    Failure::new(2, text)
}

fn not_known(formation: &FormationName, id: u64) -> Failure {
    Failure::new(1, format_args!("job {id} is not known; see: bivouac stage status --name {formation}"))
}

fn take(jobs: &Jobs, formation: &FormationName, id: u64) -> Result<LockedJob, Failure> {
    let Some(known) = jobs.list().into_iter().find(|job| job.number == id) else {
        return Err(not_known(formation, id));
    };
    if known.stage == JobState::Done {
        return Err(Failure::new(1, format_args!("job {id} is done; nothing is left to do")));
    }
    let held = jobs.take(id).map_err(|failure| Failure::new(1, failure))?;
    held.ok_or_else(|| {
        Failure::new(1, format_args!("job {id} is running; interrupt the command that works on it first"))
    })
}

fn cancel(here: &Environment, which: &NameArgs, id: u64) -> Result<ExitCode, Failure> {
    let (formation, dir) = StateDir::find(here, which.name.as_ref())?;
    let jobs = Jobs::at(dir.stage_path());
    // Also of one that is dead: what was copied out of it is removed without a mount.
    let state: Option<FormationState> = dir.read_living().ok();
    if let Some(state) = &state {
        enter_mounts(&dir, state, outside_of(&jobs, id))?;
    }
    let held = take(&jobs, &formation, id)?;
    let mount = state.and_then(|state| mounts_of(&state).ok()).and_then(|mounts| mounts.into_iter().next());
    if held.order.way == Direction::In && mount.is_none() {
        let text = "the formation is not mounted, so what the job left in it cannot be removed; mount it: bivouac mount";
        return Err(Failure::new(1, text));
    }
    let removed = held.cancel(mount.as_deref()).map_err(|failure| Failure::new(1, failure))?;
    let removed = format_count(removed, "unfinished object");
    outln!("job {id} is cancelled; {removed} removed, what was complete stays");
    Ok(ExitCode::SUCCESS)
}

fn status(here: &Environment, args: &StageStatusArgs) -> Result<ExitCode, Failure> {
    let (formation, dir) = StateDir::find(here, args.which.name.as_ref())?;
    let mut known = Jobs::at(dir.stage_path()).list();
    if let Some(id) = args.id {
        known.retain(|job| job.number == id);
        if known.is_empty() {
            return Err(not_known(&formation, id));
        }
    }
    if args.json {
        outln!(
            "{}",
            serde_json::to_string_pretty(&known.iter().map(job_json).collect::<Value>())
                .map_err(std::io::Error::from)?
        );
    } else {
        out!("{}", status_text(&known));
    }
    Ok(ExitCode::SUCCESS)
}

fn status_text(known: &[JobStatus]) -> String {
    if known.is_empty() {
        return "no jobs\n".to_owned();
    }
    let rows: Vec<Vec<String>> = known.iter().flat_map(rows).collect();
    let mut text = layout(&["JOB", "WAY", "STATE", "FILES", "BYTES", "SINCE", "WHAT"], &[0], &rows);
    for job in known {
        if let Some(manifest) = &job.manifest {
            text.push_str(&format!("job {}: manifest {}\n", job.number, manifest.display()));
        }
    }
    text
}

fn rows(job: &JobStatus) -> Vec<Vec<String>> {
    let (done, found) = (job.done, job.found);
    let since = LockedJob::now_secs().saturating_sub(job.begun_secs).saturating_mul(1000);
    let first = vec![
        job.number.to_string(),
        job.order.way.word().to_owned(),
        job.stage.word().to_owned(),
        format!("{}/{}", done.files, found.files),
        format!("{}/{}", format_size(done.bytes), format_size(found.bytes)),
        format_duration(since),
    ];
    let whats = job.order.transfers.iter().map(|transfer| job.order.way.describe(transfer));
    let row = |(number, what): (usize, String)| {
        let mut row = if number == 0 { first.clone() } else { vec![String::new(); first.len()] };
        row.push(what);
        row
    };
    whats.enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_source_gets_the_target_and_several_go_into_it() {
        let to = |src: &str, dst: &str, sources| target(Path::new(src), Path::new(dst), sources).unwrap();
        assert_eq!(to("/a/b", "c", 1), Path::new("c"));
        assert_eq!(to("/a/b", "c/", 1), Path::new("c/b"));
        assert_eq!(to("/a/b", "c", 2), Path::new("c/b"));
        assert!(target(Path::new("/"), Path::new("c"), 2).unwrap_err().to_string().contains("end in a name"));
        assert_eq!(split(&["x".into()]).unwrap_err().exit_code(), 2);
        let url = split(&["x".into(), "s3://bucket/x".into()]).unwrap_err();
        assert!(url.exit_code() == 2 && url.to_string().contains("is a URL"), "{url}");
    }

    #[test]
    fn people_see_jobs_and_what_they_do() {
        let order = JobSpec::new(Direction::In, vec![Transfer { src: "/a".into(), dst: "b".into() }; 2]);
        let found = bivouac_stage::Totals { files: 4, bytes: 2048 };
        let done = bivouac_stage::Totals { files: 1, bytes: 1024 };
        let known = JobStatus {
            number: 3,
            order,
            stage: JobState::Interrupted,
            found,
            done,
            begun_secs: LockedJob::now_secs(),
            manifest: Some("/m".into()),
        };
        let text = status_text(std::slice::from_ref(&known));
        assert!(text.contains("3  in   interrupted  1/4    1 KiB/2 KiB"), "{text}");
        assert_eq!((text.matches("/a to /b").count(), text.lines().count()), (2, 4), "{text}");
        assert_eq!(job_json(&known)["transfers"][1]["dst"], "/b");
        assert_eq!(status_text(&[]), "no jobs\n");
    }
}
