//! The edges between crates: each may use those in lower layers, never one beside or above it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::Violation;

/// The layers from the bottom up, as in the architecture document. `dev` crates are used by no other.
const LAYERS: [(&str, &[&str]); 13] = [
    ("base", &["types", "ranks", "record"]),
    (
        "pure",
        &["layout", "wire", "members", "mirror", "plan", "schedule", "session", "sysmap", "tokens", "races"],
    ),
    ("memory", &["direct"]),
    ("mechanism", &["net", "store", "source", "extract"]),
    ("reach", &["link"]),
    ("use", &["client"]),
    ("serve", &["node"]),
    ("compose", &["launch", "stage", "bench", "fsck", "pool", "publish"]),
    ("gather", &["hosts"]),
    ("observe", &["monitor", "survey"]),
    ("adapt", &["mount", "preload", "capi", "mpiio", "http", "python"]),
    ("operate", &["cli"]),
    ("dev", &["sim", "posix", "objects", "xtask"]),
];

/// Lower crates that a crate or layer may nevertheless not use, and why.
const FORBIDDEN: [(&str, &[&str], &str); 4] = [
    ("client", &["store", "source", "link"], "clients and nodes meet in `wire` only"),
    (
        "adapt",
        &[
            "net", "wire", "node", "store", "direct", "source", "link", "launch", "hosts", "monitor",
            "survey", "stage", "fsck",
        ],
        "front ends see `client` and `types`",
    ),
    ("bench", &["net", "wire", "node", "store"], "what users call is measured: paths, commands and `client`"),
    ("stage", &["net", "wire", "node", "store", "client"], "staging works on plain paths"),
];

/// The prefix of package names that is left out in the tables.
const PREFIX: &str = "bivouac-";

/// What `cargo metadata` says of the workspace's own packages.
pub fn metadata(root: &Path) -> Result<Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"])
        .arg(root.join("Cargo.toml"))
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Compares the edges with the table.
pub fn check(metadata: &Value) -> Result<Vec<Violation>, String> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut violations = Vec::new();
    for package in packages {
        let user = short(&package["name"]).ok_or("cargo metadata: a package without a name")?;
        if layer(user).is_none() {
            violations.push(edge(user, "crate is in no layer; add it to the table in xtask".to_owned()));
        }
        let used = package["dependencies"].as_array().into_iter().flatten();
        // What only tests use is not an edge of the product.
        let used = used.filter(|dependency| dependency["kind"].as_str() != Some("dev"));
        let ours = used.filter(|dependency| dependency["path"].is_string());
        violations.extend(ours.filter_map(|dependency| refusal(user, short(&dependency["name"])?)));
    }
    Ok(violations)
}

fn refusal(user: &str, used: &str) -> Option<Violation> {
    let ((above, name), (below, _)) = (layer(user)?, layer(used)?);
    if below >= above {
        let what = format!("`{user}` ({name}) uses `{used}`, which is not below it");
        return Some(edge(user, what));
    }
    let applies =
        |rule: &&(&str, &[&str], &str)| (rule.0 == user || rule.0 == name) && rule.1.contains(&used);
    let (_, _, why) = FORBIDDEN.iter().find(applies)?;
    Some(edge(user, format!("`{user}` uses `{used}`: {why}")))
}

fn edge(user: &str, text: String) -> Violation {
    let dir = if user == "xtask" { "xtask".to_owned() } else { format!("crates/{user}") };
    Violation::new(&format!("{dir}/Cargo.toml"), 1, "crate edge", text)
}

fn short(name: &Value) -> Option<&str> {
    let name = name.as_str()?;
    Some(name.strip_prefix(PREFIX).unwrap_or(name))
}

/// Height and name of a crate's layer.
fn layer(name: &str) -> Option<(usize, &'static str)> {
    let height = LAYERS.iter().position(|(_, crates)| crates.contains(&name))?;
    LAYERS.get(height).map(|(name, _)| (height, *name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn checked(user: &str, used: &str, kind: Value) -> Vec<String> {
        let dependency = json!({"name": format!("bivouac-{used}"), "path": "/x", "kind": kind});
        let outside = json!({"name": "serde", "kind": null});
        let metadata =
            json!({"packages": [{"name": format!("bivouac-{user}"), "dependencies": [dependency, outside]}]});
        check(&metadata).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn edges_go_down() {
        for (user, used) in [
            ("layout", "types"),
            ("node", "store"),
            ("hosts", "launch"),
            ("mount", "client"),
            ("cli", "mount"),
        ] {
            assert_eq!(checked(user, used, Value::Null), [""; 0], "{user} {used}");
        }
    }

    #[test]
    fn edges_up_and_beside_are_named() {
        for (user, used) in [
            ("types", "wire"),
            ("net", "store"),
            ("layout", "wire"),
            ("client", "node"),
            ("launch", "stage"),
            ("launch", "hosts"),
        ] {
            let expected = format!("crates/{user}/Cargo.toml:1: crate edge: `{user}`");
            let found = checked(user, used, Value::Null);
            assert!(found.len() == 1 && found[0].starts_with(&expected), "{found:?}");
            assert!(found[0].ends_with(&format!("uses `{used}`, which is not below it")), "{found:?}");
        }
    }

    #[test]
    fn some_edges_down_are_forbidden_too() {
        for (user, used) in
            [("client", "store"), ("mount", "net"), ("http", "wire"), ("preload", "node"), ("capi", "store")]
        {
            let found = checked(user, used, Value::Null);
            assert!(found.len() == 1 && found[0].contains(&format!("`{user}` uses `{used}`: ")), "{found:?}");
        }
    }

    #[test]
    fn tests_may_use_what_they_like_and_builds_may_not() {
        assert_eq!(checked("types", "node", json!("dev")), [""; 0]);
        assert_eq!(checked("types", "node", json!("build")).len(), 1);
    }

    #[test]
    fn unknown_crates_must_be_given_a_layer() {
        let found = checked("surprise", "types", Value::Null);
        assert!(found.len() == 1 && found[0].contains("in no layer"), "{found:?}");
    }
}
