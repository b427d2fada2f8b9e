//! Discovery of a formation's servers: each announces its address in an extended attribute of the root directory.

use bivouac_client::Client;
use bivouac_types::{Errno, FsResult, Ino};
use serde::{Deserialize, Serialize};

use crate::tree::Tree;

const ATTRIBUTE: &str = "trusted.bivouac.http.";

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announced {
    /// Prefix of its URLs.
    pub url: String,
    /// SHA-256 of its certificate, if it has one.
    pub fingerprint: Option<String>,
    /// Its nodes.
    pub nodes: Vec<u16>,
}

/// Tells the others of a server. There is one for each host, which its first node stands for.
pub fn announce(tree: &Tree, server: &Announced) -> FsResult<()> {
    let name = format!("{ATTRIBUTE}{}", server.nodes.first().copied().unwrap_or(0));
    let value = serde_json::to_vec(server).unwrap_or_default();
    let change = tree.member().change()?;
    tree.client()?.setxattr(&change.ctx, Ino::ROOT, name.as_bytes(), &value, 0)
}

/// Returns all servers that have been announced.
pub fn list(client: &Client) -> FsResult<Vec<Announced>> {
    let names = client.listxattr(Ino::ROOT)?;
    let mut servers: Vec<Announced> = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(ATTRIBUTE.as_bytes())) {
        match client.getxattr(Ino::ROOT, name) {
            // What cannot be read, as of another release, is left out.
            Ok(value) => servers.extend(serde_json::from_slice::<Announced>(&value)),
            Err(error) if error.errno() == Errno::ENODATA => {}
            Err(error) => return Err(error),
        }
    }
    servers.sort_by(|a, b| a.nodes.cmp(&b.nodes));
    Ok(servers)
}
