//! What the supervisors of a formation's hosts say to the one that starts it, and it to them. These messages
//! have numbers among those of the operations, but no node serves them: they travel on connections of their own.

use crate::{Decode, DecodeError, Encode, FormationMap, Reader, codec_struct};

/// Number of [`Join`], from a host; its [`Past`] is the payload, if its part is being recovered.
pub const JOIN: u16 = 82;
/// Number of [`Begin`], to a host; the map is its payload.
pub const BEGIN: u16 = 83;
/// Number of [`Order`], to a host.
pub const ORDER: u16 = 84;
/// Number of [`Report`], from a host.
pub const REPORT: u16 = 85;
/// Number of [`Resume`], from a host, on a connection that takes the place of its former one.
pub const RESUME: u16 = 200;

/// A host is there: the first message of its supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// The release that runs there.
    pub release: String,
    /// How the launcher calls the host; the host's own name if it does not say.
    pub host: String,
    /// The host's own name.
    pub machine: String,
    /// Its clock, in milliseconds since 1970.
    pub now_unix_ms: u64,
    /// The formation's directory there.
    pub directory: String,
    /// Why it cannot take part, if it cannot.
    pub trouble: Option<String>,
    /// Its nodes.
    pub nodes: Vec<JoinNode>,
}
codec_struct!(Join { release, host, machine, now_unix_ms, directory, trouble, nodes });

/// What a host's part was before all of its processes were killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Id of its first node; the others follow.
    pub first_node: u16,
    /// The map that it had, with addresses of then.
    pub map: FormationMap,
    /// The lives of the formation that all of its volumes have seen, the newest last.
    pub lives: Vec<u64>,
    /// The newest of those that were served.
    pub served: Option<u64>,
}
codec_struct!(Past { first_node, map, lives, served });

/// A node that a host brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinNode {
    /// `address:port` of the client lane.
    pub client_address: String,
    /// `address:port` of the peer lane.
    pub peer_address: String,
    /// Its volumes, by index.
    pub volumes: Vec<JoinVolume>,
}
codec_struct!(JoinNode { client_address, peer_address, volumes });

/// A volume that a node brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinVolume {
    /// The directory, as people read it.
    pub path: String,
    /// `memory` or `disk`.
    pub kind: String,
    /// Most bytes it may hold.
    pub capacity_bytes: u64,
}
codec_struct!(JoinVolume { path, kind, capacity_bytes });

/// All are there: what a host needs to start its daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Id of the host's first node; the others follow.
    pub first_node: u16,
    /// The formation's secret, hidden by the connection's pad.
    pub sealed_secret: [u8; 32],
    /// Addresses of other hosts that this one must be able to reach.
    pub reach: Vec<String>,
}
codec_struct!(Begin { first_node, sealed_secret, reach });

/// A host that is of the formation has connected anew. The answer is an [`Order`], or a [`Report`] that it was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Id of the host's first node.
    pub first_node: u16,
    /// Rises with every attempt of the host: the latest one counts, in whatever order they arrive.
    pub turn: u32,
}
codec_struct!(Resume { first_node, turn });

/// What a host is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing: the one that gives orders lives.
    Live,
    /// Mount the formation where the ticket says.
    Mount,
    /// Tell how your nodes are.
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
}

/// What happened on a host.
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
        /// Where.
        dir: String,
    },
    /// How its nodes are.
    Nodes {
        /// In the order of their ids.
        nodes: Vec<NodeReport>,
        /// What is wrong on the host beside that.
        trouble: Option<String>,
    },
    /// Its part is down, and it ends.
    Down {
        /// Processes, mounts, files and sockets that are left.
        left: [u32; 4],
        /// What went wrong on the way.
        trouble: Option<String>,
    },
    /// It lives.
    Alive,
}

/// How a node of a host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Process of its daemon there; 0 for none.
    pub pid: u32,
    /// `starting`, `ready`, `restarting`, `failed` or `stopped`.
    pub life: String,
    /// How its last daemon ended, if one did.
    pub message: Option<String>,
    /// Daemons of it that died.
    pub deaths: u64,
}
codec_struct!(NodeReport { pid, life, message, deaths });

