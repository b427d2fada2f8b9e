//! The rows of docs/security.md, tried as another user would. Only root can play one: otherwise these tests are
//! skipped, and say so.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness::{Camp, Place, can_mount, wait_until};

/// A user who is not us.
const OTHER: u32 = 4242;

fn can_play() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: only root can play another user");
    }
    is_root
}

/// What a script does as the other user.
fn as_other(script: &str) -> Output {
    let id = OTHER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", script]);
    command.stdin(Stdio::null()).output().unwrap()
}

fn is_refused(script: &str) {
    let output = as_other(script);
    assert!(!output.status.success(), "{script}: {output:?}");
}

/// What a path leads to, but for what was removed after it was listed.
fn seen(path: &Path) -> Option<fs::Metadata> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        seen => Some(seen.unwrap()),
    }
}

/// Everything below a directory, itself first.
fn all_below(top: &Path) -> Vec<PathBuf> {
    let mut all = vec![top.to_owned()];
    if seen(top).is_some_and(|seen| seen.is_dir()) {
        for entry in fs::read_dir(top).unwrap() {
            all.extend(all_below(&entry.unwrap().path()));
        }
    }
    all
}

/// That others may do nothing with anything there, but for links, whose mode means nothing, and mounts.
fn is_private(top: &Path, leave_out: &Path) {
    for path in all_below(top).into_iter().filter(|path| !path.starts_with(leave_out)) {
        let Some(seen) = seen(&path) else { continue };
        assert_eq!(seen.uid(), rustix::process::geteuid().as_raw(), "{}", path.display());
        let others = seen.permissions().mode() & 0o077;
        assert!(seen.is_symlink() || others == 0, "{}: {others:o}", path.display());
    }
}

/// The runtime directory of a test is as open as those of a machine may be.
fn camp() -> Option<Camp> {
    if !can_mount() {
        return None;
    }
    let place = Place::new();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Some(Camp::start_in(place, &["--nodes", "2"]))
}

/// P1, P6, P8, P11.
#[test]
fn nothing_that_is_made_is_open_to_others() {
    let Some(camp) = camp() else { return };
    fs::write(camp.mount().join("file"), "content").unwrap();
    is_private(&camp.place().path().join("bivouac"), camp.mount());
    let sockets = all_below(&camp.dir()).into_iter().filter(|path| !path.starts_with(camp.mount()));
    let sockets = sockets.filter(|path| seen(path).is_some_and(|seen| seen.file_type().is_socket()));
    assert_eq!(sockets.count(), 3, "control, n0, n1");
    let status = camp.status();
    let volume = PathBuf::from(status["nodes"][0]["volumes"][0]["path"].as_str().unwrap());
    let memory = volume.parent().unwrap();
    assert!(memory.starts_with("/dev/shm"), "{}", memory.display());
    is_private(memory, Path::new("/nowhere"));
    let open = fs::read_dir(format!("/proc/{}/fd", camp.node_pid(0))).unwrap().flatten();
    let shared = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    let shared: Vec<_> = shared
        .filter(|target| target.starts_with("/memfd:") || target.to_string_lossy().contains("memfd:"))
        .collect();
    assert!(shared.len() >= 2, "the grant table and the mount's state: {shared:?}");
    assert!(shared.iter().all(|target| target.to_string_lossy().ends_with("(deleted)")), "{shared:?}");
    camp.down();
}

/// P1, P4, P6, P8, P10.
#[test]
fn another_user_gets_nowhere() {
    if !can_play() {
        return;
    }
    let Some(camp) = camp() else { return };
    fs::write(camp.mount().join("file"), "content").unwrap();
    let dir = camp.dir();
    let dir = dir.display();
    let mount = camp.mount().display();
    for file in ["state.json", "secret", "map", "control", "n0", "n0.log", "lock", "mnt"] {
        is_refused(&format!("cat {dir}/{file}"));
        is_refused(&format!("echo x > {dir}/{file}"));
        is_refused(&format!("rm -r {dir}/{file}"));
    }
    is_refused(&format!("mv {dir} {dir}-moved"));
    is_refused(&format!("ls {mount}"));
    is_refused(&format!("cat {mount}/file"));
    let status = camp.status();
    let volume = status["nodes"][0]["volumes"][0]["path"].as_str().unwrap();
    is_refused(&format!("ls {volume}"));
    is_refused(&format!("rm -r $(dirname {volume})"));
    for pid in [camp.node_pid(0), camp.node_pid(1), camp.supervisor_pid()] {
        is_refused(&format!("kill -9 {pid}"));
        is_refused(&format!("cat /proc/{pid}/environ"));
        is_refused(&format!("ls /proc/{pid}/fd"));
        is_refused(&format!("cat /proc/{pid}/mem"));
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let secret = fs::read(camp.dir().join("secret")).unwrap();
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!String::from_utf8_lossy(&arguments).contains(&hex));
    }
    assert_eq!(fs::read(camp.mount().join("file")).unwrap(), b"content");
    camp.down();
}

