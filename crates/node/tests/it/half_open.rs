//! Half-open connections: a client has connected anew and asked again, while the node still has the former connection,
//! and on it the original of the request.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bivouac_net::{
    Address, Auth, Call, Identity, LaneKind, Listener, Reply, Secret, Server, ServerOptions, Service,
    ServiceListeners, SocketOptions, SocketTransport, Transport, call,
};
use bivouac_node::Node;
use bivouac_types::{Attr, ClientId, Errno, FsResult, Ino, OpId, SetAttr, mode};
use bivouac_wire::{
    AppendRequest, EntryName, Flags, Frame, InoOnly, ListRequest, MakeRequest, Op, OpenRequest, Operation,
    SetAttrRequest, SpaceKind, SpaceRequest, UnlinkRequest, WriteRequest, op,
};
use parking_lot::Mutex;

use crate::formation::{Formation, read, write};

const CLIENT: ClientId = ClientId(77);
const WAIT: Duration = Duration::from_secs(60);

/// A node that the originals of requests reach late: each is told of, and carried out when that is allowed.
struct Delayed {
    node: Arc<Node>,
    /// The requests that are delayed.
    op: Op,
    arrived: Mutex<Sender<()>>,
    allowed: Mutex<Receiver<()>>,
}

impl Service for Delayed {
    fn serve(&self, call: &Call<'_>, reply: &mut Reply<'_>) {
        if call.op == self.op && call.frame.id == OpId(1) && !call.frame.flags.is_retry() {
            self.arrived.lock().send(()).unwrap();
            self.allowed.lock().recv_timeout(WAIT).unwrap();
        }
        Service::serve(&*self.node, call, reply);
    }

    fn client_connected(&self, client: ClientId) {
        self.node.client_connected(client);
    }

    fn client_gone(&self, client: ClientId) {
        self.node.client_gone(client);
    }
}

/// A client of a node over sockets, whose connections stay open while it makes others.
struct Client {
    transport: SocketTransport,
    _server: Server,
    _directory: tempfile::TempDir,
    arrived: Mutex<Receiver<()>>,
    allow: Sender<()>,
}

impl Client {
    fn of(formation: &Formation, op: Op) -> Client {
        let directory = tempfile::tempdir().unwrap();
        let listener = Listener::bind_unix(directory.path().join("socket")).unwrap();
        let address: Address = listener.address().clone();
        let auth =
            Auth { formation: formation.map.formation, secret: Secret::new([7; 32]), is_secure: false };
        let ((arrives, arrived), (allow, allowed)) = (channel(), channel());
        let node = Arc::clone(&formation.nodes[0]);
        let service = Delayed { node, op, arrived: Mutex::new(arrives), allowed: Mutex::new(allowed) };
        let served =
            ServiceListeners { listeners: vec![(listener, LaneKind::Client)], service: Arc::new(service) };
        let server = Server::start_all(vec![served], auth.clone(), ServerOptions::default()).unwrap();
        let identity = Identity { auth, client: CLIENT, lane: LaneKind::Client, epoch: 0 };
        let transport = SocketTransport::new(address, identity, SocketOptions::default());
        let arrived = Mutex::new(arrived);
        Client { transport, _server: server, _directory: directory, arrived, allow }
    }

    fn ask<O: Operation>(
        &self,
        (id, flags): (u64, Flags),
        request: &O::Request<'_>,
        payload: &[u8],
    ) -> FsResult<O::Reply> {
        let frame = Frame { flags, ..Frame::request(0, OpId(id), CLIENT, 1) };
        call::<O>(
            &self.transport,
            frame,
            request,
            &[IoSlice::new(payload)][..usize::from(!payload.is_empty())],
        )
    }

