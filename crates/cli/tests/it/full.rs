//! Volumes that are full: the write that does not fit says so, and nothing else is harmed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::harness::random::Random;
use crate::harness::{Camp, wait_until};
use rustix::fs::{XattrFlags, setxattr};

const CHUNK: usize = 48_000;

/// So many nodes, each with a volume of 4 MiB, and a mount through each.
fn small_camp(nodes: &str) -> Option<(Camp, tempfile::TempDir)> {
    let dir = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
    let volume = format!("{}:4m", dir.path().display());
    let arguments = ["--nodes", nodes, "--stripe", "16k", "--volume", &volume, "--deaths-max", "99/1ms"];
    Camp::start_each(&arguments).map(|camp| (camp, dir))
}

/// Writes until there is no space left; answers what was written before. The failed write left no trace.
fn fill(path: &Path, options: &OpenOptions) -> Vec<u8> {
    let (mut random, mut content) = (Random::new(5), Vec::new());
    let mut file = options.open(path).unwrap();
    loop {
        let chunk = random.bytes(CHUNK);
        match file.write_all(&chunk) {
            Ok(()) => content.extend(chunk),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                break;
            }
        }
        assert!(content.len() < 64 << 20, "it is never full");
    }
    assert_eq!(fs::metadata(path).unwrap().len(), content.len() as u64);
    content
}

fn is_full(outcome: io::Result<()>) -> bool {
    outcome.is_err_and(|error| error.kind() == ErrorKind::StorageFull)
}

fn used(camp: &Camp) -> u64 {
    let status = camp.status();
    let nodes = status["nodes"].as_array().unwrap();
    nodes.iter().map(|node| node["volumes"][0]["used_bytes"].as_u64().unwrap()).sum()
}

/// What `status` shows as free.
fn free(camp: &Camp) -> u64 {
    let totals = &camp.status()["totals"];
    let [capacity, data, records] =
        ["capacity_bytes", "used_bytes", "records_bytes"].map(|name| totals[name].as_u64().unwrap());
    capacity - data - records
}

/// A file whose content is on one target only.
fn make_on_target(path: &Path, target: usize) {
    File::create(path).unwrap();
    let layout = format!("width=1 base={target}");
    setxattr(path, "user.bivouac.layout", layout.as_bytes(), XattrFlags::empty()).unwrap();
}

#[test]
fn a_full_volume_refuses_what_does_not_fit_and_nothing_else() {
    let Some((camp, _dir)) = small_camp("1") else { return };
    let at = |name: &str| camp.mount().join(name);
    let kept = Random::new(1).bytes(200_000);
    fs::write(at("kept"), &kept).unwrap();
    let content = fill(&at("fill"), OpenOptions::new().write(true).create_new(true));
    assert!(content.len() > 3 << 20 && used(&camp) <= 4 << 20);
    assert!(free(&camp) < 100_000, "status shows as free what is kept for records");
    assert!(is_full(fs::write(at("more"), vec![1; 100_000])));
    assert!(is_full(OpenOptions::new().append(true).open(at("fill")).unwrap().write_all(&vec![1; 100_000])));
    assert!(fs::read(at("fill")).unwrap() == content && fs::read(at("kept")).unwrap() == kept);
    // What needs no space goes on.
    fs::create_dir(at("dir")).unwrap();
    fs::rename(at("kept"), at("dir/kept")).unwrap();
    File::options().write(true).open(at("dir/kept")).unwrap().write_all_at(b"overwritten", 77).unwrap();
    fs::File::create(at("empty")).unwrap();
    assert_eq!(fs::read(at("dir/kept")).unwrap()[77..88], *b"overwritten");
    // Also after the daemon was killed.
    camp.kill_node(0);
    assert!(fs::read(at("fill")).unwrap() == content);
    assert!(is_full(fs::write(at("more"), vec![1; 100_000])));
    camp.wait_until_closed();
    fs::remove_file(at("fill")).unwrap();
    fs::write(at("again"), &content[..3 << 20]).unwrap();
    assert!(fs::read(at("again")).unwrap() == content[..3 << 20]);
    camp.down();
}

