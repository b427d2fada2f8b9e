//! The edges between the top-level modules of a crate: they go one way, as those between crates do.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::dead::declaration;
use super::paths::{paths, statements};
use super::source::Source;

/// A module and one that it uses.
type Edge = (String, String);

/// The edges between the modules of one crate, each with the first path and line that has it.
type ModuleGraph<'a> = BTreeMap<Edge, (&'a str, usize)>;

/// Looks for cycles in every crate.
pub fn check(sources: &[Source], violations: &mut Vec<Violation>) {
    let crates: BTreeSet<&str> = sources.iter().map(Source::krate).collect();
    for krate in crates {
        violations.extend(judge(krate, &graph(sources, krate)));
    }
}

/// Returns a violation for each edge that is part of a cycle.
fn judge(krate: &str, graph: &ModuleGraph<'_>) -> Vec<Violation> {
    let cyclic = graph.iter().filter(|((user, used), _)| reaches(graph, used, user));
    let violation = |((user, used), (path, line)): (&Edge, &(&str, usize))| {
        let text = format!("`{user}` of `{krate}` uses `{used}`, which leads back to it");
        Violation::new(path, *line, "module cycle", text)
    };
    cyclic.map(violation).collect()
}

/// Returns whether the edges lead from `start` to `end`.
fn reaches(graph: &ModuleGraph<'_>, start: &str, end: &str) -> bool {
    let (mut reached, mut next) = (BTreeSet::new(), vec![start]);
    while let Some(module) = next.pop() {
        if module == end {
            return true;
        }
        if reached.insert(module) {
            next.extend(graph.keys().filter(|(user, _)| user == module).map(|(_, used)| used.as_str()));
        }
    }
    false
}

fn graph<'a>(sources: &'a [Source], krate: &str) -> ModuleGraph<'a> {
    let files: Vec<_> = sources
        .iter()
        .filter(|source| source.krate() == krate)
        .filter_map(|source| Some((source, module_path(&source.path)?)))
        .collect();
    let roots = files.iter().filter(|(_, module)| module.is_empty());
    let modules: BTreeSet<&str> =
        roots.flat_map(|(root, _)| root.production().filter_map(|(_, line)| declaration(line))).collect();
    let mut graph = ModuleGraph::new();
    for (source, module) in &files {
        let Some(user) = module.first().filter(|first| modules.contains(*first)) else { continue };
        for (line, statement) in statements(source.production()) {
            for path in paths(&statement) {
                let Some(used) = top_module(&path, module) else { continue };
                if used != *user && modules.contains(used) {
                    let edge = ((*user).to_owned(), used.to_owned());
                    graph.entry(edge).or_insert((&source.path, line));
                }
            }
        }
    }
    graph
}

/// The module that a file of a library or program is: `a` and `b` for `crates/x/src/a/b.rs`, nothing for its root.
fn module_path(file: &str) -> Option<Vec<&str>> {
    let (_, file) = file.split_once("src/")?;
    let mut module: Vec<&str> = file.strip_suffix(".rs")?.split('/').collect();
    if module.last() == Some(&"mod") || matches!(module.as_slice(), ["lib" | "main"]) {
        module.pop();
    }
    Some(module)
}

