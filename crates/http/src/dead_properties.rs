//! Dead properties of WebDAV (RFC 4918, 4.1), stored in an extended attribute of the file. They survive a replacement
//! of the file.

use bivouac_client::{Client, OpCtx};
use bivouac_types::{Errno, FsResult, Ino};
use serde::{Deserialize, Serialize};

use crate::xml::{self, Name};

/// The extended attribute with the dead properties.
const ATTRIBUTE: &[u8] = b"user.dav.properties";

/// A change of a PROPPATCH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyChange {
    /// A property gets this element as its value.
    Set(Name, String),
    /// A property goes.
    Remove(Name),
}

/// A property that a client has given a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadProperty {
    /// Its name.
    pub name: Name,
    /// The element that it is.
    pub element: String,
}

/// Returns the dead properties of a file. A malformed attribute counts as empty.
///
/// # Errors
/// `ENOENT` for what is gone by now; what else the formation says.
pub fn read(client: &Client, ino: Ino) -> FsResult<Vec<DeadProperty>> {
    match client.getxattr(ino, ATTRIBUTE) {
        Ok(value) => Ok(parse(&value)),
        // What is neither a file nor a directory has no attributes of users.
        Err(error) if matches!(error.errno(), Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parse(value: &[u8]) -> Vec<DeadProperty> {
    let mut all: Vec<DeadProperty> = serde_json::from_slice(value).unwrap_or_default();
    // Users can set the attribute in a mount, and answers have its elements in them as they are.
    all.retain(|given| xml::is_element(&given.element, &given.name));
    all
}

/// Applies all changes of dead properties atomically.
///
/// # Errors
/// `E2BIG` for more than an attribute can have in it; what the formation says.
pub fn change(client: &Client, ctx: &OpCtx, ino: Ino, changes: &[PropertyChange]) -> FsResult<()> {
    let before = read(client, ino)?;
    let mut all = before.clone();
    for change in changes {
        let (PropertyChange::Set(name, _) | PropertyChange::Remove(name)) = change;
        all.retain(|given| given.name != *name);
        if let PropertyChange::Set(name, element) = change {
            all.push(DeadProperty { name: name.clone(), element: element.clone() });
        }
    }
    if all == before {
        return Ok(());
    }
    write(client, ctx, ino, &all)
}

/// Gives a file all of this, and nothing else.
pub fn write(client: &Client, ctx: &OpCtx, ino: Ino, all: &[DeadProperty]) -> FsResult<()> {
    if all.is_empty() {
        return match client.removexattr(ctx, ino, ATTRIBUTE) {
            Err(error) if error.errno() == Errno::ENODATA => Ok(()),
            removed => removed,
        };
    }
    client.setxattr(ctx, ino, ATTRIBUTE, &serde_json::to_vec(all).unwrap_or_default(), 0)
}

#[cfg(test)]
pub fn fuzzed(bytes: &[u8]) {
    let _ = parse(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S644.
    #[test]
    fn what_is_no_property_is_none() {
        let of = |local: &str, element: &str| {
            let name = Name { space: "urn:x".into(), local: local.into() };
            let all = [DeadProperty { name, element: element.into() }];
            parse(&serde_json::to_vec(&all).unwrap()).len()
        };
        assert_eq!(of("a", "<a xmlns=\"urn:x\">t<b xmlns=\"\"/></a>"), 1);
        for wrong in [
            "",
            "t",
            "<a/>",
            "<b xmlns=\"urn:x\"/>",
            "<a xmlns=\"urn:x\"/></D:prop>",
            "<a xmlns=\"urn:x\"/><!-- -->",
            "<?xml version=\"1.0\"?><a xmlns=\"urn:x\"/>",
            "<a xmlns=\"urn:x\">",
            "<a xmlns=\"urn:x\">&x;</a>",
        ] {
            assert_eq!(of("a", wrong), 0, "{wrong}");
        }
        assert_eq!(of("a><b", "<a xmlns=\"urn:x\"/>"), 0);
        assert_eq!(parse(b"{").len(), 0);
    }
}