/// S24.
#[test]
fn cutting_and_replacing_give_space_back_at_once() {
    let Some((camp, _dir)) = small_camp("1") else { return };
    let at = |name: &str| camp.mount().join(name);
    let content = fill(&at("f"), OpenOptions::new().append(true).create(true));
    OpenOptions::new().write(true).open(at("f")).unwrap().set_len(1 << 20).unwrap();
    fs::write(at("g"), vec![7; 2 << 20]).unwrap();
    assert!(fs::read(at("f")).unwrap() == content[..1 << 20]);
    camp.wait_until_closed();
    fs::rename(at("f"), at("g")).unwrap();
    fs::write(at("h"), vec![8; 2 << 20]).unwrap();
    fs::write(at("h"), vec![9; 2 << 20]).unwrap();
    assert!(fs::read(at("g")).unwrap() == content[..1 << 20]);
    assert_eq!(fs::read(at("h")).unwrap(), vec![9; 2 << 20]);
    // A file that is open without a name keeps its space until it is closed.
    let held = File::open(at("h")).unwrap();
    fs::remove_file(at("h")).unwrap();
    assert!(is_full(fs::write(at("i"), vec![1; 3 << 20])));
    let mut byte = [0];
    held.read_exact_at(&mut byte, (2 << 20) - 1).unwrap();
    assert_eq!(byte, [9]);
    drop(held);
    fs::remove_file(at("i")).unwrap();
    wait_until("its space is free", || fs::write(at("j"), vec![1; 2 << 20]).is_ok());
    camp.down();
}

#[test]
fn many_small_files_fill_a_volume_too() {
    let Some((camp, _dir)) = small_camp("2") else { return };
    let at = |count: usize| camp.mounts()[count % 2].join(format!("f{count}"));
    let full = (0..10_000).find(|count| is_full(fs::write(at(*count), vec![*count as u8; 700])));
    let full = full.unwrap();
    assert!(full > 500, "{full} files");
    for count in 0..full {
        assert_eq!(
            fs::read(at(count + 1).with_file_name(format!("f{count}"))).unwrap(),
            vec![count as u8; 700]
        );
    }
    (0..=full).for_each(|count| fs::remove_file(at(count)).unwrap());
    wait_until("all space is free", || used(&camp) == 0);
    fs::write(at(1), vec![1; 6 << 20]).unwrap();
    assert_eq!(fs::read(at(0).with_file_name("f1")).unwrap(), vec![1; 6 << 20]);
    camp.down();
}

#[test]
fn one_full_volume_of_several_stops_only_what_needs_it() {
    let Some((camp, _dir)) = small_camp("3") else { return };
    let at = |node: usize, name: &str| camp.mounts()[node].join(name);
    let kept = Random::new(2).bytes(500_000);
    fs::write(at(0, "kept"), &kept).unwrap();
    make_on_target(&at(0, "fill"), 1);
    let content = fill(&at(2, "fill"), OpenOptions::new().write(true));
    for node in 0..3 {
        assert!(is_full(fs::write(at(node, "striped"), vec![1; 200_000])), "through node {node}");
        let other = [0, 2][node % 2];
        make_on_target(&at(node, "elsewhere"), other);
        fs::write(at(node, "elsewhere"), vec![2; 1 << 20]).unwrap();
        assert_eq!(fs::read(at((node + 1) % 3, "elsewhere")).unwrap(), vec![2; 1 << 20]);
        fs::remove_file(at(node, "elsewhere")).unwrap();
        assert!(
            fs::read(at(node, "fill")).unwrap() == content && fs::read(at(node, "kept")).unwrap() == kept
        );
    }
    fs::remove_file(at(0, "fill")).unwrap();
    wait_until("there is space again", || fs::write(at(1, "striped"), vec![3; 3 << 20]).is_ok());
    assert_eq!(fs::read(at(2, "striped")).unwrap(), vec![3; 3 << 20]);
    camp.down();
}
