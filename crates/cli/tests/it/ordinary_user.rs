//! The same without privileges: through the helper of fuse3, in namespaces of one's own, or not at all.
//!
//! Run by root, each test becomes an ordinary user, in a mount namespace where `/dev/fuse` is open to everybody as it
//! is on most machines. It is skipped, and says so, where that is not possible.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use crate::harness::{Place, copy_program};

/// A user whom every distribution knows by name; the helper wants one.
const USER: u32 = 1;

/// What a shell script does as an ordinary user. `$B` is the binary, `$D` a directory of the user's, `$F` the name of
/// the script's formation, which ends with the script, also where that fails.
fn as_user(script: &str) -> Option<(i32, String, String)> {
    let name = Place::unique_name();
    let script = format!(
        "F={name}; trap 'code=$?; cd /; $B down --name $F --discard >/dev/null 2>&1 || :; exit $code' EXIT\n{script}"
    );
    let output =
        if rustix::process::geteuid().is_root() { become_user(&script)? } else { stay_user(&script)? };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&name, "u");
    Some((output.status.code().unwrap(), text(&output.stdout), text(&output.stderr)))
}

fn become_user(script: &str) -> Option<Output> {
    let dir = user_dir();
    let (path, device) = (dir.path().display(), dir.path().join("fuse"));
    chown(dir.path(), Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let device = device.display();
    let prepare = format!("mknod -m 666 '{device}' c 10 229 && mount --bind '{device}' /dev/fuse");
    let probe = Command::new("unshare").args(["-m", "sh", "-c", &prepare]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("skipped: this root may not make namespaces or devices");
        return None;
    }
    let user = format!("setpriv --reuid {USER} --regid {USER} --clear-groups");
    let run = format!(
        "mount --bind '{device}' /dev/fuse && D='{path}' B='{path}/program' XDG_RUNTIME_DIR='{path}' XDG_STATE_HOME='{path}/state' {user} sh -c \"$0\""
    );
    Some(Command::new("unshare").args(["-m", "sh", "-c", &run, script]).output().unwrap())
}

fn stay_user(script: &str) -> Option<Output> {
    let dir = user_dir();
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        println!("skipped: /dev/fuse is not open to this user");
        return None;
    }
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("XDG_RUNTIME_DIR", dir.path()).env("D", dir.path());
    command.env("XDG_STATE_HOME", dir.path().join("state"));
    Some(command.env("B", dir.path().join("program")).output().unwrap())
}

/// A directory with a copy of the binary that everybody may run.
fn user_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
    copy_program(Path::new(env!("CARGO_BIN_EXE_bivouac")), &dir.path().join("program"));
    dir
}

fn has_helper() -> bool {
    let found = ["/usr/bin/fusermount3", "/bin/fusermount3"].iter().any(|path| Path::new(path).exists());
    if !found {
        println!("skipped: fusermount3 is not installed");
    }
    found
}

#[test]
fn a_formation_is_mounted_through_the_helper_and_goes_down() {
    if !has_helper() {
        return;
    }
    let script = "set -e; $B up --nodes 2 --name $F >/dev/null; M=$D/bivouac/$F/mnt; echo content > $M/f; cat $M/f; \
                  mkdir $D/second; $B mount --node 1 $D/second >/dev/null; cat $D/second/f; $B unmount $D/second; \
                  $B unmount $M; $B mount --name $F $M >/dev/null; cat $M/f; \
                  $B down --name $F --yes";
    let Some((code, out, err)) = as_user(script) else { return };
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.starts_with("content\ncontent\ncontent\nformation u is down; nothing left"), "{out}");
}

#[test]
fn without_helper_run_makes_namespaces_of_its_own() {
    let script = "PATH=/nonexistent $B run --nodes 2 --name $F -- /bin/sh -c \
                  'echo content > $BIVOUAC/f; read line < $BIVOUAC/f; echo $line; exit 6'; echo code $?; $B status";
    let Some((code, out, err)) = as_user(script) else { return };
    if err.contains("a user namespace") {
        return println!("skipped: {err}");
    }
    assert_eq!((code, out.as_str()), (1, "content\ncode 6\n"), "{err}");
    assert!(err.contains("no formation is running"), "{err}");
}

