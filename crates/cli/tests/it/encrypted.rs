//! A formation that encrypts, over TCP: nobody in between reads or changes anything, and a daemon that is killed is as before.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::Camp;
use crate::harness::library::{create, ctx, far_library, far_library_over, open, read, write};
use bivouac_client::Client;
use bivouac_launch::StateDir;
use bivouac_net::{
    Auth, HandshakeRefusal, Identity, LaneKind, NetError, SocketOptions, SocketTransport, TamperingProxy,
    Transport,
};
use bivouac_types::{ClientId, Ino};

const SECURE: &[&str] = &["--nodes", "2", "--stripe", "64k", "--secure"];
/// What is in every block that is written.
const MARK: &[u8] = b"what nobody else is to know";

fn content(len: usize, seed: u8) -> Vec<u8> {
    MARK.iter().copied().chain([seed]).cycle().take(len).collect()
}

fn holds(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// A client, what it says over the network, and whether one of twenty records is changed on the way.
struct Overheard {
    client: Client,
    heard: Arc<Mutex<Vec<u8>>>,
    changes: Arc<AtomicU64>,
    is_changing: Arc<AtomicBool>,
    _between: Vec<TamperingProxy>,
}

fn overheard(camp: &Camp) -> Overheard {
    let (heard, changes) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
    let (is_changing, mut between) = (Arc::new(AtomicBool::new(false)), Vec::new());
    let client = far_library_over(&camp.dir(), |map| {
        for node in &mut map.nodes {
            let (heard, changes, seen) = (Arc::clone(&heard), Arc::clone(&changes), AtomicU64::new(0));
            let is_changing = Arc::clone(&is_changing);
            let meddler = TamperingProxy::between(node.client_address.clone(), move |unit, mut bytes| {
                heard.lock().unwrap().extend_from_slice(&bytes);
                let turn = seen.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                if unit.frame.is_none() && is_changing.load(Ordering::Relaxed) && turn.is_multiple_of(20) {
                    let at = usize::try_from(turn).unwrap() % bytes.len();
                    bytes[at] ^= 1 << (turn % 8);
                    changes.fetch_add(1, Ordering::Relaxed);
                }
                bytes.into()
            });
            let meddler = meddler.unwrap();
            node.client_address = meddler.address().to_string();
            between.push(meddler);
        }
    });
    Overheard { client, heard, changes, is_changing, _between: between }
}

/// P15, S421, S422, S424: who has the map and the secret follows without being told.
#[test]
fn nothing_is_overheard_or_changed() {
    let Some(camp) = Camp::start(SECURE) else { return };
    assert!(camp.run("status", &[]).out.contains("encrypted between hosts"));
    let Overheard { client, heard, changes, is_changing, _between } = overheard(&camp);
    let clean = far_library(&camp.dir());
    is_changing.store(true, Ordering::Relaxed);
    for (number, len) in
        [1, 300, 5_000, 65_536, 200_000, 999_999, 1_000_000, 1_000_001].into_iter().enumerate()
    {
        let (name, data) = (format!("private-{number}"), content(len, number as u8));
        let file = create(&client, &name);
        write(&client, file, 0, &data);
        open(&clean, file);
        assert!(read(&clean, file, 0, len + 1) == data, "stored: {name}");
        assert!(read(&client, file, 0, len + 1) == data, "read: {name}");
    }
    assert!(changes.load(Ordering::Relaxed) > 5);
    let heard = heard.lock().unwrap();
    assert!(heard.len() > 6_000_000 && !holds(&heard, MARK) && !holds(&heard, b"private-"));
    // What is written through the mount is what the library reads.
    std::fs::write(camp.mount().join("by mount"), content(100_000, 9)).unwrap();
    let ino = clean.lookup(Ino::ROOT, b"by mount").unwrap().ino;
    open(&clean, ino);
    assert!(read(&clean, ino, 0, 200_000) == content(100_000, 9));
    drop((client, clean, _between));
    camp.down();
}

/// The same is seen of one that does not encrypt, so it is looked for as it should be.
#[test]
fn without_it_everything_is_overheard() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    assert!(!camp.run("status", &[]).out.contains("encrypted"));
    let Overheard { client, heard, _between, .. } = overheard(&camp);
    let file = create(&client, "private-1");
    write(&client, file, 0, &content(10_000, 1));
    let heard = heard.lock().unwrap();
    assert!(holds(&heard, MARK) && holds(&heard, b"private-1"));
}

/// S424.
#[test]
fn who_does_not_encrypt_or_has_another_secret_is_refused() {
    let Some(camp) = Camp::start(SECURE) else { return };
    let auth = camp.auth();
    assert!(auth.is_secure);
    let state = StateDir::at(camp.dir()).read().unwrap().unwrap();
    let address = state.nodes[0].client_address.clone();
    let refused = |auth: Auth| {
        let identity = Identity { auth, client: ClientId(99), lane: LaneKind::Client, epoch: 0 };
        let options = SocketOptions::default();
        let transport = SocketTransport::new(bivouac_net::Address::tcp(&*address), identity, options);
        match transport.connect(Duration::from_secs(20)) {
            Err(NetError::Refused { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(Auth { is_secure: false, ..auth.clone() }), HandshakeRefusal::Way);
    assert_eq!(refused(Auth { secret: bivouac_net::Secret::new([9; 32]), ..auth }), HandshakeRefusal::Secret);
    // The secret is the user's, and on no command line.
    let mode = std::fs::metadata(camp.dir().join("secret")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    camp.down();
}

/// S426: a killed daemon, requests that are sent again, and none that is done twice.
#[test]
fn a_killed_daemon_costs_nothing() {
    let Some(camp) = Camp::start(SECURE) else { return };
    let client = far_library(&camp.dir());
    let file = create(&client, "f");
    for round in 0..12u8 {
        if round % 4 == 1 {
            camp.kill_node(usize::from(round / 4) % 2);
        }
        let appended = client.write(&ctx(&client), file, 0, &content(40_000, round), true).unwrap();
        assert_eq!(appended, 40_000);
    }
    let expected: Vec<u8> = (0..12).flat_map(|round| content(40_000, round)).collect();
    assert!(read(&client, file, 0, expected.len() + 1) == expected, "each once, in their order");
    drop(client);
    camp.down();
}
