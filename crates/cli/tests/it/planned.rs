//! `bivouac plan`, and `run --plan` with real formations.

use crate::harness::{Place, assert_contains, can_mount};
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
    let said = place.run(&[&job[..], &more].concat()).succeeds();
    assert!(said.out.starts_with("use it: ") && said.out.contains("break-even"), "{}", said.out);
    place.run(&["config", "--check", file]).succeeds();
    if !can_mount() {
        return;
    }
    let name = Place::unique_name();
    place.run(&["up", "--name", &name, "--config", file, "--no-mount"]).succeeds();
    let status = json(&place.run(&["status", "--name", &name, "--json"]).out);
    // Nodes are those of a job, and here is none: they are not made on one machine instead.
    assert_eq!(status["nodes"].as_array().unwrap().len(), 1);
    place.run(&["partition", "show", "--name", &name, "/checkpoints"]).succeeds().prints(&["session"]);
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
    plan(&["--job", job]).fails(2, &["cores"]);
    std::fs::write(&site, SITE.replace("streams = 8", "streams = 1")).unwrap();
    plan(&["--in-bytes", "1g"]).fails(2, &["from few streams to many"]);
    place.run(&["plan", "--in-bytes", "1g"]).fails(1, &["bivouac plan calibrate DIR"]);
}

/// S534.
#[test]
fn a_site_is_measured_and_leaves_nothing_in_it() {
    let place = Place::new();
    let storage = place.path().join("storage");
    std::fs::create_dir(&storage).unwrap();
    let dir = storage.to_str().unwrap();
    place.run(&["plan", "calibrate", "--size", "1m", "--files", "5", "--streams", "4", dir]).succeeds();
    assert_eq!(std::fs::read_dir(&storage).unwrap().count(), 0);
    let model = std::fs::read_to_string(place.path().join("state/bivouac/site.toml")).unwrap();
    let model: toml::Table = model.parse().unwrap();
    assert_eq!(model["storage"]["read"].as_array().unwrap().len(), 3, "1, 2 and 4 streams");
    place.run(&["plan", "--in-bytes", "1g", "--reads", "2"]).succeeds();
    place.run(&["plan", "calibrate", "/does/not/exist"]).fails(1, &["name a directory that you may write"]);
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
    // At 1 MiB/s this takes so long that what else a copy takes on a busy machine is little beside it.
    const LEN: u64 = 4 << 20;
    std::fs::write(&data, vec![7; LEN as usize]).unwrap();
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
        let said = place.run(&[&arguments[..], &["--", "true"]].concat()).succeeds();
        assert_contains(&said.err, &["predicted, and what it took", "PREDICTED"]);
        let steps = json(&std::fs::read_to_string(seen).unwrap());
        let step = steps.as_array().unwrap().iter().find(|step| step["step"] == "in").unwrap();
        assert_eq!((&step["bytes"], &step["files"]), (&Value::from(LEN), &Value::from(1)));
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
    place.run(&["plan", "reset", "--site", &site]).succeeds().prints(&["is forgotten"]);
    let planned = place.run(&["plan", "--site", &site, "--in-bytes", "1g"]);
    assert!(!planned.out.contains("copies in took"), "{}", planned.out);
    place.run(&["plan", "reset", "--site", &site]).succeeds().prints(&["was nothing"]);
    // A run without a model is refused before anything is started.
    place
        .run(&["run", "--plan", "--site", "/does/not/exist", "--", "true"])
        .fails(1, &["there is no model of the site"]);
}

fn counts(ops: u64, bytes: u64) -> Value {
    serde_json::json!({"ops": ops, "bytes": bytes, "sequential": ops, "strided": 0, "off_page": 0, "crossing": 0,
        "spent_ns": 0, "sizes": [0, 0, 0, 0, 0, 0, ops, 0, 0]})
}

