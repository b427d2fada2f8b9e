//! `bivouac config`: whether a formation file makes sense.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;

use bivouac_launch::{Environment, FormationName, LendableDir};
use bivouac_types::Site;
use bivouac_types::units::format_count;

use crate::failure::Failure;
use crate::formation_file::{FormationFile, as_argument, read};
use crate::forming_hosts::hosts;
use crate::options::{Cli, Command, ConfigArgs, FormationArgs};
use crate::partitioning::{Nodes, Plan};

/// Checks a file, and says what it makes.
pub fn run(here: &Environment, args: &ConfigArgs) -> Result<ExitCode, Failure> {
    let file = read(&args.check)?;
    check_here(here, args, &file).map_err(|failure| {
        let code = failure.exit_code();
        Failure::new(code, format_args!("{}: {failure}", args.check.display()))
    })?;
    outln!("{}: makes sense", args.check.display());
    file.formation.iter().for_each(|(key, value)| outln!("--{key} {value}"));
    for plan in &file.partitions {
        let nodes = match (&plan.nodes, plan.sizing) {
            (Some(Nodes::Count(count)), _) => format_count((*count).into(), "node"),
            (Some(Nodes::List(nodes)), _) if nodes.len() == 1 => {
                nodes.iter().map(ToString::to_string).collect()
            }
            (Some(nodes), _) => format!("nodes {nodes}"),
            (None, Some(sizing)) => format!("nodes for {} bytes", sizing.bytes),
            (None, None) => "all nodes".to_owned(),
        };
        let settings =
            plan.settings.pairs().into_iter().filter(|(key, _)| *key != "stripe" || plan.says_stripe);
        let settings: Vec<String> = settings.map(|(key, value)| format!("{key}={value}")).collect();
        outln!("partition {}: {nodes}; {}", String::from_utf8_lossy(&plan.path), settings.join(" "));
    }
    Ok(ExitCode::SUCCESS)
}

/// Reports what `up` would refuse on this machine, without starting anything.
fn check_here(here: &Environment, args: &ConfigArgs, file: &FormationFile) -> Result<(), Failure> {
    let mut arguments: Vec<OsString> = vec!["bivouac".into(), "up".into()];
    arguments.push(format!("--config={}", args.check.display()).into());
    // Without `in`, which `run` alone has.
    let for_up = file.formation.iter().filter(|(key, _)| key != "in");
    arguments.extend(for_up.map(|(key, value)| OsString::from(as_argument(key, value))));
    let up = match Cli::read(arguments) {
        Ok(Cli { command: Command::Up(up) }) => up,
        Ok(_) => return Ok(()),
        Err(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            return Err(Failure::new(2, first));
        }
    };
    let formation = &up.formation;
    let targets = match hosts(here, formation)? {
        // Whatever their volumes are, each host looks at them itself.
        Some((_, hosts)) => hosts.iter().map(|host| usize::from(host.nodes)).sum::<usize>(),
        None => {
            formation.wishes(FormationName::default(), 1, None).check()?;
            formation.volumes.iter().try_for_each(|volume| LendableDir::look(&volume.dir).map(drop))?;
            usize::from(formation.nodes.unwrap_or(1))
        }
    };
    check_partitions(&file.partitions, targets, formation)
}

/// Refuses partitions that no formation of so many nodes can have.
fn check_partitions(plans: &[Plan], nodes: usize, formation: &FormationArgs) -> Result<(), Failure> {
    // The root, and what is made for pools.
    let mut directories = BTreeSet::from([Vec::new(), b"/pools".to_vec()]);
    for plan in plans {
        let refused = |cause: String| {
            Failure::new(2, format_args!("partition {}: {cause}", String::from_utf8_lossy(&plan.path)))
        };
        let parent = plan.path.rsplitn(2, |byte| *byte == b'/').nth(1).unwrap_or_default();
        if !directories.contains(parent) {
            let cause = format!(
                "{} is not there by then: make a partition of it in front of this one, or name a directory of the root",
                String::from_utf8_lossy(parent)
            );
            return Err(refused(cause));
        }
        // A partition can be made below an earlier one of the same file, in its order.
        directories.insert(plan.path.clone());
        let chosen = plan.nodes.as_ref().map(|chosen| chosen.count_of(nodes));
        let chosen = chosen.transpose().map_err(&refused)?.unwrap_or(nodes);
        // Of one kind of volumes there may be fewer: that is seen when it is made.
        let targets = chosen * formation.volumes.len().max(1);
        if usize::from(plan.settings.width) > targets {
            return Err(refused(format!("width {} is more than its {targets} targets", plan.settings.width)));
        }
        if let Some(Site::Directory { path }) = plan.settings.source.as_ref().map(|source| source.site()) {
            std::fs::metadata(path).map_err(|error| refused(format!("{path}: {error}")))?;
        }
    }
    Ok(())
}
