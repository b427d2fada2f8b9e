//! Gateways and clients that do not keep to the protocol.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::time::Duration;

use bivouac_link::{LinkKey, key_number};
use bivouac_net::{
    Address, Auth, Identity, LaneKind, SealedReader, SealedWriter, Secret, accept_sealed, connect_sealed,
};
use bivouac_source::{Attrs, Cause, Precondition, Source, Upload};
use bivouac_types::{ClientId, FormationId};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::conformance::put_whole;
use crate::far_side::{Far, KEY, NEAR, target};

const WAIT: Duration = Duration::from_secs(20);
const SECRET: [u8; 32] = [3; 32];

fn auth(number: FormationId) -> Auth {
    let secret = Secret::new(*LinkKey::derive(&SECRET, KEY).secret());
    Auth { formation: number, secret, is_secure: true }
}

/// A gateway that admits everybody with the key, and answers each request with these bytes behind the head.
fn lying(answers: Vec<(u8, Vec<u8>, Vec<u8>)>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let Ok((mut reader, mut writer, _)) = accept_sealed(socket, auth, WAIT) else { continue };
            for (status, body, payload) in &answers {
                let Some(id) = skip_request(&mut reader) else { break };
                let mut head = id.to_vec();
                head.extend_from_slice(&(body.len() as u32).to_le_bytes());
                head.extend_from_slice(&(payload.len() as u32).to_le_bytes());
                head.extend_from_slice(&[*status, 0, 0, 0]);
                if writer.write_all(&[&head, body, payload]).is_err() {
                    break;
                }
            }
        }
    });
    address
}

fn skip_request(reader: &mut SealedReader) -> Option<[u8; 4]> {
    let mut head = [0; 16];
    reader.read_exact(&mut head).ok()?;
    let len = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()) as usize;
    reader.read_exact(&mut vec![0; len(4) + len(8)]).ok()?;
    head[..4].try_into().ok()
}

/// What a gateway says first.
fn welcome() -> (u8, Vec<u8>, Vec<u8>) {
    let mut body = 1_u16.to_le_bytes().to_vec();
    body.extend_from_slice(&[1; 16]);
    body.extend_from_slice(&[0; 4 + 4 + 1 + 1 + 4 + 4 + 4]);
    (0, body, Vec::new())
}

fn link_to(address: SocketAddr) -> bivouac_link::LinkSource {
    let target = bivouac_link::LinkTarget { wait: Duration::from_secs(2), ..target(address) };
    bivouac_link::LinkSource::later(target).unwrap()
}

/// S829: a gateway is another site's, and is not trusted.
#[test]
fn a_gateway_that_lies_is_refused() {
    let long = vec![0; 2 << 20];
    for (answer, what) in [
        ((0, b"garbage".to_vec(), Vec::new()), "protocol"),
        ((0, Vec::new(), vec![0; 1 << 17]), "too long"),
        ((0, long, Vec::new()), "too long"),
        ((7, b"\x1b[2Jchanged\n".to_vec(), Vec::new()), "[2Jchanged"),
    ] {
        let refused = link_to(lying(vec![welcome(), answer])).stat(b"f").unwrap_err().to_string();
        // A connection that is ended for it is tried again until the time is over.
        assert!(refused.contains(what) || refused.contains("did not answer"), "{what}: {refused}");
        assert!(!refused.contains('\x1b') && !refused.contains('\n'), "{refused}");
    }
    let silent = link_to(lying(Vec::new())).stat(b"f").unwrap_err();
    assert_eq!(silent.cause(), Cause::Lost, "{silent}");
}