/// A report of a job that writes in bursts below a directory of this name.
fn report(place: &str, bursts: usize) -> Value {
    const BURST: u64 = 1 << 30;
    let pattern = |read, written| serde_json::json!({"reads": counts(9, read), "writes": counts(9, written)});
    let bins: Vec<Value> = (0..60)
        .map(|i| {
            let written = if i % 10 == 0 && i / 10 < bursts { BURST } else { 0 };
            serde_json::json!({"read": 0, "written": written, "ops": 1, "spent_ns": 0})
        })
        .collect();
    let all = BURST * bursts as u64;
    let file = serde_json::json!({"path": format!("{place}/c"), "gone": false, "size": BURST, "stripe": 1 << 20, "processes": 2,
        "or_more": false, "first_ms": 0, "last_ms": 60_000, "pattern": pattern(0, all)});
    serde_json::json!({
        "report": 1, "release": "0", "name": "camp", "nodes": 2, "unix_ms": bursts, "began_unix_ms": 0, "span_ms": 600_000,
        "findings": [], "notes": [], "total": pattern(0, all), "timeline": {"width_ms": 10_000, "bins": bins},
        "places": [{"place": place, "is_partition": false, "is_session": false, "has_source": false, "stripe": 1 << 20,
            "files": 1, "shared": 0, "mixed": 0, "processes": 2, "span_ms": 600_000, "held_ms": 600_000,
            "pattern": pattern(0, all), "mounted": 9}],
        "files": [file], "more_files": 0, "processes": [], "operations": [],
        "site": {"staged_in": 0, "staged_out": 0, "here": all},
    })
}