/// S681: what such a `run` keeps is reached from outside its namespaces, and its mount point is no place to write to.
#[test]
fn commands_enter_the_namespaces_that_a_formation_is_mounted_in() {
    let script = "set -e; cd $D; M=$D/bivouac/$F/mnt; export PATH=/nonexistent:$PATH; echo input > $D/src; \
                  PATH=/nonexistent $B run --nodes 2 --name $F --keep -- /bin/sh -c 'echo content > $BIVOUAC/f'; \
                  $B stage in --name $F src /got; ls -A $M | wc -l; $B stage out --name $F /f back; cat back; \
                  $B exec --name $F -- sh -c 'cat $BIVOUAC/got; echo more > $BIVOUAC/g; pwd'; ls -A $M | wc -l; \
                  $B list | grep \"^$F \" | grep -c 'in another mount namespace'; \
                  $B status --name $F | grep -c 'mnt (node 0): is in another mount namespace'; $B down --name $F --yes";
    let Some((code, out, err)) = as_user(script) else { return };
    if err.contains("a user namespace") {
        return println!("skipped: {err}");
    }
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((code, &lines[..3]), (0, &["0", "content", "input"][..]), "{out}{err}");
    assert_eq!(&lines[4..7], ["0", "1", "1"], "{out}{err}");
    assert!(lines[7].starts_with("formation u is down; nothing left"), "{out}{err}");
}

/// What may not be read is not archived: neither a directory, nor a directory or file below it.
#[test]
fn an_archive_has_nothing_that_may_not_be_read() {
    if !has_helper() || Command::new("curl").arg("--version").output().is_err() {
        return println!("skipped: the helper of fuse3 or curl is not installed");
    }
    let script = "set -e; $B up --nodes 2 --http 0 --http-plain --name $F >/dev/null; M=$D/bivouac/$F/mnt; \
                  mkdir -p $M/run/a; echo secret > $M/run/a/file; \
                  A=$($B key create --name $F --header-file $D/key 2>&1 | grep -o 'http://[^/]*'); \
                  for n in run run/a run/a/file; do chmod 200 $M/$n; for m in GET HEAD; do \
                  test $m = GET || I=-I; curl -s ${I-} -H @$D/key -o $D/got -w \"$m %{http_code}\n\" $A/run/?tar; unset I; \
                  grep -c secret $D/got || :; done; chmod 700 $M/$n; done; \
                  curl -s -H @$D/key $A/run/?tar | tar xO run/a/file";
    let Some((code, out, err)) = as_user(script) else { return };
    assert_eq!((code, out), (0, format!("{}secret\n", "GET 403\n0\nHEAD 403\n0\n".repeat(3))), "{err}");
}

#[test]
fn without_helper_up_says_what_to_do() {
    let script = "PATH=/nonexistent $B up --name $F; echo code $?; PATH=/nonexistent $B up --name $F --no-mount >/dev/null && $B down";
    let Some((code, out, err)) = as_user(script) else { return };
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("code 1\n") && out.contains("nothing left"), "{out}");
    assert!(err.contains("needs fusermount3 for an ordinary user") && err.contains("--no-mount"), "{err}");
}

