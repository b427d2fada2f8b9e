//! Changes of contract: of a file, ordered with all its writes; of a directory, for what is made in it from then on.
//!
//! Why no write is lost to a change, and why none comes after lamination: docs/design/truncation.md.

use bivouac_types::{
    Attr, ClientId, Contract, DIGEST_XATTR, Errno, FsError, FsResult, Ino, PartitionId, mode,
};
use bivouac_wire::{ContentDigest, Seen, SetContractRequest, op};

use crate::handlers::xattrs::check_flags;
use crate::intent_record::{Cut, Intent, LoggedIntent};
use crate::node::Node;
use crate::record::{Inode, xattr_key};
use crate::session::Ctx;
use crate::step::Handle;

impl Handle for op::SetContract {
    fn handle(node: &Node, ctx: &Ctx<'_>, request: SetContractRequest) -> FsResult<Seen> {
        let SetContractRequest { ino, contract, flags, digest } = request;
        let _quiet = node.recall_other_attr_leases(ino);
        let _dir = node.stay(ino)?;
        let size = node.lock_size(ino)?;
        let is_done = ctx.done_before(&node.records, ino.slot())?.is_some();
        let inode = node.inode(ino)?;
        // A retransmission finds the contract that it has set itself.
        if !is_done {
            check_flags(inode.attr.contract.is_some(), flags)?;
        }
        match inode.attr.mode & mode::TYPE {
            mode::FILE | mode::DIR if is_done || inode.attr.contract == contract => {}
            mode::DIR if contract == Some(Contract::Laminated) => {
                let text =
                    "a directory is not laminated, or nothing could be written in it; the files in it can be";
                return Err(FsError::with(Errno::EINVAL, text));
            }
            mode::FILE if contract == Some(Contract::Laminated) && digest.is_none() => {
                node.make_ready_for_digest(ctx, &inode)?;
            }
            mode::DIR if inode.attr.is_spread() => {
                // The same lock is taken there: holding it would wait for itself.
                drop(size);
                return node.set_spread(ctx, ino, |inode, now| {
                    (inode.attr.contract, inode.attr.ctime) = (contract, now);
                });
            }
            mode::FILE if node.contract_of(&inode.attr, contract)? != node.contract(&inode.attr)? => {
                node.cut_to_contract(ctx, &inode, contract, digest)?;
            }
            mode::FILE | mode::DIR => {
                let mut change = node.change_of(ino)?;
                let mut inode = change.inode(ino)?;
                (inode.attr.contract, inode.attr.ctime) = (contract, change.now);
                change.put_inode(&inode);
                change.commit_for(ctx, ino.slot(), 0)?;
            }
            _ => {
                let text = "a contract is a matter of regular files and directories";
                return Err(FsError::with(Errno::EINVAL, text));
            }
        }
        drop(size);
        Ok(node.seen(ctx, node.gathered(ctx, ino)?.attr))
    }
}

impl Node {
    /// Returns the contract that holds for an inode. Asks the keeper of partitions if need be, so not from the peer
    /// lane.
    pub(super) fn contract(&self, attr: &Attr) -> FsResult<Contract> {
        self.contract_of(attr, attr.contract)
    }

    /// Returns the contract that holds for an inode with this one of its own.
    fn contract_of(&self, attr: &Attr, own: Option<Contract>) -> FsResult<Contract> {
        match (own, attr.layout.partition()) {
            (Some(own), _) => Ok(own),
            (None, PartitionId::ROOT) => Ok(Contract::default()),
            (None, id) => Ok(self.partition(id)?.settings.contract),
        }
    }

