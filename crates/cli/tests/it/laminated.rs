//! Laminated files on real formations: how a user makes and ends them, what is refused on every way to them, and what
//! kernels keep of them.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::harness::library::{far_library, messages};
use crate::harness::{Camp, Said, assert_contains, text, wait_until};
use crate::http::{SERVED, served};
use crate::http_attacked::by_s3;

const CONTRACT: &str = "user.bivouac.contract";
const DIGEST: &str = "user.bivouac.sha256";

fn laminate(camp: &Camp, arguments: &[&str]) -> Said {
    camp.place().run(&[&["laminate"], arguments].concat())
}

fn attribute(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = [0; 128];
    let len = getxattr(path, name, &mut value)?;
    Ok(String::from_utf8(value[..len].to_vec()).unwrap())
}

fn contract_of(path: &Path) -> String {
    attribute(path, CONTRACT).unwrap()
}

fn set(path: &Path, contract: &str) -> Result<(), Errno> {
    setxattr(path, CONTRACT, contract.as_bytes(), XattrFlags::empty())
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 251) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

/// S750, S751: a file and a tree, by the command and by the attribute, and how that is shown.
#[test]
fn files_and_trees_are_laminated_shown_compared_and_undone() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let at = |name: &str| camp.mount().join(name);
    let other = |name: &str| camp.mounts()[1].join(name);
    fs::create_dir_all(at("tree/deep/er")).unwrap();
    let files = [("tree/one", 300_000), ("tree/deep/two", 5), ("tree/deep/er/empty", 0), ("alone", 70_000)];
    for (name, len) in files {
        fs::write(at(name), content(len, 1)).unwrap();
    }
    std::os::unix::fs::symlink("one", at("tree/link")).unwrap();
    camp.wait_until_closed();
    let said = laminate(&camp, &[text(&at("tree")), text(&other("alone"))]);
    let alone = sha256(&content(70_000, 1));
    let expected = format!(
        "{}: laminated, 3 files\n{}: laminated, SHA-256 {alone}\n",
        text(&at("tree")),
        text(&other("alone"))
    );
    assert_eq!((said.code, said.out, said.err.as_str()), (0, expected, ""));
    for (name, len) in files {
        for path in [at(name), other(name)] {
            assert_eq!(contract_of(&path), "laminated");
            assert_eq!(attribute(&path, DIGEST).unwrap(), sha256(&content(len, 1)), "{name}");
            assert!(fs::read(&path).unwrap() == content(len, 1), "{name}");
            assert_eq!(listxattr(&path, &mut [0_u8; 64]).unwrap(), 0, "copies do not take it along");
        }
    }
    assert_eq!(contract_of(&at("tree/deep")), "coherent partition", "directories stay as they are");
    fs::write(other("tree/deep/new"), "new").unwrap();
    assert_eq!(contract_of(&at("tree/deep/new")), "coherent partition");
    // As it is shown.
    let said = camp.place().ok(&["contract", "show", text(&at("alone"))]);
    assert_eq!(said, format!("{}: laminated (its own), SHA-256 {alone}\n", text(&at("alone"))));
    let said = camp.place().ok(&["contract", "show", "--json", text(&at("alone"))]);
    assert!(
        said.contains(&format!("\"sha256\":\"{alone}\""))
            || said.contains(&format!("\"sha256\": \"{alone}\""))
    );
    let said = camp.place().ok(&["explain", text(&at("alone"))]);
    assert_contains(&said, &["\ncontract: laminated, its content does not change; bivouac laminate --undo"]);
    let said = laminate(&camp, &["--json", text(&at("tree/one"))]);
    let json: Value = serde_json::from_str(&said.out).unwrap();
    let one = json.as_array().unwrap_or_else(|| json["items"].as_array().unwrap())[0].clone();
    assert_eq!(
        (&one["outcome"], &one["sha256"]),
        (&"laminated".into(), &sha256(&content(300_000, 1)).into())
    );
    // Compared.
    let said = laminate(&camp, &["--verify", text(&at("tree")), text(&at("alone"))]).succeeds();
    let expected = format!(
        "{}: as it was laminated, 3 files; 1 file not laminated\n{}: as it was laminated, 1 file\n",
        text(&at("tree")),
        text(&at("alone"))
    );
    assert_eq!(said.out, expected);
    laminate(&camp, &["--verify", text(&at("tree/deep/new"))]).fails(1, &["tree/deep/new: is not laminated"]);
    // Undone: all that was laminated, and nothing else.
    set(&at("tree/deep/new"), "strict").unwrap();
    camp.wait_until_closed();
    let said = laminate(&camp, &["--undo", text(&at("tree"))]);
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, &*format!("{}: not laminated any more, 3 files\n", text(&at("tree"))))
    );
    assert_eq!(
        (contract_of(&other("tree/one")), contract_of(&at("tree/deep/new"))),
        ("coherent partition".into(), "strict".into())
    );
    assert_eq!(attribute(&at("tree/one"), DIGEST), Err(Errno::NODATA));
    fs::write(other("tree/one"), "again").unwrap();
    assert_eq!(fs::read(at("tree/one")).unwrap(), b"again");
    // By the attribute, as by `contract set`.
    camp.wait_until_closed();
    set(&at("tree/one"), "laminated").unwrap();
    assert_eq!(attribute(&other("tree/one"), DIGEST).unwrap(), sha256(b"again"));
    removexattr(at("tree/one"), CONTRACT).unwrap();
    fs::write(at("tree/one"), "and again").unwrap();
    camp.wait_until_closed();
    let said = camp.place().run(&["contract", "set", "--recursive", "laminated", text(&at("tree"))]);
    assert_eq!(
        (said.code, said.out),
        (0, format!("{}: laminated for 4 files and directories\n", text(&at("tree")))),
        "{}",
        said.err
    );
    camp.place()
        .run(&["contract", "set", "laminated", text(&at("tree"))])
        .fails(1, &["is a directory, of which only the files are laminated"]);
    assert_eq!(contract_of(&at("tree/deep/new")), "laminated");
    camp.place().ok(&["fsck", "--name", camp.name()]);
    camp.down();
}