impl Encode for Order {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Order::Live => out.push(0),
            Order::Mount => out.push(1),
            Order::Look => out.push(2),
            Order::Down => out.push(3),
            Order::Lost { nodes } => (4u8, nodes.clone()).encode(out),
            Order::Recovered => out.push(5),
        }
    }
}

impl Decode<'_> for Order {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            0 => Ok(Order::Live),
            1 => Ok(Order::Mount),
            2 => Ok(Order::Look),
            3 => Ok(Order::Down),
            4 => Ok(Order::Lost { nodes: Decode::decode(input)? }),
            5 => Ok(Order::Recovered),
            _ => Err(DecodeError::Invalid("order")),
        }
    }
}

impl Encode for Report {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Report::Ready { steps } => (0u8, steps.clone()).encode(out),
            Report::Failed { text } => (1u8, text.clone()).encode(out),
            Report::Mounted { dir } => (2u8, dir.clone()).encode(out),
            Report::Nodes { nodes, trouble } => {
                (3u8, nodes.clone()).encode(out);
                trouble.encode(out);
            }
            Report::Down { left, trouble } => {
                out.push(4);
                left.iter().for_each(|count| count.encode(out));
                trouble.encode(out);
            }
            Report::Alive => out.push(5),
        }
    }
}

impl Decode<'_> for Report {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match u8::decode(input)? {
            0 => Report::Ready { steps: Decode::decode(input)? },
            1 => Report::Failed { text: Decode::decode(input)? },
            2 => Report::Mounted { dir: Decode::decode(input)? },
            3 => Report::Nodes { nodes: Decode::decode(input)?, trouble: Decode::decode(input)? },
            4 => {
                let (a, b) = Decode::decode(input)?;
                let (c, d) = Decode::decode(input)?;
                Report::Down { left: [a, b, c, d], trouble: Decode::decode(input)? }
            }
            5 => Report::Alive,
            _ => return Err(DecodeError::Invalid("report")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let begin = Begin { first_node: 3, sealed_secret: [7; 32], reach: vec!["10.0.0.2:1".into()] };
        assert_eq!(Begin::from_bytes(&begin.to_bytes()), Ok(begin));
        let resume = Resume { first_node: 3, turn: 1 };
        assert_eq!(Resume::from_bytes(&resume.to_bytes()), Ok(resume));
        for order in [Order::Live, Order::Mount, Order::Look, Order::Down, Order::Lost { nodes: vec![2, 7] }]
        {
            assert_eq!(Order::from_bytes(&order.to_bytes()), Ok(order));
        }
        let node = NodeReport { pid: 7, life: "ready".into(), message: None, deaths: 2 };
        for report in [
            Report::Ready { steps: vec![("records".into(), 1)] },
            Report::Failed { text: "no space".into() },
            Report::Mounted { dir: "/m".into() },
            Report::Nodes { nodes: vec![node], trouble: Some("x".into()) },
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
        for number in [JOIN, BEGIN, ORDER, REPORT, RESUME] {
            assert_eq!(crate::Op::from_number(number), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(join) = Join::from_bytes(&bytes) {
                prop_assert_eq!(join.to_bytes(), bytes.clone());
            }
            if let Ok(begin) = Begin::from_bytes(&bytes) {
                prop_assert_eq!(begin.to_bytes(), bytes.clone());
            }
            if let Ok(resume) = Resume::from_bytes(&bytes) {
                prop_assert_eq!(resume.to_bytes(), bytes.clone());
            }
            if let Ok(order) = Order::from_bytes(&bytes) {
                prop_assert_eq!(order.to_bytes(), bytes.clone());
            }
            if let Ok(report) = Report::from_bytes(&bytes) {
                prop_assert_eq!(report.to_bytes(), bytes);
            }
        }
    }
}
