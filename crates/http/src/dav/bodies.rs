//! Bodies of requests of WebDAV.

use hyper::StatusCode;
use roxmltree::Node;

use crate::dead_properties::PropertyChange;
use crate::error_response::ErrorResponse;
use crate::xml::{Name, child, children, element, inside, is, name_of, with_root};

/// Upper limit of properties requested by name.
const NAMES_MAX: usize = 256;
/// Longest elements of a PROPPATCH together, in bytes, as they are kept: a file can be given no more.
const VALUES_MAX: usize = 64 << 10;
/// Upper limit of the description of a lock's owner, in bytes.
const OWNER_MAX: usize = 1024;

/// Properties that a PROPFIND requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestedProperties {
    /// All default properties, and these.
    All(Vec<Name>),
    /// Only the names of all properties.
    Names,
    /// These properties.
    These(Vec<Name>),
}

/// Body of a LOCK request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// True for an exclusive lock.
    pub exclusive: bool,
    /// Owner of the lock, as XML.
    pub owner: String,
}

/// Parses the requested properties; all, if there is no body.
///
/// # Errors
/// 400.
pub fn propfind(body: &[u8]) -> Result<RequestedProperties, ErrorResponse> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(RequestedProperties::All(Vec::new()));
    }
    with_root(body, "propfind", |root| {
        let names = |node: Node<'_, '_>| match children(node).nth(NAMES_MAX) {
            Some(_) => Err(ErrorResponse::bad_request("a propfind names more than 256 properties")),
            None => Ok(children(node).map(name_of).collect()),
        };
        if let Some(prop) = child(root, "prop") {
            return names(prop).map(RequestedProperties::These);
        }
        if child(root, "propname").is_some() {
            return Ok(RequestedProperties::Names);
        }
        child(root, "allprop")
            .ok_or_else(|| ErrorResponse::bad_request("a propfind has prop, propname or allprop in it"))?;
        child(root, "include").map_or(Ok(Vec::new()), names).map(RequestedProperties::All)
    })
}

/// Parses the changes of a PROPPATCH, in order.
///
/// # Errors
/// 400.
pub fn proppatch(body: &[u8]) -> Result<Vec<PropertyChange>, ErrorResponse> {
    with_root(body, "propertyupdate", |root| {
        let (mut changes, mut room) = (Vec::new(), VALUES_MAX);
        for part in children(root) {
            let Some(prop) = child(part, "prop") else { continue };
            for node in children(prop) {
                if is(part, "set") {
                    let text = "what is to be given is longer than a file can be given: 64 KiB";
                    let too_long = || ErrorResponse::new(StatusCode::INSUFFICIENT_STORAGE, text);
                    let element = element(node, room).ok_or_else(too_long)?;
                    assert!(element.len() <= room, "an element is longer than {room} bytes");
                    room -= element.len();
                    changes.push(PropertyChange::Set(name_of(node), element));
                } else if is(part, "remove") {
                    changes.push(PropertyChange::Remove(name_of(node)));
                }
            }
        }
        if changes.is_empty() {
            Err(ErrorResponse::bad_request("the propertyupdate changes nothing"))
        } else {
            Ok(changes)
        }
    })
}

