//! Many places of a file in one call.

use crate::formation::{Formation, op as context};
use bivouac_client::NewInode;
use bivouac_types::{Errno, Ino, mode};

const STRIPE: usize = 4096;

fn file(formation: &Formation) -> Ino {
    let client = &formation.clients[0];
    let new = NewInode { mode: mode::FILE | 0o600, rdev: 0, target: &[] };
    client.create(&context(client), Ino::ROOT, b"file", &new, true, false).unwrap().attr.ino
}

/// How often all nodes served an operation.
fn served(formation: &Formation, name: &str) -> u64 {
    (0..formation.nodes.len() as u16)
        .flat_map(|node| formation.clients[0].nodes().status(bivouac_types::NodeId(node)).unwrap().operations)
        .filter(|count| count.name == name)
        .map(|count| count.client)
        .sum()
}

/// S121.
#[test]
fn a_list_is_one_message_per_target_and_does_what_single_calls_do() {
    let formation = Formation::new(3, STRIPE as u32);
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    let ino = file(&formation);
    let mut model = vec![0u8; 40 * STRIPE];
    // Every 700 bytes a piece of 300, over stripes and targets.
    let data: Vec<u8> = (0..model.len()).map(|at| (at * 7 % 253) as u8).collect();
    let places: Vec<(u64, &[u8])> =
        (100..model.len() - 300).step_by(700).map(|at| (at as u64, &data[at..at + 300])).collect();
    client.write_list(ino, &places).unwrap();
    for (at, piece) in &places {
        model[*at as usize..][..piece.len()].copy_from_slice(piece);
    }
    assert_eq!((served(&formation, "AccessList"), served(&formation, "Write")), (3, 0));
    assert_eq!(
        (served(&formation, "Extend"), served(&formation, "ExtendOver")),
        (0, 1),
        "the size is told once"
    );
    let size = other.getattr(ino).unwrap().size as usize;
    assert_eq!(size, places.last().map(|(at, piece)| *at as usize + piece.len()).unwrap());
    let mut seen = vec![0xee; model.len()];
    assert_eq!(other.read(ino, 0, &mut seen).unwrap(), size);
    assert_eq!(seen[..size], model[..size]);

    let mut buffers = vec![vec![0xee; 1000]; 60];
    let mut wanted: Vec<(u64, &mut [u8])> =
        (0u64..).step_by(2 * STRIPE - 5).zip(buffers.iter_mut().map(|buffer| &mut buffer[..])).collect();
    let offsets: Vec<usize> = wanted.iter().map(|(at, _)| *at as usize).collect();
    let counts = other.read_list(ino, &mut wanted).unwrap();
    assert_eq!(served(&formation, "AccessList"), 6);
    for ((at, count), buffer) in offsets.into_iter().zip(counts).zip(&buffers) {
        assert_eq!(count, size.saturating_sub(at).min(1000), "at {at}");
        assert_eq!(buffer[..count], model[at.min(size)..][..count], "at {at}");
    }
}

/// S468.
#[test]
fn ten_thousand_places_are_one_message_per_target() {
    let formation = Formation::new(4, STRIPE as u32);
    let (client, other) = (&formation.clients[0], &formation.clients[1]);
    let ino = file(&formation);
    let pieces = (0..10_000u32).map(|number| (u64::from(number) * 16, number.to_le_bytes()));
    let pieces: Vec<(u64, [u8; 4])> = pieces.collect();
    let places: Vec<(u64, &[u8])> = pieces.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
    client.write_list(ino, &places).unwrap();
    assert_eq!(served(&formation, "AccessList"), 4);
    let mut buffers = vec![[0xee; 4]; pieces.len()];
    let mut wanted: Vec<(u64, &mut [u8])> =
        pieces.iter().zip(&mut buffers).map(|((at, _), buffer)| (*at, &mut buffer[..])).collect();
    other.open(&context(other), ino, 0).unwrap();
    let counts = other.read_list(ino, &mut wanted).unwrap();
    assert_eq!(served(&formation, "AccessList"), 8);
    assert!(counts.iter().all(|count| *count == 4));
    assert!(pieces.iter().zip(&buffers).all(|((_, bytes), buffer)| bytes == buffer));
}

