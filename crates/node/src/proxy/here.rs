//! Flushes that nobody but the formation asks for: the home of a file finds out where it belongs at site storage,
//! brings directories on the way there first, and lets those wait for a while that could not be flushed.

use std::time::Duration;

use bivouac_source::join_path;
use bivouac_types::{Errno, FsError, FsResult, Ino, Name, PartitionSettings, WritePolicy, is_temporary_name};
use bivouac_wire::{
    EntryName, FindPlaceRequest, FlushHereRequest, FlushRequest, FlushState, FlushTrigger, SitePlace,
    SiteVersion, op,
};

use crate::identity::SYSTEM;
use crate::namespace::decode;
use crate::node::Node;
use crate::peers::StepContext;
use crate::proxy_state::FlushJob;
use crate::record::{SiteFile, seen_by_key, seen_key};

/// Depth at which a walk to the root is taken for a cycle, which is damage.
const DEPTH_MAX: usize = 100_000;
/// Pause before a directory is looked at again that somebody brings to site storage.
const DIR_PAUSE: Duration = Duration::from_millis(5);

impl Node {
    /// Begins a flush of a file where its policy says so, or tells how far one is.
    pub(crate) fn flush_here(&self, request: &FlushHereRequest, wait: Duration) -> FsResult<FlushState> {
        let FlushHereRequest { ino, occasion, job } = *request;
        // A job that was begun is reported to its end, whatever the policy says by then.
        if job == 0 && !self.is_wanted(ino, occasion)? {
            return Ok(FlushState { done: true, job: 0, moved: 0, version: None, lost: Vec::new() });
        }
        self.run_job((ino, job), wait, move |node, job| {
            let outcome = node.flush_where_it_belongs(ino, job).transpose();
            if let Some(outcome) = outcome {
                node.proxy.failing.note(ino, &outcome);
                return outcome;
            }
            // It goes when it gets another name, and nobody waits for that. No failure either, which would put off the
            // flush after that.
            if is_asked_by_client(occasion) {
                return Ok(job.ended());
            }
            Err(FsError::with(Errno::EBUSY, "it has a temporary name, which no source gets"))
        })
    }

    fn is_wanted(&self, ino: Ino, occasion: FlushTrigger) -> FsResult<bool> {
        let inode = self.inode(ino)?;
        let Some(file) = self.site_file(ino)?.filter(|_| inode.attr.nlink > 0) else { return Ok(false) };
        if matches!(occasion, FlushTrigger::Age | FlushTrigger::Room) {
            self.proxy.failing.waits(ino)?;
        }
        // Whatever the policy: what is not there cannot make room.
        if occasion == FlushTrigger::Room {
            return Ok(true);
        }
        if occasion == FlushTrigger::Close && !file.is_unsaved() {
            return Ok(false);
        }
        let Some(partition) = self.partitions.get(inode.attr.layout.partition()) else { return Ok(false) };
        let settings = &partition.settings;
        if occasion == FlushTrigger::Sync && settings.fsync == bivouac_types::FsyncPolicy::Source {
            return Ok(true);
        }
        // The path takes a question for each directory above, and only rules go by it.
        let path = if has_write_rules(settings) { self.path_in_partition(ino)? } else { Vec::new() };
        Ok(match settings.write_of(&path) {
            WritePolicy::Through => true,
            WritePolicy::OnClose => occasion == FlushTrigger::Close,
            WritePolicy::Delayed { .. } => occasion == FlushTrigger::Age,
            WritePolicy::OnFlush | WritePolicy::Never => false,
        })
    }

    /// Returns the path of a file from its partition's directory on, by the last of its names.
    pub(crate) fn path_in_partition(&self, ino: Ino) -> FsResult<Vec<u8>> {
        let file = self.site_file(ino)?.ok_or_else(|| nameless(ino))?;
        let (mut names, mut dir) = (vec![file.name], file.dir);
        for _ in 0..DEPTH_MAX {
            let place = self.place_at_site(dir, b"")?;
            if let Some(path) = place.path {
                names.extend((!path.is_empty()).then_some(path));
                names.reverse();
                return Ok(names.join(&b'/'));
            }
            names.push(place.name);
            dir = place.dir;
        }
        Err(nameless(ino))
    }

