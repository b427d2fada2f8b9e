//! Bodies of WebDAV, which are XML: read within bounds, and written as text that anybody can put elsewhere.

use std::fmt::{self, Write as _};

use hyper::StatusCode;
use roxmltree::{Document, Node, ParsingOptions};
use serde::{Deserialize, Serialize};

use crate::listing::escaped;
use crate::refusal::Refusal;

/// The namespace of the standard.
pub const DAV: &str = "DAV:";
/// Most elements, attributes and texts of a body.
const NODES_MAX: u32 = 2048;
/// Deepest nesting of a body.
const DEPTH_MAX: usize = 32;
/// Longest namespace, in bytes: each element of an answer has it again.
const SPACE_MAX: usize = 1024;
/// Most properties that are asked for by name.
const NAMES_MAX: usize = 256;
/// Longest elements of a PROPPATCH together, in bytes, as they are kept: a file can be given no more.
const VALUES_MAX: usize = 64 << 10;
/// Longest description of who has a lock, in bytes.
const OWNER_MAX: usize = 1024;
/// The namespace of `xml:lang`.
const XML: &str = "http://www.w3.org/XML/1998/namespace";

/// The name of a property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// Its namespace, which may be none.
    pub space: String,
    /// Its name there.
    pub local: String,
}

impl Name {
    /// One of the standard.
    #[must_use]
    pub fn dav(local: &str) -> Name {
        Name { space: DAV.into(), local: local.into() }
    }

    /// As an element without content.
    #[must_use]
    pub fn empty(&self) -> String {
        format!("<{} xmlns=\"{}\"/>", self.local, escaped(&self.space))
    }
}

/// Which properties a PROPFIND wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All that are said without being asked for, and these.
    All(Vec<Name>),
    /// Only the names of all.
    Names,
    /// These.
    These(Vec<Name>),
}

/// What a PROPPATCH changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A property gets this element as its value.
    Set(Name, String),
    /// A property goes.
    Remove(Name),
}

/// What a LOCK wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockInfo {
    /// Whether nobody else may have one.
    pub exclusive: bool,
    /// Who it is for, as XML.
    pub owner: String,
}

fn wrong(text: &'static str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, text)
}

/// Reads a body, and does something with its outermost element.
fn with_root<T>(
    body: &[u8],
    name: &'static str,
    read: impl FnOnce(Node<'_, '_>) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let text = std::str::from_utf8(body).map_err(|_| wrong("the body is not XML in UTF-8"))?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the body is not XML that is understood: {error}"))
    })?;
    check(document.root_element())?;
    let root = document.root_element();
    if !is(root, name) {
        let text = format!("the body is to be <{name} xmlns=\"DAV:\">");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
    }
    read(root)
}

/// Refuses what is nested too deeply, prefixes that stand for no namespace, and namespaces that are too long.
fn check(root: Node<'_, '_>) -> Result<(), Refusal> {
    let mut left = vec![(root, 1)];
    while let Some((node, depth)) = left.pop() {
        if depth > DEPTH_MAX {
            return Err(wrong("the body is nested too deeply"));
        }
        if node.namespaces().any(|space| space.name().is_some() && space.uri().is_empty()) {
            return Err(wrong("a prefix in the body stands for no namespace"));
        }
        if node.namespaces().any(|space| space.uri().len() > SPACE_MAX) {
            return Err(wrong("a namespace in the body has more than 1024 bytes"));
        }
        left.extend(node.children().filter(Node::is_element).map(|child| (child, depth + 1)));
    }
    Ok(())
}

fn is(node: Node<'_, '_>, local: &str) -> bool {
    node.is_element() && node.tag_name().namespace() == Some(DAV) && node.tag_name().name() == local
}

fn children<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(Node::is_element)
}

fn child<'a, 'i>(node: Node<'a, 'i>, local: &str) -> Option<Node<'a, 'i>> {
    children(node).find(|child| is(*child, local))
}