#[test]
fn lists_of_any_length_are_taken() {
    let formation = Formation::new(2, STRIPE as u32);
    let client = &formation.clients[0];
    let ino = file(&formation);
    let long = vec![7u8; 5 << 20];
    let mut places: Vec<(u64, &[u8])> = (0..20_000).map(|at| (at * 2, &b"x"[..])).collect();
    places.extend([(1 << 20, &long[..]), (0, &[][..]), (6 << 20, &long[..100])]);
    client.write_list(ino, &places).unwrap();
    let mut seen = vec![0; 7 << 20];
    let size = client.read(ino, 0, &mut seen).unwrap();
    assert_eq!(size, (6 << 20) + 100);
    let expected = |at: usize| match at {
        0..40_000 if at.is_multiple_of(2) => b'x',
        0x10_0000.. => 7,
        _ => 0,
    };
    assert!(seen[..size].iter().enumerate().all(|(at, byte)| *byte == expected(at)));
    let mut bytes = vec![0u8; 20_000];
    let mut wanted: Vec<(u64, &mut [u8])> = (0..).step_by(2).zip(bytes.chunks_mut(1)).collect();
    assert_eq!(client.read_list(ino, &mut wanted).unwrap(), vec![1; 20_000]);
    assert!(bytes.iter().all(|byte| *byte == b'x'));
    assert_eq!(client.read_list(ino, &mut []).unwrap(), Vec::<usize>::new());
    client.write_list(ino, &[(u64::MAX, &[])]).unwrap();
    let error = client.write_list(ino, &[(u64::MAX, b"x"), (0, b"y")]).unwrap_err();
    assert_eq!(error.errno(), Errno::EFBIG);
}

#[test]
fn a_list_that_a_cut_overtakes_is_written_again() {
    let formation = Formation::new(3, STRIPE as u32);
    let (client, cutter) = (&formation.clients[0], &formation.clients[1]);
    let ino = file(&formation);
    let data = vec![9u8; STRIPE];
    let places: Vec<(u64, &[u8])> = (0..9).map(|stripe| (stripe * STRIPE as u64 + 1, &data[..100])).collect();
    client.write_list(ino, &places).unwrap();
    // The writer does not know of the cut.
    let set = bivouac_client::SetAttr { size: Some(10), ..Default::default() };
    cutter.setattr(&context(cutter), ino, &set).unwrap();
    client.write_list(ino, &places).unwrap();
    let mut buffers = vec![[0u8; 100]; 9];
    let mut wanted: Vec<(u64, &mut [u8])> =
        (0..9).map(|stripe| stripe * STRIPE as u64 + 1).zip(buffers.iter_mut().map(|b| &mut b[..])).collect();
    assert_eq!(cutter.read_list(ino, &mut wanted).unwrap(), vec![100; 9]);
    assert!(buffers.iter().all(|buffer| *buffer == [9; 100]));
}

/// S120: a large call is large messages to all targets, not one for all of them at a time.
#[test]
fn a_large_call_is_large_messages() {
    let formation = Formation::new(4, 256 << 10);
    let (client, other, ino) = (&formation.clients[0], &formation.clients[1], file(&formation));
    let data: Vec<u8> = (0..40 << 20).map(|at: usize| (at * 7 % 253) as u8 ^ (at >> 12) as u8).collect();
    client.write_at(ino, 12_345, &data).unwrap();
    let writes = served(&formation, "Write");
    // Of 1 MiB; the first and the last of each target may be shorter.
    assert!(writes <= 40 + 2 * 4, "{writes} messages for 40 MiB");
    let mut seen = vec![0xee; data.len() + 12_400];
    other.open(&context(other), ino, 0).unwrap();
    assert_eq!(other.read(ino, 0, &mut seen).unwrap(), data.len() + 12_345);
    assert!(seen[..12_345].iter().all(|byte| *byte == 0) && seen[12_345..][..data.len()] == data[..]);
    let reads = served(&formation, "Read");
    assert!(reads <= 40 + 2 * 4, "{reads} messages for 40 MiB");
}
