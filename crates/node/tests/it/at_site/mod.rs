//! A formation with a partition in front of a directory.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use bivouac_client::{Client, Flushed, NewInode, Partition, TreeEntry};
use bivouac_types::{Errno, FsResult, Ino, TargetIndex, mode};
use tempfile::TempDir;

use crate::formation::{Formation, op};

pub const DIR: NewInode<'static> = NewInode { mode: mode::DIR | 0o755, rdev: 0, target: b"" };
pub const FILE: NewInode<'static> = NewInode { mode: mode::FILE | 0o640, rdev: 0, target: b"" };
pub const STRIPE: usize = 64 << 10;

/// A formation with a partition in front of a directory.
pub struct Camp {
    pub formation: Formation,
    pub partition: Partition,
    pub site: TempDir,
}

impl Camp {
    /// Of four nodes; `fill` makes what is there before.
    pub fn new(fill: impl FnOnce(&Path)) -> Camp {
        Camp::of(Formation::new(4, 4096), fill)
    }

    pub fn of(formation: Formation, fill: impl FnOnce(&Path)) -> Camp {
        let site = TempDir::new().unwrap();
        fill(site.path());
        let partition = bind(&formation, "part", site.path()).unwrap();
        Camp { formation, partition, site }
    }

    pub fn client(&self, node: usize) -> &Client {
        &self.formation.clients[node]
    }

    pub fn at(&self, path: &str) -> std::path::PathBuf {
        self.site.path().join(path)
    }

    /// The inode at a path of the partition.
    pub fn ino(&self, node: usize, path: &str) -> FsResult<Ino> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(self.partition.dir, |dir, name| {
            self.client(node).lookup(dir, name.as_bytes()).map(|attr| attr.ino)
        })
    }

    pub fn read(&self, node: usize, path: &str) -> FsResult<Vec<u8>> {
        let (client, ino) = (self.client(node), self.ino(node, path)?);
        let mut bytes = vec![0xee; client.getattr(ino)?.size as usize + 10];
        let len = client.read(ino, 0, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Makes a file, or cuts it to nothing, and writes it.
    pub fn write(&self, node: usize, path: &str, bytes: &[u8]) -> Ino {
        let (client, (dir, name)) = (self.client(node), path.rsplit_once('/').unwrap_or(("", path)));
        let dir = self.ino(node, dir).unwrap();
        let made = client.create(&op(client), dir, name.as_bytes(), &FILE, false, true).unwrap();
        client.write(&op(client), made.attr.ino, 0, bytes, false).unwrap();
        client.close(made.attr.ino);
        made.attr.ino
    }

    /// Flushes all; the failures.
    pub fn flush(&self, node: usize, force: bool) -> Vec<(String, Errno, String)> {
        let client = self.client(node);
        let dir = self.partition.dir;
        let top = TreeEntry { attr: client.getattr(dir).unwrap(), dir, path: Vec::new() };
        let plan = client.plan_flush(&client.site.unsaved().unwrap(), &[], &top).unwrap();
        let mut failed = Vec::new();
        let mut take = |found: &TreeEntry, flushed: FsResult<Flushed>| {
            if let Err(error) = flushed {
                let path = String::from_utf8_lossy(&found.path).into_owned();
                failed.push((path, error.errno(), error.to_string()));
            }
        };
        plan.dirs.iter().for_each(|dir| take(dir, client.site.flush_open(dir)));
        for file in &plan.files {
            let name = file.path.rsplit(|byte| *byte == b'/').next().unwrap();
            let seen = client.site.seen_names(file.dir).unwrap().get(name).cloned();
            take(file, client.site.flush(file, seen, force));
        }
        plan.dirs.iter().rev().for_each(|dir| take(dir, client.site.flush(dir, None, force)));
        failed
    }

    pub fn is_saved(&self) -> bool {
        self.client(0).site.unsaved().unwrap().is_empty()
    }

    /// What is at the source is what is here.
    pub fn check_same(&self, node: usize) {
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            let here: Vec<_> =
                self.client(node).readdir(self.ino(node, &dir).unwrap(), 0, 1 << 20, false).unwrap();
            let mut here: Vec<_> =
                here.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect();
            let there = fs::read_dir(self.at(&dir)).unwrap();
            let mut there: Vec<_> =
                there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            here.sort();
            there.sort();
            assert_eq!(here, there, "{dir}");
            for name in here {
                let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                self.check_same_at(node, &path);
                if self.at(&path).symlink_metadata().unwrap().is_dir() {
                    dirs.push(path);
                }
            }
        }
    }

    pub fn check_same_at(&self, node: usize, path: &str) {
        let client = self.client(node);
        let here = client.getattr(self.ino(node, path).unwrap()).unwrap();
        let there = self.at(path).symlink_metadata().unwrap();
        assert_eq!((here.uid, here.gid), (there.uid(), there.gid()), "{path}");
        assert_eq!(
            (here.mtime.secs, i64::from(here.mtime.nanos)),
            (there.mtime(), there.mtime_nsec()),
            "{path}"
        );
        if there.is_symlink() {
            let target = fs::read_link(self.at(path)).unwrap();
            assert_eq!(client.readlink(here.ino).unwrap(), target.to_str().unwrap().as_bytes());
            return;
        }
        assert_eq!(here.mode, there.mode(), "{path}");
        if there.is_file() {
            assert!(self.read(node, path).unwrap() == fs::read(self.at(path)).unwrap(), "{path}");
        }
    }
}

/// A partition of four nodes with more settings.
pub fn with_settings(more: &str, fill: impl FnOnce(&Path)) -> Camp {
    let (formation, site) = (Formation::new(4, 4096), TempDir::new().unwrap());
    fill(site.path());
    let partition = bind_with(&formation, "part", site.path(), more).unwrap();
    Camp { formation, partition, site }
}

pub fn bind(formation: &Formation, name: &str, site: &Path) -> FsResult<Partition> {
    bind_with(formation, name, site, "")
}

pub fn bind_with(formation: &Formation, name: &str, site: &Path, more: &str) -> FsResult<Partition> {
    let client = &formation.clients[0];
    let dir = client.mknod(&op(client), Ino::ROOT, name.as_bytes(), &DIR)?.ino;
    let targets = (0..formation.map().target_count()).map(|target| TargetIndex(u32::from(target))).collect();
    let settings = format!("stripe=64k\nsource={}\n{more}", site.display());
    client.partitions.make(&op(client), dir, targets, settings.parse().unwrap())
}

pub fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 255) as u8 ^ at as u8 ^ seed).collect()
}

/// A tree with everything that a directory can hold.
pub fn tree(site: &Path) {
    fs::create_dir_all(site.join("a/b/c")).unwrap();
    fs::create_dir(site.join("empty")).unwrap();
    fs::write(site.join("top"), bytes(10, 1)).unwrap();
    fs::write(site.join("a/large"), bytes(10 * STRIPE + 77, 2)).unwrap();
    fs::write(site.join("a/b/c/deep"), bytes(STRIPE, 3)).unwrap();
    fs::write(site.join("nothing"), "").unwrap();
    symlink("../no/where", site.join("a/link")).unwrap();
    fs::set_permissions(site.join("top"), fs::Permissions::from_mode(0o4750)).unwrap();
    fs::set_permissions(site.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    rustix::fs::setxattr(site.join("top"), "user.note", b"hello", rustix::fs::XattrFlags::empty()).unwrap();
}
