//! XML of WebDAV and others: parsed within limits, and serialized.

use std::fmt::{self, Write as _};

use bivouac_types::escape_markup;
use hyper::StatusCode;
use roxmltree::{Document, Node, ParsingOptions};
use serde::{Deserialize, Serialize};

use crate::error_response::ErrorResponse;

/// The namespace of the standard.
pub const DAV: &str = "DAV:";
/// Upper limit of elements, attributes and texts of a body.
const NODES_MAX: u32 = 2048;
/// Deepest nesting of a body.
pub const DEPTH_MAX: usize = 32;
/// Longest namespace, in bytes: each element of an answer has it again.
pub const SPACE_MAX: usize = 1024;
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
    /// Returns a name in the `DAV:` namespace.
    #[must_use]
    pub fn dav(local: &str) -> Name {
        Name { space: DAV.into(), local: local.into() }
    }

    /// Serializes an empty element.
    #[must_use]
    pub fn empty(&self) -> String {
        format!("<{} xmlns=\"{}\"/>", self.local, escape_markup(&self.space))
    }
}

/// Reads a body, and does something with its outermost element.
pub fn with_root<T>(
    body: &[u8],
    name: &'static str,
    read: impl FnOnce(Node<'_, '_>) -> Result<T, ErrorResponse>,
) -> Result<T, ErrorResponse> {
    let text =
        std::str::from_utf8(body).map_err(|_| ErrorResponse::bad_request("the body is not XML in UTF-8"))?;
    // Without DTDs: their entities can make a short body long.
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| {
        ErrorResponse::bad_request(format!("the body is not XML that is understood: {error}"))
    })?;
    check(document.root_element())?;
    let root = document.root_element();
    if !is(root, name) {
        let text = format!("the body is to be <{name} xmlns=\"DAV:\">");
        return Err(ErrorResponse::bad_request(text));
    }
    read(root)
}

/// Refuses what is nested too deeply, prefixes that stand for no namespace, and namespaces that are too long.
fn check(root: Node<'_, '_>) -> Result<(), ErrorResponse> {
    let mut left = vec![(root, 1)];
    while let Some((node, depth)) = left.pop() {
        if depth > DEPTH_MAX {
            return Err(ErrorResponse::bad_request("the body is nested too deeply"));
        }
        if node.namespaces().any(|space| space.name().is_some() && space.uri().is_empty()) {
            return Err(ErrorResponse::bad_request("a prefix in the body stands for no namespace"));
        }
        if node.namespaces().any(|space| space.uri().len() > SPACE_MAX) {
            return Err(ErrorResponse::bad_request("a namespace in the body has more than 1024 bytes"));
        }
        left.extend(node.children().filter(Node::is_element).map(|child| (child, depth + 1)));
    }
    Ok(())
}

/// Returns whether a node is this element of the `DAV:` namespace.
#[must_use]
pub fn is(node: Node<'_, '_>, local: &str) -> bool {
    node.is_element() && node.tag_name().namespace() == Some(DAV) && node.tag_name().name() == local
}

/// Returns the elements in a node.
pub fn children<'a, 'i>(node: Node<'a, 'i>) -> impl Iterator<Item = Node<'a, 'i>> {
    node.children().filter(Node::is_element)
}

/// Returns the first element of the standard with this name in a node.
#[must_use]
pub fn child<'a, 'i>(node: Node<'a, 'i>, local: &str) -> Option<Node<'a, 'i>> {
    children(node).find(|child| is(*child, local))
}

/// Returns the name of an element.
#[must_use]
pub fn name_of(node: Node<'_, '_>) -> Name {
    let name = node.tag_name();
    Name { space: name.namespace().unwrap_or_default().into(), local: name.name().into() }
}

/// Returns whether a text is a property's element in the form of [`element`]: users of a mount may have set any
/// attribute value.
#[must_use]
pub fn is_element(text: &str, name: &Name) -> bool {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    // An XML declaration in front of it would be in the middle of an answer.
    text.starts_with(&format!("<{}", name.local))
        && Document::parse_with_options(text, options).is_ok_and(|document| {
            let root = document.root_element();
            document.root().children().count() == 1 && check(root).is_ok() && name_of(root) == *name
        })
}

/// Returns an element with all that its text depends on: it means the same wherever it is put. `None` if it is longer
/// than that.
#[must_use]
pub fn element(node: Node<'_, '_>, len_max: usize) -> Option<String> {
    let mut text = BoundedText { text: String::new(), len_max };
    let lang = node.ancestors().find_map(|above| above.attribute((XML, "lang")));
    write(node, lang, &mut text).ok()?;
    Some(text.text)
}

/// Returns the content of an element; `None` if it is too long.
#[must_use]
pub fn inside(node: Node<'_, '_>, len_max: usize) -> Option<String> {
    let mut text = BoundedText { text: String::new(), len_max };
    write_children(node, &mut text).ok()?;
    Some(text.text)
}

/// A text that becomes no longer than that: namespaces that a body has once are in it with every element.
struct BoundedText {
    text: String,
    len_max: usize,
}

impl fmt::Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.len_max {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Nesting is bounded by [`check`].
fn write(node: Node<'_, '_>, lang: Option<&str>, text: &mut BoundedText) -> fmt::Result {
    let name = node.tag_name();
    let space = escape_markup(name.namespace().unwrap_or_default());
    write!(text, "<{} xmlns=\"{space}\"", name.name())?;
    for (index, attribute) in node.attributes().enumerate() {
        let (name, value) = (attribute.name(), escape_markup(attribute.value()));
        match attribute.namespace() {
            Some(XML) if name == "lang" => continue,
            Some(XML) => write!(text, " xml:{name}=\"{value}\""),
            Some(space) => {
                write!(text, " xmlns:a{index}=\"{}\" a{index}:{name}=\"{value}\"", escape_markup(space))
            }
            None => write!(text, " {name}=\"{value}\""),
        }?;
    }
    if let Some(lang) = lang.or_else(|| node.attribute((XML, "lang"))) {
        write!(text, " xml:lang=\"{}\"", escape_markup(lang))?;
    }
    if !node.has_children() {
        return text.write_str("/>");
    }
    text.write_str(">")?;
    write_children(node, text)?;
    write!(text, "</{}>", name.name())
}

fn write_children(node: Node<'_, '_>, text: &mut BoundedText) -> fmt::Result {
    for child in node.children() {
        if child.is_element() {
            write(child, None, text)?;
        } else if child.is_text() {
            text.write_str(&escape_markup(child.text().unwrap_or_default()))?;
        }
    }
    Ok(())
}

/// Returns the body of an error with a precondition code.
#[must_use]
pub fn error(condition: &str, href: Option<&str>) -> String {
    let inside = href.map_or_else(String::new, |href| format!("<D:href>{}</D:href>", escape_markup(href)));
    format!("{HEAD}<D:error xmlns:D=\"DAV:\"><D:{condition}>{inside}</D:{condition}></D:error>\n")
}

/// Returns a status as a line.
#[must_use]
pub fn status(status: StatusCode) -> String {
    format!("HTTP/1.1 {} {}", status.as_u16(), status.canonical_reason().unwrap_or("Refused"))
}

/// The type of all bodies.
pub const KIND: &str = "application/xml; charset=utf-8";
/// XML declaration.
pub const HEAD: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n";
