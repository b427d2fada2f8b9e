//! Pinning, as users have it: commands, mounts, killed daemons, volumes that are too small.

use std::fs;
use std::path::PathBuf;

use crate::harness::{Camp, Said, is_alive, signal, wait_until};
use rustix::process::Signal;
use tempfile::TempDir;

const MB: usize = 1 << 20;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 253 + at * seed) as u8).collect()
}

/// Two nodes with volumes of 24 MiB, and a partition in front of a directory.
struct Pins {
    camp: Camp,
    site: TempDir,
    _lent: TempDir,
}

impl Pins {
    fn start(width: &str) -> Option<Pins> {
        let (site, lent) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::create_dir_all(site.path().join("set/deep")).unwrap();
        fs::write(site.path().join("set/a"), bytes(4 * MB, 1)).unwrap();
        fs::write(site.path().join("set/deep/b"), bytes(3 * MB, 2)).unwrap();
        fs::create_dir(site.path().join("both")).unwrap();
        fs::write(site.path().join("both/fits"), bytes(MB, 7)).unwrap();
        fs::write(site.path().join("both/not"), bytes(30 * MB, 8)).unwrap();
        fs::write(site.path().join("large"), bytes(30 * MB, 3)).unwrap();
        fs::write(site.path().join("larger"), bytes(60 * MB, 4)).unwrap();
        let volume = format!("{}:24m", lent.path().display());
        let camp = Camp::start_each(&["--nodes", "2", "--volume", &volume, "--deaths-max", "1000/1s"])?;
        let pins = Pins { camp, site, _lent: lent };
        let (part, source) = (pins.part(""), pins.site.path().to_str().unwrap().to_owned());
        pins.run(&["partition", "create", &part, "--stripe", "64k", "--width", width, "--source", &source])
            .succeeds();
        Some(pins)
    }

    fn part(&self, path: &str) -> String {
        let place: PathBuf = self.camp.mounts()[1].join("part").join(path);
        place.to_str().unwrap().to_owned()
    }

    fn run(&self, arguments: &[&str]) -> Said {
        self.camp.place().run(arguments)
    }

    /// Reads and writes more than there is room for.
    fn fill(&self) {
        assert!(fs::read(self.part("large")).unwrap() == bytes(30 * MB, 3));
        fs::write(self.part("written"), bytes(30 * MB, 5)).unwrap();
        assert!(fs::read(self.part("larger")).unwrap() == bytes(60 * MB, 4));
    }

    fn kill_all(&self) {
        let pids: Vec<u64> = (0..2).map(|node| self.camp.node_pid(node)).collect();
        pids.iter().for_each(|pid| signal(*pid, Signal::KILL));
        wait_until("all daemons are gone", || pids.iter().all(|pid| !is_alive(*pid)));
    }
}

/// S245: whole, from the moment when the command has ended, over kill -9 of all daemons, and until it is unpinned.
#[test]
fn a_directory_that_is_pinned_stays_beside_full_volumes_and_killed_daemons() {
    let Some(pins) = Pins::start("0") else { return };
    let set = pins.part("set");
    let said = pins.run(&["pin", &set]);
    assert_eq!(
        (said.code, said.out.trim_end()),
        (0, &*format!("{set}: pinned 2 files, 7 MiB")),
        "{}",
        said.err
    );
    // Nothing of it can come a second time.
    fs::remove_dir_all(pins.site.path().join("set")).unwrap();
    pins.fill();
    pins.kill_all();
    pins.fill();
    assert!(fs::read(pins.part("set/a")).unwrap() == bytes(4 * MB, 1));
    assert!(fs::read(pins.part("set/deep/b")).unwrap() == bytes(3 * MB, 2));
    let explained = pins.run(&["explain", &pins.part("set/a")]).out;
    assert!(explained.contains("pinned: what is here of it stays"), "{explained}");
    let other = pins.run(&["explain", "--json", &pins.part("large")]).out;
    assert!(other.contains("\"pinned\": false"), "{other}");
    let says = "pinned in /part: 2 files, 7 MiB";
    pins.run(&["partition", "show", &pins.part("")]).prints(&[says]);
    wait_until("status shows it", || pins.camp.run("status", &[]).out.contains(says));
    fs::remove_file(pins.part("set/a")).unwrap();
    let said = pins.run(&["unpin", &set]);
    assert_eq!(
        (said.code, said.out.trim_end()),
        (0, &*format!("{set}: unpinned 1 file, 3 MiB")),
        "{}",
        said.err
    );
    let shown = pins.run(&["partition", "show", &pins.part("")]).out;
    assert!(!shown.contains("pinned"), "{shown}");
    assert_eq!(pins.camp.run("down", &["--discard"]).code, 0);
}

/// S246: what can never fit is refused at once, what does not fit now after it was tried; and what was pinned before
/// stays so.
#[test]
fn what_does_not_fit_is_not_pinned_in_part() {
    let Some(pins) = Pins::start("1") else { return };
    let (set, whole) = (pins.part("set"), pins.part(""));
    let refusal = |said: Said, of: &[&str]| {
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{}", said.err);
        assert!(of.iter().all(|text| said.err.contains(text)), "{}", said.err);
    };
    refusal(pins.run(&["pin", &whole]), &[whole.as_str(), "are more than the", "nothing was pinned"]);
    assert_eq!(pins.run(&["pin", &set]).code, 0);
    // There is room for it on both volumes together, and not on that which is to have it.
    let said = pins.run(&["pin", &pins.part("both")]);
    refusal(said, &["both/not: does not fit beside what is pinned", "nothing was pinned"]);
    let shown = pins.run(&["partition", "show", &whole]).out;
    assert!(shown.contains("pinned in /part: 2 files, 7 MiB"), "{shown}");
    pins.fill();
    assert!(fs::read(pins.part("both/not")).unwrap() == bytes(30 * MB, 8), "it is read all the same");
    let outside = pins.camp.mounts()[0].to_str().unwrap().to_owned();
    pins.run(&["pin", &outside]).succeeds().prints(&["is in no partition with a source"]);
    refusal(
        pins.run(&["pin", &pins.part("none")]),
        &["none: no such file or directory (ENOENT)", "check its path"],
    );
    assert_eq!(pins.camp.run("down", &["--discard"]).code, 0);
}
