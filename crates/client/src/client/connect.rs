//! Connections of a client to nodes in other processes.

use std::sync::{Arc, OnceLock};

use bivouac_net::{Address, Auth, Identity, LaneKind, NetError, Peer, PeerOptions, Transport, Watch};
use bivouac_types::NodeId;
use bivouac_wire::FormationMap;

use crate::homes::known::KnownFiles;
use crate::locks::HomesInDoubt;
use crate::moved_nodes::MapSeeker;
use crate::opens::watch::Keeper;
use crate::options::ClientOptions;
use crate::tokens::TokenTable;

/// Makes what reconnects to nodes where files are open, and what watches those connections.
pub fn keeper(map: &Arc<FormationMap>, known: &Arc<KnownFiles>) -> Option<(Keeper, Arc<Watch>)> {
    let watch = Watch::new();
    let watch = watch.inspect_err(|error| log::error!(why:% = error; "restarts of nodes are noticed late"));
    let watch = Arc::new(watch.ok()?);
    let (map, known) = (Arc::clone(map), Arc::clone(known));
    let wanted = move |node| known.has_any(|ino| map.home(ino) == Some(node));
    Some((Keeper::new(Arc::clone(&watch), wanted), watch))
}

/// No tokens yet. A mount can be asked to give back what it keeps.
pub fn token_table(map: &FormationMap, options: &ClientOptions) -> Arc<TokenTable> {
    let keeps = options.id.mounted_through(map.formation).is_some();
    Arc::new(TokenTable::new(keeps, options.incarnation == 0))
}

/// A maker of connections to nodes of other processes.
pub struct Connector<'a> {
    map: &'a Arc<FormationMap>,
    known: &'a Arc<KnownFiles>,
    /// What all connections of the client have in common.
    pub tokens: Arc<TokenTable>,
    pub seeker: Arc<MapSeeker>,
    auth: &'a Auth,
    options: &'a ClientOptions,
    /// Watches the connections, in a process that may start threads.
    pub keeper: Option<&'a (Keeper, Arc<Watch>)>,
    /// Gets each home that may have dropped locks.
    pub doubts: Option<&'a Arc<OnceLock<Arc<HomesInDoubt>>>>,
}

impl<'a> Connector<'a> {
    /// Returns one that watches nothing.
    pub fn new(
        map: &'a Arc<FormationMap>,
        known: &'a Arc<KnownFiles>,
        auth: &'a Auth,
        options: &'a ClientOptions,
    ) -> Connector<'a> {
        let (tokens, seeker) = (token_table(map, options), Arc::default());
        Connector { map, known, tokens, seeker, auth, options, keeper: None, doubts: None }
    }

    /// Returns the connection to a node that came to this address in this epoch. After a loss, this client first
    /// reclaims there what it has open.
    pub fn to(&self, id: NodeId, epoch: u32, address: Address) -> Peer {
        let identity =
            Identity { auth: self.auth.clone(), client: self.options.id, lane: LaneKind::Client, epoch: 0 };
        let wait_ms = u64::try_from(self.options.wait.as_millis()).unwrap_or(u64::MAX);
        let options = PeerOptions { wait_ms, is_guest: self.keeper.is_none() };
        let peer = match self.keeper {
            Some((_, watch)) => Peer::watched(id, address, identity, options, watch),
            None => Peer::to(id, address, identity, options),
        };
        let peer = peer.since(epoch);
        let seeker = Arc::clone(&self.seeker);
        peer.on_away(move || seeker.seek(id));
        let (client, map, known) = (self.options.id, Arc::clone(self.map), Arc::clone(self.known));
        let (doubts, tokens) = (self.doubts.cloned(), Arc::clone(&self.tokens));
        peer.on_reconnect(move |node: NodeId, transport: &dyn Transport| -> Result<(), NetError> {
            if let Some(doubts) = doubts.as_ref().and_then(|doubts| doubts.get()) {
                // Before anything is sent over the new connection: a write behind it looks whether its locks are still
                // there.
                doubts.add(node);
            }
            // Before what is open: from then on the home takes this client for heard.
            tokens.reclaim(client, node, &map, transport)?;
            // What is under way first: what is answered between the two is in the list.
            let under_way = known.under_way.list();
            let opens = known.reclaimed(|ino| map.home(ino) == Some(node));
            crate::opens::reassert(transport, client, &under_way, opens)
        });
        peer
    }
}