/// P6: also where the modes of files do not keep others away.
#[test]
fn the_kernel_says_who_is_at_a_socket() {
    if !can_play() {
        return;
    }
    let Some(camp) = camp() else { return };
    for open in [camp.place().path().join("bivouac"), camp.dir()] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for socket in ["control", "n0"] {
        let path = camp.dir().join(socket);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let ask = "import socket,sys\nfor kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):\n  try:\n    \
                   s = socket.socket(socket.AF_UNIX, kind); s.settimeout(60)\n    s.connect(sys.argv[1])\n    \
                   s.send(b'\\\"stop\\\"')\n    s.recv(100)\n  except OSError: pass\n";
        as_other(&format!("python3 -c \"{ask}\" {}", path.display()));
    }
    for (log, says) in
        [("supervisor.log", "a command was refused"), ("n0.log", "refused another user's process")]
    {
        wait_until(says, || fs::read_to_string(camp.dir().join(log)).unwrap().contains(says));
    }
    for open in [camp.place().path().join("bivouac"), camp.dir()] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o700)).unwrap();
    }
    wait_until("it is well", || camp.state() == "running");
    camp.down();
}

/// P7.
#[test]
fn who_does_not_know_the_secret_is_sent_away() {
    let Some(camp) = camp() else { return };
    let status = camp.status();
    let text = serde_json::to_string(&status).unwrap();
    let ports = text.split("127.0.0.1:").skip(1);
    let ports: Vec<u16> =
        ports.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).collect();
    assert!(!ports.is_empty(), "{text}");
    for port in ports {
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger.set_read_timeout(Some(crate::harness::DEADLINE)).unwrap();
        let _it_may_hang_up_before = stranger.write_all(&[0x5a; 4096]);
        let mut heard = Vec::new();
        // The end, by a reset or in order; not silence.
        let ended = stranger.read_to_end(&mut heard);
        assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
        assert!(heard.len() < 4096, "{} bytes", heard.len());
    }
    camp.down();
}

/// P1, P2, P3: what others made before us is not used.
#[test]
fn a_place_that_others_made_first_is_refused() {
    if !can_play() || !can_mount() {
        return;
    }
    let place = Place::new();
    let base = place.path().join("bivouac");
    fs::create_dir(&base).unwrap();
    chown(&base, Some(OTHER), Some(OTHER)).unwrap();
    place.run(&["up", "--name", &Place::unique_name()]).fails(1, &["belongs to user 4242"]);
    chown(&base, Some(0), Some(0)).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).unwrap();
    place.run(&["up", "--name", &Place::unique_name()]).fails(1, &["is open to other users"]);
    fs::remove_dir(&base).unwrap();
    // The directory that it is in could be exchanged as well.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    place
        .run(&["up", "--name", &Place::unique_name()])
        .fails(1, &["may be written by all users", "BIVOUAC_RUNTIME_DIR"]);
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o700)).unwrap();
}

/// P2, P9.
#[test]
fn volumes_that_others_could_replace_are_refused() {
    let (place, dir) = (Place::new(), tempfile::Builder::new().prefix("bvk").tempdir().unwrap());
    let around = dir.path().join("around");
    fs::create_dir_all(around.join("volume")).unwrap();
    let volume = around.join("volume");
    let up =
        |name: &str| place.run(&["up", "--no-mount", "--name", name, "--volume", volume.to_str().unwrap()]);
    fs::set_permissions(&around, fs::Permissions::from_mode(0o777)).unwrap();
    up(&Place::unique_name()).fails(1, &["may be written by all users"]);
    fs::set_permissions(&around, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o755)).unwrap();
    let name = Place::unique_name();
    assert_eq!(up(&name).code, 0);
    is_private(&volume, Path::new("/nowhere"));
    assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
    assert_eq!(fs::read_dir(&volume).unwrap().count(), 0);
}
