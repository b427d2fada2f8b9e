//! The way of a measurement to a formation: that of every program with the client library.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bivouac_client::Client;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use crate::{BenchError, BenchResult, Host, command};

/// Time that a measurement waits for a node that does not answer.
const WAIT: Duration = Duration::from_secs(5);

/// Connections of a client to the nodes of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeConnections {
    /// As every client does, with every short cut that there is.
    Best,
    /// Over TCP, as if they were on other machines.
    Network,
}

/// A client of the named formation.
///
/// # Errors
/// That there is none of that name, or one that cannot be joined.
pub fn client(host: &Host<'_>, name: &str, reach: NodeConnections) -> BenchResult<Client> {
    let what = format!("bivouac exec --name {name}");
    // By the command, which knows where directories of formations are.
    let mut asked = Command::new(&host.program);
    asked.args(["exec", "--name", name, "--no-mount", "--no-preload", "--", "printenv", "BIVOUAC_DIR"]);
    let said = command::run(host, &what, &mut asked)?.succeeded(&what)?;
    let dir = Path::new(said.trim_end_matches('\n'));
    let read = |file: &str| {
        let path = dir.join(file);
        std::fs::read(&path).map_err(BenchError::system(path.display()))
    };
    // A thousand nodes are more connections than the files that a process may usually have open.
    let limit = getrlimit(Resource::Nofile);
    let _as_it_was = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let join = match reach {
        NodeConnections::Best => Client::join,
        NodeConnections::Network => Client::join_over_network,
    };
    join(&read("map")?, &read("secret")?, WAIT)
        .map_err(|error| BenchError::refused(format_args!("formation {name}"), error))
}
