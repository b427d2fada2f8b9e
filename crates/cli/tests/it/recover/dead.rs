//! A formation that is killed as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Camp, Said, can_mount, is_alive, kill_with_standby, wait_until};

pub struct Dead {
    pub camp: Camp,
    pub disk: TempDir,
    files: BTreeMap<String, Vec<u8>>,
}

pub fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 250 + seed * 13) as u8).collect()
}

impl Dead {
    /// On a disk.
    pub fn start(arguments: &[&str]) -> Option<Dead> {
        if !can_mount() {
            return None;
        }
        let disk = tempfile::tempdir().unwrap();
        let volume = format!("{}:256m", disk.path().display());
        let camp = Camp::start(&[arguments, &["--volume", &volume]].concat())?;
        Some(Dead { camp, disk, files: BTreeMap::new() })
    }

    pub fn in_memory(arguments: &[&str]) -> Option<Dead> {
        let camp = Camp::start(arguments)?;
        Some(Dead { camp, disk: tempfile::tempdir().unwrap(), files: BTreeMap::new() })
    }

    pub fn mount(&self) -> &Path {
        self.camp.mount()
    }

    /// Makes files of several kinds.
    pub fn fill(&mut self) {
        for (at, path) in ["one", "deep/two", "deep/er/three", "empty"].into_iter().enumerate() {
            let content = if path == "empty" { Vec::new() } else { bytes(30_000 * at + 10, at) };
            self.write(path, content);
        }
        symlink("deep/two", self.mount().join("link")).unwrap();
        fs::set_permissions(self.mount().join("one"), fs::Permissions::from_mode(0o640)).unwrap();
    }

    pub fn write(&mut self, path: &str, content: Vec<u8>) {
        let full = self.mount().join(path);
        fs::create_dir_all(full.parent().unwrap()).unwrap();
        fs::write(&full, &content).unwrap();
        self.files.insert(path.into(), content);
    }

    /// Everything is as it was made.
    pub fn check(&self) {
        for (path, content) in &self.files {
            assert!(fs::read(self.mount().join(path)).unwrap() == *content, "{path}");
        }
        if self.files.contains_key("one") {
            assert_eq!(fs::read_link(self.mount().join("link")).unwrap(), Path::new("deep/two"));
            let mode = self.mount().join("one").metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o640);
        }
        self.camp.run("fsck", &[]).succeeds();
    }

    /// Kills every process with SIGKILL, the supervisor first.
    pub fn kill(&self) {
        self.kill_found();
        wait_until("it is known to be dead", || self.camp.state() == "dead");
    }

    /// Kills what its state file names; another recovery may begin at any moment.
    pub fn kill_found(&self) {
        // Those that were just being started are found the next time.
        wait_until("every process is gone", || {
            let found = self.processes();
            found.first().copied().into_iter().filter(|pid| is_alive(*pid)).for_each(kill_with_standby);
            for pid in &found {
                if is_alive(*pid) {
                    let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
                    let _gone_meanwhile = rustix::process::kill_process(pid, Signal::KILL);
                }
            }
            found.iter().all(|pid| !is_alive(*pid)) && self.processes() == found && !self.is_held()
        });
    }

    fn is_held(&self) -> bool {
        bivouac_launch::StateDir::at(self.camp.dir()).is_held()
    }

    fn processes(&self) -> Vec<u64> {
        let text = fs::read(self.camp.dir().join("state.json")).unwrap_or_default();
        let state: Value = serde_json::from_slice(&text).unwrap_or_default();
        let nodes = state["nodes"].as_array().cloned().unwrap_or_default();
        let all = [&state["supervisor"]].into_iter().chain(nodes.iter().map(|node| &node["process"]));
        all.filter_map(|process| process["pid"].as_u64()).collect()
    }

    /// The runtime directory goes with the user's last session.
    pub fn log_out(&self) {
        let _may_be_gone = rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH);
        fs::remove_dir_all(self.camp.place().path().join("bivouac")).unwrap();
    }

    /// What goes with a reboot: the runtime directory, mounts, memory.
    pub fn reboot(&self) {
        self.log_out();
        let id = self.identity();
        for entry in fs::read_dir("/dev/shm").unwrap().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.contains(&format!("grants-{id}"))) {
                fs::remove_file(entry.path()).unwrap();
            }
        }
    }

    /// The formation's id, as its first volume says it.
    fn identity(&self) -> String {
        let bytes = fs::read(self.disk.path().join("n0/bivouac-volume")).unwrap();
        bytes[16..32].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Nobody knows where the volumes are.
    pub fn forget(&self) {
        fs::remove_dir_all(self.camp.place().path().join("state")).unwrap();
    }

    /// `recover` with these arguments.
    pub fn run(&self, arguments: &[&str]) -> Said {
        let owner = std::process::id().to_string();
        self.camp.place().run(&[&["recover", "--owner", &owner], arguments].concat())
    }

    /// Recovers it.
    pub fn recover(&self, arguments: &[&str]) {
        let said = self.run(&[&[self.camp.name()], arguments].concat()).succeeds();
        let is_said = said.out.starts_with(&format!("formation {} is recovered\n", self.camp.name()));
        assert!(is_said && said.out.contains("\nmounted at "), "{}", said.out);
    }

    /// What `list` shows of it.
    pub fn listed(&self) -> Value {
        let said = self.camp.place().run(&["list", "--json"]).succeeds();
        let all: Value = serde_json::from_str(&said.out).unwrap();
        let ours = all.as_array().unwrap().iter().find(|one| one["name"] == self.camp.name());
        ours.cloned().unwrap_or_else(|| panic!("{all}"))
    }

    /// All files of the volumes.
    pub fn on_disk(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![self.disk.path().to_owned()];
        while let Some(dir) = dirs.pop() {
            for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    dirs.push(path);
                } else {
                    found.insert(path.clone(), content_of(&path));
                }
            }
        }
        found
    }

    /// Takes it down; nothing is left.
    pub fn down(self) {
        let state = self.camp.place().path().join("state");
        let id = self.camp.status()["formation"].as_str().unwrap().to_owned();
        self.camp.down();
        let noted = fs::read_dir(state.join("bivouac")).into_iter().flatten().count();
        assert_eq!(noted, 0);
        for entry in fs::read_dir("/dev/shm").unwrap().flatten() {
            assert!(!entry.file_name().to_string_lossy().contains(&id), "{entry:?}");
        }
    }
}

/// What a file has: data behind checksums begins far behind a hole.
fn content_of(path: &Path) -> Vec<u8> {
    let (file, mut content, mut at) = (fs::File::open(path).unwrap(), Vec::new(), 0);
    while let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(data)).unwrap();
        let mut bytes = vec![0; (at - data) as usize];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, data).unwrap();
        content.extend(data.to_le_bytes());
        content.extend(bytes);
    }
    content
}
