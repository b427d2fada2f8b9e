//! What only some crates may name: files, processes, the environment, clocks; and what none may.

use super::Violation;
use super::paths::{paths, statements};
use super::source::Source;

const PURE: [&str; 6] = ["types", "layout", "wire", "plan", "sysmap", "races"];
const PROGRAMS: [&str; 3] = ["cli", "posix", "xtask"];
const NAME_FILES: [&str; 9] =
    ["store", "source", "stage", "launch", "hosts", "survey", "mount", "cli", "xtask"];
const START_PROCESSES: [&str; 3] = ["launch", "hosts", "xtask"];

/// Exceptions: rule, start of the file's path, reason.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("process", "crates/bench/src/", "measurements are made of real processes, and of `up` as users run it"),
    ("file name", "crates/bench/src/", "it measures file systems by their paths, and writes figures"),
    (
        "file name",
        "crates/publish/src/",
        "it reads what is published, and puts what it fetches where users say",
    ),
    ("file name", "crates/net/src/address.rs", "the path of a socket is an address"),
    (
        "file name",
        "crates/net/src/processors.rs",
        "only a file of the kernel's says how many threads want to run",
    ),
    ("file name", "crates/pool/src/sql/passwords.rs", "a file of passwords is found and trusted by its path"),
    (
        "file name",
        "crates/direct/src/grant_table.rs",
        "/proc/self/fd gives an open file description of one's own",
    ),
    ("file name", "crates/extract/src/machine.rs", "what a machine says of itself are files"),
    ("file name", "crates/client/src/client/member.rs", "a process joins by the formation's directory"),
    ("file name", "crates/client/src/races.rs", "the environment of a process, where its rank is, is a file"),
    ("file name", "crates/preload/src/devices.rs", "the kernel's list of mounts is a file"),
    ("file name", "crates/preload/src/names.rs", "it looks for names that the program gives"),
    (
        "environment",
        "crates/preload/src/settings.rs",
        "a preloaded library has nobody who could pass anything on",
    ),
    (
        "file name",
        "crates/net/src/listener.rs",
        "a Unix socket is a file: a stale one is removed, its mode set",
    ),
];

/// Functions and types of `std::fs` and `rustix::fs` that take a path.
const FILE_NAMERS: [&str; 49] = [
    "read",
    "read_to_string",
    "write",
    "create_dir",
    "create_dir_all",
    "remove_file",
    "remove_dir",
    "remove_dir_all",
    "rename",
    "copy",
    "hard_link",
    "metadata",
    "symlink_metadata",
    "canonicalize",
    "read_dir",
    "read_link",
    "set_permissions",
    "exists",
    "DirBuilder",
    "OpenOptions",
    "open",
    "openat",
    "openat2",
    "mkdir",
    "mkdirat",
    "unlink",
    "unlinkat",
    "rmdir",
    "renameat",
    "renameat_with",
    "stat",
    "statat",
    "lstat",
    "statx",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "readlink",
    "readlinkat",
    "chmod",
    "chmodat",
    "chown",
    "chownat",
    "utimensat",
    "mknodat",
    "statfs",
    "statvfs",
    "access",
];

/// Checks one file.
pub fn check(source: &Source, violations: &mut Vec<Violation>) {
    let mut found = Vec::new();
    for (number, line) in statements(source.production()) {
        for path in paths(&line) {
            found.extend(path_rule(source.krate(), &path).map(|(rule, text)| (number, rule, text)));
        }
    }
    for (number, line) in source.production() {
        found.extend(macro_rule(source.krate(), line).map(|(rule, text)| (number, rule, text)));
    }
    found.extend(everywhere(source));
    found.dedup();
    let allowed = |rule: &str| ALLOWED.iter().any(|a| a.0 == rule && source.path.starts_with(a.1));
    let found = found.into_iter().filter(|(_, rule, _)| !allowed(rule));
    violations.extend(found.map(|(number, rule, text)| Violation::new(&source.path, number, rule, text)));
}

