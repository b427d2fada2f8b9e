//! Formation files: checked, and given to `up` and `run`.

use crate::harness::{Camp, Place, assert_contains};

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
    let said = place.run(&["config", "--check", &file]).succeeds();
    for line in [": makes sense\n", "--nodes 3\n", "partition /chk: nodes 2,1; width=0 placement=hashed"] {
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
        assert_contains(&said.err, &[&format!("{file}:2: unknown key 'nods': did you mean 'nodes'?\n")]);
        assert!(said.err.contains(&format!("{file}:6: stripe size 5 is not within")), "{}", said.err);
        assert!(place.is_empty());
    }
    place.run(&["config", "--check", "/nonexistent"]).fails(1, &["/nonexistent: "]);
    assert_eq!(place.run(&["config"]).code, 2);
}

#[test]
fn up_makes_what_the_file_says_and_options_count_more() {
    let Some(place) = Place::mountable() else { return };
    let file = written(&place, FILE);
    let camp = Camp::start_in(place, &["--config", &file, "--stripe", "8k"]);
    let status = camp.status();
    assert_eq!((&status["stripe_bytes"], status["nodes"].as_array().unwrap().len()), (&8192.into(), 3));
    let partitions = status["partitions"].as_array().unwrap();
    let of = |at: usize, key: &str| partitions[at][key].clone();
    assert_eq!((of(0, "path"), of(1, "path")), ("/chk".into(), "/in".into()));
    assert_eq!(of(0, "targets"), serde_json::json!([[2, 0], [1, 0]]));
    assert_eq!(of(0, "settings")[0], serde_json::json!(["stripe", "8k"]), "that of the formation");
    assert_eq!(of(1, "targets").as_array().unwrap().len(), 1, "one node is enough for 1 MiB");
    std::fs::write(camp.mount().join("chk/f"), "x").unwrap();
    camp.down();
}

#[test]
fn run_makes_it_for_its_command_and_nothing_is_left_of_what_cannot_be() {
    let Some(place) = Place::mountable() else { return };
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
    place
        .run(&["up", "--config", &file, "--name", &Place::unique_name()])
        .fails(1, &["partition /a: node 5 is not there"]);
    assert!(place.is_empty());
}

/// What `up` refuses for what is in the file, or for what this machine lacks, `config --check` refuses as well.
#[test]
fn a_check_refuses_what_up_refuses() {
    let place = Place::new();
    for (text, says) in [
        ("[formation]\nhosts = \"a,b\"\nnodes = 2\n", "exclude each other"),
        ("[formation]\nhosts = \"a b[\"\n", "its brackets make no sense"),
        ("[formation]\nnodes-per-host = 2\n", "is for several hosts"),
        ("[formation]\nmeet = \"7000\"\n", "meet-secret"),
        ("[formation]\nvolume = \"/nonexistent\"\n", "volume /nonexistent: is missing"),
        ("[formation]\nnodes = 2\n[[partition]]\npath = \"/a\"\nnodes = \"0-3\"\n", "node 2 is not there"),
        (
            "[formation]\nnodes = 2\n[[partition]]\npath = \"/a\"\nwidth = 3\n",
            "width 3 is more than its 2 targets",
        ),
        ("[[partition]]\npath = \"/a\"\nsource = \"/nonexistent/x\"\n", "/nonexistent/x: no such file"),
        ("[[partition]]\npath = \"/a/b\"\n", "/a"),
    ] {
        let file = written(&place, text);
        let checked = place.run(&["config", "--check", &file]);
        let started = place.run(&["up", "--no-mount", "--config", &file, "--name", &Place::unique_name()]);
        assert!(started.code != 0 && checked.code != 0, "{text}: {} {}", started.err, checked.err);
        assert!(checked.err.contains(&file) && checked.err.contains(says), "{text}: {}", checked.err);
        assert_eq!(checked.out, "", "{text}");
        assert!(place.is_empty(), "{text}");
    }
    let good =
        "[formation]\nnodes = 2\n[[partition]]\npath = \"/a\"\nwidth = 2\n[[partition]]\npath = \"/a/b\"\n";
    place.ok(&["config", "--check", &written(&place, good)]);
}

/// Name, mount point, inputs and outputs of a job are in its file, as its nodes are.
#[test]
fn a_file_has_all_of_a_job() {
    let Some(place) = Place::mountable() else { return };
    let (name, work) = (Place::unique_name(), tempfile::tempdir().unwrap());
    std::fs::write(work.path().join("in"), "made of").unwrap();
    let dir = work.path().display();
    let text = format!(
        "[formation]\nname = \"{name}\"\nmount = \"{dir}/mnt\"\nin = \"{dir}/in\"\nout = \"out:{dir}/out\"\n"
    );
    let file = written(&place, &text);
    place.ok(&["config", "--check", &file]);
    let script = "cat in > out; pwd; echo $BIVOUAC_NAME";
    let run = format!("cd $BIVOUAC && {{ {script}; }}");
    let said = place.ok(&["run", "--config", &file, "--", "sh", "-c", &run]);
    assert!(said.starts_with(&format!("{dir}/mnt\n{name}\n")), "{said}");
    assert_eq!(std::fs::read_to_string(work.path().join("out")).unwrap(), "made of");
    let up = place.run(&["up", "--config", &file, "--no-mount"]);
    assert!(up.code == 0 && up.out.starts_with(&format!("formation {name} is up\n")), "{}", up.err);
    assert!(up.err.contains("`up` copies nothing in") && up.err.contains("bivouac stage in"), "{}", up.err);
    let kept = place.run(&["down", "--name", &name, "--yes"]);
    assert_eq!(kept.code, 3, "what the file says is to come out first: {}", kept.err);
    place.ok(&["down", "--name", &name, "--discard"]);
    assert!(place.is_empty() && !work.path().join("mnt").exists());
}