/// Parses the requested lock.
///
/// # Errors
/// 400, also for an owner that is described at too great a length.
pub fn lockinfo(body: &[u8]) -> Result<LockInfo, ErrorResponse> {
    with_root(body, "lockinfo", |root| {
        let has = |outer, inner| child(root, outer).is_some_and(|node| child(node, inner).is_some());
        let exclusive = has("lockscope", "exclusive");
        // Exactly one of the two scopes is there.
        if !has("locktype", "write") || exclusive == has("lockscope", "shared") {
            return Err(ErrorResponse::bad_request(
                "locks are of the type write, and either exclusive or shared",
            ));
        }
        let too_long =
            || ErrorResponse::bad_request("the owner of a lock is described by at most 1024 bytes");
        let owner = child(root, "owner").map(|owner| inside(owner, OWNER_MAX).ok_or_else(too_long));
        Ok(LockInfo { exclusive, owner: owner.transpose()?.unwrap_or_default() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml::{DEPTH_MAX, SPACE_MAX};

    fn status<T>(read: Result<T, ErrorResponse>) -> u16 {
        read.map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
    }

    #[test]
    fn a_propfind_names_properties() {
        let of = |text: &str| propfind(format!("<propfind xmlns='DAV:'>{text}</propfind>").as_bytes());
        assert_eq!(propfind(b" \n").unwrap(), RequestedProperties::All(vec![]));
        let other = Name { space: "urn:x".into(), local: "a".into() };
        assert_eq!(
            of("<prop><getetag/><a xmlns='urn:x'/></prop>").unwrap(),
            RequestedProperties::These(vec![Name::dav("getetag"), other.clone()])
        );
        assert_eq!(of("<allprop/>").unwrap(), RequestedProperties::All(vec![]));
        assert_eq!(
            of("<allprop/><include><a xmlns='urn:x'/></include>").unwrap(),
            RequestedProperties::All(vec![other])
        );
        assert_eq!(of("<propname/>").unwrap(), RequestedProperties::Names);
        for wrong in ["", "<x/>", "<prop><b:a xmlns:b=''/></prop>", "<prop>", "<!-- -->"] {
            assert_eq!(status(of(wrong)), 400, "{wrong}");
        }
        for wrong in [&b"<propfind/>"[..], b"\xff", b"<?xml?>", b"<foo xmlns='DAV:'/>"] {
            assert_eq!(status(propfind(wrong)), 400, "{wrong:?}");
        }
    }

    /// S643.
    #[test]
    fn bombs_are_refused() {
        let entities = "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]>\
                        <propfind xmlns='DAV:'><prop>&b;</prop></propfind>";
        assert_eq!(status(propfind(entities.as_bytes())), 400);
        let deep = |levels: usize| {
            format!(
                "<propfind xmlns='DAV:'>{}<prop/>{}</propfind>",
                "<a>".repeat(levels),
                "</a>".repeat(levels)
            )
        };
        assert_eq!(status(propfind(deep(9000).as_bytes())), 400);
        assert_eq!(status(propfind(deep(DEPTH_MAX).as_bytes())), 400);
        let many = format!("<propfind xmlns='DAV:'><prop>{}</prop></propfind>", "<a/>".repeat(5000));
        assert_eq!(status(propfind(many.as_bytes())), 400);
        let spaces: String = (0..1500).map(|at| format!("<a xmlns:n{at}='urn:{at}'>")).collect();
        assert_eq!(status(propfind(spaces.as_bytes())), 400);
    }

    /// S643. A prefix is short, and what it stands for is not: it comes with every element of an answer.
    #[test]
    fn what_is_said_once_is_not_written_many_times() {
        let body = |verb: &str, space: usize, names: usize| {
            let (space, names) = ("n".repeat(space), "<x:a/>".repeat(names));
            let inside = match verb {
                "propfind" => format!("<prop xmlns:x='{space}'>{names}</prop>"),
                "propertyupdate" => format!("<set><prop xmlns:x='{space}'>{names}</prop></set>"),
                _ => format!(
                    "<lockscope><exclusive/></lockscope><locktype><write/></locktype>\
                     <owner xmlns:x='{space}'>{names}</owner>"
                ),
            };
            format!("<{verb} xmlns='DAV:'>{inside}</{verb}>").into_bytes()
        };
        assert_eq!(status(propfind(&body("propfind", SPACE_MAX, NAMES_MAX))), 200);
        assert_eq!(status(propfind(&body("propfind", SPACE_MAX + 1, 1))), 400);
        assert_eq!(status(propfind(&body("propfind", 5, NAMES_MAX + 1))), 400);
        assert_eq!(status(proppatch(&body("propertyupdate", SPACE_MAX, 50))), 200);
        assert_eq!(status(proppatch(&body("propertyupdate", SPACE_MAX, 70))), 507);
        assert_eq!(status(lockinfo(&body("lockinfo", 50, 10))), 200);
        assert_eq!(status(lockinfo(&body("lockinfo", SPACE_MAX, 1))), 400);
    }

    #[test]
    fn values_mean_the_same_wherever_they_are_put() {
        let body = "<D:propertyupdate xmlns:D='DAV:' xmlns:z='urn:z' xml:lang='de'><D:set><D:prop>\
                    <z:a z:k='1' p='&quot;'>t&amp;<z:b/>u</z:a></D:prop></D:set>\
                    <D:remove><D:prop><z:c/><n/></D:prop></D:remove></D:propertyupdate>";
        let changes = proppatch(body.as_bytes()).unwrap();
        let name = |space: &str, local: &str| Name { space: space.into(), local: local.into() };
        let value = "<a xmlns=\"urn:z\" xmlns:a0=\"urn:z\" a0:k=\"1\" p=\"&quot;\" xml:lang=\"de\">t&amp;\
                     <b xmlns=\"urn:z\"/>u</a>";
        let set = PropertyChange::Set(name("urn:z", "a"), value.into());
        assert_eq!(
            changes,
            [set, PropertyChange::Remove(name("urn:z", "c")), PropertyChange::Remove(name("", "n"))]
        );
        let again = format!("<propertyupdate xmlns='DAV:'><set><prop>{value}</prop></set></propertyupdate>");
        assert_eq!(
            proppatch(again.as_bytes()).unwrap(),
            [PropertyChange::Set(name("urn:z", "a"), value.into())]
        );
        assert_eq!(status(proppatch(b"<propertyupdate xmlns='DAV:'/>")), 400);
    }

    #[test]
    fn locks_are_exclusive_or_shared() {
        let of = |scope: &str, owner: &str| {
            lockinfo(
                format!(
                    "<D:lockinfo xmlns:D='DAV:'><D:lockscope>{scope}</D:lockscope><D:locktype><D:write/></D:locktype>\
                     <D:owner>{owner}</D:owner></D:lockinfo>"
                )
                .as_bytes(),
            )
        };
        let href = "<D:href>me</D:href>";
        let owner = "<href xmlns=\"DAV:\">me</href>".to_owned();
        assert_eq!(of("<D:exclusive/>", href).unwrap(), LockInfo { exclusive: true, owner: owner.clone() });
        assert_eq!(of("<D:shared/>", href).unwrap(), LockInfo { exclusive: false, owner });
        for wrong in ["", "<D:shared/><D:exclusive/>", "<shared/>"] {
            assert_eq!(status(of(wrong, href)), 400, "{wrong}");
        }
        assert_eq!(status(of("<D:shared/>", &"x".repeat(OWNER_MAX + 1))), 400);
    }
}
