//! A gateway in this process, over a directory instead of a mount.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bivouac_link::{
    ConnectionLimits, Gateway, GatewayOptions, Grant, KeyTable, LinkKey, LinkSource, LinkTarget, MountPlace,
    OutgoingLink,
};
use bivouac_source::SourceResult;
use bivouac_types::FormationId;
use parking_lot::Mutex;
use tempfile::TempDir;

/// The key that tests use.
pub const KEY: &str = "BVKABCDEFGHIJKLM2345";
/// The formation of the gateway, and the one that asks.
pub const FAR: FormationId = FormationId([1; 16]);
pub const NEAR: FormationId = FormationId([2; 16]);
const SECRET: [u8; 32] = [3; 32];

/// Keys in memory.
#[derive(Default)]
pub struct Keys {
    pub grants: Mutex<HashMap<String, Grant>>,
    pub links: Mutex<Vec<OutgoingLink>>,
    pub now: AtomicU64,
    pub mount: Mutex<MountPlace>,
}

impl KeyTable for Keys {
    fn key(&self, id: &str) -> LinkKey {
        LinkKey::derive(&SECRET, id)
    }

    fn grant(&self, id: &str) -> SourceResult<Option<Grant>> {
        Ok(self.grants.lock().get(id).cloned())
    }

    fn links(&self) -> Vec<OutgoingLink> {
        self.links.lock().clone()
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn mount(&self) -> SourceResult<MountPlace> {
        Ok(self.mount.lock().clone())
    }
}

/// A gateway, its keys, and the directory that it serves.
pub struct Far {
    pub keys: Arc<Keys>,
    pub address: SocketAddr,
    pub dir: TempDir,
}

pub fn grant(path: &str, read_only: bool) -> Grant {
    Grant { path: path.as_bytes().to_vec(), read_only, expires: None }
}

impl Far {
    /// A gateway whose key is for a path.
    pub fn new(path: &str) -> Far {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir_all(dir.path().join(path)).unwrap();
        Far::of(FAR, dir, path)
    }

    pub fn of(formation: FormationId, dir: TempDir, path: &str) -> Far {
        Far::limited((formation, dir), path, ConnectionLimits::default())
    }

    /// A gateway that has few connections.
    pub fn limited((formation, dir): (FormationId, TempDir), path: &str, limits: ConnectionLimits) -> Far {
        let keys = Arc::<Keys>::default();
        keys.grants.lock().insert(KEY.to_owned(), grant(path, false));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        serve((formation, limits), dir.path(), &keys, listener);
        Far { keys, address, dir }
    }

    pub fn target(&self) -> LinkTarget {
        target(self.address)
    }

    pub fn link(&self) -> LinkSource {
        LinkSource::open(self.target()).unwrap()
    }

    pub fn path(&self, path: &str) -> std::path::PathBuf {
        self.dir.path().join(path)
    }
}

fn serve(
    (formation, limits): (FormationId, ConnectionLimits),
    mount: &Path,
    keys: &Arc<Keys>,
    listener: TcpListener,
) {
    let device = rustix::fs::minor(rustix::fs::stat(mount).unwrap().st_dev);
    *keys.mount.lock() = MountPlace { dir: mount.to_owned(), device };
    let gateway = Gateway::new(GatewayOptions {
        formation,
        name: "far".to_owned(),
        owner: owner(),
        keys: keys.clone(),
        limits,
    });
    std::thread::spawn(move || gateway.serve(&listener));
}

pub fn owner() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

pub fn target(address: SocketAddr) -> LinkTarget {
    LinkTarget {
        address: address.to_string(),
        key: LinkKey::derive(&SECRET, KEY),
        formation: NEAR,
        owner: owner(),
        asker: None,
        wait: Duration::from_secs(20),
    }
}
