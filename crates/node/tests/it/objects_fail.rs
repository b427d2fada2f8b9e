//! Object stores at which any request may go wrong: refused, cut off before or behind what was asked for, with half an
//! answer, under a wrong name. What is told to be there is there, and nothing goes.

use std::collections::BTreeMap;

use bivouac_client::{Client, Partition, TreeEntry};
use bivouac_objects::{ACCESS_KEY, SECRET_KEY, Server, Storm};
use bivouac_source::Environment;
use bivouac_types::{Errno, FsResult, Ino, SetAttr, TargetIndex};

use crate::at_site::{DIR, FILE, bytes};
use crate::formation::{Formation, op};

const STRIPE: usize = 5 << 20;
const NAMES: [&str; 4] = ["one", "two", "three", "four"];

struct Weather {
    formation: Formation,
    partition: Partition,
    server: Server,
    chance: u64,
    /// What each file has here.
    files: BTreeMap<&'static str, Vec<u8>>,
}

impl Weather {
    fn new(seed: u64) -> Weather {
        let server = Server::start();
        let mut files = BTreeMap::new();
        for (at, name) in NAMES.iter().enumerate().take(2) {
            files.insert(*name, bytes(3000 + at, at as u8));
            server.put(&format!("p/{name}"), &files[name], &[("mode", "33152")]);
        }
        let mut formation = Formation::new(2, 4096);
        formation.objects = Environment::read(|name| match name {
            "AWS_ACCESS_KEY_ID" => Some(ACCESS_KEY.to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some(SECRET_KEY.to_owned()),
            _ => None,
        });
        formation.restart();
        let client = &formation.clients[0];
        let dir = client.mknod(&op(client), Ino::ROOT, b"part", &DIR).unwrap().ino;
        let targets = (0..2).map(TargetIndex).collect();
        let settings = format!("stripe=5m\nsource=s3://bucket/p?endpoint={}", server.endpoint());
        let partition = client.partitions.make(&op(client), dir, targets, settings.parse().unwrap()).unwrap();
        client.lookup(dir, b"one").unwrap();
        Weather { formation, partition, server, chance: seed, files }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.chance =
            self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) % below
    }

    fn client(&self) -> &Client {
        &self.formation.clients[1]
    }

    /// Does something; what the store has to do with it may fail, but only so.
    fn step(&mut self) -> FsResult<()> {
        let (name, dir) = (NAMES[self.draw(4) as usize], self.partition.dir);
        match self.draw(8) {
            0..=2 => {
                let len = if self.draw(6) == 0 { STRIPE + 5 } else { self.draw(5000) as usize };
                let content = bytes(len, self.draw(250) as u8);
                let client = self.client();
                let made = client.create(&op(client), dir, name.as_bytes(), &FILE, false, true)?;
                self.files.insert(name, Vec::new());
                let client = self.client();
                let written = if len > 0 {
                    client.write(&op(client), made.attr.ino, 0, &content, false).map(drop)
                } else {
                    Ok(())
                };
                client.close(made.attr.ino);
                written?;
                self.files.insert(name, content);
            }
            3 => {
                let client = self.client();
                let Ok(attr) = client.lookup(dir, name.as_bytes()) else { return Ok(()) };
                let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
                client.setattr(&op(client), attr.ino, &set)?;
            }
            4 => {
                let Some(expected) = self.files.get(name) else { return Ok(()) };
                assert!(self.read(name)? == *expected, "{name} is read wrongly");
            }
            5 => {
                self.formation.restart();
            }
            _ => return self.flush(false).map(drop),
        }
        Ok(())
    }

    fn read(&self, name: &str) -> FsResult<Vec<u8>> {
        let client = self.client();
        let attr = client.lookup(self.partition.dir, name.as_bytes())?;
        let mut into = vec![0xee; attr.size as usize + 10];
        let len = client.read(attr.ino, 0, &mut into)?;
        into.truncate(len);
        Ok(into)
    }

    /// Flushes all that has to be. What it says is there has to be there as it is here.
    fn flush(&self, force: bool) -> FsResult<usize> {
        let (client, dir) = (self.client(), self.partition.dir);
        let top = TreeEntry { attr: client.getattr(dir)?, dir, path: Vec::new() };
        let plan = client.plan_flush(&client.site.unsaved()?, &[], &top)?;
        let mut outcome = Ok(plan.files.len());
        for file in &plan.files {
            let seen = client.site.seen_names(dir)?.get(&file.path).cloned();
            let name = String::from_utf8_lossy(&file.path).into_owned();
            match client.site.flush(file, seen, force) {
                Ok(_) => {
                    let there = self.server.object(&format!("p/{name}")).unwrap().bytes.to_vec();
                    assert!(there == self.files[&name[..]], "{name} is said to be there");
                }
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    fn check(&self, force: bool) {
        self.server.heal();
        self.flush(force).unwrap();
        client_is_saved(self.client());
        for (name, expected) in &self.files {
            assert!(self.read(name).unwrap() == *expected, "{name} here");
            let there = self.server.object(&format!("p/{name}")).unwrap().bytes.to_vec();
            assert!(there == *expected, "{name} there");
        }
    }
}

fn client_is_saved(client: &Client) {
    assert!(client.site.unsaved().unwrap().is_empty());
}

/// S168: nothing is lost, nothing is said to be there that is not, and nobody is told of a change that nobody made.
#[test]
fn a_store_at_which_anything_may_fail_loses_nothing() {
    for seed in [3, 1_000_003, 77] {
        let mut weather = Weather::new(seed);
        println!("seed {seed}");
        for round in 0..25 {
            weather.server.storm(Storm { seed: seed + round, one_in: 5, lies: false });
            if let Err(error) = weather.step() {
                assert_eq!(error.errno(), Errno::EIO, "seed {seed}, round {round}: {error}");
            }
        }
        weather.check(false);
    }
}

/// The same at one that also names content wrongly: that is a change that somebody made, as far as can be seen.
#[test]
fn a_store_that_names_content_wrongly_loses_nothing() {
    for seed in [5, 1_000_033] {
        let mut weather = Weather::new(seed);
        println!("seed {seed}");
        for round in 0..25 {
            weather.server.storm(Storm { seed: seed + round, one_in: 6, lies: true });
            if let Err(error) = weather.step() {
                let errno = error.errno();
                assert!(matches!(errno, Errno::EIO | Errno::ESTALE), "seed {seed}, round {round}: {error}");
            }
        }
        weather.check(true);
    }
}