type Rule = (&'static str, String);

/// The rule that naming a path breaks.
fn path_rule(krate: &str, path: &str) -> Option<Rule> {
    let parts: Vec<&str> = path.trim_start_matches("std::").split("::").collect();
    let std = path.starts_with("std::");
    let (module, member) = (*parts.first()?, parts.get(1).copied());
    let within = |crates: &[&str]| crates.contains(&krate);
    if within(&PURE) && is_impure(std, &parts) {
        return Some(("pure crate", format!("`{path}`; pass it as an argument from above")));
    }
    if parts.ends_with(&["thread", "sleep"]) || parts.ends_with(&["nanosleep"]) {
        return Some(("sleeping", format!("`{path}`; wait for the event itself")));
    }
    let reads = !matches!(member, Some("split_paths" | "join_paths" | "consts" | "set_current_dir"));
    if module == "env" && (std || member.is_some()) && reads && !within(&PROGRAMS) {
        return Some((
            "environment",
            format!("`{path}`; only entry points read it, and pass on what they read"),
        ));
    }
    let starts = parts.ends_with(&["Command", "new"]);
    if (starts || std && module == "process" && matches!(member, Some("Command") | None))
        && !within(&START_PROCESSES)
    {
        return Some(("process", format!("`{path}`; only `launch` and `hosts` start processes")));
    }
    if names_files(&parts) && !within(&NAME_FILES) {
        return Some(("file name", format!("`{path}`; only `store`, `source` and `stage` name files")));
    }
    None
}

fn is_impure(std: bool, parts: &[&str]) -> bool {
    let impure_module = |module: &&str| matches!(*module, "fs" | "net" | "env" | "thread" | "process");
    let impure_crate = matches!(parts.first(), Some(&("rand" | "getrandom" | "rustix" | "libc" | "log")));
    std && parts.first().is_some_and(impure_module)
        || impure_crate
        || parts.iter().any(|part| matches!(*part, "Instant" | "SystemTime"))
}

fn names_files(parts: &[&str]) -> bool {
    let is = |a: &str, wanted: &dyn Fn(&str) -> bool| {
        parts.windows(2).any(|pair| pair.first() == Some(&a) && pair.get(1).is_some_and(|b| wanted(b)))
    };
    is("fs", &|member| FILE_NAMERS.contains(&member))
        || is("File", &|member| matches!(member, "open" | "create" | "create_new" | "options"))
        || is("OpenOptions", &|_| true)
}

/// The rule that a macro of a line breaks.
fn macro_rule(krate: &str, line: &str) -> Option<Rule> {
    let unfinished = ["todo!", "unimplemented!", "dbg!"];
    let printing = ["println!", "print!", "eprintln!", "eprint!"];
    let named = |names: &[&'static str]| names.iter().find(|name| has_word(line, name)).copied();
    if let Some(name) = named(&unfinished) {
        return Some(("unfinished", format!("`{name}`; finish it or return an error")));
    }
    let name = named(&printing).filter(|_| !PROGRAMS.contains(&krate))?;
    Some(("printing", format!("`{name}` in a library; return it or log it")))
}

/// Rules that hold for tests as well.
fn everywhere(source: &Source) -> Vec<(usize, &'static str, String)> {
    let may_be_unsafe = source.code.contains("#![allow(unsafe_code");
    let mut found = Vec::new();
    for (index, line) in source.code.lines().enumerate() {
        let mut add = |rule, text: &str| found.push((index + 1, rule, text.to_owned()));
        if !may_be_unsafe && has_word(line, "unsafe") {
            add("unsafe", "only in a file that begins with `#![allow(unsafe_code)]`");
        }
        if source.krate() != "types" && numbers_an_error(line) {
            add("error number", "a bare number; `types::Errno` has the names");
        }
        if let Some(name) = module_name(line).filter(|name| vague(name)) {
            add("vague name", &format!("module `{name}`; say what it does"));
        }
    }
    let stem = source.path.rsplit('/').next().and_then(|file| file.strip_suffix(".rs")).unwrap_or_default();
    if vague(stem) || vague(source.krate()) {
        found.push((1, "vague name", "file or crate; say what it does".to_owned()));
    }
    found
}

fn vague(name: &str) -> bool {
    matches!(name, "util" | "utils" | "common" | "core" | "helpers" | "misc")
}

fn module_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("mod ")?;
    let declares = before.trim().is_empty() || before.trim_start().starts_with("pub");
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(after.len());
    if declares { after.get(..end) } else { None }
}

fn numbers_an_error(line: &str) -> bool {
    let mut calls = line.split("from_raw_os_error(").skip(1);
    calls.any(|argument| argument.trim_start_matches(['-', ' ']).starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether a line has a word, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = line.split_at(at);
        let after = after.chars().nth(word.chars().count());
        !part_of_word(before.chars().next_back()) && (word.ends_with('!') || !part_of_word(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<(usize, &'static str)> {
        let mut violations = Vec::new();
        check(&Source::new(path, text), &mut violations);
        violations.into_iter().map(|violation| (violation.line, violation.rule)).collect()
    }

    fn in_crate(krate: &str, text: &str) -> Vec<&'static str> {
        rules(&format!("crates/{krate}/src/x.rs"), text).into_iter().map(|(_, rule)| rule).collect()
    }

    #[test]
    fn what_no_crate_may_do() {
        for (text, rule) in [
            ("fn a() { todo!() }", "unfinished"),
            ("    unimplemented!();", "unfinished"),
            ("let b = dbg!(c);", "unfinished"),
            ("std::thread::sleep(d);", "sleeping"),
            ("thread::sleep(d);", "sleeping"),
            ("rustix::thread::nanosleep(d)", "sleeping"),
            ("use std::{io, thread::sleep};", "sleeping"),
            ("let x = unsafe { y() };", "unsafe"),
            ("io::Error::from_raw_os_error(28)", "error number"),
            ("pub(crate) mod util;", "vague name"),
        ] {
            assert_eq!(in_crate("net", text), [rule], "{text}");
        }
    }

    #[test]
    fn what_only_some_crates_may_do() {
        for (text, rule, allowed, refused) in [
            ("println!();", "printing", "cli", "client"),
            ("eprintln!();", "printing", "xtask", "node"),
            ("std::env::var(x)", "environment", "cli", "launch"),
            ("use std::env;", "environment", "cli", "node"),
            ("env::args()", "environment", "xtask", "stage"),
            ("use std::process::Command;", "process", "launch", "node"),
            ("process::Command::new(x)", "process", "launch", "mount"),
            ("Command::new(x)", "process", "launch", "client"),
            ("std::fs::read(x)", "file name", "store", "node"),
            ("use std::fs::{File, rename};", "file name", "stage", "client"),
            ("File::open(x)", "file name", "launch", "node"),
            ("OpenOptions::new()", "file name", "mount", "net"),
            ("rustix::fs::openat(x)", "file name", "store", "client"),
            ("use std::fs;", "pure crate", "net", "wire"),
            ("use std::time::{Duration, Instant};", "pure crate", "net", "layout"),
            ("let t = SystemTime::now();", "pure crate", "node", "types"),
            ("getrandom::fill(x)", "pure crate", "net", "plan"),
        ] {
            assert_eq!(in_crate(allowed, text), [""; 0], "{allowed}: {text}");
            let broken = in_crate(refused, text);
            assert!(broken.contains(&rule), "{refused}: {text}: {broken:?}");
        }
    }

    #[test]
    fn exceptions_are_for_one_rule_and_place() {
        assert_eq!(in_crate("bench", "Command::new(x); std::fs::read(y);"), [""; 0]);
        assert_eq!(in_crate("bench", "std::env::var(x)"), ["environment"]);
        assert_eq!(in_crate("bench", "thread::sleep(x)"), ["sleeping"]);
    }

    #[test]
    fn what_everybody_may_do() {
        for text in [
            "use std::fs::File; fn a(f: &File) { f.read_at(b, 0) }",
            "rustix::fs::fstat(fd); rustix::fs::ftruncate(fd, 0)",
            "use std::process; std::process::id(); process::ExitCode::from(1)",
            "std::env::split_paths(x)",
            "env!(\"CARGO_PKG_VERSION\")",
            "// todo!() dbg!() unsafe thread::sleep",
            "log(\"println!() std::fs::read\");",
            "let mod_helper = 1; // mod util",
            "io::Error::from_raw_os_error(errno.code())",
            "let unsafe_code = 1;",
        ] {
            let broken: Vec<_> =
                in_crate("node", text).into_iter().filter(|rule| *rule != "process").collect();
            assert_eq!(broken, [""; 0], "{text}");
        }
    }

    #[test]
    fn tests_may_sleep_and_name_files_but_not_number_errors() {
        let test = "#[cfg(test)]\nmod tests {\n std::fs::read(x); std::thread::sleep(y);\n from_raw_os_error(5)\n}\n";
        assert_eq!(rules("crates/node/src/x.rs", test), [(4, "error number")]);
        assert_eq!(rules("crates/node/tests/x.rs", "std::env::var(x); println!();"), []);
    }

    #[test]
    fn unsafe_is_for_files_that_say_so() {
        assert_eq!(in_crate("net", "#![allow(unsafe_code)]\nunsafe { x() }"), [""; 0]);
        assert_eq!(in_crate("net", "#![allow(unsafe_code, reason = \"\")]\nunsafe { x() }"), [""; 0]);
    }

    #[test]
    fn vague_files_are_named() {
        assert_eq!(rules("crates/node/src/helpers.rs", ""), [(1, "vague name")]);
        assert_eq!(rules("crates/common/src/lib.rs", ""), [(1, "vague name")]);
    }

    #[test]
    fn several_lines_of_a_declaration_are_one() {
        let text = "use std::{\n    io,\n    fs::read,\n};\n";
        assert_eq!(rules("crates/node/src/x.rs", text), [(1, "file name")]);
    }
}
