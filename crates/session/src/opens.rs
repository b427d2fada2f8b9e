//! Which client has which inode open, of the inodes whose home is here.
//!
//! An open has a number that its client chose ([`OpenNumbers`](crate::OpenNumbers)). Each client's numbers rise; below
//! its *floor* nothing is under way any more: what comes with a lower number was overtaken by its own retransmission,
//! or belongs to an earlier process.

use std::collections::HashMap;

use bivouac_types::{ClientId, Ino, OpenId};

/// Opens of some inodes; in memory only: clients say theirs again after a restart.
#[derive(Debug, Default)]
pub struct OpenTable {
    inodes: HashMap<Ino, OpenInode>,
    opens: usize,
    quiet_writers: usize,
}

/// Holders of an inode.
#[derive(Debug, Default)]
struct OpenInode {
    /// Sorted.
    opens: Vec<(ClientId, OpenId)>,
    /// Clients that may write without telling of each write.
    quiet_writers: Vec<ClientId>,
    /// Mounts that have made the file longer since they opened it.
    growers: Vec<ClientId>,
}

impl OpenInode {
    fn is_held_by(&self, client: ClientId) -> bool {
        holds(&self.opens, client)
    }

    fn retain(&mut self, stays: impl Fn(ClientId, OpenId) -> bool) {
        self.opens.retain(|(holder, open)| stays(*holder, *open));
        let OpenInode { opens, quiet_writers, growers } = self;
        quiet_writers.retain(|writer| holds(opens, *writer));
        growers.retain(|grower| holds(opens, *grower));
        assert!(
            quiet_writers.len().max(growers.len()) <= opens.len(),
            "an inode has {} opens, {} quiet writers and {} growers",
            opens.len(),
            quiet_writers.len(),
            growers.len()
        );
    }

    /// Returns the holders in order, each once.
    fn holders(&self) -> Vec<ClientId> {
        let mut holders: Vec<ClientId> = self.opens.iter().map(|(client, _)| *client).collect();
        // Opens are sorted by client, so those of one are neighbours.
        holders.dedup();
        holders
    }
}

impl OpenTable {
    /// Adds an open. One that is there already counts once: a message that comes twice names the same.
    pub fn add(&mut self, ino: Ino, client: ClientId, open: OpenId) {
        let inode = self.inodes.entry(ino).or_default();
        // Kept in order: whether a client has the inode open is asked far more often than opens come.
        if let Err(at) = inode.opens.binary_search(&(client, open)) {
            inode.opens.insert(at, (client, open));
            self.opens += 1;
        }
    }

    /// Removes an open. Returns true if its client does not have the inode open now.
    pub fn remove(&mut self, ino: Ino, client: ClientId, open: OpenId) -> bool {
        self.retain(Some(ino), |_, holder, other| (holder, other) != (client, open));
        !self.is_held(ino, client)
    }

    /// Removes opens of a client, except those that stay.
    pub fn retain_of(&mut self, client: ClientId, stays: impl Fn(Ino, OpenId) -> bool) {
        self.retain(None, |ino, holder, open| holder != client || stays(ino, open));
    }

    /// Notes that a client has told of a write to an inode, and need not tell of each that follows before it closes it.
    /// Notes nothing if it does not have the inode open: then it tells of each write.
    pub fn mark_writer(&mut self, ino: Ino, client: ClientId) {
        if let Some(inode) = self.inodes.get_mut(&ino).filter(|inode| inode.is_held_by(client))
            && !inode.quiet_writers.contains(&client)
        {
            inode.quiet_writers.push(client);
            self.quiet_writers += 1;
        }
    }

    /// Returns true if a client has the inode open that may write without telling of each write.
    #[must_use]
    pub fn has_writer(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| !inode.quiet_writers.is_empty())
    }

    /// Notes that a client has made a file longer. Returns those others that have it open and have not.
    pub fn note_growth(&mut self, ino: Ino, by: ClientId) -> Vec<ClientId> {
        let Some(inode) = self.inodes.get_mut(&ino) else { return Vec::new() };
        if inode.is_held_by(by) && !inode.growers.contains(&by) {
            inode.growers.push(by);
        }
        let mut others = inode.holders();
        // Of many that make one file longer each would be told of every write of the others.
        others.retain(|client| *client != by && !inode.growers.contains(client));
        others
    }

    /// Returns who has the inode open.
    #[must_use]
    pub fn holders(&self, ino: Ino) -> Vec<ClientId> {
        self.inodes.get(&ino).map(OpenInode::holders).unwrap_or_default()
    }

    /// Returns who has the inode open for writing, once for each open.
    #[must_use]
    pub fn writers(&self, ino: Ino) -> Vec<ClientId> {
        let opens = self.inodes.get(&ino).into_iter().flat_map(|inode| &inode.opens);
        opens.filter(|(_, open)| open.is_for_writing()).map(|(client, _)| *client).collect()
    }

    /// Returns the inodes that a client has open.
    pub fn of_client(&self, client: ClientId) -> impl Iterator<Item = Ino> {
        self.inodes.iter().filter(move |(_, inode)| inode.is_held_by(client)).map(|(ino, _)| *ino)
    }

    /// Returns true if a client has the inode open.
    #[must_use]
    pub fn is_held(&self, ino: Ino, client: ClientId) -> bool {
        self.inodes.get(&ino).is_some_and(|inode| inode.is_held_by(client))
    }

    /// Returns true if anybody has the inode open.
    #[must_use]
    pub fn is_open(&self, ino: Ino) -> bool {
        self.inodes.contains_key(&ino)
    }

    /// Returns the number of opens.
    #[must_use]
    pub fn opens(&self) -> usize {
        self.opens
    }

    /// Returns how many times [`OpenTable::has_writer`] would be true, client by client.
    #[must_use]
    pub fn quiet_writers(&self) -> usize {
        self.quiet_writers
    }

    /// Keeps those opens of one inode, or of all, that stay.
    fn retain(&mut self, only: Option<Ino>, stays: impl Fn(Ino, ClientId, OpenId) -> bool) {
        let OpenTable { inodes, opens, quiet_writers } = self;
        let mut shrink = |ino: Ino, inode: &mut OpenInode| {
            let before = (inode.opens.len(), inode.quiet_writers.len());
            inode.retain(|holder, open| stays(ino, holder, open));
            let (closed, quiet) = (before.0 - inode.opens.len(), before.1 - inode.quiet_writers.len());
            assert!(
                *opens >= closed && *quiet_writers >= quiet,
                "inode {ino}: {closed} of {opens} opens end, and {quiet} of {quiet_writers} writers"
            );
            (*opens, *quiet_writers) = (*opens - closed, *quiet_writers - quiet);
            !inode.opens.is_empty()
        };
        match only {
            Some(ino) => {
                if inodes.get_mut(&ino).is_some_and(|inode| !shrink(ino, inode)) {
                    inodes.remove(&ino);
                }
            }
            None => inodes.retain(|ino, inode| shrink(*ino, inode)),
        }
    }
}

