//! Sets: entries of an output directory that are copied while applications run. Each replaces its target as a whole.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::args::Transfer;
use crate::baseline::Baseline;
use crate::error::Failure;
use crate::meta::{MetadataStamp, UnixTime};
use crate::nofollow;
use crate::options::CopyOptions;
use crate::resolve::{ResolvedPath, follow};
use crate::scan::{ObjectKind, scan};
use crate::summary::Totals;
use crate::temporary_tag::is_temporary;

use super::run::resolve_mount;
use super::{Jobs, write_whole};

/// Maximum size of a journal without lines of files, in bytes.
const CONDENSED_MAX: u64 = 256;

/// An entry of a directory with everything below it, or a file that is an output itself.
#[derive(Clone, Debug)]
pub(crate) struct FoundSet {
    /// Its path in the formation and at the target.
    pub transfer: Transfer,
    /// Latest ctime of its objects, by the clocks of the formation's nodes.
    pub newest: UnixTime,
    /// Inode numbers of its files.
    pub inodes: Vec<u64>,
    /// Name of the sibling that it leads to, if it is a symbolic link.
    pub leads_to: Option<OsString>,
    /// True if the target has its present state. A set that has only lost files counts as such.
    pub is_out: bool,
    /// True if the target has any state of it.
    pub was_out: bool,
    pub(super) objects: Vec<(PathBuf, MetadataStamp)>,
}

impl FoundSet {
    /// Returns whether it is unchanged since `before`.
    #[must_use]
    pub(crate) fn is_as(&self, before: &FoundSet) -> bool {
        (&self.transfer, &self.objects) == (&before.transfer, &before.objects)
    }

    /// Returns whether it is a symbolic link.
    #[must_use]
    pub(crate) fn is_link(&self) -> bool {
        self.leads_to.is_some()
    }
}

