//! The library for programs in C: built with the system's compiler, run against a real formation.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

// Has cargo build the library.
use crate::harness::Camp;
use bivouac as _;

const CAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../capi");

/// Where cargo puts libraries that tests depend on.
fn library_dir() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Builds a program; `None` without a compiler.
pub fn build(source: &str, dir: &Path, more: &[&str]) -> Option<PathBuf> {
    let program = dir.join("program");
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"]).arg(&program);
    command.arg(Path::new(CAPI).join(source)).arg(format!("-I{CAPI}/include")).args(more);
    let Ok(output) = command.output() else {
        println!("skipped: there is no cc");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

pub fn shared() -> Vec<String> {
    let dir = library_dir().display().to_string();
    vec![format!("-L{dir}"), "-lbivouac".into(), format!("-Wl,-rpath,{dir}")]
}

/// A program beside the library that it was built with: what runs tests may prefer one of an earlier build.
pub fn program(path: PathBuf) -> Command {
    let mut command = Command::new(path);
    command.env_remove("LD_LIBRARY_PATH");
    command
}

pub fn succeed(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// S792, and the rest of the header.
#[test]
fn every_function_does_what_the_header_says() {
    let Some(camp) = Camp::start(&["--nodes", "3", "--stripe", "16k"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let flags = shared();
    let Some(program) =
        build("tests/calls.c", dir.path(), &flags.iter().map(String::as_str).collect::<Vec<_>>())
    else {
        return;
    };
    let d = camp.mount().join("d");
    std::fs::create_dir(&d).unwrap();
    symlink("../list", d.join("link")).unwrap();
    symlink("loop", d.join("loop")).unwrap();
    symlink("/etc", d.join("out")).unwrap();
    let said = succeed(&self::program(program).arg(camp.dir()).arg(camp.mount()).output().unwrap());
    assert_eq!(said, "all as the header says\n");
    assert_eq!(std::fs::read(camp.mount().join("list")).unwrap()[..8], *b"child\0\0\0");
    camp.down();
}

#[test]
fn the_example_writes_what_everybody_reads() {
    let Some(camp) = Camp::start(&["--nodes", "2", "--stripe", "64k"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let flags = shared();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let Some(program) = build("examples/checkpoint.c", dir.path(), &flags) else { return };
    let said = succeed(&self::program(program).arg(camp.dir()).arg("/state").output().unwrap());
    let cells = 500 * 96;
    assert_eq!(said, format!("{} bytes written and compared\n", cells * 512));
    let content = std::fs::read(camp.mount().join("state")).unwrap();
    assert_eq!(content.len(), cells * 512);
    for (cell, bytes) in content.chunks(512).enumerate() {
        let expected = ((cell / 96 * 31 + cell % 96 * 7 + 1) & 0xff) as u8;
        assert!(bytes.iter().all(|byte| *byte == expected), "cell {cell}");
    }
    camp.down();
}

#[test]
fn a_program_may_have_the_library_inside() {
    let Some(camp) = Camp::start(&["--nodes", "1"]) else { return };
    let dir = tempfile::tempdir().unwrap();
    let archive = library_dir().join("libbivouac.a").display().to_string();
    let Some(program) = build("examples/checkpoint.c", dir.path(), &[&archive, "-lm", "-ldl"]) else {
        return;
    };
    succeed(&self::program(program).arg(camp.dir()).arg("state").output().unwrap());
    assert_eq!(std::fs::metadata(camp.mount().join("state")).unwrap().len(), 500 * 96 * 512);
}

#[test]
fn what_is_installed_is_found_by_pkg_config() {
    let dir = tempfile::tempdir().unwrap();
    let prefix = dir.path().join("prefix");
    let script = Path::new(CAPI).join("../../scripts/install-library");
    succeed(&Command::new(script).arg(library_dir()).arg(&prefix).output().unwrap());
    let mut asked = Command::new("pkg-config");
    asked.args(["--cflags", "--libs", "bivouac"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let Ok(said) = asked.output() else {
        println!("skipped: there is no pkg-config");
        return;
    };
    let said = succeed(&said);
    let flags: Vec<&str> = said.split_whitespace().collect();
    assert!(prefix.join("include/bivouac.h").exists() && flags.contains(&"-lbivouac"), "{flags:?}");
    let Some(program) = build("examples/checkpoint.c", dir.path(), &flags) else { return };
    let ran = Command::new(program).env("LD_LIBRARY_PATH", prefix.join("lib")).output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "it wants arguments: {ran:?}");
}

/// What the dynamic linker finds in the library is what the header names.
#[test]
fn header_and_library_name_the_same_functions() {
    let header = std::fs::read_to_string(Path::new(CAPI).join("include/bivouac.h")).unwrap();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| line.ends_with(';') && line.contains('('))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("bivouac_"))
        .collect();
    declared.sort_unstable();
    let listed =
        Command::new("nm").args(["-D", "--defined-only"]).arg(library_dir().join("libbivouac.so")).output();
    let Ok(listed) = listed else {
        println!("skipped: there is no nm");
        return;
    };
    let listed = succeed(&listed);
    let mut defined: Vec<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    defined.retain(|name| name.starts_with("bivouac_"));
    defined.sort_unstable();
    assert_eq!(defined, declared);
}