    /// Gives a file another contract by a cut at its present size: its new epoch has every client ask for the
    /// attributes before it reads or writes on. The caller has the size locked.
    fn cut_to_contract(
        &self,
        ctx: &Ctx<'_>,
        inode: &Inode,
        contract: Option<Contract>,
        digest: Option<ContentDigest>,
    ) -> FsResult<()> {
        let Attr { ino, size, epoch, layout, .. } = inode.attr;
        let before = self.contract(&inode.attr)?;
        let after = self.contract_of(&inode.attr, contract)?;
        let begin = |_: &LoggedIntent| {
            let mut change = self.change_of(ino)?;
            let mut inode = change.inode(ino)?;
            assert_eq!(inode.attr.epoch, epoch, "inode {ino} was cut while its size was locked");
            if [before, after].iter().any(|one| matches!(one, Contract::Session | Contract::Laminated)) {
                // At once and within the transaction: whoever opens the file from now on learns the new contract, and
                // whoever learned the old one has been registered before.
                self.check_may_change(&inode.attr, before, after, ctx.client)?;
                inode.attr.contract = contract;
            }
            if let Some(digest) = digest.filter(|_| after == Contract::Laminated) {
                // Who has gone away with the file open may have written, and not told.
                if inode.attr.data_version != digest.data_version || self.stale_tails.may_have_tail(ino) {
                    let text = "the content may have changed since its digest was taken";
                    return Err(FsError::with(Errno::ECANCELED, text));
                }
                change.txn.must_fit();
                change.txn.put(ino.slot(), &xattr_key(ino, DIGEST_XATTR), &digest.sha256);
            }
            if before == Contract::Laminated {
                change.txn.delete(ino.slot(), &xattr_key(ino, DIGEST_XATTR));
            }
            inode.attr.ctime = change.now;
            change.put_inode(&inode);
            Ok(change)
        };
        let cut = Cut { ino, size, epoch: epoch.wrapping_add(1), layout, new_layout: layout, contract };
        self.carry_out_begun(ctx, ino.slot(), Intent::Cut(cut), begin)
    }

    /// Looks whether a file can be laminated, and refuses at its targets what clients that have gone away may still
    /// have under way: from then on its content changes only with its data version, or is marked by them. The caller
    /// has the size locked.
    fn make_ready_for_digest(&self, ctx: &Ctx<'_>, inode: &Inode) -> FsResult<()> {
        let before = self.contract(&inode.attr)?;
        self.check_may_change(&inode.attr, before, Contract::Laminated, ctx.client)?;
        if self.stale_tails.may_have_tail(inode.attr.ino) {
            self.cut_to_new_epoch(ctx, &inode.attr)?;
        }
        Ok(())
    }

    /// Refuses a change of contract that would be wrong while clients have the file open as they have.
    fn check_may_change(
        &self,
        attr: &Attr,
        before: Contract,
        after: Contract,
        asker: ClientId,
    ) -> FsResult<()> {
        if before == Contract::Laminated {
            // Kernels go by pages that they have while the file is open, and drop them when it is opened again.
            return self.check_not_open(attr.ino, None);
        }
        if after == Contract::Laminated {
            self.check_not_written(attr.ino)?;
        }
        match (before, after) {
            (Contract::Session, _) => self.check_not_open(attr.ino, Some(asker)),
            (_, Contract::Session) => self.check_not_open(attr.ino, None),
            _ => Ok(()),
        }
    }

    /// Refuses a file that a client has open for writing, or may have.
    fn check_not_written(&self, ino: Ino) -> FsResult<()> {
        let text = match (self.sessions.awaiting().first(), self.opens.writers(ino).first()) {
            (None, None) => return Ok(()),
            (_, Some(writer)) => {
                let who = match writer.mounted_through(self.map.formation) {
                    Some(node) => format!("the mount on {node}"),
                    None => "a program with the library".to_owned(),
                };
                format!("inode {ino} is open for writing through {who}: close it before it is laminated")
            }
            (Some(_), None) => {
                format!(
                    "inode {ino} may be open for writing: a client has not said what it has open since a daemon restarted"
                )
            }
        };
        log::info!("{text}");
        Err(FsError::with(Errno::EBUSY, text))
    }

    /// Refuses a file that a client has open, or may have, but this one. Under the session contract clients cache
    /// content that nobody would have them send; and a kernel that opened the file under another one tells of no close.
    fn check_not_open(&self, ino: Ino, allowed: Option<ClientId>) -> FsResult<()> {
        // In this order: a client that reclaims in between is among the holders.
        let mut holders = self.sessions.awaiting();
        holders.extend(self.opens.holders(ino));
        if holders.iter().all(|holder| Some(*holder) == allowed) {
            return Ok(());
        }
        let text = "the file is open, or a client has not said what it has open since a daemon was restarted: a change to \
                    session, or from laminated, needs it closed everywhere, one from session by all other clients";
        Err(FsError::with(Errno::EBUSY, text))
    }
}
