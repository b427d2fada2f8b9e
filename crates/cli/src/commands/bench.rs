//! `bivouac bench`.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use bivouac_bench::{BenchArgs, BenchError, Host, Interrupts, Reach};
use bivouac_client::Client;
use bivouac_launch::{Environment, FormationName, StateDir};

use crate::failure::Failure;
use crate::reach;

/// How long a measurement waits for a node that does not answer.
const WAIT: Duration = Duration::from_secs(5);

/// Measures.
pub fn run(here: &Environment, args: &BenchArgs) -> Result<ExitCode, Failure> {
    let connect = |name: &str, way: Reach| connect(here, name, way).map_err(|failure| failure.to_string());
    let host = Host {
        program: here.program.clone(),
        worker: vec!["bench".into(), "worker".into()],
        connect: &connect,
        interrupts: Interrupts::catch().map_err(failure)?,
        out: RefCell::new(Box::new(std::io::stdout())),
        progress: &|line| errln!("bivouac: {line}"),
    };
    bivouac_bench::run(&host, args).map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

fn failure(error: BenchError) -> Failure {
    Failure::new(error.exit_code(), error)
}

fn connect(here: &Environment, name: &str, reach: Reach) -> Result<Client, Failure> {
    let way = match reach {
        Reach::Best => reach::Way::Best,
        Reach::Network => reach::Way::Network,
    };
    let name: FormationName = name.parse().map_err(|error| Failure::new(2, error))?;
    let (_, dir) = StateDir::find(here, Some(&name))?;
    reach::client_by(way, &dir, &reach::living(&dir)?, WAIT)
}
