//! A formation file as defaults of the options of `up` and `run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::CommandFactory;
use clap::parser::ValueSource;

use super::{formation, read};
use crate::failure::Failure;
use crate::options::Cli;

/// Keys of files, and what on the command line counts instead of them although it is called otherwise.
const INSTEAD: [(&[&str], &[&str]); 2] =
    [(&["name"], &["formation_name"]), (&["mount", "mount-each"], &["dir", "each", "no_mount"])];

/// Returns the arguments of this program, with those of a formation file put in that are not given themselves.
///
/// # Errors
/// What is wrong with the file. Arguments that make no sense are as they were: the parser says so.
pub fn with_file(arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    if !arguments.get(1).is_some_and(|name| name == "up" || name == "run") {
        return Ok(arguments);
    }
    let Ok(matches) = Cli::command().try_get_matches_from(&arguments) else { return Ok(arguments) };
    let Some((name @ ("up" | "run"), command)) = matches.subcommand() else { return Ok(arguments) };
    let Some(path) = command.get_one::<PathBuf>("config") else { return Ok(arguments) };
    let options = formation::options();
    let is_said = |id: &str| {
        command.ids().any(|known| known.as_str() == id)
            && command.value_source(id) == Some(ValueSource::CommandLine)
    };
    let is_given = |key: &str| {
        let id =
            options.get_arguments().find(|argument| argument.get_long() == Some(key)).map(clap::Arg::get_id);
        let id = id.map_or("", |id| id.as_str());
        is_said(id)
            || INSTEAD.iter().any(|(keys, ids)| keys.contains(&key) && ids.iter().any(|id| is_said(id)))
    };
    let (said, mut has_inputs) = (read(path)?.formation, false);
    let added = said.into_iter().filter(|(key, _)| !is_given(key)).filter(|(key, _)| {
        let is_for_run_alone = key == "in" && name == "up";
        has_inputs |= is_for_run_alone;
        !is_for_run_alone
    });
    let added: Vec<_> = added.collect();
    if has_inputs {
        errln!(
            "bivouac: {}: `up` copies nothing in, as `run` does: bivouac stage in SRC... DST",
            path.display()
        );
    }
    let added = added.into_iter();
    let added = added.map(|(key, value)| OsString::from(formation::as_argument(&key, &value)));
    assert!(arguments.len() >= 2, "the command is not among {} arguments", arguments.len());
    // Behind the command's name, in front of everything else: a command to run stays last.
    let (front, rest) = arguments.split_at(arguments.len().min(2));
    Ok(front.iter().cloned().chain(added).chain(rest.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(file: &str, arguments: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f.toml");
        std::fs::write(&path, file).unwrap();
        let config = format!("--config={}", path.display());
        let (front, rest) = arguments.split_at(1);
        let all = [&["bivouac"], front, &[config.as_str()], rest].concat();
        let merged = with_file(all.into_iter().map(OsString::from).collect()).unwrap();
        merged
            .into_iter()
            .skip(1)
            .map(|text| text.into_string().unwrap())
            .filter(|text| *text != config)
            .collect()
    }

    #[test]
    fn what_is_given_counts_and_the_file_says_the_rest() {
        let file = "[formation]\nnodes = 4\nstripe = \"64k\"\nvolume = [\"/a\", \"/b\"]\n";
        assert_eq!(
            merged(file, &["up", "--nodes", "2"]),
            ["up", "--stripe=64k", "--volume=/a", "--volume=/b", "--nodes", "2"]
        );
        assert_eq!(
            merged(file, &["run", "--volume", "/c", "--", "app", "--stripe", "1m"]),
            ["run", "--nodes=4", "--stripe=64k", "--volume", "/c", "--", "app", "--stripe", "1m"]
        );
        assert_eq!(merged("", &["up"]), ["up"]);
        let job = "[formation]\nname = \"camp\"\nmount = \"/m\"\npool = [\"mesh:ro\"]\nin = [\"a\", \"b:c\"]\nout = \"r:/r\"\nallow-other = false\n";
        let pool = "--pool=mesh:ro";
        assert_eq!(
            merged(job, &["run", "--", "app"]),
            ["run", "--name=camp", "--mount=/m", pool, "--in=a", "--in=b:c", "--out=r:/r", "--", "app"]
        );
        // `up` copies nothing in.
        assert_eq!(
            merged(job, &["up", "mine", "--no-mount"]),
            ["up", pool, "--out=r:/r", "mine", "--no-mount"]
        );
        assert_eq!(
            merged(job, &["up", "--mount-each", "/e", "--out", "x:y"]),
            ["up", "--name=camp", pool, "--mount-each", "/e", "--out", "x:y"]
        );
        let many = "[formation]\nnodes = 1000\nin-process = true\n";
        assert_eq!(merged(many, &["up"]), ["up", "--nodes=1000", "--in-process=true"]);
        assert_eq!(merged(many, &["up", "--in-process"]), ["up", "--nodes=1000", "--in-process"]);
    }

    #[test]
    fn other_commands_and_wrong_arguments_are_left_alone() {
        for arguments in [&["bivouac", "status"][..], &["bivouac", "up", "--nonsense"], &["bivouac"], &[]] {
            let all: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert_eq!(with_file(all.clone()).unwrap(), all);
        }
        let missing = ["bivouac", "up", "--config", "/nonexistent"].map(OsString::from).to_vec();
        assert!(with_file(missing).unwrap_err().to_string().contains("/nonexistent"));
    }
}