fn kind<T>(outcome: std::io::Result<T>) -> ErrorKind {
    outcome.map(drop).unwrap_err().kind()
}

/// S752, S753: through both mounts, and by a program with the preload.
#[test]
fn every_call_that_would_change_a_laminated_file_is_refused() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let bytes = content(300_000, 2);
    fs::write(camp.mount().join("file"), &bytes).unwrap();
    camp.wait_until_closed();
    let reader = File::open(camp.mounts()[1].join("file")).unwrap();
    assert_eq!(laminate(&camp, &[text(&camp.mount().join("file"))]).code, 0);
    for mount in camp.mounts() {
        let path = mount.join("file");
        let open = |options: &mut OpenOptions| kind(options.open(&path));
        let refused = [
            ("write", open(OpenOptions::new().write(true))),
            ("read and write", open(OpenOptions::new().read(true).write(true))),
            ("append", open(OpenOptions::new().append(true))),
            ("O_TRUNC", open(OpenOptions::new().write(true).truncate(true))),
            ("O_CREAT", open(OpenOptions::new().write(true).create(true).truncate(false))),
            ("copy into", kind(fs::copy(mount.join("file"), &path))),
            ("rename over", {
                fs::write(mount.join("new"), "new").unwrap();
                kind(fs::rename(mount.join("new"), &path))
            }),
        ];
        for (what, kind) in refused {
            assert_eq!(kind, ErrorKind::ReadOnlyFilesystem, "{what}");
        }
        for how in [
            "truncate -s 5",
            "truncate -s 400000",
            "dd if=/dev/zero bs=1 count=1 conv=notrunc of=",
            "fallocate -l 5",
        ] {
            let script = format!("{how}{}\"$0\"", if how.ends_with('=') { "" } else { " " });
            let output = Command::new("sh").args(["-c", &script]).arg(&path).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && said.contains("Read-only file system"), "{how}: {said}");
        }
        let script = "import mmap, os, sys\n\
            fd = os.open(sys.argv[1], os.O_RDONLY)\n\
            m = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)\n\
            assert len(m) == 300000 and m[:] == os.pread(fd, 300000, 0)\n\
            try:\n    mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)\n\
            except PermissionError: print('refused')\n";
        if let Ok(output) = Command::new("python3").args(["-c", script]).arg(&path).output() {
            let said = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert_eq!(said.0, "refused\n", "{}", said.1);
        }
        for how in ["echo x >> \"$0\"", "head -c 300000 /dev/zero > \"$0\""] {
            let said = camp.run("exec", &["--", "sh", "-c", how, text(&path)]);
            assert!(said.code != 0 && said.err.contains("Read-only file system"), "{how}: {}", said.err);
        }
        assert!(fs::read(&path).unwrap() == bytes);
        // Names and attributes are no content.
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        File::open(&path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mtime(), 0);
        fs::hard_link(&path, mount.join("link")).unwrap();
        fs::rename(&path, mount.join("moved")).unwrap();
        fs::rename(mount.join("moved"), &path).unwrap();
        fs::remove_file(mount.join("link")).unwrap();
        fs::remove_file(mount.join("new")).unwrap();
    }
    let mut back = vec![0; bytes.len()];
    reader.read_exact_at(&mut back, 0).unwrap();
    assert!(back == bytes, "who had it open before goes on");
    laminate(&camp, &["--verify", text(&camp.mount().join("file"))]).succeeds();
    drop(reader);
    fs::remove_file(camp.mounts()[1].join("file")).unwrap();
    assert!(!camp.mount().join("file").exists());
    camp.down();
}