fn holds(opens: &[(ClientId, OpenId)], client: ClientId) -> bool {
    let at = opens.partition_point(|(holder, _)| *holder < client);
    opens.get(at).is_some_and(|(holder, _)| *holder == client)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const INO: Ino = Ino(9);

    fn opened(opens: &[(ClientId, u64)]) -> OpenTable {
        let mut table = OpenTable::default();
        opens.iter().for_each(|(client, open)| table.add(INO, *client, OpenId(*open)));
        table
    }

    #[test]
    fn opens_end_one_by_one() {
        let mut table = opened(&[(A, 1), (A, 2), (B, 1), (A, 2)]);
        assert_eq!((table.opens(), table.holders(INO)), (3, vec![A, B]), "the same one again");
        assert!(!table.remove(INO, A, OpenId(2)));
        assert!(!table.remove(INO, A, OpenId(2)), "a close that comes twice takes nothing away");
        assert!(table.is_held(INO, A));
        assert!(table.remove(INO, A, OpenId(1)) && table.is_open(INO));
        assert!(table.remove(INO, B, OpenId(1)) && !table.is_open(INO));
        assert!(table.remove(INO, B, OpenId(1)), "it was not open");
    }

    #[test]
    fn opens_for_writing_are_told_from_others() {
        let mut table = opened(&[(A, 2), (A, 5), (B, 4)]);
        assert_eq!((table.writers(INO), table.writers(Ino(8))), (vec![A], vec![]));
        table.remove(INO, A, OpenId(5));
        assert!(table.writers(INO).is_empty() && table.is_held(INO, A));
    }

    #[test]
    fn a_clients_opens_end_without_those_of_others() {
        let mut table = OpenTable::default();
        for (ino, client, open) in [(3, A, 3), (5, A, 5), (7, A, 7), (3, B, 3)] {
            table.add(Ino(ino), client, OpenId(open));
        }
        table.retain_of(A, |ino, open| open >= OpenId(6) || ino == Ino(3));
        assert_eq!([3, 5, 7].map(|ino| table.is_held(Ino(ino), A)), [true, false, true]);
        assert!(table.is_held(Ino(3), B));
        let mut open: Vec<Ino> = table.of_client(A).collect();
        open.sort_unstable();
        assert_eq!((open, table.opens()), (vec![Ino(3), Ino(7)], 3));
    }

    #[test]
    fn writers_are_those_who_have_told_of_a_write_and_not_closed() {
        let mut table = OpenTable::default();
        table.mark_writer(INO, A);
        assert!(!table.has_writer(INO), "who has it not open tells of each write");
        let mut table = opened(&[(A, 1), (A, 2), (B, 1)]);
        assert!(!table.has_writer(INO), "nobody has written");
        [A, A, B].iter().for_each(|client| table.mark_writer(INO, *client));
        assert!(table.has_writer(INO) && !table.has_writer(Ino(8)) && table.quiet_writers() == 2);
        table.remove(INO, A, OpenId(2));
        table.retain_of(B, |_, _| false);
        assert!(table.has_writer(INO), "it has another open");
        table.remove(INO, A, OpenId(1));
        table.add(INO, A, OpenId(3));
        assert!(!table.has_writer(INO) && table.quiet_writers() == 0);
    }

    #[test]
    fn others_are_told_once_of_who_makes_a_file_longer() {
        let mut table = opened(&[(A, 1), (B, 1), (B, 3)]);
        assert_eq!(table.note_growth(INO, A), [B]);
        assert_eq!(table.note_growth(INO, B), [], "both know that it grows");
        assert_eq!(table.note_growth(INO, ClientId(3)), [], "whose growing is not noted");
        table.remove(INO, A, OpenId(1));
        table.add(INO, A, OpenId(5));
        assert_eq!(table.note_growth(INO, B), [A]);
    }
}
