//! A client against servers that answer in odd pieces, wrongly, or not to the end.

#![allow(clippy::unwrap_used, reason = "test code outside of test functions")]

use std::io::{IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::world::{auth, frame, identity, message};
use bivouac_net::conformance::CLIENT;
use bivouac_net::{
    Address, Damage, NetError, ReplyHead, Request, SocketOptions, SocketTransport, Transport, await_any,
};
use bivouac_types::OpId;
use bivouac_wire::{Frame, Kind, Op};
use hmac::{Hmac, KeyInit, Mac};
use proptest::prelude::*;
use sha2::Sha256;

/// A server for one connection and one request, whose answer is given.
struct OddServer {
    transport: SocketTransport,
    thread: JoinHandle<()>,
}

impl OddServer {
    /// Answers with `pieces`, each written on its own, then closes.
    fn new(pieces: Vec<Vec<u8>>) -> OddServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::tcp(listener.local_addr().unwrap().to_string());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nodelay(true).unwrap();
            admit(&mut stream);
            receive(&mut stream);
            // The client may have hung up after the first wrong byte.
            let _ = pieces.iter().try_for_each(|piece| stream.write_all(piece));
        });
        let options = SocketOptions { wait_ms: 20_000, ..SocketOptions::default() };
        OddServer { transport: SocketTransport::new(address, identity(), options), thread }
    }

    fn ask(
        self,
        manner: Manner,
        body: &mut Vec<u8>,
        into: &mut [IoSliceMut<'_>],
    ) -> Result<ReplyHead, NetError> {
        let request = Request::new(question(), &[], &[]);
        let outcome = match manner {
            Manner::Waiting => self.transport.exchange(&request, body, into),
            Manner::Steps => {
                let mut pending = self.transport.begin(&request);
                while !pending.advance(&request, into) {
                    let _it_alone = await_any(&[pending.wait().unwrap()], true);
                }
                pending.finish(&request, body, into)
            }
        };
        drop(self.transport);
        self.thread.join().unwrap();
        outcome
    }
}

/// How an answer is awaited.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Waiting,
    Steps,
}

fn manner() -> impl Strategy<Value = Manner> {
    prop_oneof![Just(Manner::Waiting), Just(Manner::Steps)]
}

/// The server's half of the handshake, as docs/protocol.md has it.
fn admit(stream: &mut TcpStream) {
    let (hello, body) = receive(stream);
    assert_eq!((hello.op, body.len()), (0xff01, 100));
    let nonce = [8u8; 32];
    let label: &[u8] = b"bivouac-server-2";
    let (key, client) = ([0; 32], hello.client.0.to_le_bytes());
    let about = [label, &body[..17], &client, &body[17..68], &nonce, &body[68..], &key].concat();
    let mut mac = Hmac::<Sha256>::new_from_slice(auth().secret.expose()).unwrap();
    mac.update(&about);
    let challenge = [&nonce[..], &key, &mac.finalize().into_bytes()].concat();
    stream.write_all(&message(hello.reply(0, 0, 0), &challenge, &[])).unwrap();
    let (proof, body) = receive(stream);
    assert_eq!((proof.op, body.len()), (0xff02, 32));
    stream.write_all(&message(proof.reply(0, 0, 0), &[1; 8], &[])).unwrap();
}

/// Reads a frame and its body.
pub fn receive(stream: &mut TcpStream) -> (Frame, Vec<u8>) {
    let mut header = [0u8; 64];
    stream.read_exact(&mut header).unwrap();
    let frame = Frame::from_bytes(&header).unwrap();
    let mut body = vec![0u8; frame.body_len as usize];
    stream.read_exact(&mut body).unwrap();
    (frame, body)
}

fn question() -> Frame {
    Frame { op: Op::Read as u16, ..frame(7) }
}

fn pattern(len: usize, factor: usize) -> Vec<u8> {
    (0..len).map(|at| (at * factor % 251) as u8).collect()
}