/// S752: over HTTP and S3 a path is its content, so it is not replaced either; it is staged out, and nothing is staged
/// onto it.
#[test]
fn servers_and_stages_do_not_replace_a_laminated_file() {
    let Some(camp) = Camp::start(SERVED) else { return };
    let server = served(&camp);
    let bytes = content(300_000, 3);
    fs::create_dir(camp.mount().join("bucket")).unwrap();
    let path = camp.mount().join("bucket/file");
    fs::write(&path, &bytes).unwrap();
    camp.wait_until_closed();
    assert_eq!(laminate(&camp, &[text(&path)]).code, 0);
    let reply = server.ask("PUT", "/bucket/file", &[], b"other");
    assert_eq!(reply.status, 403, "{}", reply.text());
    if Command::new("curl").arg("--version").output().is_ok() {
        let (status, said) = by_s3(&server, "PUT", "/bucket/file", "other");
        assert!(status == 403 && said.contains("AccessDenied"), "{status} {said}");
    }
    // The digest is the one that was taken.
    let asking = far_library(&camp.dir());
    let before = messages(&asking, &["Read"]);
    let reply = server.ask("HEAD", "/bucket/file", &[("Want-Repr-Digest", "sha-256=1")], b"");
    let expected: Vec<u8> = Sha256::digest(&bytes).to_vec();
    let said = reply.header("repr-digest").to_owned();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    use base64::Engine as _;
    let value = said.strip_prefix("sha-256=:").and_then(|rest| rest.strip_suffix(':')).unwrap_or_default();
    let value = base64::engine::general_purpose::STANDARD.decode(value).unwrap();
    assert_eq!(hex(&value), hex(&expected), "{said}");
    assert_eq!(messages(&asking, &["Read"]), before, "nothing was read for it");
    drop(asking);
    assert!(server.get("/bucket/file") == bytes);
    // Staged.
    let site = tempfile::tempdir().unwrap();
    fs::create_dir(site.path().join("in")).unwrap();
    fs::write(site.path().join("in/file"), "other").unwrap();
    let stage = |arguments: &[&str]| {
        let all = [&["stage", arguments[0], "--name", camp.name()], &arguments[1..]].concat();
        camp.place().run(&all)
    };
    let said = stage(&["in", text(&site.path().join("in")), "/bucket"]);
    assert!(said.code != 0 && said.err.to_lowercase().contains("read-only"), "{} {}", said.code, said.err);
    assert!(fs::read(&path).unwrap() == bytes);
    stage(&["out", "bucket", text(&site.path().join("out"))]).succeeds();
    assert!(fs::read(site.path().join("out/file")).unwrap() == bytes);
    assert!(matches!(server.status("DELETE", "/bucket/file", &[], b""), 200 | 204));
    assert_eq!(server.status("PUT", "/bucket/file", &[], b"other"), 201);
    assert_eq!(fs::read(&path).unwrap(), b"other");
    camp.down();
}

/// S754, S757: refused with what to do.
#[test]
fn what_is_open_is_refused_with_object_cause_and_remedy() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let (path, far) = (camp.mount().join("file"), camp.mounts()[1].join("file"));
    fs::write(&path, "content").unwrap();
    let writer = OpenOptions::new().append(true).open(&far).unwrap();
    let said = laminate(&camp, &[text(&path)]);
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(said.err.contains("file: is open for writing: close it on all mounts"), "{}", said.err);
    assert_eq!(
        (set(&path, "laminated"), contract_of(&path)),
        (Err(Errno::BUSY), "coherent partition".into())
    );
    wait_until("the log says through which mount", || {
        let logs = camp.run("logs", &[]);
        logs.out.contains("is open for writing through the mount on")
    });
    drop(writer);
    let reader = File::open(&far).unwrap();
    assert_eq!(laminate(&camp, &[text(&path)]).code, 0, "closes are waited for; who reads is not in the way");
    laminate(&camp, &["--undo", text(&path)])
        .fails(1, &["file: is laminated and open: close it on all mounts"]);
    assert_eq!(contract_of(&path), "laminated");
    drop(reader);
    camp.wait_until_closed();
    assert_eq!(laminate(&camp, &["--undo", text(&path)]).code, 0);
    assert_eq!(
        laminate(&camp, &["--undo", text(&path)]).out,
        format!("{}: not laminated any more, 0 files\n", text(&path))
    );
    for (arguments, code, says) in [
        (&["/etc/passwd"][..], 1, "/etc/passwd: is not in a formation"),
        (&["--undo", "--verify", text(&path)], 2, "cannot be used with"),
        (&[], 2, "PATH"),
    ] {
        let said = laminate(&camp, arguments);
        assert!(said.code == code && said.err.contains(says), "{arguments:?}: {} {}", said.code, said.err);
    }
    let said =
        camp.place().run(&["partition", "create", text(&camp.mount().join("p")), "--contract", "laminated"]);
    assert!(said.code == 2 && said.err.contains("new files cannot be laminated"), "{}", said.err);
    camp.down();
}

