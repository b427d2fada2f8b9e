//! `bivouac plan`, and `run --plan` with real formations.

use crate::harness::{Place, can_mount};
use serde_json::Value;

const SITE: &str = r#"
[storage]
read = [{ streams = 1, bytes_per_second = 5e8 }, { streams = 8, bytes_per_second = 2e9 }]
write = [{ streams = 1, bytes_per_second = 5e8 }, { streams = 8, bytes_per_second = 1e9 }]
file_read_ms = 1.0
file_write_ms = 2.0
spread = 0.2

[node]
bytes_per_second = 1e10
memory_bytes = 68719476736
"#;

fn place() -> (Place, String) {
    let place = Place::new();
    let site = place.path().join("site.toml");
    std::fs::write(&site, SITE).unwrap();
    let site = site.to_str().unwrap().to_owned();
    (place, site)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// S531, S533: the verdict in one line, and a formation file that `up` really takes.
#[test]
fn the_advice_can_be_formed() {
    let (place, site) = place();
    let file = place.path().join("camp.toml");
    let file = file.to_str().unwrap();
    let job =
        ["plan", "--site", &site, "--nodes", "2", "--in-bytes", "10g", "--in-files", "100", "--reads", "30"];
    let more = ["--checkpoint", "1g", "--checkpoint-every", "10m", "--run-time", "1h", "--write", file];
    let said = place.run(&[&job[..], &more].concat());
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("use it: ") && said.out.contains("break-even"), "{}", said.out);
    let checked = place.run(&["config", "--check", file]);
    assert_eq!(checked.code, 0, "{}", checked.err);
    if !can_mount() {
        return;
    }
    let name = Place::unique_name();
    let up = place.run(&["up", "--name", &name, "--config", file, "--no-mount"]);
    assert_eq!(up.code, 0, "{}", up.err);
    let status = json(&place.run(&["status", "--name", &name, "--json"]).out);
    // Nodes are those of a job, and here is none: they are not made on one machine instead.
    assert_eq!(status["nodes"].as_array().unwrap().len(), 1);
    let shown = place.run(&["partition", "show", "--name", &name, "/checkpoints"]);
    assert!(shown.code == 0 && shown.out.contains("session"), "{} {}", shown.out, shown.err);
    assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
}

/// S531: from a file, with options that count instead; from a scan; and what makes no sense.
#[test]
fn jobs_come_from_options_files_and_scans() {
    let (place, site) = place();
    let job = place.path().join("job.toml");
    std::fs::write(&job, "nodes = 4\nin-bytes = \"1g\"\nreads = 1\nmemory = \"8g\"\n").unwrap();
    let job = job.to_str().unwrap();
    let plan = |more: &[&str]| place.run(&[&["plan", "--site", &site][..], more].concat());
    let once = json(&plan(&["--job", job, "--json"]).out);
    assert!(once["verdict"].as_str().unwrap().starts_with("do not: "), "{once}");
    assert_eq!((&once["work"]["nodes"], &once["work"]["in_bytes"]), (&Value::from(4), &Value::from(1 << 30)));
    let often = json(&plan(&["--job", job, "--reads", "50", "--json"]).out);
    assert!(often["verdict"].as_str().unwrap().starts_with("use it: "), "{often}");
    assert!(often["prediction"]["with"]["low"].as_f64() <= often["prediction"]["with"]["high"].as_f64());

    let data = place.path().join("data/deep");
    std::fs::create_dir_all(&data).unwrap();
    for number in 0..10 {
        std::fs::write(data.join(number.to_string()), vec![0; 1000]).unwrap();
    }
    std::os::unix::fs::symlink("/", data.join("link")).unwrap();
    let data = place.path().join("data");
    let found = json(&plan(&["--scan", data.to_str().unwrap(), "--json"]).out);
    assert_eq!(
        (&found["work"]["in_bytes"], &found["work"]["in_files"]),
        (&Value::from(10_000), &Value::from(10))
    );

    for (arguments, code, says) in [
        (&["--nodes", "4"][..], 2, "nothing to plan"),
        (&["--scan", "/does/not/exist"], 1, "check its path"),
        (&["--job", "/does/not/exist"], 1, "check its path"),
        (&["--reads", "many"], 2, "is not a number"),
    ] {
        let said = plan(arguments);
        assert!(said.code == code && said.err.contains(says), "{arguments:?}: {said:?}");
    }
    std::fs::write(job, "cores = 4\n").unwrap();
    let said = plan(&["--job", job]);
    assert!(said.code == 2 && said.err.contains("cores"), "{said:?}");
    std::fs::write(&site, SITE.replace("streams = 8", "streams = 1")).unwrap();
    let said = plan(&["--in-bytes", "1g"]);
    assert!(said.code == 2 && said.err.contains("from few streams to many"), "{said:?}");
    let said = place.run(&["plan", "--in-bytes", "1g"]);
    assert!(said.code == 1 && said.err.contains("bivouac plan calibrate DIR"), "{said:?}");
}