/// The top-level module that a path names in a file that is `module`, from `crate` or upwards from there.
fn top_module<'a>(path: &'a str, module: &[&str]) -> Option<&'a str> {
    let mut parts = path.split("::").peekable();
    let mut ups = 0;
    match parts.next()? {
        "crate" => return parts.next(),
        "super" => ups += 1,
        _ => return None,
    }
    while parts.next_if_eq(&"super").is_some() {
        ups += 1;
    }
    (ups == module.len()).then(|| parts.next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: (&str, &str) = (
        "crates/x/src/lib.rs",
        "mod a;\npub mod b;\npub(crate) mod c;\n#[cfg(test)]\nmod fixtures;\npub use a::A;\nuse crate::b::B;\n",
    );

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        [ROOT].iter().chain(files).map(|(path, text)| Source::new(path, text)).collect()
    }

    fn judged(files: &[(&str, &str)]) -> Vec<String> {
        let sources = sources(files);
        judge("x", &graph(&sources, "x")).iter().map(ToString::to_string).collect()
    }

    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let sources = sources(files);
        graph(&sources, "x").iter().map(|((a, b), (path, line))| format!("{a} {b} {path}:{line}")).collect()
    }

    #[test]
    fn edges_are_found_however_a_path_is_written() {
        for text in [
            "use crate::b::B;",
            "use crate::b;",
            "use crate::{Other, b};",
            "use crate::{Other, b::{B, C}};",
            "pub(crate) use crate::{\n    Other,\n    b::B,\n};",
            "fn f(b: &crate::b::B) {}",
            "macro_rules! m { () => { $crate::b::f() } }",
            "use super::b::B;",
            "use super::{Other, b};",
        ] {
            assert_eq!(edges(&[("crates/x/src/a.rs", text)]), ["a b crates/x/src/a.rs:1"], "{text}");
            assert_eq!(edges(&[("crates/x/src/a/mod.rs", text)]), ["a b crates/x/src/a/mod.rs:1"], "{text}");
        }
        for text in ["\nuse crate::c::C;", "\nfn f() { super::super::c::f() }"] {
            assert_eq!(edges(&[("crates/x/src/a/d.rs", text)]), ["a c crates/x/src/a/d.rs:2"], "{text}");
        }
    }

    #[test]
    fn what_is_no_edge_is_left_out() {
        for text in [
            "use crate::a::A;",
            "use crate::Other;",
            "use other::b;",
            "// crate::b",
            "/// [`B`](crate::b::B)\nfn f() {}",
            "const PATH: &str = \"crate::b\";",
            "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}",
            "#[cfg(test)]\nuse crate::b::B;",
            "use crate::fixtures::f;",
            "mod d {\n    use super::d::b;\n}",
        ] {
            assert_eq!(edges(&[("crates/x/src/a.rs", text)]), [""; 0], "{text}");
        }
        // `super` of a module inside `a` is `a`.
        assert_eq!(edges(&[("crates/x/src/a/d.rs", "use super::b::B;")]), [""; 0]);
        for other in
            ["crates/x/tests/a.rs", "crates/x/src/a/tests.rs", "crates/x/src/bin/a.rs", "crates/y/src/a.rs"]
        {
            assert_eq!(edges(&[(other, "use crate::b::B;")]), [""; 0], "{other}");
        }
    }

    #[test]
    fn layers_are_no_cycle() {
        let files = [("crates/x/src/a.rs", "use crate::{b, c};"), ("crates/x/src/b.rs", "use crate::c;")];
        assert_eq!(judged(&files), [""; 0]);
    }

    #[test]
    fn each_edge_of_a_cycle_is_named_with_its_place() {
        let files = [
            ("crates/x/src/a.rs", "\nuse crate::b;\n\nuse crate::b::B;"),
            ("crates/x/src/b.rs", "use crate::a;\nuse crate::c;"),
        ];
        let rest = "which leads back to it";
        assert_eq!(
            judged(&files),
            [
                format!("crates/x/src/a.rs:2: module cycle: `a` of `x` uses `b`, {rest}"),
                format!("crates/x/src/b.rs:1: module cycle: `b` of `x` uses `a`, {rest}"),
            ]
        );
    }

    #[test]
    fn cycles_through_several_modules_are_found() {
        let files = [
            ("crates/x/src/a.rs", "use crate::b;"),
            ("crates/x/src/b.rs", "use crate::c;"),
            ("crates/x/src/c.rs", "use crate::a;"),
        ];
        assert_eq!(judged(&files).len(), 3);
    }
}
