use bivouac_launch::{FormationName, RestartLimit, VolumeArg};
use clap::CommandFactory;

use super::*;

fn parse(arguments: &[&str]) -> Result<Command, String> {
    let all = ["bivouac"].iter().chain(arguments);
    Cli::try_parse_from(all).map(|cli| cli.command).map_err(|error| error.to_string())
}

#[test]
fn the_table_is_consistent_and_every_option_is_explained() {
    let mut command = Cli::command();
    command.build();
    command.clone().debug_assert();
    for sub in command.get_subcommands() {
        assert!(sub.get_about().is_some(), "{} has no help", sub.get_name());
        for argument in sub.get_arguments() {
            assert!(argument.get_help().is_some(), "{} {} has no help", sub.get_name(), argument.get_id());
        }
    }
}

#[test]
fn up_has_its_defaults() {
    let Ok(Command::Up(up)) = parse(&["up"]) else { panic!() };
    let wishes = up.formation.wishes(FormationName::default(), 1, None);
    assert!(up.name().is_none());
    assert_eq!((wishes.name.as_str(), wishes.nodes, wishes.volumes.len()), ("default", 1, 0));
    assert!(!wishes.in_process);
    assert_eq!((wishes.stripe, wishes.width, wishes.wait_ms, wishes.port), (1 << 20, 0, 30_000, 0));
    assert_eq!(
        up.formation.wishes(FormationName::default(), 2, None).stripe,
        256 << 10,
        "over several hosts"
    );
    assert_eq!(up.formation.start_timeout, Duration(60_000));
}

#[test]
fn up_takes_sizes_and_volumes() {
    let arguments = [
        "up",
        "--nodes",
        "4",
        "--volume",
        "/a:1g",
        "--volume",
        "/b",
        "--stripe",
        "64k",
        "--wait",
        "500ms",
        "--deaths-max",
        "9/2s",
    ];
    let Ok(Command::Up(up)) = parse(&arguments) else { panic!() };
    assert_eq!(up.formation.volumes[0], VolumeArg { dir: "/a".into(), capacity: Some(1 << 30) });
    assert_eq!(up.formation.volumes[1].capacity, None);
    assert_eq!((up.formation.stripe, up.formation.wait), (Some(65_536), Duration(500)));
    assert_eq!(up.formation.wait.to_string(), "500ms");
    assert_eq!(up.formation.deaths_max, RestartLimit { deaths_max: 9, window_ms: 2000 });
}

#[test]
fn run_takes_everything_behind_the_dashes_as_the_command() {
    let arguments = ["run", "--in", "/data:in", "--out", "res:/keep/res", "--", "sh", "-c", "exit 3"];
    let Ok(Command::Run(run)) = parse(&arguments) else { panic!() };
    assert_eq!(run.command, ["sh", "-c", "exit 3"]);
    assert_eq!((run.inputs[0].dst.to_str(), run.outputs[0].dst.to_str()), (Some("in"), Some("/keep/res")));
    assert!(parse(&["run"]).unwrap_err().contains("COMMAND"));
    assert!(parse(&["run", "--out", "x", "--", "true"]).unwrap_err().contains("has no target"));
}

#[test]
fn options_may_stand_between_operands() {
    assert!(parse(&["stage", "out", "a", "--name", "x", "b", "--jobs", "2", "c"]).is_ok());
    assert!(parse(&["stage", "in", "--name", "x", "a", "-n", "b"]).is_ok());
}

/// What cannot be set is not offered, and who says it is told so by the node.
#[test]
fn what_is_chosen_when_a_partition_is_made_is_not_offered_for_a_change() {
    let mut table = Cli::command();
    let partition = table.find_subcommand_mut("partition").unwrap();
    let mut help = |name: &str| partition.find_subcommand_mut(name).unwrap().render_long_help().to_string();
    let (create, set) = (help("create"), help("set"));
    for (option, value) in [("--volumes", "disk"), ("--contract", "session"), ("--source", "/site")] {
        let option_line = format!("{option} <");
        assert!(create.contains(&option_line) && !set.contains(&option_line), "{option}");
        assert!(parse(&["partition", "set", "/d", option, value]).is_ok(), "{option}");
    }
    assert!(set.contains("--capacity"), "{set}");
}

#[test]
fn absurd_arguments_are_refused_by_name() {
    for (arguments, says) in [
        (&["up", "--name", "a/b"][..], "has the character '/'"),
        (&["up", "--stripe", "big"], "'big' is not a size"),
        (&["up", "--wait", "soon"], "'soon' is not a duration"),
        (&["up", "--wait", "0s"], "'0s' is too short for any answer; write 100ms"),
        (&["up", "--start-timeout", "0"], "'0' is too short for any answer"),
        (&["run", "--limit", "0", "--", "true"], "leave the option out"),
        (&["stage", "in", "--limit", "0k", "a", "b"], "leave the option out"),
        (&["run", "--in", "d:a/b/../c", "--", "true"], "write that path without it"),
        (&["up", "--deaths-max", "many"], "write for instance 5/60s"),
        (&["up", "--nodes=-1"], "'-1' is not a number"),
        (&["up", "--nodes", "-1"], "'-1' is not a number"),
        (&["up", "--nodes", "99999"], "at most 256 (with --in-process 1024)"),
        (&["up", "--nodes", "99999999999999999999"], "at most 256"),
        (&["up", "--nodes", "two"], "'two' is not a number; write for instance 4"),
        (&["up", "--nodes-per-host", "0"], "at least 1"),
        (&["up", "--port", "70000"], "at most 65535"),
        (&["stage", "in", "--jobs", "-3", "a", "b"], "'-3' is not a number"),
        (&["exec", "--no-mount", "--cd", "--", "true"], "cannot be used with"),
        (&["up", "--volume", ":1g"], "names no directory"),
        (&["up", "--mount", "/a", "--mount-each", "/b"], "cannot be used with"),
        (&["up", "--mount", "/a", "--no-mount"], "cannot be used with"),
        (&["explain"], "PATH"),
        (&["stage", "in"], "SRC... DST"),
        (&["stage", "out", "--changed-since", "noon", "a", "b"], "is no time"),
        (&["fsck", "--repair"], "--offline"),
        (&["fsck", "--from-subfiles", "v"], "--out"),
    ] {
        let refusal = parse(arguments).unwrap_err();
        assert!(refusal.contains(says), "{refusal}");
    }
}