/// S537, S533: bursts of an earlier run are checkpoints, and the formation file has the directory that they go to; of a
/// directory of reports the median counts, and options count instead.
#[test]
fn reports_of_earlier_runs_are_planned() {
    let (place, site) = place();
    let dir = place.path().join("reports");
    std::fs::create_dir(&dir).unwrap();
    for (name, bursts) in [("a.json", 4), ("b.json", 5), ("c.json", 6)] {
        std::fs::write(dir.join(name), report("/odd \"name\\", bursts).to_string()).unwrap();
    }
    std::fs::write(dir.join("notes.txt"), "no report").unwrap();
    let (dir, camp) = (dir.to_str().unwrap(), place.path().join("camp.toml"));
    let one = format!("{dir}/b.json");
    let plan = |from: &str, more: &[&str]| {
        place.run(&[&["plan", "--site", &site, "--from-report", from][..], more].concat())
    };
    let found = json(&plan(&one, &["--json"]).out);
    let work = &found["work"];
    assert_eq!(
        (&work["checkpoints"], &work["checkpoint_bytes"], &work["nodes"]),
        (&5.into(), &(1 << 30).into(), &2.into())
    );
    assert_eq!((&work["run_seconds"], &found["reports"]), (&600.0.into(), &1.into()));
    let said = plan(dir, &["--write", camp.to_str().unwrap()]).succeeds();
    for part in ["3 reports", "bursts of writes", "every 1 min", "5 of 1 GiB"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    let text = std::fs::read_to_string(&camp).unwrap();
    assert!(text.contains("path = \"/odd \\\"name\\\\\"") && !text.contains("/checkpoints"), "{text}");
    assert_eq!(place.run(&["config", "--check", camp.to_str().unwrap()]).code, 0, "{text}");
    let said = json(&plan(dir, &["--nodes", "8", "--in-bytes", "1g", "--checkpoint", "2g", "--json"]).out);
    let work = &said["work"];
    assert_eq!(
        (&work["nodes"], &work["in_bytes"], &work["checkpoint_bytes"]),
        (&8.into(), &(1 << 30).into(), &(2_i64 << 30).into())
    );
}

fn flush(place: &Place, name: &str, pool: &str) {
    let mount = place.run(&["exec", "--name", name, "--", "printenv", "BIVOUAC"]).out;
    place.run(&["flush", &format!("{}/pools/{pool}", mount.trim_end())]).succeeds();
}

/// S533, S336: what a job wrote into a pool is planned for that pool: the formation file has its settings, and `--pool`
/// its data.
#[test]
fn what_a_plan_says_of_pools_goes_with_attaching_them() {
    let (mut place, site) = place();
    place.have_pools();
    let (base, camp, from) =
        (place.path().join("base"), place.path().join("camp.toml"), place.path().join("r.json"));
    std::fs::create_dir(&base).unwrap();
    let [base, camp, from] = [&base, &camp, &from].map(|path| path.to_str().unwrap());
    for name in ["out", "in"] {
        assert_eq!(place.run(&["pool", "create", name, "--base", base]).code, 0);
    }
    let mut bursts = report("/pools/out", 5);
    bursts["places"][0]["has_source"] = true.into();
    bursts["places"][0]["is_partition"] = true.into();
    std::fs::write(from, bursts.to_string()).unwrap();
    place.run(&["plan", "--site", &site, "--from-report", from, "--write", camp]).succeeds();
    let text = std::fs::read_to_string(camp).unwrap();
    assert!(text.contains("path = \"/pools/out\"\ncontract = \"session\"\nstripe = \"8192k\""), "{text}");
    assert!(text.contains("attach it with --pool") && !text.contains("/checkpoints"), "{text}");
    if !can_mount() {
        return;
    }
    let name = Place::unique_name();
    let up = |pools: &[&str]| {
        let pools: Vec<&str> = pools.iter().flat_map(|pool| ["--pool", pool]).collect();
        place.run(&[&["up", "--name", &name, "--config", camp][..], &pools].concat())
    };
    let shown = |path: &str| place.run(&["partition", "show", "--name", &name, path]).out;
    up(&["out:rw", "in"]).succeeds();
    let (out, input) = (shown("/pools/out"), shown("/pools/in"));
    for line in ["contract = session", "stripe = 8m", "write = on-flush", "0-out-1"] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(input.contains("contract = coherent") && input.contains("write = never"), "{input}");
    let script = "echo result >$BIVOUAC/pools/out/f";
    assert_eq!(place.run(&["exec", "--name", &name, "--", "sh", "-c", script]).code, 0);
    flush(&place, &name, "out");
    assert_eq!(std::fs::read_to_string(format!("{base}/0-out-1/f")).unwrap(), "result\n");
    assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
    assert_eq!(up(&["out"]).code, 0);
    let out = shown("/pools/out");
    assert!(out.contains("contract = session") && out.contains("write = never"), "{out}");
    assert_eq!(
        place.run(&["exec", "--name", &name, "--", "sh", "-c", "cat $BIVOUAC/pools/out/f"]).out,
        "result\n"
    );
    assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
    for (more, says) in [
        ("source = \"/elsewhere\"", "the formation file has /elsewhere at /pools/out; leave that source out"),
        ("sharing = \"shared\"\nclients = 4", "several partitions at /pools/out; leave sharing out"),
    ] {
        std::fs::write(camp, format!("{text}{more}\n")).unwrap();
        up(&["out:rw"]).fails(1, &["pool out: cannot be attached: ", says]);
        assert!(!place.run(&["pool", "show", "out"]).out.contains("attached to"));
    }
}

/// S336: a bucket is attached with stripes that it takes, also beside those that a plan says are best for the rest.
#[test]
fn a_bucket_is_attached_beside_small_stripes() {
    if !can_mount() {
        return;
    }
    let (mut place, site) = place();
    let server = bivouac_objects::Server::start();
    server.put("set/f", b"from a bucket", &[]);
    place.have_pools();
    place.set("AWS_ACCESS_KEY_ID", bivouac_objects::ACCESS_KEY);
    place.set("AWS_SECRET_ACCESS_KEY", bivouac_objects::SECRET_KEY);
    place.set("AWS_ENDPOINT_URL_S3", &server.endpoint());
    assert_eq!(place.run(&["pool", "create", "far", "--from", "s3://bucket/set"]).code, 0);
    let camp = place.path().join("camp.toml");
    let camp = camp.to_str().unwrap();
    let plan = ["plan", "--site", &site, "--in-bytes", "10m", "--in-files", "1000", "--write", camp];
    assert_eq!(place.run(&plan).code, 0);
    assert!(std::fs::read_to_string(camp).unwrap().contains("stripe = \"256k\""));
    let name = Place::unique_name();
    place.run(&["up", "--name", &name, "--config", camp, "--pool", "far:rw"]).succeeds();
    let script = "cat $BIVOUAC/pools/far/f && echo back >$BIVOUAC/pools/far/g";
    assert_eq!(place.run(&["exec", "--name", &name, "--", "sh", "-c", script]).out, "from a bucket");
    flush(&place, &name, "far");
    assert_eq!(server.object("set/g").unwrap().bytes[..], b"back\n"[..]);
    assert_eq!(place.run(&["down", "--name", &name, "--yes"]).code, 0);
}

/// S537: what is no report, or not of this version, is refused by name, and nothing is planned.
#[test]
fn what_is_no_report_is_not_planned() {
    let (place, site) = place();
    let dir = place.path().join("reports");
    std::fs::create_dir(&dir).unwrap();
    let plan = |from: &str| place.run(&["plan", "--site", &site, "--from-report", from]);
    let path = dir.to_str().unwrap();
    plan(path).fails(1, &["has no report"]);
    let mut newer = report("/out", 5);
    newer["report"] = 2.into();
    newer.as_object_mut().unwrap().remove("places");
    let mut short = report("/out", 5);
    short.as_object_mut().unwrap().remove("timeline");
    let good = report("/out", 5).to_string();
    for (text, says) in [
        ("", "is no report"),
        ("[]", "is no report"),
        ("{\"verdict\": 1}", "is no report"),
        (&good[..good.len() / 2], "is no report"),
        (&short.to_string(), "missing field `timeline`"),
        (&newer.to_string(), "version 2, and this release has 1"),
    ] {
        let file = format!("{path}/bad.json");
        std::fs::write(&file, text).unwrap();
        std::fs::write(format!("{path}/good.json"), &good).unwrap();
        for from in [file.as_str(), path] {
            let said = plan(from);
            assert!(
                said.code == 1 && said.err.contains(says) && said.err.contains("bad.json"),
                "{text}: {said:?}"
            );
            assert!(said.err.contains("--from-report") && said.out.is_empty(), "{said:?}");
        }
    }
    plan("/does/not/exist").fails(1, &["check its path"]);
    plan("/dev/null").fails(1, &["is no regular file"]);
    // Directories that cannot be partitions are left out of the formation file.
    for odd in ["/", "/..", "/a/../b", "relative", "/?", ""] {
        std::fs::write(format!("{path}/good.json"), report(odd, 5).to_string()).unwrap();
        let camp = place.path().join("camp.toml");
        let said = place.run(&[
            "plan",
            "--site",
            &site,
            "--from-report",
            &format!("{path}/good.json"),
            "--write",
            camp.to_str().unwrap(),
        ]);
        assert_eq!(said.code, 0, "{odd}: {}", said.err);
        assert!(!std::fs::read_to_string(&camp).unwrap().contains(&format!("path = \"{odd}\"")), "{odd}");
    }
}

/// S537: a run, its report, and the plan of the next one: what programs read and wrote, without what was staged.
#[test]
fn a_run_is_planned_again() {
    if !can_mount() {
        return;
    }
    let (place, site) = place();
    let (data, out, report) =
        (place.path().join("data"), place.path().join("out"), place.path().join("r.json"));
    std::fs::create_dir(&data).unwrap();
    for name in ["a", "b"] {
        std::fs::write(data.join(name), vec![7; 3 << 20]).unwrap();
    }
    // Reads its input twice; writes 2 MiB of results, and 1 MiB for itself, which it reads.
    let script = "cd $BIVOUAC && cat data/a data/b data/a data/b >/dev/null && \
        head -c 1048576 data/a >scratch && cat scratch >/dev/null && mkdir res && head -c 2097152 data/b >res/r";
    let [data, out, report] = [&data, &out, &report].map(|path| path.to_str().unwrap().to_owned());
    place
        .run(&[
            "run",
            "--nodes",
            "2",
            "--report",
            &report,
            "--in",
            &format!("{data}:data"),
            "--out",
            &format!("res:{out}"),
            "--",
            "sh",
            "-c",
            script,
        ])
        .succeeds();
    let planned = place.run(&["plan", "--site", &site, "--from-report", &report, "--json"]).succeeds();
    let work = &json(&planned.out)["work"];
    let number = |key: &str| work[key].as_u64().unwrap_or_else(|| panic!("{key}: {work}"));
    assert_eq!((number("in_bytes"), number("in_files"), number("nodes")), (6 << 20, 2, 2), "{work}");
    assert_eq!((number("out_bytes"), number("out_files"), number("checkpoints")), (2 << 20, 1, 0), "{work}");
    assert_eq!((number("scratch_bytes"), number("scratch_files")), (1 << 20, 1), "{work}");
    // Two whole reads and what `head` took of each, which may read a little more than it writes.
    let reads = work["reads"].as_f64().unwrap();
    assert!((2.4..2.7).contains(&reads), "{work}");
    assert_eq!(number("scratch_read_bytes"), 1 << 20, "{work}");
}
