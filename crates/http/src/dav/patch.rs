//! PROPPATCH: all of its changes are made, or none.

use std::sync::Arc;

use bivouac_types::{Errno, Ino};
use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};

use super::find::write_status;
use super::guard::{Asks, Guard};
use super::locks::Reach;
use super::props;
use super::xml::{self, Change, Name};
use crate::body::{Body, full};
use crate::refusal::Refusal;
use crate::target::Target;
use crate::tree::{Access, Tree};

/// Carries it out. This may block.
///
/// # Errors
/// Why not.
pub fn patch(
    tree: &Arc<Tree>,
    (access, target): (&Access, &Target),
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response<Body>, Refusal> {
    let changes = xml::proppatch(body)?;
    tree.may_change(access, &tree.attr(access, target)?)?;
    Guard::of(headers)?.check(tree, Asks { access, target, headers }, &[(target, Reach::Content)])?;
    // What replaces it takes over what it was given, before or behind this.
    let name = tree.client()?.place_beneath(Ino::ROOT, &target.path(), true)?;
    let _named = tree.names.of(&name).lock();
    let attr = tree.attr(access, target)?;
    tree.may_change(access, &attr)?;
    let refused = |change: &Change| props::is_live(named(change));
    let all = if changes.iter().any(refused) {
        let status = |change: &Change| match refused(change) {
            true => StatusCode::FORBIDDEN,
            false => StatusCode::FAILED_DEPENDENCY,
        };
        changes.iter().map(|change| (named(change), status(change))).collect()
    } else {
        let _alone = tree.inodes.of_inode(attr.ino).lock();
        let change = tree.member().change()?;
        let status = match props::give(tree.client()?, &change.ctx, attr.ino, &changes) {
            Ok(()) => StatusCode::OK,
            // More than a file can be given.
            Err(error) if matches!(error.errno(), Errno::E2BIG | Errno::ENOSPC) => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            Err(error) => return Err(error.into()),
        };
        changes.iter().map(|change| (named(change), status)).collect()
    };
    Ok(answer(&Target { is_dir: attr.is_dir(), ..target.clone() }, all))
}

fn named(change: &Change) -> &Name {
    let (Change::Set(name, _) | Change::Remove(name)) = change;
    name
}

fn answer(target: &Target, all: Vec<(&Name, StatusCode)>) -> Response<Body> {
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
    let mut response = Response::new(full(Bytes::from(text)));
    *response.status_mut() = StatusCode::MULTI_STATUS;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(xml::KIND));
    response
}
