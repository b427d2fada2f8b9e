//! PROPPATCH: all of its changes are made, or none.

use std::sync::Arc;

use bivouac_types::{Errno, Ino};
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};

use super::bodies;
use super::find::write_status;
use super::props;
use crate::body::{Body, typed};
use crate::dead_properties::{self, PropertyChange};
use crate::error_response::ErrorResponse;
use crate::locks::{ChangeScope, LockConditions, RequestHead};
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};
use crate::xml::{self, Name};

/// Carries it out. This may block.
pub fn patch(
    tree: &Arc<Tree>,
    (access, target): (&Access, &RequestPath),
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response<Body>, ErrorResponse> {
    let changes = bodies::proppatch(body)?;
    tree.may_change(access, &tree.attr(access, target)?)?;
    LockConditions::of(headers)?.check(
        tree,
        RequestHead { access, target, headers },
        &[(target, ChangeScope::Content)],
    )?;
    // Under the lock of the name: a replacement copies the properties, either before or after this change.
    let name = tree.client()?.place_beneath(Ino::ROOT, &target.path(), true)?;
    let _named = tree.names.of(&name).lock();
    // Once more under the lock: the file may have been replaced since.
    let attr = tree.attr(access, target)?;
    tree.may_change(access, &attr)?;
    let refused = |change: &PropertyChange| props::is_live(named(change));
    let all = if changes.iter().any(refused) {
        let status = |change: &PropertyChange| match refused(change) {
            true => StatusCode::FORBIDDEN,
            false => StatusCode::FAILED_DEPENDENCY,
        };
        changes.iter().map(|change| (named(change), status(change))).collect()
    } else {
        // All properties are one attribute, which is read, changed and written back.
        let _alone = tree.inodes.of_inode(attr.ino).lock();
        let change = tree.member().change()?;
        let status = match dead_properties::change(tree.client()?, &change.ctx, attr.ino, &changes) {
            Ok(()) => StatusCode::OK,
            // More than an extended attribute can hold.
            Err(error) if matches!(error.errno(), Errno::E2BIG | Errno::ENOSPC) => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            Err(error) => return Err(error.into()),
        };
        changes.iter().map(|change| (named(change), status)).collect()
    };
    Ok(answer(&RequestPath { is_dir: attr.is_dir(), ..target.clone() }, all))
}

fn named(change: &PropertyChange) -> &Name {
    let (PropertyChange::Set(name, _) | PropertyChange::Remove(name)) = change;
    name
}

fn answer(target: &RequestPath, all: Vec<(&Name, StatusCode)>) -> Response<Body> {
    let mut text = format!(
        "{}<D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{}</D:href>",
        xml::HEAD,
        target.encoded()
    );
    let mut statuses: Vec<StatusCode> = all.iter().map(|(_, status)| *status).collect();
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        let names = all.iter().filter(|(_, of)| *of == status).map(|(name, _)| name.empty());
        write_status(&names.collect::<String>(), status, &mut text);
    }
    text.push_str("</D:response></D:multistatus>\n");
    typed(StatusCode::MULTI_STATUS, xml::KIND, text)
}
