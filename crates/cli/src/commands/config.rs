//! `bivouac config`: whether a formation file makes sense.

use std::process::ExitCode;

use crate::failure::Failure;
use crate::formation_file::read;
use crate::options::ConfigArgs;

/// Checks a file, and says what it makes.
pub fn run(args: &ConfigArgs) -> Result<ExitCode, Failure> {
    let file = read(&args.check)?;
    outln!("{}: makes sense", args.check.display());
    file.formation.iter().for_each(|(key, value)| outln!("--{key} {value}"));
    for plan in &file.partitions {
        let nodes = match (&plan.nodes, plan.sizing) {
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