    pub(super) fn place_at_site(&self, dir: Ino, name: &[u8]) -> FsResult<SitePlace> {
        let request = FindPlaceRequest { dir, name: name.to_vec() };
        self.step::<op::FindPlace>(self.home_of(dir)?, StepContext::question(SYSTEM), 0, request)
    }

    /// Returns the path of a directory of this node at site storage, and what was seen there under a name in it.
    pub(crate) fn find_place(&self, request: &FindPlaceRequest) -> FsResult<SitePlace> {
        let FindPlaceRequest { dir, name } = request;
        let inode = match self.inode(*dir) {
            // A removed directory may still exist at site storage.
            Err(error) if error.errno() == Errno::ENOENT => None,
            inode => Some(inode?),
        };
        let root = inode.as_ref().and_then(|inode| self.bound_dir(inode.attr.layout.partition()));
        let key = seen_key(*dir, name);
        let seen = self.records.read(dir.slot(), &key, |bytes| {
            bytes.map(|bytes| decode::<SiteVersion>(bytes, "site storage", *dir)).transpose()
        })?;
        let by = self.records.read(dir.slot(), &seen_by_key(*dir, name), |bytes| {
            bytes.map(|bytes| decode::<Ino>(bytes, "site storage", *dir)).transpose()
        })?;
        if root == Some(*dir) {
            return Ok(SitePlace { path: Some(Vec::new()), dir: *dir, name: Vec::new(), seen, by });
        }
        let file = self.site_file(*dir)?.ok_or_else(|| nameless(*dir))?;
        let path = file.origin.map(|origin| origin.path);
        // Of a removed one the last directory that it was in.
        let dir = inode.map_or(file.dir, |inode| inode.parent);
        Ok(SitePlace { path, dir, name: file.name, seen, by })
    }

    /// Flushes a file under each of its names; `None` if it has none but temporary ones, or is below one.
    fn flush_where_it_belongs(&self, ino: Ino, job: &FlushJob) -> FsResult<Option<FlushState>> {
        let names = self.names_that_lead_to(ino)?;
        if names.is_empty() {
            return Err(nameless(ino));
        }
        // Each name is a file of its own there, and the content is where the last one is.
        names
            .into_iter()
            .rev()
            .try_fold(None, |before, (dir, name)| Ok(self.flush_as(ino, dir, &name, job)?.or(before)))
    }

    fn flush_as(&self, ino: Ino, dir: Ino, name: &Name, job: &FlushJob) -> FsResult<Option<FlushState>> {
        if is_temporary_name(name.as_bytes()) {
            return Ok(None);
        }
        let Some(parent) = self.dir_at_site(dir, 0)? else { return Ok(None) };
        let seen = self.place_at_site(dir, name.as_bytes())?.seen;
        let path = join_path(&parent, name.as_bytes());
        let request = FlushRequest { ino, dir, path, seen, force: false, open: false, job: 0 };
        self.flush_now(&request, job).map(Some)
    }

