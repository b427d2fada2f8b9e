//! Hosts that connect to their keeper anew: a real keeper, and agents that are connections of this process. What time does to both
//! is tested where their state machines are (`hosts/src/contact.rs`), cut networks in tests/cluster.

use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Place, said, wait_until};
use bivouac_net::{Address, Auth, HandshakeRefusal, Identity, LaneKind, Link, Message, NetError, Secret};
use bivouac_types::{ClientId, FormationId};
use bivouac_wire::rendezvous::{
    BEGIN, FormationStart, JOIN, Join, JoinNode, JoinVolume, ORDER, Order, REPORT, RESUME, Report, Resume,
};
use bivouac_wire::{Decode, Encode};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;

/// The launcher of all hosts, as the keeper sees it: it keeps the ticket, and lives as long as its input.
const LAUNCHER: &str = "[ {host} = n1 ] && head -n1 >\"$TICKET.part\" && mv \"$TICKET.part\" \"$TICKET\"; exec cat >/dev/null; : {args}";
const WAIT: Duration = Duration::from_secs(60);

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn join(ticket: &Value, host: &str, port: u16) -> Join {
    let volume = JoinVolume { path: "/local".into(), kind: "disk".into(), capacity_bytes: 1 << 30 };
    let node = JoinNode {
        client_address: format!("127.0.0.1:{port}"),
        peer_address: format!("127.0.0.1:{}", port + 1),
        volumes: vec![volume],
    };
    Join {
        release: ticket["release"].as_str().unwrap().into(),
        host: host.into(),
        machine: format!("{host}.example"),
        now_unix_ms: std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64,
        directory: "/run/x".into(),
        trouble: None,
        nodes: vec![node],
    }
}

/// Where the keeper is, and as whom it is spoken to.
struct Way {
    address: Address,
    formation: FormationId,
    secret: Secret,
}

impl Way {
    fn connect(&self) -> Result<Link, NetError> {
        let auth = Auth { formation: self.formation, secret: self.secret.clone(), is_secure: false };
        Link::connect(
            &self.address,
            &Identity { auth, client: ClientId(0), lane: LaneKind::Peer, epoch: 0 },
            WAIT,
        )
    }

    fn resume(&self, first_node: u16, turn: u32) -> Link {
        let mut link = self.connect().unwrap();
        say(&mut link, RESUME, Resume { first_node, turn }.to_bytes());
        link
    }
}

fn say(link: &mut Link, op: u16, body: Vec<u8>) {
    link.send(&Message { op, body, payload: Vec::new() }).unwrap();
}

/// All that is said until one of it is what is looked for.
fn hear(link: &mut Link, wanted: impl Fn(&Message) -> bool) -> Result<Vec<Message>, NetError> {
    let mut all = Vec::new();
    loop {
        all.extend(link.receive()?);
        if all.iter().any(&wanted) {
            return Ok(all);
        }
        poll(&mut [PollFd::new(&*link, PollFlags::IN)], None).unwrap();
    }
}

fn is(order: &Order) -> impl Fn(&Message) -> bool {
    let order = order.to_bytes();
    move |message| message.op == ORDER && message.body == order
}

/// Whether the keeper has closed a connection; what it said before does not matter.
fn is_closed(link: &mut Link) -> bool {
    hear(link, |_| false).is_err_and(|error| error.is_closed())
}

fn refusal(link: &mut Link) -> String {
    let all = hear(link, |message| message.op == REPORT).unwrap();
    match Report::from_bytes(&all.last().unwrap().body).unwrap() {
        Report::Failed { text } => text,
        other => panic!("{other:?}"),
    }
}

