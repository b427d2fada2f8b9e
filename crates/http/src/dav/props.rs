//! Properties: those that come out of a file's attributes, and those that somebody has given it.

use std::fmt::Write as _;
use std::time::SystemTime;

use bivouac_client::{Attr, Client, OpCtx};
use bivouac_types::{Errno, FsResult, Ino, StatFs};
use serde::{Deserialize, Serialize};

use super::locks::Lock;
use super::xml::{self, Change, DAV, Name};
use crate::conditions::{modified, tag};
use crate::keys;
use crate::listing::escaped;
use crate::reading::content_type;

/// The extended attribute that has what somebody has given a file.
const ATTRIBUTE: &[u8] = b"user.dav.properties";

/// What every file or directory has, and is said without being asked for.
const COMMON: [&str; 7] = [
    "creationdate",
    "displayname",
    "getetag",
    "getlastmodified",
    "resourcetype",
    "supportedlock",
    "lockdiscovery",
];
/// What only files have.
const OF_FILES: [&str; 2] = ["getcontentlength", "getcontenttype"];
/// What only directories have, and is said when it is asked for (RFC 4331).
const OF_DIRS: [&str; 2] = ["quota-available-bytes", "quota-used-bytes"];

const SUPPORTED_LOCKS: &str = "<D:lockentry><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>\
    <D:lockentry><D:lockscope><D:shared/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>";

/// What somebody has given a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Its name.
    pub name: Name,
    /// The element that it is.
    pub element: String,
}

/// All that somebody has given a file. What is not understood is none.
///
/// # Errors
/// `ENOENT` for what is gone by now; what else the formation says.
pub fn given(client: &Client, ino: Ino) -> FsResult<Vec<Given>> {
    match client.getxattr(ino, ATTRIBUTE) {
        Ok(value) => Ok(parse(&value)),
        Err(error) if matches!(error.errno(), Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parse(value: &[u8]) -> Vec<Given> {
    let mut all: Vec<Given> = serde_json::from_slice(value).unwrap_or_default();
    all.retain(|given| xml::is_element(&given.element, &given.name));
    all
}

/// Carries out changes of what somebody has given a file, all of them at once.
///
/// # Errors
/// `E2BIG` for more than an attribute can have in it; what the formation says.
pub fn give(client: &Client, ctx: &OpCtx, ino: Ino, changes: &[Change]) -> FsResult<()> {
    let before = given(client, ino)?;
    let mut all = before.clone();
    for change in changes {
        let (Change::Set(name, _) | Change::Remove(name)) = change;
        all.retain(|given| given.name != *name);
        if let Change::Set(name, element) = change {
            all.push(Given { name: name.clone(), element: element.clone() });
        }
    }
    if all == before {
        return Ok(());
    }
    set(client, ctx, ino, &all)
}

/// Gives a file all of this, and nothing else.
///
/// # Errors
/// As [`give`].
pub fn set(client: &Client, ctx: &OpCtx, ino: Ino, all: &[Given]) -> FsResult<()> {
    if all.is_empty() {
        return match client.removexattr(ctx, ino, ATTRIBUTE) {
            Err(error) if error.errno() == Errno::ENODATA => Ok(()),
            removed => removed,
        };
    }
    client.setxattr(ctx, ino, ATTRIBUTE, &serde_json::to_vec(all).unwrap_or_default(), 0)
}

/// Whether a property comes out of what a file is, so that nobody can give it.
#[must_use]
pub fn is_live(name: &Name) -> bool {
    let known = COMMON.iter().chain(&OF_FILES).chain(&OF_DIRS);
    name.space == DAV && known.into_iter().any(|live| *live == name.local)
}

/// Something whose properties are said.
pub struct Thing<'a> {
    /// Its name; empty for the root.
    pub name: &'a [u8],
    /// What it is.
    pub attr: &'a Attr,
    /// The locks that cover it.
    pub locks: &'a [&'a Lock],
    /// How much room there is where it is, if that is wanted.
    pub space: Option<&'a StatFs>,
}

impl Thing<'_> {
    /// The names of what comes out of what it is, as far as it is said without being asked for.
    pub fn said(&self) -> impl Iterator<Item = &'static str> + use<> {
        let of_files = if self.attr.is_dir() { &[][..] } else { &OF_FILES[..] };
        COMMON.into_iter().chain(of_files.iter().copied())
    }

    /// Writes a property that comes out of what it is; `false` if it has none of that name.
    pub fn write(&self, local: &str, text: &mut String) -> bool {
        let (attr, is_dir) = (self.attr, self.attr.is_dir());
        let space = |blocks: fn(&StatFs) -> u64| {
            let space = self.space.filter(|_| is_dir)?;
            Some(blocks(space).saturating_mul(u64::from(space.block_size)).to_string())
        };
        let value = match local {
            "creationdate" => Some(date(attr)),
            "displayname" => Some(escaped(&String::from_utf8_lossy(self.name))),
            "getetag" => Some(escaped(&tag(attr))),
            "getlastmodified" => Some(httpdate::fmt_http_date(modified(attr))),
            "resourcetype" => Some(if is_dir { "<D:collection/>".into() } else { String::new() }),
            "supportedlock" => Some(SUPPORTED_LOCKS.into()),
            "lockdiscovery" => Some(self.locks.iter().map(|lock| active(lock)).collect()),
            "getcontentlength" if !is_dir => Some(if attr.is_file() { attr.size } else { 0 }.to_string()),
            "getcontenttype" if !is_dir => Some(content_type(self.name).into()),
            "quota-available-bytes" => space(|space| space.blocks_free),
            "quota-used-bytes" => space(|space| space.blocks.saturating_sub(space.blocks_free)),
            _ => None,
        };
        let Some(value) = value else { return false };
        let _to_a_text = match value.as_str() {
            "" => write!(text, "<D:{local}/>"),
            value => write!(text, "<D:{local}>{value}</D:{local}>"),
        };
        true
    }
}

/// What is known of when something was made: the earlier of its two times. There is none of its own.
fn date(attr: &Attr) -> String {
    let made = Attr { mtime: attr.mtime.min(attr.ctime), ..*attr };
    let time: SystemTime = modified(&made);
    jiff::Timestamp::try_from(time).map_or_else(|_| "1970-01-01T00:00:00Z".into(), |time| time.to_string())
}

/// A lock as it is shown.
#[must_use]
pub fn active(lock: &Lock) -> String {
    let scope = if lock.exclusive { "exclusive" } else { "shared" };
    let depth = if lock.deep { "infinity" } else { "0" };
    let owner =
        if lock.owner.is_empty() { String::new() } else { format!("<D:owner>{}</D:owner>", lock.owner) };
    let left = lock.expires.saturating_sub(keys::now());
    let root = if lock.path.is_empty() { "/" } else { &lock.path };
    format!(
        "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/></D:lockscope><D:depth>{depth}</D:depth>\
         {owner}<D:timeout>Second-{left}</D:timeout><D:locktoken><D:href>{}</D:href></D:locktoken>\
         <D:lockroot><D:href>{root}</D:href></D:lockroot></D:activelock>",
        escaped(&lock.token)
    )
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
            let all = [Given { name, element: element.into() }];
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
