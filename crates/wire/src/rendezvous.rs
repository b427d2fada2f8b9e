//! Messages between the keeper of a formation and the parts on its hosts. They have numbers among those of the
//! operations, but no node serves them: they travel on connections of their own.

use crate::{FormationMap, Op};

/// Number of [`Join`], from a host; its [`PreviousPart`] is the payload, if its part is being recovered.
pub const JOIN: u16 = 82;
/// Number of [`FormationStart`], to a host; the map is its payload.
pub const BEGIN: u16 = 83;
/// Number of [`Order`], to a host.
pub const ORDER: u16 = 84;
/// Number of [`Report`], from a host.
pub const REPORT: u16 = 85;
/// Number of [`Resume`], from a host, on a connection that takes the place of its former one.
pub const RESUME: u16 = 200;

/// Number of [`NewMap`], to a host; the map is its payload.
pub const MAP: u16 = 201;

/// Number of [`RecordHead`], from a keeper to a host that votes; the record's body is its payload.
pub const RECORD: u16 = 202;
/// Number of [`VoteRequest`], from a candidate to a host that votes.
pub const VOTE: u16 = 203;
/// Number of [`Vote`], the answer; the body of the voter's record is its payload, if it agrees.
pub const VOTED: u16 = 204;
/// Number of [`Question`], from a command on another host to the keeper.
pub const ASK: u16 = 205;
/// Number of [`Reply`], the answer; the formation's state is its payload, if it says so.
pub const REPLY: u16 = 206;

/// All numbers of this file.
const NUMBERS: [u16; 11] = [JOIN, BEGIN, ORDER, REPORT, RESUME, MAP, RECORD, VOTE, VOTED, ASK, REPLY];

// A number names one message, whatever connection it is seen on.
const _: () = {
    let mut at = 0;
    while at < NUMBERS.len() {
        let mut op = 0;
        while op < Op::ALL.len() {
            assert!(
                Op::ALL[op] as u16 != NUMBERS[at],
                "a message to a keeper has the number of an operation"
            );
            op += 1;
        }
        at += 1;
    }
};

owned! {
    /// A host is there: the first message of its supervisor.
    Join {
        /// The release that runs there.
        release: String,
        /// The launcher's name for the host; the host's own if the launcher does not pass one.
        host: String,
        /// The host's own name.
        machine: String,
        /// Its clock, in milliseconds since 1970.
        now_unix_ms: u64,
        /// The formation's directory there.
        directory: String,
        /// Reason why it cannot take part, if it cannot.
        trouble: Option<String>,
        /// Its nodes.
        nodes: Vec<JoinNode>,
    }
    /// A host's part before all of its processes were killed, as its volumes tell it.
    PreviousPart {
        /// Id of its first node; the others follow.
        first_node: u16,
        /// The map that it had, with addresses of then.
        map: FormationMap,
        /// The lives of the formation that all of its volumes have seen, the newest last.
        lives: Vec<u64>,
        /// The newest of those that were served.
        served: Option<u64>,
    }
    /// A node that a host brings.
    JoinNode {
        /// `address:port` of the client lane.
        client_address: String,
        /// `address:port` of the peer lane.
        peer_address: String,
        /// Its volumes, by index.
        volumes: Vec<JoinVolume>,
    }
    /// A volume that a node brings.
    JoinVolume {
        /// The directory, as people read it.
        path: String,
        /// `memory` or `disk`.
        kind: String,
        /// Most bytes it may hold.
        capacity_bytes: u64,
    }
    /// The data that a host needs to start its daemons, sent when all hosts have joined.
    FormationStart {
        /// Id of the host's first node; the others follow.
        first_node: u16,
        /// The formation's secret, hidden by the connection's pad.
        sealed_secret: [u8; 32],
        /// Addresses of other hosts that this one must be able to reach.
        reach: Vec<String>,
        /// Addresses of the keeper, where a host that has lost its connection comes back.
        keepers: Vec<String>,
    }
    /// A new connection of a host that takes part. The answer is an [`Order`], or a [`Report`] that the host was given
    /// up.
    #[derive(Copy)]
    Resume {
        /// Id of the host's first node.
        first_node: u16,
        /// Rises with every attempt of the host: the latest one counts, in whatever order they arrive.
        turn: u32,
    }
    /// Head of a record with everything that keepers have decided, which is its body.
    RecordHead {
        /// Term of the keeper that wrote it.
        term: u32,
        /// Its number; rises from record to record.
        version: u64,
        /// Positions of the hosts that vote.
        voters: Vec<u16>,
        /// Hosts that voted before a change of voters, until that is accepted.
        former: Vec<u16>,
    }
    /// A host wants to be the keeper.
    #[derive(Copy)]
    VoteRequest {
        /// The term that it asks for.
        term: u32,
        /// True if it only asks whether it would be elected.
        is_trial: bool,
    }
    /// A voter's answer.
    Vote {
        /// The request.
        request: VoteRequest,
        /// The highest term that it has promised.
        promised: u32,
        /// The newest record that it has accepted, if it agrees.
        record: Option<RecordHead>,
    }
    /// A newer map.
    #[derive(Copy)]
    NewMap {
        /// Its version.
        version: u64,
    }
}

