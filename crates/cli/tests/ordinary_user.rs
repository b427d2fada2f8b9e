//! The same without privileges: through the helper of fuse3, in namespaces of one's own, or not at all.
//!
//! Run by root, each test becomes an ordinary user, in a mount namespace where `/dev/fuse` is open to everybody as it
//! is on most machines. It is skipped, and says so, where that is not possible.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

/// A user whom every distribution knows by name; the helper wants one.
const USER: u32 = 1;

/// What a shell script does as an ordinary user. `$B` is the binary, `$D` a directory of the user's.
fn as_user(script: &str) -> Option<(i32, String, String)> {
    let output = if rustix::process::geteuid().is_root() { become_user(script)? } else { stay_user(script)? };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((output.status.code().unwrap(), text(&output.stdout), text(&output.stderr)))
}

fn become_user(script: &str) -> Option<Output> {
    let dir = user_dir();
    let (path, device) = (dir.path().display(), dir.path().join("fuse"));
    chown(dir.path(), Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let device = device.display();
    let prepare = "mkdir -p $D/site/closed $D/site/open; cd $D/site; echo content > readable; echo content > secret; \
                   echo old > closed/f; chmod 555 closed; ";
    // What is denied there only after it was looked at is denied by the source alone.
    let script = "set -e; $B up --nodes 2 --name u >/dev/null; P=$D/bivouac/u/mnt/p; \
                  $B partition create $P --source $D/site >/dev/null; cat $P/readable; chmod 000 secret; \
                  if cat $P/secret; then exit 9; fi; echo changed > $P/closed/f; echo new > $P/open/g; \
                  if $B flush $P; then exit 9; fi; cat closed/f open/g $P/closed/f; \
                  if $B down --name u; then exit 9; fi; chmod 755 closed; chmod 644 secret; \
                  $B flush $P >/dev/null; cat closed/f $P/secret; $B down --name u";
    let Some((code, out, err)) = as_user(&format!("{prepare}{script}")) else { return };
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("content\n") && out.contains("old\nnew\nchanged\n"), "{out}");
    assert!(out.contains("changed\ncontent\nformation u is down; nothing left"), "{out}");
    assert!(err.contains("secret: Permission denied"), "{err}");
    assert!(err.contains("p/closed/f: not flushed") && err.contains("site/closed/f"), "{err}");
    assert!(err.contains("formation u has 1 files that are not at their source"), "{err}");
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let script = "XDG_RUNTIME_DIR= $B up --no-mount --volume /usr; echo code $?";
    let Some((_, out, err)) = as_user(script) else { return };
    assert!(out == "code 1\n" && err.contains("volume /usr: is not writable"), "{out}{err}");
}