/// What this user may not read or write at a source: named, and nothing is lost.
#[test]
fn a_source_that_denies_keeps_nobody_from_the_rest() {
    if !has_helper() {
        return;
    }
    let prepare = "mkdir -p $D/site/closed $D/site/open; cd $D/site; echo content > readable; echo content > secret; \
                   echo old > closed/f; chmod 555 closed; ";
    // What is denied there only after it was looked at is denied by the source alone.
    let script = "set -e; $B up --nodes 2 --name $F >/dev/null; P=$D/bivouac/$F/mnt/p; \
                  $B partition create $P --source $D/site >/dev/null; cat $P/readable; chmod 000 secret; \
                  if cat $P/secret; then exit 9; fi; echo changed > $P/closed/f; echo new > $P/open/g; \
                  if $B flush $P; then exit 9; fi; cat closed/f open/g $P/closed/f; \
                  if $B down --name $F --yes; then exit 9; fi; chmod 755 closed; chmod 644 secret; \
                  $B flush $P >/dev/null; cat closed/f $P/secret; $B down --name $F --yes";
    let Some((code, out, err)) = as_user(&format!("{prepare}{script}")) else { return };
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("content\n") && out.contains("old\nnew\nchanged\n"), "{out}");
    assert!(out.contains("changed\ncontent\nformation u is down; nothing left"), "{out}");
    assert!(err.contains("secret: Permission denied"), "{err}");
    assert!(err.contains("p/closed/f: not flushed") && err.contains("site/closed/f"), "{err}");
    assert!(err.contains("formation u has 1 file not at the source"), "{err}");
}

/// S644: what was given to a file is for who may read it, as it is in a mount.
#[test]
fn what_a_file_was_given_is_not_told_to_who_may_not_read_it() {
    if !has_helper() {
        return;
    }
    let script = "set -e; U=$($B up --nodes 2 --name $F --http 0 --http-plain | sed -n 's|^to look at it: \\(http://[^/]*\\)/.*|\\1|p'); \
                  K=$($B key create --name $F); M=$D/bivouac/$F/mnt; echo content > $M/f; \
                  ask() { curl -sS -H \"Authorization: Bearer $K\" -X \"$@\" $U/f; }; \
                  SET='<propertyupdate xmlns=\"DAV:\"><set><prop><who xmlns=\"urn:x\">ada</who></prop></set></propertyupdate>'; \
                  ask PROPPATCH -d \"$SET\"; ask PROPFIND -H 'Depth: 0' | grep -c '>ada<'; chmod 200 $M/f; \
                  if ask PROPFIND -H 'Depth: 0' | grep '>ada<'; then exit 9; fi; \
                  ask PROPFIND -H 'Depth: 0' | grep -c getcontentlength; $B down --name $F --yes";
    let Some((code, out, err)) = as_user(script) else { return };
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("200 OK") && out.contains("\n1\n1\nformation u is down"), "{out}");
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let script = "XDG_RUNTIME_DIR= $B up --no-mount --volume /usr; echo code $?";
    let Some((_, out, err)) = as_user(script) else { return };
    assert!(out == "code 1\n" && err.contains("volume /usr: is not writable"), "{out}{err}");
}

/// S641: what cannot be removed is looked at before anything takes its place.
#[test]
fn a_directory_that_cannot_be_removed_is_not_replaced() {
    if !has_helper() || Command::new("curl").arg("--version").output().is_err() {
        return println!("skipped: no fusermount3 or curl");
    }
    let script = "set -e; $B up --nodes 2 --name $F --http 0 --http-plain >/dev/null; M=$D/bivouac/$F/mnt; cd $M; \
                  K=$($B key create --name $F); U=$($B status --json | grep -o '\"address\": *\"[^\"]*\"' | head -1 | cut -d'\"' -f4); \
                  mkdir -p a b/zz b/first; echo new > a/f; echo kept > b/zz/g; echo kept > b/first/h; chmod 555 b/zz; \
                  for m in MOVE COPY; do curl -sS -o $D/said -w '%{http_code}\\n' -X $m -H \"Authorization: Bearer $K\" \
                  -H 'Destination: /b' http://$U/a; cat a/f b/zz/g b/first/h; ls -A; done; cd /; $B down --name $F --yes";
    let Some((code, out, err)) = as_user(script) else { return };
    assert_eq!(code, 0, "{out}{err}");
    let once = "403\nnew\nkept\nkept\na\nb\n";
    assert!(out.starts_with(&format!("{once}{once}formation u is down")), "{out}{err}");
}
