//! Deletions that are to be made at site storage as well.

use bivouac_types::{FsResult, Ino, MirrorDeletes, PartitionId, WritePolicy};
use bivouac_wire::{MirrorRequest, Removal, op};

use super::Site;
use super::saving::writes;

/// Deletions carried out, or to be carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removals {
    /// Number of names deleted at site storage.
    pub done: u64,
    /// The deletions that will not be made at site storage: what is there is not what was seen, or more.
    pub kept: Vec<Removal>,
    /// The deletions that remain to be made.
    pub left: Vec<Removal>,
}

impl Site {
    /// Returns what remains to be deleted at site storage, on all nodes.
    pub fn removals(&self) -> FsResult<Removals> {
        let (only, below, after) = Default::default();
        self.mirror_once(&MirrorRequest { only, below, after, act: false, last: false })
    }

    /// What is still to be deleted below a path of a partition there, without asking for it.
    pub fn removals_below(&self, partition: PartitionId, top: &[u8]) -> FsResult<Vec<Removal>> {
        let below = Some((partition, top.to_vec()));
        let request = MirrorRequest { only: None, below, after: None, act: false, last: false };
        Ok(self.mirror_once(&request)?.left)
    }

    /// Deletes at site storage what was deleted here below a path of a partition there.
    pub fn mirror(&self, partition: PartitionId, top: &[u8]) -> FsResult<Removals> {
        let below = Some((partition, top.to_vec()));
        let mut request = MirrorRequest { only: None, below, after: None, act: true, last: false };
        let mut all = Removals::default();
        loop {
            let round = self.mirror_once(&request)?;
            let has_moved = round.done > 0 || !round.kept.is_empty();
            all.done += round.done;
            all.kept.extend(round.kept);
            all.left = round.left;
            // A directory goes when all that was in it has gone, on whichever nodes that is known.
            let is_filled = !all.left.is_empty() && all.left.iter().all(|left| left.filled);
            match (has_moved, request.last) {
                (true, _) if !all.left.is_empty() => {}
                (false, false) if is_filled => request.last = true,
                _ => return Ok(all),
            }
        }
    }

    fn mirror_once(&self, request: &MirrorRequest) -> FsResult<Removals> {
        let mut all = Removals::default();
        self.connections.ask_pages::<op::Mirror, _>(
            |after| MirrorRequest { after: after.or_else(|| request.after.clone()), ..request.clone() },
            |page| {
                all.done += page.done;
                let (kept, left): (Vec<_>, Vec<_>) = page.left.into_iter().partition(|one| one.kept);
                all.kept.extend(kept);
                all.left.extend(left);
                page.next
            },
        )?;
        Ok(all)
    }

    /// Repeats the deletion of a name, for which its program waits: it is deleted at site storage if its policy says
    /// so.
    pub(crate) fn save_removed(&self, dir: Ino, name: &[u8]) -> FsResult<()> {
        let Some(bound) = self.bound_dir(dir)? else { return Ok(()) };
        let is_now = |policy| matches!(policy, WritePolicy::Through | WritePolicy::OnClose);
        if bound.settings.mirror_deletes != MirrorDeletes::Yes || !writes(&bound.settings, is_now) {
            return Ok(());
        }
        let only = Some((dir, name.to_vec()));
        let request = MirrorRequest { only, below: None, after: None, act: true, last: false };
        self.homes
            .at_entry(dir, name, false, |node, _| self.connections.ask::<op::Mirror>(node, &request))
            .map(drop)
    }
}