/// Order to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// None: a sign of life.
    Live,
    /// Mount the formation where the ticket says.
    Mount,
    /// Report the state of your nodes.
    Look,
    /// Take your part of the formation down and end.
    Down,
    /// Tell your nodes that these are dead for good.
    Lost {
        /// Their ids.
        nodes: Vec<u16>,
    },
    /// The recovery is done on all hosts: what your volumes hold is the formation's again, and goes with it.
    Recovered,
    /// Take over a node whose host is lost.
    Adopt {
        /// The node.
        node: u16,
        /// The host's node that has the replicas of its volumes.
        backup: u16,
        /// Mirror epoch of the node from then on.
        epoch: u32,
        /// Kind and capacity of each of its volumes.
        volumes: Vec<(String, u64)>,
    },
    /// A keeper's first words on a connection.
    Keepers {
        /// Its term.
        term: u32,
        /// Addresses where this keeper and its successors can be reached, `address:port`.
        addresses: Vec<String>,
        /// True if it has a successor on another host when it is lost.
        is_succeeded: bool,
    },
    /// Take your mounts away: your nodes are about to move.
    Unmount {
        /// True to tell only whether programs use them.
        is_trial: bool,
        /// True to take them away from programs that use them.
        is_forced: bool,
    },
}

/// Request of a command on another host to the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Return the formation's state, once all hosts have reported theirs.
    Look,
    /// Take the formation down.
    Down,
    /// Have hosts leave in order.
    Shrink {
        /// Their names.
        hosts: Vec<String>,
        /// True to take their mounts away from programs that use them.
        is_forced: bool,
    },
    /// Have hosts join.
    Grow {
        /// Their names.
        hosts: Vec<String>,
    },
}

/// The keeper's answer to a command on another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The formation's state is the payload, as the state file has it.
    State,
    /// All hosts have taken their parts down.
    Down {
        /// Processes, mounts, files and sockets that are left, on all hosts together.
        left: [u32; 4],
        /// Hosts that could not say so, or not all, and why.
        notes: Vec<String>,
    },
    /// It cannot be done.
    Refused {
        /// Reason.
        text: String,
    },
    /// It is decided.
    Done,
}

/// Report of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// All its daemons serve; steps of their start, in microseconds.
    Ready {
        /// Name and duration of each step.
        steps: Vec<(String, u64)>,
    },
    /// It cannot take part after all; it takes its part down.
    Failed {
        /// Why.
        text: String,
    },
    /// The formation is mounted there.
    Mounted {
        /// The directory.
        dir: String,
    },
    /// State of its nodes.
    Nodes {
        /// In the order of their ids.
        nodes: Vec<NodeReport>,
        /// Nodes of other hosts of which it has complete replicas, each with the mirror epoch of these.
        replicas: Vec<(u16, u32)>,
        /// Any other problem on the host.
        trouble: Option<String>,
    },
    /// Its part is down, and it ends.
    Down {
        /// Processes, mounts, files and sockets that are left.
        left: [u32; 4],
        /// Problems on the way.
        trouble: Option<String>,
    },
    /// A sign of life.
    Alive,
    /// It has sealed the replicas of a node and opened its sockets; the daemon starts when the map says so.
    Adopted {
        /// The node.
        node: u16,
        /// Its mirror epoch.
        epoch: u32,
        /// Its address for the map, and directories of its volumes.
        place: AdoptedPlace,
    },
    /// It cannot take a node over.
    NotAdopted {
        /// The node.
        node: u16,
        /// Epoch in which it was to.
        epoch: u32,
        /// Reason.
        text: String,
    },
    /// Its daemons have the map of this version.
    HasMap {
        /// The version.
        version: u64,
    },
    /// It can vote, and run the keeper.
    CanKeep {
        /// `address:port` where it is asked for its vote.
        vote_address: String,
        /// `address:port` of a keeper there.
        keeper_address: String,
    },
    /// It has accepted a record.
    Accepted {
        /// The keeper's term.
        term: u32,
        /// The record's number.
        version: u64,
    },
    /// It has promised a later term than that of the keeper that gets this.
    Deposed {
        /// The later term.
        term: u32,
    },
    /// Its mounts are taken away, or could be.
    Unmounted {
        /// True if it was only asked whether programs use them.
        is_trial: bool,
        /// Reason why they cannot be taken away.
        trouble: Option<String>,
    },
}