/// S755: the kernel reads ahead, and keeps pages from one open to the next; a mapping has them, too.
#[test]
fn a_second_read_of_a_laminated_file_sends_no_message() {
    let Some(camp) = Camp::start_each(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let bytes = content(3_000_000, 4);
    let far = camp.mounts()[1].join("file");
    fs::write(camp.mount().join("file"), &bytes).unwrap();
    let asking = far_library(&camp.dir());
    let reads = || messages(&asking, &["Read", "AccessList"]);
    let before = reads();
    assert!(fs::read(&far).unwrap() == bytes && fs::read(&far).unwrap() == bytes);
    let of_one_read = (reads() - before) / 2;
    assert!(of_one_read > 0, "a coherent file is read from its nodes each time");
    camp.wait_until_closed();
    assert_eq!(laminate(&camp, &[text(&far)]).code, 0);
    assert!(fs::read(&far).unwrap() == bytes);
    let before = reads();
    for _ in 0..3 {
        assert!(fs::read(&far).unwrap() == bytes);
    }
    let open = File::open(&far).unwrap();
    let mut piece = vec![0; 70_000];
    for at in (0..2_900_000).step_by(70_000) {
        open.read_exact_at(&mut piece, at as u64).unwrap();
        assert!(piece == bytes[at..at + 70_000]);
    }
    assert_eq!(reads(), before, "all of it is in the kernel");
    // Smaller reads than the kernel's own come from pages it has read ahead.
    assert_eq!(laminate(&camp, &[text(&camp.mount().join("file"))]).code, 0);
    drop(open);
    camp.wait_until_closed();
    assert_eq!(laminate(&camp, &["--undo", text(&far)]).code, 0);
    fs::write(camp.mount().join("small"), &bytes).unwrap();
    camp.wait_until_closed();
    let small = camp.mounts()[1].join("small");
    assert_eq!(laminate(&camp, &[text(&camp.mount().join("small"))]).code, 0);
    let before = reads();
    let (mut file, mut at, mut buffer) = (File::open(&small).unwrap(), 0, [0; 1000]);
    while at < bytes.len() {
        let len = file.read(&mut buffer).unwrap();
        assert!(len > 0 && buffer[..len] == bytes[at..at + len]);
        at += len;
    }
    assert!(reads() - before < 1000, "{} messages for 3000 reads", reads() - before);
    drop(asking);
    camp.down();
}

/// S757: what is written after the end of lamination is read by all, whatever their kernels had; over kills of daemons.
#[test]
fn nobody_reads_old_pages_after_the_end_of_lamination() {
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--stripe", "64k"]) else { return };
    let paths: Vec<PathBuf> = camp.mounts().iter().map(|mount| mount.join("file")).collect();
    let mut bytes = content(500_000, 0);
    fs::write(&paths[0], &bytes).unwrap();
    for round in 1..=12_usize {
        wait_until("it is laminated", || set(&paths[round % 3], "laminated").is_ok());
        assert_eq!(attribute(&paths[(round + 1) % 3], DIGEST).unwrap(), sha256(&bytes), "round {round}");
        for path in &paths {
            assert!(fs::read(path).unwrap() == bytes && fs::read(path).unwrap() == bytes, "round {round}");
        }
        if round % 4 == 2 {
            camp.kill_node(round % 3);
            assert!(paths.iter().all(|path| fs::read(path).unwrap() == bytes), "round {round}, after a kill");
        }
        wait_until("it is laminated no more", || set(&paths[(round + 2) % 3], "partition").is_ok());
        let file = OpenOptions::new().write(true).open(&paths[round % 3]).unwrap();
        let piece = content(40_000, 100 + round as u8);
        let at = round * 37_717 % 450_000;
        file.write_all_at(&piece, at as u64).unwrap();
        bytes[at..at + piece.len()].copy_from_slice(&piece);
        for path in &paths {
            assert!(fs::read(path).unwrap() == bytes, "round {round}, {}", path.display());
        }
        drop(file);
    }
    camp.down();
}

/// S756: whatever is killed, a file is laminated with the digest of its content, or it is not.
#[test]
fn lamination_is_whole_over_kills() {
    let Some(camp) = Camp::start_each(&["--nodes", "3", "--stripe", "4k"]) else { return };
    let path = camp.mount().join("file");
    let bytes = content(200_000, 5);
    fs::write(&path, &bytes).unwrap();
    let expected = sha256(&bytes);
    for round in 0..12 {
        let to = if round % 2 == 0 { "laminated" } else { "partition" };
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| set(&camp.mounts()[round % 3].join("file"), to));
            camp.kill_node(round / 2 % 3);
            // With a daemon away it is not known whether it was done.
            let _unknown = changing.join().unwrap();
        });
        wait_until("it is shown again", || attribute(&path, CONTRACT).is_ok());
        let is_laminated = contract_of(&path) == "laminated";
        let digest = attribute(&camp.mounts()[1].join("file"), DIGEST);
        let now = contract_of(&path) == "laminated";
        match digest {
            Ok(digest) => {
                assert_eq!((digest.as_str(), is_laminated || now), (&*expected, true), "round {round}")
            }
            Err(errno) => assert_eq!((errno, is_laminated && now), (Errno::NODATA, false), "round {round}"),
        }
        wait_until("it is changed", || set(&path, to).is_ok());
        assert_eq!(contract_of(&path) == "laminated", to == "laminated");
        assert!(fs::read(camp.mounts()[2].join("file")).unwrap() == bytes);
    }
    camp.place().ok(&["fsck", "--name", camp.name()]);
    camp.down();
}

