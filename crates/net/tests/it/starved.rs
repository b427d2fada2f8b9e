//! A server that runs out of descriptors.

use std::net::TcpStream;
use std::sync::Arc;

use crate::world::{World, frame};
use bivouac_net::conformance::Memory;
use bivouac_net::{Address, call};
use bivouac_wire::op;
use rustix::process::{Resource, getrlimit, setrlimit};

/// In a process of its own: the limit is one of the whole process, and other tests open and close what they need.
#[test]
fn without_descriptors_the_server_waits_and_goes_on() {
    let alone = ["starved::in_a_process_alone", "--exact", "--ignored"];
    let output = std::process::Command::new("/proc/self/exe").args(alone).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "lowers the limit of the process; the test above runs it alone"]
fn in_a_process_alone() {
    let world = World::new(Arc::new(Memory::default()));
    let Address::Tcp(address) = world.address.clone() else { panic!("not TCP") };
    let friend = world.transport();
    call::<op::Ping>(&friend, frame(1), &(), &[]).unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(open + 30);
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut strangers = Vec::new();
    while let Ok(stream) = TcpStream::connect(&address) {
        strangers.push(stream);
    }
    // The limit is one on numbers, and numbers may be free below it: how many fit is not exact.
    assert!((10..60).contains(&strangers.len()), "{} connections", strangers.len());
    // Who is connected already is served as before.
    call::<op::Ping>(&friend, frame(2), &(), &[]).unwrap();
    drop(strangers);
    call::<op::Ping>(&world.transport(), frame(3), &(), &[]).unwrap();
}