impl Jobs {
    /// Returns the sets of an output in the formation at `mount`. Names with a leading dot, `.tmp` or `~` at the end,
    /// sockets, devices, pipes, and what cannot be examined are not sets.
    ///
    /// # Errors
    /// The source cannot be listed. A source that does not exist has no sets.
    pub(crate) fn find_sets(
        &self,
        transfer: &Transfer,
        mount: &Path,
        cancel: &Arc<AtomicBool>,
    ) -> Result<Vec<FoundSet>, Failure> {
        let ResolvedPath { path, is_link_out } = follow(mount, &transfer.src)?;
        let root = resolve_mount(mount, &path);
        let seen = match nofollow::lstat(&root) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            seen => seen.map_err(|error| Failure::io("look at it", &root, error))?,
        };
        // A link out of the formation is copied as a link by the final copy.
        if is_link_out {
            return Ok(Vec::new());
        }
        let known = self.baseline(Some(transfer));
        let opts = CopyOptions { cancel: Arc::clone(cancel), ..CopyOptions::default() };
        if !seen.is_dir() {
            return Ok(found(transfer.clone(), root, &opts, &known).into_iter().collect());
        }
        let names = nofollow::read_dir(&root).map_err(|error| Failure::io("look at it", &root, error))?;
        let of = |name: &OsString| {
            let transfer = Transfer { src: transfer.src.join(name), dst: transfer.dst.join(name) };
            found(transfer, root.join(name), &opts, &known)
        };
        Ok(names.iter().filter(|name| is_set_name(name)).filter_map(of).collect())
    }

    /// Returns what earlier jobs copied to the target of an output, by paths below its source.
    pub(super) fn known_at_target(&self, transfer: &Transfer) -> Baseline {
        self.baseline(Some(transfer)).below(&transfer.src)
    }

    /// Reduces journals of set jobs to their totals, where a later job copied the same set, or the set is gone: `there`
    /// has the paths of existing sets. The latest `gone_max` journals of gone sets are kept, so that a new set of the
    /// same name may replace the copy at the target.
    ///
    /// # Errors
    /// A journal cannot be read or written.
    pub(crate) fn condense_sets(&self, there: &HashSet<PathBuf>, gone_max: usize) -> Result<(), Failure> {
        let (mut later, mut gone) = (HashSet::new(), 0);
        // From the newest on: a set that was met before has a later copy.
        for number in self.numbers().into_iter().rev() {
            let Ok(order) = self.order(number) else { continue };
            // A set has one transfer; jobs of other kinds keep their journals, which users may still resume.
            let Some(transfer) = order.transfers.first().filter(|_| order.is_set) else { continue };
            // An unsuccessful job proves nothing about the content of the target.
            let history =
                self.history(number).map_err(|error| Failure::io("read", &self.path(number), error))?;
            if !history.is_done() {
                continue;
            }
            let is_superseded = !later.insert(transfer.clone());
            gone += usize::from(!is_superseded && !there.contains(&transfer.src));
            if is_superseded || (gone > gone_max && !there.contains(&transfer.src)) {
                self.condense(number).map_err(|error| Failure::io("shorten", &self.path(number), error))?;
            }
        }
        Ok(())
    }

    fn condense(&self, number: u64) -> std::io::Result<()> {
        let log = self.path(number).join("log");
        if fs::metadata(&log)?.len() <= CONDENSED_MAX {
            return Ok(());
        }
        // A running job appends to its journal: condensing it now would lose those lines.
        let Some(_lock) = self.lock(number)? else { return Ok(()) };
        let history = self.history(number)?;
        if !history.is_done() {
            return Ok(());
        }
        let done = history.transfers.iter().map(crate::journal::TransferHistory::done);
        let Totals { files, bytes } = done.fold(Totals::default(), Totals::plus);
        let sums = format!("{files}\t{bytes}\n");
        // The journal goes first: without its lines the manifest is still a record of the job, and a crash in between
        // leaves only a redundant file.
        write_whole(&log, &format!("#transfer\t0\n#scan\t{sums}#copied\t{sums}#end\tdone\n"))?;
        match fs::remove_file(self.path(number).join("manifest")) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

/// Returns the path of a set: links on the way are resolved within the formation, a set that is a link itself is not.
pub(super) fn place(mount: &Path, src: &Path) -> Result<PathBuf, Failure> {
    let (Some(above), Some(name)) = (src.parent(), src.file_name()) else {
        return Ok(follow(mount, src)?.path);
    };
    Ok(follow(mount, above)?.path.join(name))
}

fn is_set_name(name: &OsString) -> bool {
    let bytes = name.as_bytes();
    !(bytes.starts_with(b".") || bytes.ends_with(b".tmp") || bytes.ends_with(b"~") || is_temporary(name))
}

fn found(transfer: Transfer, path: PathBuf, opts: &CopyOptions, known: &Baseline) -> Option<FoundSet> {
    let plan = scan(path.clone(), opts, None);
    // An object of it is being removed or cannot be copied, so the set is incomplete.
    if !plan.failures.is_empty() || opts.cancelled() {
        return None;
    }
    let kind = plan.entries.first().map(|entry| entry.kind)?;
    if kind == ObjectKind::Fifo {
        return None;
    }
    let leads_to = match kind {
        ObjectKind::Symlink => Some(first_name(&nofollow::read_link(&path).ok()?)),
        _ => None,
    };
    let known = known.below(&transfer.src);
    // Lost files do not count, because the target keeps files that were deleted in the formation.
    let is_out = plan
        .entries
        .iter()
        .all(|entry| known.is_unchanged(&entry.path, entry.stamp.version, entry.kind == ObjectKind::Dir));
    let newest = plan.entries.iter().map(|entry| entry.stamp.version.ctime).max().unwrap_or_default();
    let files =
        plan.entries.iter().filter(|entry| matches!(entry.kind, ObjectKind::File | ObjectKind::HardLink(_)));
    Some(FoundSet {
        newest,
        inodes: files.map(|entry| entry.stamp.version.ino).collect(),
        leads_to,
        is_out,
        was_out: known.contains(Path::new("")),
        objects: plan.entries.into_iter().map(|entry| (entry.path, entry.stamp)).collect(),
        transfer,
    })
}

/// Returns the sibling that a link's target begins with; empty if it leads elsewhere.
fn first_name(target: &Path) -> OsString {
    let first = target.components().find(|component| *component != Component::CurDir);
    match first {
        Some(Component::Normal(name)) => name.to_owned(),
        _ => OsString::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{Direction, JobSpec, RunOptions};
    use crate::progress::{NoProgress, Progress};
    use std::os::unix::fs::symlink;

    struct Site {
        _dir: tempfile::TempDir,
        mount: PathBuf,
        out: Transfer,
        jobs: Jobs,
    }

    fn site() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let root = nofollow::canonical(dir.path());
        let mount = root.join("mount");
        fs::create_dir_all(mount.join("ckpt")).unwrap();
        let out = Transfer { src: "ckpt".into(), dst: root.join("site/ckpt") };
        Site { mount, out, jobs: Jobs::at(root.join("jobs")), _dir: dir }
    }

    impl Site {
        fn write(&self, path: &str, text: &str) {
            let path = self.mount.join("ckpt").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn find(&self) -> Vec<FoundSet> {
            self.jobs.find_sets(&self.out, &self.mount, &Arc::default()).unwrap()
        }

        fn copy(&self, name: &str) -> Result<(), String> {
            self.copy_while(name, &NoProgress)
        }

        fn copy_while(&self, name: &str, progress: &dyn Progress) -> Result<(), String> {
            let set = self.find_one(name);
            self.copy_found(&set, &|| true, progress)
        }

        fn find_one(&self, name: &str) -> FoundSet {
            self.find().into_iter().find(|set| set.transfer.src.ends_with(name)).unwrap()
        }

        fn copy_found(
            &self,
            set: &FoundSet,
            is_at_rest: &dyn Fn() -> bool,
            progress: &dyn Progress,
        ) -> Result<(), String> {
            let held = self.held(set);
            let ended = held.run_set(set, is_at_rest, &self.conditions(), progress).unwrap();
            match ended.transfers.into_iter().next().unwrap().1 {
                Ok(_) => Ok(()),
                Err(error) => {
                    held.cancel(Some(&self.mount)).unwrap();
                    Err(error.to_string())
                }
            }
        }

        fn held(&self, set: &FoundSet) -> crate::jobs::LockedJob {
            let mut order = JobSpec::of_set(set.transfer.clone());
            order.verify = true;
            self.jobs.create(order).unwrap()
        }

        fn conditions(&self) -> RunOptions {
            RunOptions { mounts: vec![self.mount.clone()], checks_room: true, cancel: Arc::default() }
        }

        /// A job whose copy was complete, but not put in place.
        fn refused_in_the_end(&self, name: &str) -> crate::jobs::LockedJob {
            let set = self.find_one(name);
            let (held, asked) = (self.held(&set), std::cell::Cell::new(0));
            let is_at_rest = || asked.replace(asked.get() + 1) == 0;
            let ended = held.run_set(&set, &is_at_rest, &self.conditions(), &NoProgress).unwrap();
            assert!(!ended.is_complete() && asked.get() == 2);
            held
        }

        fn read(&self, path: &str) -> Option<String> {
            fs::read_to_string(self.out.dst.join(path)).ok()
        }

        fn names(&self) -> Vec<String> {
            let names = nofollow::read_dir(&self.out.dst).unwrap();
            names.iter().map(|name| name.to_string_lossy().into_owned()).collect()
        }
    }

    #[test]
    fn sets_are_entries_and_only_those_that_are_meant() {
        let site = site();
        for path in ["c1/a", "c1/sub/b", "single", ".hidden", "c2.tmp/a", "old~"] {
            site.write(path, path);
        }
        symlink("c1", site.mount.join("ckpt/latest")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            site.mount.join("ckpt/pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let sets = site.find();
        let names: Vec<_> = sets.iter().map(|set| set.transfer.src.display().to_string()).collect();
        assert_eq!(names, ["ckpt/c1", "ckpt/latest", "ckpt/single"]);
        assert_eq!(sets[0].inodes.len(), 2);
        assert_eq!(sets[1].leads_to.as_deref(), Some("c1".as_ref()));
        assert!(sets.iter().all(|set| !set.is_out && !set.was_out));
        let nothing = Transfer { src: "none/yet".into(), dst: "/x".into() };
        assert!(site.jobs.find_sets(&nothing, &site.mount, &Arc::default()).unwrap().is_empty());
        site.write("c1/sub/b", "changed");
        let again = site.find();
        assert!(!again[0].is_as(&sets[0]) && again[2].is_as(&sets[2]));
    }

    #[test]
    fn what_is_out_and_unchanged_is_known_also_by_the_copy_of_the_whole() {
        let site = site();
        site.write("c1/a", "one");
        site.write("c1/b", "two");
        site.write("c2", "three");
        symlink("c1", site.mount.join("ckpt/latest")).unwrap();
        for name in ["c1", "latest"] {
            site.copy(name).unwrap();
        }
        assert_eq!(fs::read_link(site.out.dst.join("latest")).unwrap(), Path::new("c1"));
        let out: Vec<bool> = site.find().iter().map(|set| set.is_out).collect();
        assert_eq!(out, [true, false, true]);
        let mut order = JobSpec::new(Direction::Out, vec![site.out.clone()]);
        order.changed = crate::jobs::ChangeFilter::SinceStaged;
        let preview = site.jobs.preview(&order, &site.mount).unwrap();
        assert_eq!(preview[0].paths, [PathBuf::from("c2")]);
        // What is taken away piece by piece is no new state of the set.
        fs::remove_file(site.mount.join("ckpt/c1/b")).unwrap();
        assert!(site.find()[0].is_out);
        site.write("c1/a", "ONE");
        let changed = &site.find()[0];
        assert!(!changed.is_out && changed.was_out);
    }

    #[test]
    fn a_set_is_replaced_as_a_whole_and_strangers_are_not_lost() {
        let site = site();
        site.write("c1/a", "one");
        site.write("c1/b", "two");
        site.copy("c1").unwrap();
        fs::remove_file(site.mount.join("ckpt/c1/b")).unwrap();
        site.write("c1/a", "ONE");
        fs::write(site.out.dst.join("c1/notes"), "mine").unwrap();
        let refusal = site.copy("c1").unwrap_err();
        assert!(refusal.contains("c1/notes") && refusal.contains("move it away"), "{refusal}");
        assert_eq!((site.read("c1/a"), site.read("c1/notes")), (Some("one".into()), Some("mine".into())));
        fs::remove_file(site.out.dst.join("c1/notes")).unwrap();
        site.copy("c1").unwrap();
        assert_eq!((site.read("c1/a"), site.read("c1/b")), (Some("ONE".into()), None));
        assert_eq!(site.names(), ["c1"]);
        // A link takes the place of a link, not of what that stands for.
        symlink("c1", site.mount.join("ckpt/latest")).unwrap();
        site.copy("latest").unwrap();
        site.write("c2/a", "new");
        site.copy("c2").unwrap();
        fs::remove_file(site.mount.join("ckpt/latest")).unwrap();
        symlink("c2", site.mount.join("ckpt/latest")).unwrap();
        site.copy("latest").unwrap();
        assert_eq!(site.read("latest/a"), Some("new".into()));
        assert_eq!(site.read("c1/a"), Some("ONE".into()));
    }

    /// Changes the set whenever a file of it is complete at the target.
    struct Changing<'a>(&'a Site, &'static str);

    impl Progress for Changing<'_> {
        fn file_done(&self, _path: &Path) {
            self.0.write(self.1, "written meanwhile");
        }
    }

    #[test]
    fn a_set_that_changes_while_it_is_copied_is_not_put_in_place() {
        let site = site();
        let files = ["c1/a", "c1/b", "c1/c"];
        files.iter().for_each(|path| site.write(path, "old"));
        site.copy("c1").unwrap();
        files.iter().for_each(|path| site.write(path, "new"));
        for change in ["c1/another", "c1/a", "c1/b", "c1/deep/d"] {
            let refusal = site.copy_while("c1", &Changing(&site, change)).unwrap_err();
            assert!(refusal.contains("changed while it was copied"), "{change}: {refusal}");
            assert!(files.iter().all(|path| site.read(path).as_deref() == Some("old")), "{change}");
            assert_eq!(
                (site.names(), nofollow::read_dir(&site.out.dst.join("c1")).unwrap().len()),
                (vec!["c1".into()], 3)
            );
        }
        site.copy("c1").unwrap();
        assert_eq!(site.read("c1/b").as_deref(), Some("written meanwhile"));
    }

    /// As while another set of the same round was copied for minutes.
    #[test]
    fn a_set_is_copied_as_it_was_found_or_not_at_all() {
        let site = site();
        for text in ["old", "new"] {
            ["c2/a", "c2/b", "single"].iter().for_each(|path| site.write(path, text));
            if text == "old" {
                ["c2", "single"].iter().for_each(|name| site.copy(name).unwrap());
            }
        }
        let (c2, single) = (site.find_one("c2"), site.find_one("single"));
        // The program begins with the next state.
        fs::remove_file(site.mount.join("ckpt/c2/a")).unwrap();
        fs::remove_file(site.mount.join("ckpt/c2/b")).unwrap();
        ["c2/a", "single"].iter().for_each(|path| site.write(path, "next"));
        let is_as_before = || {
            let read = ["c2/a", "c2/b", "single"].map(|path| site.read(path));
            assert_eq!(read, [(); 3].map(|()| Some("old".to_owned())));
            assert_eq!(site.names(), ["c2", "single"]);
        };
        for found in [c2, single] {
            let refusal = site.copy_found(&found, &|| true, &NoProgress).unwrap_err();
            assert!(refusal.contains("changed while it was copied"), "{refusal}");
            is_as_before();
        }
        // Times of what is being overwritten may not be known yet: it is asked before and after.
        for (name, rests) in [("c2", 0), ("c2", 1), ("single", 0), ("single", 1)] {
            let asked = std::cell::Cell::new(0);
            let is_at_rest = || asked.replace(asked.get() + 1) < rests;
            let refusal = site.copy_found(&site.find_one(name), &is_at_rest, &NoProgress).unwrap_err();
            assert!(refusal.contains("changed while it was copied"), "{refusal}");
            assert_eq!(asked.get(), rests + 1);
            is_as_before();
        }
        ["c2", "single"].iter().for_each(|name| site.copy(name).unwrap());
        assert_eq!((site.read("c2/b"), site.read("single")), (None, Some("next".into())));
    }

    #[test]
    fn what_was_copied_and_not_put_in_place_is_not_out() {
        let site = site();
        for name in ["c1/a", "single"] {
            site.write(name, "one");
        }
        for name in ["c1", "single"] {
            drop(site.refused_in_the_end(name));
            let found = site.find_one(name);
            assert!(!found.is_out && !found.was_out, "{name}");
        }
    }

    /// A kill between the two renames, where the file system cannot exchange names; then the source is lost.
    #[test]
    fn a_set_that_was_set_aside_comes_back_also_without_its_source() {
        let site = site();
        site.write("c1/a", "old");
        site.copy("c1").unwrap();
        site.write("c1/a", "new");
        let held = site.refused_in_the_end("c1");
        let mut aside = std::ffi::OsString::from(".c1.old");
        aside.push(held.order.tag.suffix());
        fs::rename(site.out.dst.join("c1"), site.out.dst.join(aside)).unwrap();
        fs::remove_dir_all(site.mount.join("ckpt/c1")).unwrap();
        assert!(!held.run(&site.conditions(), &NoProgress).unwrap().is_complete());
        assert_eq!((site.read("c1/a"), site.names()), (Some("old".into()), vec!["c1".into()]));
    }

    #[test]
    fn what_a_copy_that_failed_found_does_not_count_as_the_targets() {
        let site = site();
        for name in ["c1/a", "c1/deep/b"] {
            site.write(name, "one");
        }
        site.copy("c1").unwrap();
        fs::remove_file(site.mount.join("ckpt/c1/deep/b")).unwrap();
        site.write("c1/a", "two");
        let failed = site.refused_in_the_end("c1");
        site.jobs.condense_sets(&HashSet::from(["ckpt/c1".into()]), 0).unwrap();
        drop(failed);
        site.jobs.condense_sets(&HashSet::from(["ckpt/c1".into()]), 0).unwrap();
        site.copy("c1").unwrap();
        assert_eq!((site.read("c1/a"), site.read("c1/deep/b")), (Some("two".into()), None));
    }

    /// A kill between the two renames, where the file system cannot exchange names.
    #[test]
    fn a_set_that_was_set_aside_comes_back() {
        let site = site();
        site.write("c1/a", "new");
        let dst = site.out.dst.join("c1");
        let order = JobSpec::of_set(site.find().remove(0).transfer);
        let mut aside = std::ffi::OsString::from(".c1.old");
        aside.push(order.tag.suffix());
        let begin = || {
            fs::create_dir_all(site.out.dst.join(&aside)).unwrap();
            fs::write(site.out.dst.join(&aside).join("a"), "old").unwrap();
        };
        begin();
        let held = site.jobs.create(order).unwrap();
        held.cancel(Some(&site.mount)).unwrap();
        assert_eq!(
            (fs::read_to_string(dst.join("a")).unwrap(), site.names()),
            ("old".into(), vec!["c1".into()])
        );
    }

    #[test]
    fn journals_of_earlier_states_become_sums() {
        let site = site();
        for text in ["one", "two!", "three"] {
            site.write("c1/a", text);
            site.write("c1/deep/b", text);
            site.copy("c1").unwrap();
        }
        let sums = || site.jobs.list().iter().map(|job| (job.done.files, job.done.bytes)).collect::<Vec<_>>();
        let before = sums();
        assert_eq!(before, [(2, 6), (2, 8), (2, 10)]);
        site.jobs.condense_sets(&HashSet::from(["ckpt/c1".into()]), 0).unwrap();
        assert_eq!(sums(), before);
        let long =
            |number: u64| fs::metadata(site.jobs.path(number).join("log")).unwrap().len() > CONDENSED_MAX;
        assert_eq!([1, 2, 3].map(long), [false, false, true]);
        assert!(site.find()[0].is_out);
        assert!(site.jobs.list().iter().all(|job| job.stage == crate::jobs::JobState::Done));
    }
}
