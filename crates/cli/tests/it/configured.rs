//! Formation files: checked, and given to `up` and `run`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::harness::{Camp, Place, can_mount};

const FILE: &str = r#"
[formation]
nodes = 3
stripe = "64k"

[[partition]]
path = "/chk"
nodes = "2,1"
placement = "hashed"

[[partition]]
path = "/in"
for = "1m"
"#;

fn written(place: &Place, text: &str) -> String {
    let path = place.path().join("formation.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_file_that_makes_sense_is_said_to_and_mistakes_have_lines() {
    let place = Place::new();
    let file = written(&place, FILE);
    let said = place.run(&["config", "--check", &file]);
    assert_eq!(said.code, 0, "{}", said.err);
    for line in [": makes sense\n", "--nodes 3\n", "partition /chk: nodes 2,1,; width=0 placement=hashed"] {
        assert!(said.out.contains(line), "{}", said.out);
    }
    let file = written(&place, "[formation]\nnods = 3\n\n[[partition]]\npath = \"/a\"\nstripe = 5\n");
    for command in [
        &["config", "--check", &file][..],
        &["up", "--config", &file],
        &["run", "--config", &file, "--", "true"],
    ] {
        let said = place.run(command);
        assert_eq!(said.code, 2, "{command:?}");
        assert!(
            said.err.contains(&format!("{file}:2: unknown key 'nods': did you mean 'nodes'?\n")),
            "{}",
            said.err
        );
        assert!(said.err.contains(&format!("{file}:6: stripe size 5 is not within")), "{}", said.err);
        assert!(place.is_empty());
    }
    let said = place.run(&["config", "--check", "/nonexistent"]);
    assert!(said.code == 1 && said.err.contains("/nonexistent: "), "{}", said.err);
    assert_eq!(place.run(&["config"]).code, 2);
}

#[test]
fn up_makes_what_the_file_says_and_options_count_more() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let file = written(&place, FILE);
    let camp = Camp::start_in(place, &["--config", &file, "--stripe", "8k"]);
    let status = camp.status();
    assert_eq!((&status["stripe_bytes"], status["nodes"].as_array().unwrap().len()), (&8192.into(), 3));
    let partitions = status["partitions"].as_array().unwrap();
    let of = |at: usize, key: &str| partitions[at][key].clone();
    assert_eq!((of(0, "path"), of(1, "path")), ("/chk".into(), "/in".into()));
    assert_eq!(of(0, "seats"), serde_json::json!([[2, 0], [1, 0]]));
    assert_eq!(of(0, "settings")[0], serde_json::json!(["stripe", "8k"]), "that of the formation");
    assert_eq!(of(1, "seats").as_array().unwrap().len(), 1, "one node is enough for 1 MiB");
    std::fs::write(camp.mount().join("chk/f"), "x").unwrap();
    camp.down();
}

#[test]
fn run_makes_it_for_its_command_and_nothing_is_left_of_what_cannot_be() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let file = written(&place, FILE);
    let said = place.run(&[
        "run",
        "--config",
        &file,
        "--",
        "sh",
        "-c",
        "echo made > $BIVOUAC/chk/f && ls $BIVOUAC && cat $BIVOUAC/chk/f",
    ]);
    assert_eq!((said.code, said.out.as_str()), (0, "chk\nin\nmade\n"), "{}", said.err);
    let file = written(&place, "[formation]\nnodes = 2\n[[partition]]\npath = \"/a\"\nnodes = \"5,\"\n");
    let said = place.run(&["up", "--config", &file, "--name", &Place::unique_name()]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("partition /a: node 5 is not there"), "{}", said.err);
    assert!(place.is_empty());
}