/// S750: damage on a volume, of which no time says anything.
#[test]
fn damage_is_found_by_a_comparison() {
    let volume = tempfile::tempdir().unwrap();
    let Some(camp) = Camp::start(&["--nodes", "1", "--volume", text(volume.path()), "--checksum", "off"])
    else {
        return;
    };
    let path = camp.mount().join("file");
    fs::write(&path, content(300_000, 6)).unwrap();
    camp.wait_until_closed();
    assert_eq!(laminate(&camp, &[text(&path)]).code, 0);
    assert!(fs::read(&path).unwrap() == content(300_000, 6));
    let explained: Value =
        serde_json::from_str(&camp.place().ok(&["explain", "--json", text(&path)])).unwrap();
    let target = &explained["targets"][0];
    let (subfile, data_at) =
        (target["subfile"].as_str().unwrap(), target["data_at"].as_u64().unwrap_or(4096));
    let file = OpenOptions::new().write(true).open(subfile).unwrap();
    file.write_all_at(b"damaged", data_at + 1000).unwrap();
    // Whatever the kernel has in its pages.
    laminate(&camp, &["--verify", text(&path)])
        .fails(1, &["file: has another content than when it was laminated"]);
    file.write_all_at(&content(300_000, 6)[1000..1007], data_at + 1000).unwrap();
    assert_eq!(laminate(&camp, &["--verify", text(&path)]).code, 0);
    camp.down();
}

/// S759.
#[test]
fn chmod_laminates_in_a_partition_that_says_so() {
    let Some(camp) = Camp::start_each(&["--nodes", "2"]) else { return };
    let dir = camp.mount().join("inputs");
    camp.place().ok(&["partition", "create", text(&dir), "--laminate", "on-chmod"]);
    let said = camp.place().ok(&["partition", "show", text(&dir)]);
    assert!(said.contains("laminate") && said.contains("on-chmod"), "{said}");
    let chmod = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    fs::write(dir.join("file"), "content").unwrap();
    camp.wait_until_closed();
    chmod(&dir.join("file"), 0o444);
    assert_eq!(contract_of(&camp.mounts()[1].join("inputs/file")), "laminated");
    assert_eq!(attribute(&dir.join("file"), DIGEST).unwrap(), sha256(b"content"));
    fs::write(camp.mount().join("elsewhere"), "content").unwrap();
    chmod(&camp.mount().join("elsewhere"), 0o444);
    assert_eq!(contract_of(&camp.mount().join("elsewhere")), "coherent partition");
    camp.place().ok(&["partition", "set", text(&dir), "--laminate", "on-request"]);
    camp.down();
}