    /// Returns whether a file or directory goes to no source, because each of its names, or a directory above it, is
    /// temporary.
    pub(super) fn is_temporary(&self, file: &SiteFile) -> FsResult<bool> {
        for (dir, name) in file.names() {
            if !self.is_temporary_at(dir, name)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_temporary_at(&self, mut dir: Ino, name: &[u8]) -> FsResult<bool> {
        if is_temporary_name(name) {
            return Ok(true);
        }
        for _ in 0..DEPTH_MAX {
            let place = match self.place_at_site(dir, b"") {
                // Nothing leads to it.
                Err(error) if error.errno() == Errno::ENOENT => return Ok(false),
                place => place?,
            };
            if place.path.is_some() {
                return Ok(false);
            }
            if is_temporary_name(&place.name) {
                return Ok(true);
            }
            dir = place.dir;
        }
        Ok(false)
    }

    /// Returns whether a name leads to an inode. Of as many names as it has each does; of others only the entry says
    /// so.
    pub(super) fn leads_to(&self, ino: Ino, (dir, name): (Ino, &[u8])) -> FsResult<bool> {
        let nlink = self.inode(ino).map_or(0, |inode| if inode.attr.is_dir() { 1 } else { inode.attr.nlink });
        let file = self.site_file(ino)?.filter(|file| file.names().count() <= nlink as usize);
        if file.is_some_and(|file| file.names().any(|known| known == (dir, name))) {
            return Ok(true);
        }
        match self.check_name(ino, dir, &Name::new(name)?) {
            Err(error) if error.errno() == Errno::ENOENT => Ok(false),
            checked => checked.map(|()| true),
        }
    }

    /// Returns the names of a file that lead to it, the last one first, as many as it has. That which it was given last
    /// may be gone from a directory of another node, or was never made.
    fn names_that_lead_to(&self, ino: Ino) -> FsResult<Vec<(Ino, Name)>> {
        let file = self.site_file(ino)?.ok_or_else(|| nameless(ino))?;
        let nlink = self.inode(ino)?.attr.nlink as usize;
        let mut names = Vec::new();
        for (dir, name) in file.names().filter(|(_, name)| !name.is_empty()) {
            if names.len() >= nlink.max(1) {
                break;
            }
            let name = Name::new(name)?;
            match self.check_name(ino, dir, &name) {
                Err(error) if error.errno() == Errno::ENOENT => {}
                checked => names.push(checked.map(|()| (dir, name))?),
            }
        }
        Ok(names)
    }

    /// Checks that the name still leads to it; otherwise only a walk finds where it belongs.
    fn check_name(&self, ino: Ino, dir: Ino, name: &Name) -> FsResult<()> {
        let question = || EntryName { parent: dir, name: name.as_bytes() };
        let found = self.at_entry(dir, name, |node| {
            self.step::<op::Lookup>(node, StepContext::question(SYSTEM), 0, question())
        });
        match found {
            Ok(found) if found.ino == ino => Ok(()),
            Ok(_) => Err(nameless(ino)),
            Err(error) if error.errno() == Errno::ENOENT => Err(nameless(ino)),
            Err(error) => Err(error),
        }
    }

    /// Returns the path of a directory at site storage, which has it afterwards; `None` if its name or one above is
    /// temporary.
    fn dir_at_site(&self, dir: Ino, depth: usize) -> FsResult<Option<Vec<u8>>> {
        if depth > DEPTH_MAX.min(1000) {
            return Err(nameless(dir));
        }
        let place = self.place_at_site(dir, b"")?;
        if let Some(path) = place.path {
            return Ok(Some(path));
        }
        if is_temporary_name(&place.name) {
            return Ok(None);
        }
        let Some(parent) = self.dir_at_site(place.dir, depth + 1)? else { return Ok(None) };
        let path = join_path(&parent, &place.name);
        let (seen, force, open) = (None, false, true);
        let mut request = FlushRequest { ino: dir, dir: place.dir, path, seen, force, open, job: 0 };
        loop {
            let state = self.step::<op::Flush>(
                self.home_of(dir)?,
                StepContext::question(SYSTEM),
                0,
                request.clone(),
            )?;
            if !state.done {
                request.job = state.job;
                bivouac_net::pause(DIR_PAUSE);
                continue;
            }
            // One that was renamed meanwhile is not there, and is put where it belongs now.
            return self.dir_at_site(dir, depth + 1);
        }
    }
}

/// Returns whether a client waits for the outcome of a flush on this occasion.
fn is_asked_by_client(occasion: FlushTrigger) -> bool {
    matches!(occasion, FlushTrigger::Close | FlushTrigger::Write | FlushTrigger::Sync)
}

pub(super) fn has_write_rules(settings: &PartitionSettings) -> bool {
    settings.rules.iter().any(|rule| rule.write.is_some())
}

fn nameless(ino: Ino) -> FsError {
    let text = format!("inode {ino} is not known by a name that leads to it: bivouac flush finds it");
    FsError::with(Errno::ENOENT, text)
}