/// S829: neither is who has a key.
#[test]
fn a_client_stays_below_what_is_exported() {
    let far = Far::new("exported");
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::write(far.path("beside"), "beside").unwrap();
    symlink(outside.path(), far.path("exported/out")).unwrap();
    symlink("..", far.path("exported/up")).unwrap();
    symlink(outside.path().join("secret"), far.path("exported/file")).unwrap();
    let link = far.link();
    for path in ["../beside", "..", "/etc/passwd", "a/../../beside", "./x", "a//b", "x\0y"] {
        assert_eq!(link.stat(path.as_bytes()).unwrap_err().cause(), Cause::BadName, "{path}");
    }
    for path in ["out/secret", "up/beside", "up/exported/out/secret"] {
        assert!(link.stat(path.as_bytes()).is_err(), "{path}");
        assert!(put_whole(&link, path.as_bytes(), b"x", &Precondition::Anything).is_err(), "{path}");
    }
    assert!(link.list(b"out").is_err() && link.list(b"up").is_err());
    let found = link.stat(b"file").unwrap();
    assert_eq!(link.read(b"file", &found.version, 0, &mut [0; 9]).unwrap_err().cause(), Cause::WrongKind);
    let attrs = Attrs { perm: 0o600, ..Attrs::default() };
    for token in ["../beside", "beside", ".bivouac-/../../beside", "/etc/x"] {
        let upload = Upload { path: b"f".to_vec(), size: 1, token: token.to_owned(), ..Upload::default() };
        assert!(link.start(upload.clone(), &attrs).is_err(), "{token}");
        assert!(link.put(&upload, 0, b"x").is_err(), "{token}");
        assert!(link.abort(&upload).is_err(), "{token}");
    }
    // Nobody reads, or removes, what another one is uploading.
    let upload = link.begin(b"f", 6, &attrs).unwrap();
    link.put(&upload, 0, b"secret").unwrap();
    assert_eq!(link.stat(upload.token.as_bytes()).unwrap_err().cause(), Cause::BadName);
    assert_eq!(link.remove(upload.token.as_bytes(), None).unwrap_err().cause(), Cause::BadName);
    assert_eq!(link.put_dir(b"", &attrs).unwrap_err().cause(), Cause::Denied);
    assert_eq!(link.remove(b"", None).unwrap_err().cause(), Cause::Denied);
    assert_eq!(fs::read(far.path("beside")).unwrap(), b"beside");
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    let shown = link.list(b"nothing").unwrap_err().to_string();
    assert!(!shown.contains(far.dir.path().to_str().unwrap()), "{shown}");
}

fn connected(far: &Far) -> (SealedReader, SealedWriter) {
    let identity = Identity {
        auth: auth(key_number(KEY).unwrap()),
        client: ClientId(0),
        lane: LaneKind::Client,
        epoch: 0,
    };
    connect_sealed(&Address::tcp(far.address.to_string()), &identity, WAIT).unwrap()
}

/// A request without a body that says who asks first.
#[test]
fn who_does_not_say_who_asks_is_not_served() {
    let far = Far::new("");
    let (mut reader, mut writer) = connected(&far);
    writer.write_all(&[&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[2]]).unwrap();
    let mut head = [0; 16];
    reader.read_exact(&mut head).unwrap();
    assert_eq!((head[0], head[12]), (1, 3));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// Whatever a client sends, the next one is served.
    #[test]
    fn garbage_ends_its_own_connection_alone(
        bytes in proptest::collection::vec(any::<u8>(), 1..400),
        is_plain in any::<bool>(),
    ) {
        static FAR: std::sync::OnceLock<Far> = std::sync::OnceLock::new();
        let far = FAR.get_or_init(|| Far::new("exported"));
        if is_plain {
            use std::io::Write;
            let mut socket = TcpStream::connect(far.address).unwrap();
            let _refused = socket.write_all(&bytes);
        } else {
            let (_reader, mut writer) = connected(far);
            let _refused = writer.write_all(&[&bytes]);
        }
        let link = far.link();
        prop_assert_eq!(link.list(b"").unwrap(), []);
        prop_assert_eq!(link.far_side().unwrap().path, b"exported");
        let _asker = NEAR;
    }
}

/// S829: a mount that was taken away is not taken for an empty one, nor is what is below it.
#[test]
fn a_bare_directory_is_not_the_mount() {
    let far = Far::new("d");
    fs::write(far.path("d/f"), "f").unwrap();
    let link = far.link();
    assert!(link.stat(b"f").unwrap().is_file());
    assert_eq!(link.stat(b"nothing").unwrap_err().cause(), Cause::NotFound);
    // The exported directory has another name for a while.
    fs::rename(far.path("d"), far.path("e")).unwrap();
    for lost in [link.stat(b"f").unwrap_err(), link.remove(b"f", None).unwrap_err()] {
        assert_eq!(lost.cause(), Cause::Lost, "{lost}");
    }
    fs::rename(far.path("e"), far.path("d")).unwrap();
    assert!(link.stat(b"f").unwrap().is_file());
    // What is at the mount's place is on another device, as when it is unmounted.
    let aside = TempDir::new().unwrap();
    let moved = aside.path().join("moved");
    fs::rename(far.dir.path(), &moved).unwrap();
    fs::create_dir_all(far.path("d")).unwrap();
    far.keys.mount.lock().device += 1;
    let lost = link.stat(b"f").unwrap_err();
    assert!(lost.cause() == Cause::Lost && lost.to_string().contains("bivouac mount"), "{lost}");
    let lost = put_whole(&link, b"g", b"content", &Precondition::Absent).unwrap_err();
    assert_eq!(lost.cause(), Cause::Lost, "{lost}");
    assert_eq!(fs::read_dir(far.path("d")).unwrap().count(), 0);
    fs::remove_dir_all(far.dir.path()).unwrap();
    fs::rename(&moved, far.dir.path()).unwrap();
    far.keys.mount.lock().device -= 1;
    assert!(link.stat(b"f").unwrap().is_file());
}