fn name_of(node: Node<'_, '_>) -> Name {
    let name = node.tag_name();
    Name { space: name.namespace().unwrap_or_default().into(), local: name.name().into() }
}

/// Whether a text is the element of a property as [`proppatch`] writes it: who writes attributes in the mount may have
/// put anything there.
#[must_use]
pub fn is_element(text: &str, name: &Name) -> bool {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    text.starts_with(&format!("<{}", name.local))
        && Document::parse_with_options(text, options).is_ok_and(|document| {
            let root = document.root_element();
            document.root().children().count() == 1 && check(root).is_ok() && name_of(root) == *name
        })
}

/// Which properties are wanted; all, if there is no body.
///
/// # Errors
/// 400.
pub fn propfind(body: &[u8]) -> Result<Wanted, Refusal> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Wanted::All(Vec::new()));
    }
    with_root(body, "propfind", |root| {
        let names = |node: Node<'_, '_>| match children(node).nth(NAMES_MAX) {
            Some(_) => Err(wrong("a propfind names more than 256 properties")),
            None => Ok(children(node).map(name_of).collect()),
        };
        if let Some(prop) = child(root, "prop") {
            return names(prop).map(Wanted::These);
        }
        if child(root, "propname").is_some() {
            return Ok(Wanted::Names);
        }
        child(root, "allprop").ok_or_else(|| wrong("a propfind has prop, propname or allprop in it"))?;
        child(root, "include").map_or(Ok(Vec::new()), names).map(Wanted::All)
    })
}

/// What is to be changed, in this order.
///
/// # Errors
/// 400.
pub fn proppatch(body: &[u8]) -> Result<Vec<Change>, Refusal> {
    with_root(body, "propertyupdate", |root| {
        let (mut changes, mut room) = (Vec::new(), VALUES_MAX);
        for part in children(root) {
            let Some(prop) = child(part, "prop") else { continue };
            for node in children(prop) {
                if is(part, "set") {
                    let text = "what is to be given is longer than a file can be given: 64 KiB";
                    let too_long = || Refusal::new(StatusCode::INSUFFICIENT_STORAGE, text);
                    let element = element(node, room).ok_or_else(too_long)?;
                    room -= element.len();
                    changes.push(Change::Set(name_of(node), element));
                } else if is(part, "remove") {
                    changes.push(Change::Remove(name_of(node)));
                }
            }
        }
        if changes.is_empty() { Err(wrong("the propertyupdate changes nothing")) } else { Ok(changes) }
    })
}

/// Which lock is wanted.
///
/// # Errors
/// 400, also for an owner that is described at too great a length.
pub fn lockinfo(body: &[u8]) -> Result<LockInfo, Refusal> {
    with_root(body, "lockinfo", |root| {
        let has = |outer, inner| child(root, outer).is_some_and(|node| child(node, inner).is_some());
        let exclusive = has("lockscope", "exclusive");
        if !has("locktype", "write") || exclusive == has("lockscope", "shared") {
            return Err(wrong("locks are of the type write, and either exclusive or shared"));
        }
        let too_long = || wrong("the owner of a lock is described by at most 1024 bytes");
        let owner = child(root, "owner").map(|owner| inside(owner, OWNER_MAX).ok_or_else(too_long));
        Ok(LockInfo { exclusive, owner: owner.transpose()?.unwrap_or_default() })
    })
}

/// An element with all that its text depends on: it means the same wherever it is put. `None` if it is longer than
/// that.
fn element(node: Node<'_, '_>, len_max: usize) -> Option<String> {
    let mut text = Bounded { text: String::new(), len_max };
    let lang = node.ancestors().find_map(|above| above.attribute((XML, "lang")));
    write(node, lang, &mut text).ok()?;
    Some(text.text)
}