owned! {
    /// Place of a node that a host has taken over.
    AdoptedPlace {
        /// `address:port` of the client lane.
        client_address: String,
        /// `address:port` of the peer lane.
        peer_address: String,
        /// Unix socket of the client lane there.
        unix_path: String,
        /// Directories of its volumes.
        volumes: Vec<String>,
    }
    /// State of a node of a host.
    NodeReport {
        /// Its id.
        node: u16,
        /// Process of its daemon there; 0 for none.
        pid: u32,
        /// `starting`, `ready`, `restarting`, `failed` or `stopped`.
        life: String,
        /// How its last daemon ended, if one did.
        message: Option<String>,
        /// Daemons of it that died.
        deaths: u64,
    }
}

codec_enum!(Order, "order" {
    Live = 0,
    Mount = 1,
    Look = 2,
    Down = 3,
    Lost { nodes } = 4,
    Recovered = 5,
    Adopt { node, backup, epoch, volumes } = 6,
    Keepers { term, addresses, is_succeeded } = 7,
    Unmount { is_trial, is_forced } = 8,
});

codec_enum!(Question, "question" {
    Look = 0,
    Down = 1,
    Shrink { hosts, is_forced } = 2,
    Grow { hosts } = 3,
});

codec_enum!(Reply, "reply" {
    State = 0,
    Down { left, notes } = 1,
    Refused { text } = 2,
    Done = 3,
});

