//! Mounts of a run: clients in the daemon of a node, which keep range tokens between their calls. There is no kernel.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bivouac_client::{Client, ClientOptions, LocalFiles, LocalNode, SendPart, Tokens};
use bivouac_net::{Auth, LivenessTable};
use bivouac_node::{Cache, Node, ServedClient, TokenHolder};
use bivouac_types::{ClientId, Ino, NodeId, TargetIndex};
use bivouac_wire::{FormationMap, Invalidation, RecallTokensRequest, RecalledTokens};

/// The server side of a daemon that runs.
pub struct Serving {
    /// Which node it is.
    pub id: NodeId,
    /// The node.
    pub node: Arc<Node>,
    /// Which nodes it knows to be dead.
    pub liveness: Arc<LivenessTable>,
}

struct ClientTokens(Arc<Tokens>);

impl TokenHolder for ClientTokens {
    fn recall(&self, request: &RecallTokensRequest) -> RecalledTokens {
        self.0.recall(request)
    }
}

struct Known(Weak<Client>);

impl Cache for Known {
    fn invalidate(&self, what: &[Invalidation]) -> Duration {
        if let Some(client) = self.0.upgrade() {
            client.invalidate(what);
        }
        Duration::ZERO
    }
}

struct Files(Arc<Node>);

impl LocalFiles for Files {
    fn send_part(
        &self,
        ino: Ino,
        target: TargetIndex,
        epoch: u32,
        range: Range<u64>,
        send: &mut SendPart<'_>,
    ) -> bool {
        let len = (range.end - range.start) as usize;
        self.0.send_part(ino, target, epoch, &range, |file, offset| send(file, offset, len))
    }
}

/// The client of a mount, which its node can ask.
pub fn start(
    map: &Arc<FormationMap>,
    auth: &Auth,
    serving: &'static Serving,
    options: &ClientOptions,
) -> Arc<Client> {
    let Serving { id, node, liveness } = serving;
    let service: Arc<Node> = Arc::clone(node);
    let files = Arc::new(Files(Arc::clone(node)));
    let local = LocalNode { id: *id, service, files, liveness: Arc::clone(liveness), untold: node.untold() };
    let client = Arc::new(Client::new(Arc::clone(map), auth, Some(local), options));
    node.serve(options.id, |served| {
        served.tokens = Some(Arc::new(ClientTokens(Arc::clone(&client.tokens))));
        served.cache = Some(Arc::new(Known(Arc::downgrade(&client))));
    });
    client
}

/// Unmounts.
pub fn end(client: &Client, serving: &Serving, id: ClientId) {
    client.leave();
    serving.node.serve(id, |served| *served = ServedClient::default());
}
