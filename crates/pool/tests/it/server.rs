//! A server of PostgreSQL of one's own, as Debian has it: no port, a socket in its directory.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Who runs it if the tests run as root, which it refuses: nobody.
const USER: u32 = 65_534;
/// How long it may take to start.
const START: Duration = Duration::from_secs(60);

/// A server; it ends with this value, or with the process of the tests.
pub struct Server {
    dir: tempfile::TempDir,
    bin: PathBuf,
    child: Child,
    /// Where it listens besides its socket, if it does, and then with TLS.
    port: Option<u16>,
}

#[allow(dead_code, reason = "whoever includes this file uses what it needs")]
impl Server {
    /// Starts one; nothing, and a line that says so, where there is none.
    pub fn start() -> Option<Server> {
        Server::started(None, |_| ())
    }

    /// One that listens on this host and has TLS, with what `prepare` writes into its directory of data.
    pub fn start_with_tls(prepare: impl FnOnce(&Path)) -> Option<Server> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Server::started(Some(free), prepare)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.unwrap()
    }

    fn started(port: Option<u16>, prepare: impl FnOnce(&Path)) -> Option<Server> {
        let Some(bin) = programs() else {
            println!("skipped: PostgreSQL is not there (scripts/setup test installs it)");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        if rustix::process::geteuid().is_root() {
            chown(dir.path(), Some(USER), Some(USER)).unwrap();
        }
        let made = as_user(&bin.join("initdb"))
            .args(["--username=tester", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        prepare(&data);
        let child = run(&bin, dir.path(), port);
        let mut server = Server { dir, bin, child, port };
        server.await_ready();
        Some(server)
    }

    /// Makes a database.
    pub fn make(&self, name: &str) {
        let order = format!("CREATE DATABASE {name}");
        self.client("postgres").batch_execute(&order).unwrap();
    }

    /// How a database is named.
    pub fn url(&self, name: &str) -> String {
        let dir = self.dir.path().to_str().unwrap().replace('/', "%2F");
        let port = self.port.map_or_else(String::new, |port| format!(":{port}"));
        format!("postgres://tester@{dir}{port}/{name}")
    }

    /// Somebody who asks it.
    pub fn client(&self, name: &str) -> postgres::Client {
        postgres::Client::connect(&self.url(name), postgres::NoTls).unwrap()
    }

    /// Kills it, with what serves its clients.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, when the last of its processes has gone; it recovers from its log.
    pub fn start_again(&mut self) {
        self.child = run(&self.bin, self.dir.path(), self.port);
        self.await_ready();
    }

    fn await_ready(&mut self) {
        let begun = Instant::now();
        while postgres::Client::connect(&self.url("postgres"), postgres::NoTls).is_err() {
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap();
            assert!(begun.elapsed() < START, "it does not start: {}", log());
            if self.child.try_wait().unwrap().is_some() {
                self.child = run(&self.bin, self.dir.path(), self.port);
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Where its programs are.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let bins = versions.map(|version| version.unwrap().path().join("bin"));
    bins.filter(|bin| bin.join("postgres").exists() && bin.join("initdb").exists()).max()
}

/// Gives a file to who runs it, for nobody else to read.
#[allow(dead_code, reason = "whoever includes this file uses what it needs")]
pub fn hand_over(file: &Path) {
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(file, Some(USER), Some(USER)).unwrap();
    }
}

fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
    }
    command.arg(program);
    command
}

/// It is a child of a thread that lives as long as the process: when that ends, so does the server.
fn run(bin: &Path, dir: &Path, port: Option<u16>) -> Child {
    let mut command = as_user(&bin.join("postgres"));
    command.arg("-D").arg(dir.join("data")).arg("-k").arg(dir);
    if let Some(port) = port {
        command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "ssl=on"]);
    } else {
        command.args(["-h", ""]);
    }
    // Shared memory in its own directory: it is killed, and /dev/shm would keep it for ever.
    command
        .args(["-F", "-c", "max_connections=50", "-c", "dynamic_shared_memory_type=mmap"])
        .stdin(Stdio::null());
    command.stderr(std::fs::File::create(dir.join("log")).unwrap());
    let (started, starts) = mpsc::channel();
    std::thread::spawn(move || {
        started.send(command.spawn().unwrap()).unwrap();
        loop {
            std::thread::park();
        }
    });
    starts.recv().unwrap()
}