codec_enum!(Report, "report" {
    Ready { steps } = 0,
    Failed { text } = 1,
    Mounted { dir } = 2,
    Nodes { nodes, replicas, trouble } = 3,
    Down { left, trouble } = 4,
    Alive = 5,
    Adopted { node, epoch, place } = 6,
    NotAdopted { node, epoch, text } = 7,
    HasMap { version } = 8,
    CanKeep { vote_address, keeper_address } = 9,
    Accepted { term, version } = 10,
    Deposed { term } = 11,
    Unmounted { is_trial, trouble } = 12,
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decode, Encode};
    use proptest::prelude::*;

    fn join() -> Join {
        let volume = JoinVolume { path: "/local".into(), kind: "disk".into(), capacity_bytes: 1 << 30 };
        let node = JoinNode {
            client_address: "10.0.0.1:1".into(),
            peer_address: "10.0.0.1:2".into(),
            volumes: vec![volume],
        };
        Join {
            release: "0.1.0".into(),
            host: "n1".into(),
            machine: "n1.example".into(),
            now_unix_ms: 1,
            directory: "/run/x".into(),
            trouble: None,
            nodes: vec![node],
        }
    }

    #[test]
    fn messages_travel() {
        assert_eq!(Join::from_bytes(&join().to_bytes()), Ok(join()));
        let begin = FormationStart {
            first_node: 3,
            sealed_secret: [7; 32],
            reach: vec!["10.0.0.2:1".into()],
            keepers: vec!["10.0.0.1:7".into()],
        };
        assert_eq!(FormationStart::from_bytes(&begin.to_bytes()), Ok(begin));
        let resume = Resume { first_node: 3, turn: 1 };
        assert_eq!(Resume::from_bytes(&resume.to_bytes()), Ok(resume));
        for order in [Order::Live, Order::Mount, Order::Look, Order::Down, Order::Lost { nodes: vec![2, 7] }]
        {
            assert_eq!(Order::from_bytes(&order.to_bytes()), Ok(order));
        }
        let adopt = Order::Adopt { node: 1, backup: 2, epoch: 3, volumes: vec![("disk".into(), 4)] };
        assert_eq!(Order::from_bytes(&adopt.to_bytes()), Ok(adopt));
        assert_eq!(NewMap::from_bytes(&NewMap { version: 9 }.to_bytes()), Ok(NewMap { version: 9 }));
        let head = RecordHead { term: 1, version: 2, voters: vec![0, 1, 2], former: vec![3] };
        let request = VoteRequest { term: 3, is_trial: true };
        for record in [None, Some(head)] {
            let vote = Vote { request, promised: 2, record };
            assert_eq!(Vote::from_bytes(&vote.to_bytes()), Ok(vote));
        }
        let unmount = Order::Unmount { is_trial: true, is_forced: false };
        assert_eq!(Order::from_bytes(&unmount.to_bytes()), Ok(unmount));
        let shrink = Question::Shrink { hosts: vec!["n2".into()], is_forced: true };
        let grow = Question::Grow { hosts: vec!["n5".into(), "n6".into()] };
        for question in [Question::Look, Question::Down, shrink, grow] {
            assert_eq!(Question::from_bytes(&question.to_bytes()), Ok(question));
        }
        for reply in [
            Reply::State,
            Reply::Down { left: [1, 2, 3, 4], notes: vec!["x".into()] },
            Reply::Refused { text: "x".into() },
            Reply::Done,
        ] {
            assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
        }
        let keepers = Order::Keepers { term: 1, addresses: vec!["10.0.0.1:7".into()], is_succeeded: true };
        assert_eq!(Order::from_bytes(&keepers.to_bytes()), Ok(keepers));
        let node = NodeReport { node: 3, pid: 7, life: "ready".into(), message: None, deaths: 2 };
        for report in [
            Report::Ready { steps: vec![("records".into(), 1)] },
            Report::Failed { text: "no space".into() },
            Report::Adopted {
                node: 1,
                epoch: 2,
                place: AdoptedPlace {
                    client_address: "10.0.0.3:1".into(),
                    peer_address: "10.0.0.3:2".into(),
                    unix_path: "/run/n1".into(),
                    volumes: vec!["/local/replica".into()],
                },
            },
            Report::NotAdopted { node: 1, epoch: 2, text: "not in sync".into() },
            Report::HasMap { version: 7 },
            Report::CanKeep { vote_address: "10.0.0.1:1".into(), keeper_address: "10.0.0.1:2".into() },
            Report::Accepted { term: 1, version: 2 },
            Report::Deposed { term: 3 },
            Report::Mounted { dir: "/m".into() },
            Report::Nodes { nodes: vec![node], replicas: vec![(2, 3)], trouble: Some("x".into()) },
            Report::Unmounted { is_trial: true, trouble: Some("in use".into()) },
            Report::Down { left: [1, 2, 3, 4], trouble: None },
            Report::Alive,
        ] {
            assert_eq!(Report::from_bytes(&report.to_bytes()), Ok(report));
        }
    }

    /// The bytes as docs/protocol.md shows them.
    #[test]
    fn golden_vectors() {
        assert_eq!(Order::Down.to_bytes(), [3]);
        assert_eq!(Order::Lost { nodes: vec![2] }.to_bytes(), [4, 1, 0, 0, 0, 2, 0]);
        assert_eq!(Resume { first_node: 3, turn: 258 }.to_bytes(), [3, 0, 2, 1, 0, 0]);
        let report = Report::Down { left: [0, 0, 1, 0], trouble: Some("x".into()) };
        assert_eq!(
            report.to_bytes(),
            [4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, b'x']
        );
    }

    #[test]
    fn no_node_serves_their_numbers() {
        for number in [JOIN, BEGIN, ORDER, REPORT, RESUME, MAP, RECORD, VOTE, VOTED, ASK, REPLY] {
            assert_eq!(crate::Op::from_number(number), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(join) = Join::from_bytes(&bytes) {
                prop_assert_eq!(join.to_bytes(), bytes.clone());
            }
            if let Ok(begin) = FormationStart::from_bytes(&bytes) {
                prop_assert_eq!(begin.to_bytes(), bytes.clone());
            }
            if let Ok(resume) = Resume::from_bytes(&bytes) {
                prop_assert_eq!(resume.to_bytes(), bytes.clone());
            }
            if let Ok(order) = Order::from_bytes(&bytes) {
                prop_assert_eq!(order.to_bytes(), bytes.clone());
            }
            if let Ok(vote) = Vote::from_bytes(&bytes) {
                prop_assert_eq!(vote.to_bytes(), bytes.clone());
            }
            if let Ok(reply) = Reply::from_bytes(&bytes) {
                prop_assert_eq!(reply.to_bytes(), bytes.clone());
            }
            if let Ok(report) = Report::from_bytes(&bytes) {
                prop_assert_eq!(report.to_bytes(), bytes);
            }
        }
    }
}