/// What is in an element; `None` if it is longer than that.
fn inside(node: Node<'_, '_>, len_max: usize) -> Option<String> {
    let mut text = Bounded { text: String::new(), len_max };
    write_children(node, &mut text).ok()?;
    Some(text.text)
}

/// A text that becomes no longer than that: namespaces that a body has once are in it with every element.
struct Bounded {
    text: String,
    len_max: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.len_max {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Nesting is bounded by [`check`].
fn write(node: Node<'_, '_>, lang: Option<&str>, text: &mut Bounded) -> fmt::Result {
    let name = node.tag_name();
    let space = escaped(name.namespace().unwrap_or_default());
    write!(text, "<{} xmlns=\"{space}\"", name.name())?;
    for (index, attribute) in node.attributes().enumerate() {
        let (name, value) = (attribute.name(), escaped(attribute.value()));
        match attribute.namespace() {
            Some(XML) if name == "lang" => continue,
            Some(XML) => write!(text, " xml:{name}=\"{value}\""),
            Some(space) => write!(text, " xmlns:a{index}=\"{}\" a{index}:{name}=\"{value}\"", escaped(space)),
            None => write!(text, " {name}=\"{value}\""),
        }?;
    }
    if let Some(lang) = lang.or_else(|| node.attribute((XML, "lang"))) {
        write!(text, " xml:lang=\"{}\"", escaped(lang))?;
    }
    if !node.has_children() {
        return text.write_str("/>");
    }
    text.write_str(">")?;
    write_children(node, text)?;
    write!(text, "</{}>", name.name())
}

fn write_children(node: Node<'_, '_>, text: &mut Bounded) -> fmt::Result {
    for child in node.children() {
        if child.is_element() {
            write(child, None, text)?;
        } else if child.is_text() {
            text.write_str(&escaped(child.text().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// What the standard calls the reason of a refusal, as a body.
#[must_use]
pub fn error(condition: &str, href: Option<&str>) -> String {
    let inside = href.map_or_else(String::new, |href| format!("<D:href>{}</D:href>", escaped(href)));
    format!("{HEAD}<D:error xmlns:D=\"DAV:\"><D:{condition}>{inside}</D:{condition}></D:error>\n")
}

/// A status as a line.
#[must_use]
pub fn status(status: StatusCode) -> String {
    format!("HTTP/1.1 {} {}", status.as_u16(), status.canonical_reason().unwrap_or("Refused"))
}

/// The type of all bodies.
pub const KIND: &str = "application/xml; charset=utf-8";
/// What all bodies begin with.
pub const HEAD: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn status<T>(read: Result<T, Refusal>) -> u16 {
        read.map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
    }

    #[test]
    fn a_propfind_names_properties() {
        let of = |text: &str| propfind(format!("<propfind xmlns='DAV:'>{text}</propfind>").as_bytes());
        assert_eq!(propfind(b" \n").unwrap(), Wanted::All(vec![]));
        let other = Name { space: "urn:x".into(), local: "a".into() };
        assert_eq!(
            of("<prop><getetag/><a xmlns='urn:x'/></prop>").unwrap(),
            Wanted::These(vec![Name::dav("getetag"), other.clone()])
        );
        assert_eq!(of("<allprop/>").unwrap(), Wanted::All(vec![]));
        assert_eq!(of("<allprop/><include><a xmlns='urn:x'/></include>").unwrap(), Wanted::All(vec![other]));
        assert_eq!(of("<propname/>").unwrap(), Wanted::Names);
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
        let set = Change::Set(name("urn:z", "a"), value.into());
        assert_eq!(changes, [set, Change::Remove(name("urn:z", "c")), Change::Remove(name("", "n"))]);
        let again = format!("<propertyupdate xmlns='DAV:'><set><prop>{value}</prop></set></propertyupdate>");
        assert_eq!(proppatch(again.as_bytes()).unwrap(), [Change::Set(name("urn:z", "a"), value.into())]);
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