/// Cuts bytes at the given places, in whatever order those are.
fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut places: Vec<usize> = cuts.iter().map(|at| at % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places.windows(2).map(|pair| bytes[pair[0]..pair[1]].to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn answers_in_any_pieces_are_put_together(
        body_len in prop_oneof![Just(0usize), 1usize..300, 3000usize..9000],
        payload_len in prop_oneof![Just(0usize), 1usize..300, 3000usize..40_000],
        cuts in proptest::collection::vec(any::<usize>(), 0..6),
        spare in 0usize..100,
        split in any::<usize>(),
        manner in manner(),
    ) {
        let (body, payload) = (pattern(body_len, 3), pattern(payload_len, 7));
        let answer = message(question().reply(0, 0, 0), &body, &payload);
        let server = OddServer::new(cut(&answer, &cuts));
        let mut space = vec![0u8; payload_len + spare];
        let (front, back) = space.split_at_mut(split % (payload_len + spare + 1));
        let mut got = vec![9; 5];
        let head = server.ask(manner, &mut got, &mut [IoSliceMut::new(front), IoSliceMut::new(back)]).unwrap();
        prop_assert_eq!(head, ReplyHead { status: 0, payload_len });
        prop_assert!(got == body);
        prop_assert!(space[..payload_len] == payload[..]);
    }

    #[test]
    fn an_answer_that_ends_early_is_a_loss(
        body_len in 0usize..300,
        payload_len in 0usize..9000,
        end in any::<usize>(),
        manner in manner(),
    ) {
        let answer = message(question().reply(0, 0, 0), &pattern(body_len, 3), &pattern(payload_len, 7));
        let end = end % answer.len();
        let mut space = vec![0u8; 9000];
        let server = OddServer::new(vec![answer[..end].to_vec()]);
        let outcome = server.ask(manner, &mut Vec::new(), &mut [IoSliceMut::new(&mut space)]);
        prop_assert!(matches!(outcome, Err(NetError::Lost { .. })), "{:?}", outcome);
    }

    #[test]
    fn noise_instead_of_an_answer_is_an_error(noise in proptest::collection::vec(any::<u8>(), 64..400), room in 0usize..300, manner in manner()) {
        let mut space = vec![0u8; room];
        let outcome = OddServer::new(vec![noise]).ask(manner, &mut Vec::new(), &mut [IoSliceMut::new(&mut space)]);
        // Who has proven itself sends no noise: it became that on the way.
        prop_assert!(matches!(outcome, Err(NetError::Damaged { what: Damage::Answer, .. })), "{:?}", outcome);
    }
}

/// What the client says about an answer, with and without buffers for a payload.
fn complaints(answer: &[u8]) -> Vec<String> {
    [Manner::Waiting, Manner::Steps].into_iter().flat_map(|manner| complaints_by(manner, answer)).collect()
}

fn complaints_by(manner: Manner, answer: &[u8]) -> Vec<String> {
    [0, 100]
        .into_iter()
        .map(|room| {
            let mut space = vec![0u8; room];
            let server = OddServer::new(vec![answer.to_vec()]);
            match server.ask(manner, &mut Vec::new(), &mut [IoSliceMut::new(&mut space)]) {
                Err(error @ NetError::Protocol { .. }) => error.to_string(),
                other => format!("{other:?}"),
            }
        })
        .collect()
}

#[test]
fn the_answer_to_another_question_is_not_taken() {
    let right = question().reply(0, 0, 0);
    let wrong = [
        Frame { id: OpId(8), ..right },
        Frame { op: Op::Write as u16, ..right },
        Frame { kind: Kind::Request, ..right },
    ];
    for frame in wrong {
        for text in complaints(&message(frame, &[], &[])) {
            assert!(text.contains("another question"), "{text}");
        }
    }
}

#[test]
fn more_payload_than_asked_for_is_not_taken() {
    for text in complaints(&message(question().reply(0, 0, 0), &[], &[1; 101])) {
        assert!(text.contains("longer than asked for"), "{text}");
    }
}

#[test]
fn bytes_behind_the_answer_are_not_taken() {
    let answer = message(question().reply(0, 0, 0), b"body", &[]);
    // In steps nothing is read but what was announced.
    for text in complaints_by(Manner::Waiting, &[&answer[..], b"more"].concat()) {
        assert!(text.contains("more bytes than its header announces"), "{text}");
    }
}

#[test]
fn an_absurd_length_is_not_taken() {
    let frame = Frame { body_len: u32::MAX, ..question().reply(0, 0, 0) };
    for text in complaints(&frame.to_bytes()) {
        assert!(text.contains("longer than the limit"), "{text}");
    }
}

/// Who is silent for too long is given up, also by those who wait for several.
#[test]
fn silence_ends_the_wait_in_steps() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::tcp(listener.local_addr().unwrap().to_string());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        admit(&mut stream);
        receive(&mut stream);
        // Until the other side has had enough.
        stream.read(&mut [0]).unwrap()
    });
    let options = SocketOptions { wait_ms: 300, ..SocketOptions::default() };
    let transport = SocketTransport::new(address, identity(), options);
    // However long the handshake takes: the time is for the answer alone.
    transport.connect(Duration::from_secs(60)).unwrap();
    let request = Request::new(question(), &[], &[]);
    let mut pending = transport.begin(&request);
    while !pending.advance(&request, &mut []) {
        let _it_alone = await_any(&[pending.wait().unwrap()], true);
    }
    assert!(pending.wait().is_none() && pending.is_sent());
    let error = pending.finish(&request, &mut Vec::new(), &mut []).unwrap_err();
    assert!(matches!(error, NetError::TimedOut { waited_ms: 300, .. }), "{error}");
    assert_eq!(server.join().unwrap(), 0);
}

#[test]
fn a_server_with_another_secret_hears_no_proof() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::tcp(listener.local_addr().unwrap().to_string());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (hello, _) = receive(&mut stream);
        stream.write_all(&message(hello.reply(0, 0, 0), &[6; 96], &[])).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        rest
    });
    let transport = SocketTransport::new(address, identity(), SocketOptions::default());
    let error =
        transport.exchange(&Request::new(question(), &[], &[]), &mut Vec::new(), &mut []).unwrap_err();
    drop(transport);
    assert!(error.to_string().contains("does not have our secret"), "{error}");
    assert!(server.join().unwrap().is_empty());
}

#[test]
fn a_server_that_hangs_up_in_the_handshake_has_not_seen_the_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::tcp(listener.local_addr().unwrap().to_string());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        receive(&mut stream).0.client
    });
    let transport = SocketTransport::new(address, identity(), SocketOptions::default());
    let error =
        transport.exchange(&Request::new(question(), &[], &[]), &mut Vec::new(), &mut []).unwrap_err();
    assert_eq!(server.join().unwrap(), CLIENT);
    assert!(matches!(error, NetError::Connect { .. }) && !error.maybe_sent(), "{error}");
}