    /// Asks, loses the connection on this side alone, asks again over another one, does more, and has the original
    /// carried out then. Nobody gets an answer to that.
    fn ask_twice<O: Operation>(
        &self,
        request: &(dyn Fn() -> O::Request<'static> + Sync),
        payload: &[u8],
        more: impl FnOnce(&O::Reply),
    ) -> O::Reply {
        std::thread::scope(|scope| {
            let original =
                scope.spawn(|| self.ask::<O>((1, Flags::default()), &request(), payload).map(drop));
            self.arrived.lock().recv_timeout(WAIT).unwrap();
            self.transport.connect(WAIT).unwrap();
            let reply = self.ask::<O>((1, Flags::RETRY), &request(), payload).unwrap();
            more(&reply);
            self.allow.send(()).unwrap();
            let _nobody_reads_it = original.join().unwrap();
            reply
        })
    }

    fn make(&self, id: u64, name: &'static [u8]) -> Ino {
        self.ask::<op::Make>((id, Flags::default()), &file(name), &[]).unwrap().found.ino
    }
}

fn file(name: &'static [u8]) -> MakeRequest<'static> {
    let (parent, mode, target, near) = (Ino::ROOT, mode::FILE | 0o600, &b""[..], None);
    MakeRequest { parent, name, mode, uid: 0, gid: 0, rdev: 0, target, open: None, exclusive: true, near }
}

#[test]
fn an_unlink_does_not_remove_what_its_client_has_made_since() {
    let formation = Formation::new(1, 4096);
    let client = Client::of(&formation, Op::Unlink);
    let name = || UnlinkRequest { parent: Ino::ROOT, name: b"f", expect: None };
    let first = client.make(2, b"f");
    let mut second = None;
    client.ask_twice::<op::Unlink>(&name, &[], |()| second = Some(client.make(3, b"f")));
    let entry = EntryName { parent: Ino::ROOT, name: b"f" };
    let found = client.ask::<op::Lookup>((4, Flags::default()), &entry, &[]).unwrap();
    assert!(Some(found.ino) == second && found.ino != first);
}

#[test]
fn an_append_is_made_once() {
    let formation = Formation::new(1, 4096);
    let client = Client::of(&formation, Op::Append);
    let ino = client.make(2, b"f");
    let appended =
        client.ask_twice::<op::Append>(&|| AppendRequest { ino, epoch: None, from: 0 }, b"once", |_| {
            client
                .ask::<op::Append>(
                    (3, Flags::default()),
                    &AppendRequest { ino, epoch: None, from: 0 },
                    b", then",
                )
                .unwrap();
        });
    assert_eq!(appended.offset, 0);
    assert_eq!(read(&formation.clients[0], ino, 0, 100), b"once, then");
}

#[test]
fn a_write_does_not_undo_a_later_one() {
    let formation = Formation::new(1, 4096);
    let client = Client::of(&formation, Op::Write);
    let ino = client.make(2, b"f");
    client
        .ask::<op::Append>((3, Flags::default()), &AppendRequest { ino, epoch: None, from: 0 }, b"0000000000")
        .unwrap();
    let attr = client.ask::<op::GetAttr>((4, Flags::default()), &InoOnly { ino }, &[]).unwrap().attr;
    let target = bivouac_layout::split(&attr.layout, 0, 1).next().unwrap().target;
    let write = move || WriteRequest { ino, target, layout: attr.layout, epoch: attr.epoch, offset: 2 };
    client.ask_twice::<op::Write>(&write, b"early", |_| {
        client.ask::<op::Write>((5, Flags::default()), &write(), b"late!").unwrap();
    });
    assert_eq!(read(&formation.clients[0], ino, 0, 100), b"00late!000");
}

/// The reply was lost, and another client has overwritten what was written.
#[test]
fn a_retransmitted_change_of_content_does_not_undo_another_clients() {
    let formation = Formation::new(1, 4096);
    let client = Client::of(&formation, Op::Ping);
    let ino = client.make(2, b"f");
    client
        .ask::<op::Append>((3, Flags::default()), &AppendRequest { ino, epoch: None, from: 0 }, b"0000000000")
        .unwrap();
    let Attr { layout, epoch, .. } =
        client.ask::<op::GetAttr>((4, Flags::default()), &InoOnly { ino }, &[]).unwrap().attr;
    let target = bivouac_layout::split(&layout, 0, 1).next().unwrap().target;
    let place = WriteRequest { ino, target, layout, epoch, offset: 2 };
    let zero = SpaceRequest {
        ino,
        target,
        layout,
        epoch,
        offset: 2,
        len: 5,
        grow: 0,
        ticket: 1,
        kind: SpaceKind::Zero,
    };
    let extents = vec![(1, 2), (6, 3)];
    let list = ListRequest { ino, target, layout, epoch, write: true, extents };
    let first: [&dyn Fn(u64, Flags); 3] = [
        &|id, flags| assert!(client.ask::<op::Write>((id, flags), &place, b"first").unwrap().accepted),
        &|id, flags| assert!(client.ask::<op::ChangeSpace>((id, flags), &zero, &[]).unwrap().accepted),
        &|id, flags| {
            assert_eq!(client.ask::<op::AccessList>((id, flags), &list, b"first").unwrap().places, 2)
        },
    ];
    for (id, change) in (10..).zip(first) {
        change(id, Flags::default());
        write(&formation.clients[0], ino, 0, b"0another00");
        client.transport.connect(WAIT).unwrap();
        change(id, Flags::RETRY);
        assert_eq!(read(&formation.clients[0], ino, 0, 100), b"0another00");
        // A change of its own is carried out.
        change(id + 100, Flags::default());
        assert_ne!(read(&formation.clients[0], ino, 0, 100), b"0another00");
    }
}

#[test]
fn attributes_are_not_set_back() {
    let formation = Formation::new(1, 4096);
    let client = Client::of(&formation, Op::SetAttr);
    let ino = client.make(2, b"f");
    let set = move |mode| SetAttrRequest { ino, set: SetAttr { mode: Some(mode), ..SetAttr::default() } };
    client.ask_twice::<op::SetAttr>(&move || set(0o640), &[], |_| {
        client.ask::<op::SetAttr>((3, Flags::default()), &set(0o600), &[]).unwrap();
    });
    let attr = client.ask::<op::GetAttr>((4, Flags::default()), &InoOnly { ino }, &[]).unwrap().attr;
    assert_eq!(attr.mode & 0o7777, 0o600);
}

/// Its space would stay in use until the client ends.
#[test]
fn an_open_does_not_keep_what_its_client_has_closed() {
    let formation = Formation::new(1, 4096);
    let client = Client::of(&formation, Op::Open);
    let ino = client.make(2, b"f");
    let id = bivouac_types::OpenId(1);
    let open = move || OpenRequest { ino, id, floor: id, truncate: false };
    client.ask_twice::<op::Open>(&open, &[], |_| {
        let close = bivouac_wire::CloseRequest { floor: id, opens: vec![(ino, id)], uses: Vec::new() };
        client.ask::<op::Close>((3, Flags::default()), &close, &[]).unwrap();
    });
    let name = UnlinkRequest { parent: Ino::ROOT, name: b"f", expect: None };
    client.ask::<op::Unlink>((4, Flags::default()), &name, &[]).unwrap();
    let gone = client.ask::<op::GetAttr>((5, Flags::default()), &InoOnly { ino }, &[]);
    assert_eq!(gone.unwrap_err().errno(), Errno::ENOENT);
}
