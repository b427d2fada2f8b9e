//! The worked examples and tables of docs/protocol.md are what the code does.

use bivouac_net::Request;
use bivouac_types::limits::{
    FRAME_BODY_MAX, FRAME_PAYLOAD_MAX, HANDSHAKE_BODY_MAX, HANDSHAKE_MS_MAX, HANDSHAKES_MAX, RECORD_LEN_MAX,
};
use bivouac_types::{ClientId, Ino, OpId, TargetIndex};
use bivouac_wire::{Encode, Flags, Frame, Lane, Op, ReadRequest, VERSION, seal_of};

const PAGE: &str = include_str!("../../../../docs/protocol.md");

/// Lines of 16 bytes with their offset, as the page shows them.
fn dump(bytes: &[u8]) -> String {
    let line = |(at, bytes): (usize, &[u8])| {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (front, back) = hex.split_at(hex.len().min(8));
        format!("{:04x}  {}", at * 16, [front.join(" "), back.join(" ")].join("  ").trim_end())
    };
    bytes.chunks(16).enumerate().map(line).collect::<Vec<_>>().join("\n")
}

fn example() -> (Frame, Vec<u8>) {
    let body =
        ReadRequest { ino: Ino(0x0010_0000_0000_002f), target: TargetIndex(5), offset: 0x2000, len: 4096 }
            .to_bytes();
    let frame = Frame {
        wait_ms: 30_000,
        origin: ClientId(3),
        fence: 0,
        ..Frame::request(Op::Read as u16, OpId(7), ClientId(0x4d), 1)
    };
    (Request::new(frame, &body, &[]).frame, body)
}

#[test]
fn the_worked_request_is_right() {
    let (frame, body) = example();
    let expected = dump(&[&frame.to_bytes()[..], &body].concat());
    assert!(PAGE.contains(&expected), "the page should have\n{expected}");
}

#[test]
fn the_worked_reply_is_right() {
    let expected = dump(&example().0.reply(0, 0, 4096).to_bytes());
    assert!(PAGE.contains(&expected), "the page should have\n{expected}");
}

#[test]
fn the_worked_answer_with_a_body_is_right() {
    let reply = example().0.reply(0, 4, 4096).to_bytes();
    let expected = dump(&[&reply[..], &7u32.to_le_bytes()].concat());
    assert!(PAGE.contains(&expected), "the page should have\n{expected}");
}

#[test]
fn the_worked_seal_is_right() {
    let (frame, body) = example();
    let expected = dump(&Frame { seal: seal_of(&body, []), ..frame }.to_bytes());
    assert!(PAGE.contains(&expected), "the page should have\n{expected}");
}

#[test]
fn the_worked_retry_is_right() {
    let frame = Frame { flags: Flags::RETRY, ..example().0 };
    let line = dump(&frame.to_bytes()).lines().nth(1).unwrap().to_owned();
    assert!(PAGE.contains(&line), "the page should have\n{line}");
}

#[test]
fn every_operation_is_in_the_table() {
    for op in Op::ALL {
        let lane = match op.lane() {
            Lane::Client => "client",
            Lane::Peer => "peer",
            Lane::Both => "both",
            Lane::Mirror => "mirror",
        };
        let row = format!("| {} | {} | {lane} |", *op as u16, op.name());
        assert!(PAGE.contains(&row), "the page should have {row}");
    }
}

/// What happens when a request arrives twice is decided for each operation, not found out.
#[test]
fn every_operation_says_how_a_repetition_is_harmless() {
    let page = include_str!("../../../../docs/design/exactly-once.md");
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let named = |cell: &str, name: &str| cell.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
    let rows: Vec<&str> = cells.map(|(operations, _)| operations).collect();
    for op in Op::ALL {
        assert!(rows.iter().any(|row| named(row, op.name())), "the page should have a row for {}", op.name());
    }
}

#[test]
fn the_limits_are_those_of_the_code() {
    let limits = [
        ("version", usize::from(VERSION)),
        ("body of a frame, bytes", FRAME_BODY_MAX),
        ("payload of a frame, bytes", FRAME_PAYLOAD_MAX),
        ("body of a handshake frame, bytes", HANDSHAKE_BODY_MAX),
        ("content of a record, bytes", RECORD_LEN_MAX),
        ("unproven connections per lane", HANDSHAKES_MAX),
        ("time to prove oneself, ms", HANDSHAKE_MS_MAX as usize),
    ];
    for (name, value) in limits {
        let row = format!("| {name} | {value} |");
        assert!(PAGE.contains(&row), "the page should have {row}");
    }
}