/// S281, S282.
#[test]
fn hosts_come_back_as_long_as_they_are_of_the_formation_and_nobody_else_does() {
    let mut place = Place::new();
    let ticket = place.path().join("ticket");
    place.set("TICKET", ticket.to_str().unwrap());
    let name = Place::unique_name();
    let up = place
        .command(&["up", "--name", &name, "--hosts", "n1,n2,n3", "--launch", LAUNCHER, "--no-mount"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the launcher has the ticket", || ticket.exists());
    let text = std::fs::read_to_string(&ticket).unwrap();
    let ticket: Value = serde_json::from_str(text.trim().strip_prefix("bivouac-ticket ").unwrap()).unwrap();
    let once = Way {
        address: Address::tcp(ticket["addresses"][0].as_str().unwrap()),
        formation: FormationId(bytes(&ticket["formation"]).try_into().unwrap()),
        secret: Secret::new(bytes(&ticket["secret"]).try_into().unwrap()),
    };
    let mut links: Vec<Link> = ["n1", "n2", "n3"]
        .into_iter()
        .zip([7001, 7003, 7005])
        .map(|(host, port)| {
            let mut link = once.connect().unwrap();
            say(&mut link, JOIN, join(&ticket, host, port).to_bytes());
            link
        })
        .collect();
    let mut secret = [0; 32];
    for link in &mut links {
        let all = hear(link, |message| message.op == BEGIN).unwrap();
        let begin = all.iter().find(|message| message.op == BEGIN).unwrap();
        secret = link.seal(&FormationStart::from_bytes(&begin.body).unwrap().sealed_secret);
        say(link, REPORT, Report::Ready { steps: vec![] }.to_bytes());
    }
    said(&up.wait_with_output().unwrap()).succeeds();

    // Neither the ticket nor the formation's own secret, which its clients have, lets anybody in.
    for secret in [once.secret.clone(), Secret::new(secret)] {
        let stranger = Way { secret, address: once.address.clone(), ..once };
        let refused = stranger.connect().err().unwrap();
        assert!(matches!(refused, NetError::Refused { reason: HandshakeRefusal::Secret, .. }), "{refused}");
    }
    let way = Way { secret: Secret::new(secret).to_resume(), ..once };

    // The latest attempt counts, whichever comes first; the former connection ends.
    let mut second = way.resume(1, 2);
    hear(&mut second, is(&Order::Live)).unwrap();
    assert!(is_closed(&mut links[1]));
    assert!(is_closed(&mut way.resume(1, 1)) && is_closed(&mut way.resume(1, 2)));
    let mut latest = way.resume(1, 3);
    hear(&mut latest, is(&Order::Live)).unwrap();
    assert!(is_closed(&mut second));
    let none = refusal(&mut way.resume(7, 1));
    assert!(none.contains("was given up"), "{none}");

    // A part that is down does not come back, and who may have missed it is told with the new connection.
    say(&mut links[2], REPORT, Report::Down { left: [0; 4], trouble: None }.to_bytes());
    let lost = Order::Lost { nodes: vec![2] };
    hear(&mut latest, is(&lost)).unwrap();
    assert!(refusal(&mut way.resume(2, 1)).contains("was given up"));
    let mut first = way.resume(0, 1);
    let told = hear(&mut first, is(&lost)).unwrap();
    assert!(is(&Order::Live)(&told[0]), "{told:?}");

    // Taken down while one of them does not hear: it is told when it comes back.
    let down = place.command(&["down", "--name", &name, "--yes"]).stdout(Stdio::piped()).spawn().unwrap();
    hear(&mut first, is(&Order::Down)).unwrap();
    say(&mut first, REPORT, Report::Down { left: [0; 4], trouble: None }.to_bytes());
    let mut back = way.resume(1, 4);
    hear(&mut back, is(&Order::Down)).unwrap();
    say(&mut back, REPORT, Report::Down { left: [0, 0, 1, 0], trouble: None }.to_bytes());
    let out = said(&down.wait_with_output().unwrap());
    assert!(out.out.contains("1 files") || out.out.contains("1 file"), "what it left is counted: {out:?}");
    assert!(place.is_empty());
}
