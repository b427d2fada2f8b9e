//! The fence in requests of mounts that hold locks.

use bivouac_net::{Call, LaneKind};
use bivouac_types::{Errno, FsError, FsResult};

use crate::node::Node;

/// Refuses what was begun under locks that may be somebody else's by now.
///
/// # Errors
/// `EIO` for a client that was taken for dead since.
pub(crate) fn check_fence(node: &Node, call: &Call<'_>) -> FsResult<()> {
    let fence = call.frame.fence;
    if fence == 0 || call.lane != LaneKind::Client {
        return Ok(());
    }
    match call.frame.client.mounted_through(node.map.formation) {
        Some(host) if !node.members.admits(host, fence) => {
            let text = format!("it was begun under a lock before {host} was taken for dead; lock again");
            Err(FsError::with(Errno::EIO, text))
        }
        _ => Ok(()),
    }
}
