//! Databases for tests: files, and databases of one server of PostgreSQL that runs as long as the tests do.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bivouac_pool::Pools;

use crate::server::Server;

/// An empty database.
pub struct Database {
    /// How it is named.
    pub url: String,
    _dir: tempfile::TempDir,
}

/// A file.
pub fn sqlite() -> Database {
    let dir = tempfile::tempdir().unwrap();
    Database { url: format!("sqlite://{}", dir.path().join("p.sqlite").display()), _dir: dir }
}

/// One at a server; a file where there is no PostgreSQL.
pub fn postgres() -> Database {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    static MADE: AtomicU32 = AtomicU32::new(0);
    let Some(server) = SERVER.get_or_init(Server::start) else {
        eprintln!("skipped: PostgreSQL is not there; scripts/setup test installs it");
        return sqlite();
    };
    let name = format!("pools{}", MADE.fetch_add(1, Ordering::Relaxed));
    server.make(&name);
    Database { url: server.url(&name), _dir: tempfile::tempdir().unwrap() }
}

impl Database {
    /// Opens it.
    pub fn open(&self) -> Pools {
        Pools::at(&self.url).unwrap()
    }

    /// Changes it behind everybody's back.
    pub fn forge(&self, order: &str) {
        match self.url.strip_prefix("sqlite://") {
            Some(file) => {
                let changed = rusqlite::Connection::open(file).unwrap().execute(order, []).unwrap();
                assert!(changed > 0);
            }
            None => {
                let mut client = postgres::Client::connect(&self.url, postgres::NoTls).unwrap();
                assert!(client.execute(order, &[]).unwrap() > 0);
            }
        }
    }
}
