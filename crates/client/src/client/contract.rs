//! Changes of contract. A file is laminated in two steps: its home makes it ready, its digest is taken here, and the
//! home laminates it if the content is still that.

use std::time::Duration;

use bivouac_types::{Attr, Contract, Errno, FsError, FsResult, Ino, Laminate, PartitionId};
use bivouac_wire::{ContentDigest, SetContractRequest, op};
use sha2::{Digest, Sha256};

use super::{Client, OpCtx};

/// Tries of a change of contract while the file seems to be open, and the pause between two: homes hear of closes a
/// moment later, and the HTTP server closes files a moment after they were read.
const CLOSE_TRIES: u32 = 150;
const CLOSE_PAUSE: Duration = Duration::from_millis(20);
/// Tries by `chmod`, where the file may well be open: programs take its permissions away before they close it.
const CHMOD_TRIES: u32 = 10;
/// Number of times that a digest is taken of a file that changes meanwhile.
const DIGEST_TRIES: u32 = 4;
/// Bytes that are read at once for a digest.
const DIGEST_PIECE: u64 = 4 << 20;

impl Client {
    /// Changes the contract of a file, or of what is made in a directory from then on; none leaves it to the
    /// partition. A file that is laminated is read once, for its digest.
    ///
    /// # Errors
    /// `EPERM` for anybody but the owner and root; `EINVAL` for what is neither file nor directory, and for a directory
    /// that is to be laminated; `EBUSY` for a change to session while the file is open, from session while another
    /// client has it open, to laminated while it is open for writing, and from laminated while it is open; `ENOENT`,
    /// `EIO`.
    pub fn set_contract(&self, ctx: &OpCtx, ino: Ino, contract: Option<Contract>) -> FsResult<Attr> {
        self.choose_contract(ctx, ino, contract, 0)
    }

    /// Like [`Client::set_contract`], with the flags of `setxattr`.
    pub(super) fn choose_contract(
        &self,
        ctx: &OpCtx,
        ino: Ino,
        contract: Option<Contract>,
        flags: u32,
    ) -> FsResult<Attr> {
        let before = self.getattr(ino)?;
        // The kernel lets any user with write permission set `user.` attributes.
        if ctx.uid != 0 && ctx.uid != before.uid {
            let text = format!("the contract of inode {ino} is changed by its owner {} or root", before.uid);
            return Err(FsError::with(Errno::EPERM, text));
        }
        if contract == Some(Contract::Laminated) && !before.is_laminated() {
            return self.laminate(ctx, ino, flags, CLOSE_TRIES);
        }
        self.change_contract(ctx, &SetContractRequest { ino, contract, digest: None, flags }, CLOSE_TRIES)
    }

    fn laminate(&self, ctx: &OpCtx, ino: Ino, flags: u32, tries: u32) -> FsResult<Attr> {
        let contract = Some(Contract::Laminated);
        let mut request = SetContractRequest { ino, contract, digest: None, flags };
        // Without a lock: a digest may take minutes, and writers are not to wait for it.
        for _ in 0..DIGEST_TRIES {
            // A new round: the home says again which data version is to be read.
            request.digest = None;
            let ready = self.change_contract(ctx, &request, tries)?;
            if ready.is_laminated() {
                return Ok(ready);
            }
            let sha256 = self.digest(ino, ready.size)?;
            request.digest = Some(ContentDigest { data_version: ready.data_version, sha256 });
            match self.change_contract(ctx, &request, tries) {
                Err(error) if error.errno() == Errno::ECANCELED => {}
                // Another change of this operation was taken for it.
                Ok(attr) if !attr.is_laminated() => {}
                outcome => return outcome,
            }
        }
        let text = format!("inode {ino} was changed {DIGEST_TRIES} times while its digest was taken");
        Err(FsError::with(Errno::EBUSY, text))
    }

    /// Laminates a file that has just lost its last permission to write, if its partition is to do so then. A file that
    /// is open for writing, or cannot be laminated for another reason, is not; the change of its mode stays.
    pub(super) fn laminate_unwritable(&self, ctx: &OpCtx, attr: Attr) -> Attr {
        let id = attr.layout.partition();
        if !attr.is_file() || attr.is_laminated() || id == PartitionId::ROOT {
            return attr;
        }
        let laminated = match self.partitions.get(id) {
            Ok(Some(partition)) if partition.settings.laminate == Laminate::OnChmod => {
                // What was done under this number is the change of the mode.
                self.laminate(&OpCtx { retry: false, ..*ctx }, attr.ino, 0, CHMOD_TRIES)
            }
            Ok(_) => return attr,
            Err(error) => Err(error),
        };
        laminated.unwrap_or_else(|error| {
            log::warn!(why:% = error; "inode {} has lost its permissions to write and is not laminated", attr.ino);
            attr
        })
    }

    /// Returns the SHA-256 of the content of a file of this size.
    fn digest(&self, ino: Ino, size: u64) -> FsResult<[u8; 32]> {
        let (mut sum, mut at) = (Sha256::new(), 0);
        let mut piece = vec![0; DIGEST_PIECE.min(size) as usize];
        while at < size {
            let len = DIGEST_PIECE.min(size - at) as usize;
            let part = piece.get_mut(..len).unwrap_or_default();
            let read = self.content.read(ino, at, part)?;
            // What is shorter by now has another data version, too.
            if read == 0 {
                break;
            }
            sum.update(part.get(..read).unwrap_or_default());
            at += read as u64;
        }
        Ok(sum.finalize().into())
    }

    fn change_contract(&self, ctx: &OpCtx, request: &SetContractRequest, tries: u32) -> FsResult<Attr> {
        let ino = request.ino;
        let home = self.connections.home(ino)?;
        let (asked, seen) = self.sessions.past_pages(ino, || {
            let asked = self.homes.leases.now();
            let change = || self.connections.change::<op::SetContract>(home, ctx, request, &[]);
            let mut changed = self.homes.changing(ino, change);
            for _ in 0..tries {
                // Closes are told a moment after they returned.
                if !changed.as_ref().is_err_and(|error| error.errno() == Errno::EBUSY) {
                    break;
                }
                bivouac_net::pause(CLOSE_PAUSE);
                changed = self.homes.changing(ino, change);
            }
            Ok((asked, changed?))
        })?;
        self.names.spread_dirs.forget(ino);
        let attr = self.homes.saw(asked, seen);
        // What its programs wrote behind meanwhile: from now on they do not any more.
        self.sessions.try_send_unsent(ino);
        Ok(attr)
    }
}