/// S534.
#[test]
fn a_site_is_measured_and_leaves_nothing_in_it() {
    let place = Place::new();
    let storage = place.path().join("storage");
    std::fs::create_dir(&storage).unwrap();
    let dir = storage.to_str().unwrap();
    let said = place.run(&["plan", "calibrate", "--size", "1m", "--files", "5", "--streams", "4", dir]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(std::fs::read_dir(&storage).unwrap().count(), 0);
    let model = std::fs::read_to_string(place.path().join("state/bivouac/site.toml")).unwrap();
    let model: toml::Table = model.parse().unwrap();
    assert_eq!(model["storage"]["read"].as_array().unwrap().len(), 3, "1, 2 and 4 streams");
    let said = place.run(&["plan", "--in-bytes", "1g", "--reads", "2"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let said = place.run(&["plan", "calibrate", "/does/not/exist"]);
    assert!(said.code == 1 && said.err.contains("name a directory that you may write"), "{said:?}");
}

/// S532: a source that is many times slower than what was measured.
#[test]
fn a_throttled_source_is_learned_in_five_runs_and_forgotten_when_told() {
    if !can_mount() {
        return;
    }
    let (place, site) = place();
    // Twenty times as fast as it will be.
    std::fs::write(&site, SITE.replace("5e8", "2e7").replace("2e9", "2e7")).unwrap();
    let (data, seen) = (place.path().join("data"), place.path().join("seen.json"));
    std::fs::write(&data, vec![7; 2 << 20]).unwrap();
    let (data, seen) = (data.to_str().unwrap(), seen.to_str().unwrap());
    let mut errors = Vec::new();
    for run in 0..8 {
        let arguments = [
            "run",
            "--plan",
            "--plan-json",
            seen,
            "--site",
            &site,
            "--in",
            data,
            "--limit",
            "1m",
            "--no-verify",
        ];
        let said = place.run(&[&arguments[..], &["--", "true"]].concat());
        assert_eq!(said.code, 0, "{}", said.err);
        assert!(
            said.err.contains("predicted, and what it took") && said.err.contains("PREDICTED"),
            "{}",
            said.err
        );
        let steps = json(&std::fs::read_to_string(seen).unwrap());
        let step = steps.as_array().unwrap().iter().find(|step| step["step"] == "in").unwrap();
        assert_eq!((&step["bytes"], &step["files"]), (&Value::from(2 << 20), &Value::from(1)));
        let error =
            (step["predicted"]["likely"].as_f64().unwrap() / step["took"].as_f64().unwrap() - 1.0).abs();
        errors.push(error);
        if run == 0 {
            assert!(error > 0.5, "before anything is learned the model knows nothing of the limit: {steps}");
        }
    }
    let mut later = errors[5..].to_vec();
    later.sort_by(f64::total_cmp);
    assert!(later[later.len() / 2] <= 0.25, "{errors:?}");
    let planned = place.run(&["plan", "--site", &site, "--in-bytes", "1g"]);
    assert!(planned.out.contains("copies in took") && planned.out.contains("in 8 runs"), "{}", planned.out);
    let said = place.run(&["plan", "reset", "--site", &site]);
    assert!(said.code == 0 && said.out.contains("is forgotten"), "{said:?}");
    let planned = place.run(&["plan", "--site", &site, "--in-bytes", "1g"]);
    assert!(!planned.out.contains("copies in took"), "{}", planned.out);
    let said = place.run(&["plan", "reset", "--site", &site]);
    assert!(said.code == 0 && said.out.contains("was nothing"), "{said:?}");
    // A run without a model is refused before anything is started.
    let said = place.run(&["run", "--plan", "--site", "/does/not/exist", "--", "true"]);
    assert!(said.code == 1 && said.err.contains("there is no model of the site"), "{said:?}");
}
