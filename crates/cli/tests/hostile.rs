//! Strangers and full volumes: bytes that nobody should send, and more of them than fit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod harness;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Camp, wait_until};
use serde_json::Value;

/// `ENOSPC` of the kernel.
const ENOSPC: Option<i32> = Some(28);

fn addresses(status: &Value) -> Vec<String> {
    let nodes = status["nodes"].as_array().unwrap().iter();
    nodes
        .flat_map(|node| node["addresses"].as_array().unwrap().clone())
        .map(|a| a.as_str().unwrap().to_owned())
        .collect()
}

/// What a stranger sends: noise, halves of frames, headers with absurd lengths, other versions.
fn rubbish(turn: u32) -> Vec<u8> {
    let noise = |len: usize| -> Vec<u8> {
        let mut state = u64::from(turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .take(len)
        .collect()
    };
    let mut bytes = match turn % 4 {
        0 => return noise(1 + turn as usize % 5000),
        1 => b"BVK1\x01\x00\x00\xff".to_vec(),
        2 => b"BVK1\xff\xff\x00\xff".to_vec(),
        _ => return b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
    };
    bytes.extend([0xff; 24]);
    bytes.extend(noise(turn as usize % 300));
    bytes
}

/// Sends rubbish to an address; whether it could be connected to.
fn pester(address: &str, turn: u32) -> bool {
    let bytes = rubbish(turn);
    if address.starts_with('/') {
        return UnixStream::connect(address).map(|mut stream| drop(stream.write_all(&bytes))).is_ok();
    }
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    // The daemon may hang up while we write; that is its right.
    let _ = stream.write_all(&bytes);
    if turn.is_multiple_of(3) {
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0; 100]);
    }
    true
}

fn resident_kib(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn rubbish_on_every_port_does_not_disturb() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "4k"]) else { return };
    let ports = addresses(&camp.status());
    assert!(ports.len() >= 4, "{ports:?}");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (who, port) in ports.iter().enumerate() {
            let done = &done;
            scope.spawn(move || {
                for turn in 0.. {
                    if done.load(Ordering::Relaxed) && turn > 300 {
                        break;
                    }
                    assert!(pester(port, turn * 7 + who as u32), "{port} is there");
                }
            });
        }
        for i in 0..200u32 {
            let (path, bytes) = (camp.mount().join(format!("f{i}")), vec![i as u8; 20_000]);
            fs::write(&path, &bytes).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(camp.mount()).unwrap().count(), 200);
    for node in 0..2 {
        assert!(resident_kib(camp.node_pid(node)) < 200 << 10, "the daemon's memory stays bounded");
    }
    let status = camp.status();
    assert!(status["nodes"].as_array().unwrap().iter().all(|node| node["deaths"] == 0));
    camp.down();
}

#[test]
fn a_thousand_silent_strangers_do_not_lock_anybody_out() {
    let Some(camp) = Camp::start(&[]) else { return };
    let port = addresses(&camp.status()).into_iter().find(|address| !address.starts_with('/')).unwrap();
    let strangers: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(&port).expect("room")).collect();
    fs::write(camp.mount().join("f"), b"served").unwrap();
    // `status` has to connect behind all of them.
    assert_eq!(camp.status()["nodes"][0]["state"], "ready");
    assert_eq!(fs::read(camp.mount().join("f")).unwrap(), b"served");
    drop(strangers);
    camp.down();
}

#[test]
fn a_full_formation_refuses_what_does_not_fit_and_nothing_else() {
    let volume = tempfile::tempdir_in("/dev/shm").unwrap();
    let lent = format!("{}:8m", volume.path().join("v").display());
    fs::create_dir(volume.path().join("v")).unwrap();
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k", "--volume", &lent]) else { return };
    let (keep, big) = (camp.mount().join("keep"), camp.mount().join("big"));
    fs::write(&keep, vec![3; 100_000]).unwrap();
    let file = File::create(&big).unwrap();
    let block = vec![9; 64 << 10];
    let mut written = 0;
    let error = loop {
        match file.write_all_at(&block, written) {
            Ok(()) => written += block.len() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), ENOSPC);
    assert!(written > 8 << 20, "both volumes took part: {written}");
    assert_eq!(file.metadata().unwrap().len(), written);
    let back = fs::read(&big).unwrap();
    assert!(back.len() as u64 == written && back.iter().all(|byte| *byte == 9));
    assert_eq!(fs::read(&keep).unwrap(), vec![3; 100_000]);
    fs::write(camp.mount().join("empty"), b"").unwrap();
    drop(file);
    fs::remove_file(&big).unwrap();
    wait_until("there is room again", || fs::write(&big, vec![1; 4 << 20]).is_ok());
    assert_eq!(fs::read(&big).unwrap(), vec![1; 4 << 20]);
    camp.down();
}
