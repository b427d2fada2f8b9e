//! What is run: the library as cargo builds it, and programs in C that the system's compiler builds.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/tests/programs");

/// The library. No test can depend on it as on others: who is linked with it would call it.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_bivouac")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "bivouac-preload", "--target-dir"]);
        build.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        profile.join("libbivouac_preload.so")
    })
}

/// A program, built; `None` without a compiler.
pub fn build(name: &str, dir: &Path) -> Option<PathBuf> {
    let program = dir.join(name);
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"]).arg(&program);
    let Ok(output) = command.arg(Path::new(PROGRAMS).join(name).with_extension("c")).output() else {
        println!("skipped: there is no cc");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Without the library.
    Plain,
    /// With it, as users have it.
    Usual,
    /// With it, from the first call on.
    AtOnce,
}

/// A command that is run in this way, and reports.
pub fn command(program: impl AsRef<std::ffi::OsStr>, way: Way) -> Command {
    let mut command = Command::new(program);
    if way != Way::Plain {
        command.env("LD_PRELOAD", library()).env("BIVOUAC_REPORT", "1");
    }
    if way == Way::AtOnce {
        command.env("BIVOUAC_PRELOAD_AFTER", "0");
    }
    command
}

/// What it said, having succeeded.
pub fn succeed(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}", output.status, text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

/// How many calls of a name the reports in a text say were done directly, and by the mount.
pub fn calls(report: &str, name: &str) -> (u64, u64) {
    let row = |line: &str| -> Option<(u64, u64)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [call, direct, _, mount, _] = words.as_slice() else { return None };
        (*call == name).then(|| Some((direct.parse().ok()?, mount.parse().ok()?)))?
    };
    report.lines().filter_map(row).fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1))
}
