//! Live properties: those that come out of a file's attributes and locks.

use std::fmt::Write as _;
use std::time::SystemTime;

use bivouac_client::Attr;
use bivouac_types::{StatFs, escape_markup};

use crate::conditions::{modified, tag};
use crate::content_type::content_type;
use crate::keys;
use crate::locks::Lock;
use crate::xml::{DAV, Name};

/// Default properties of files and directories.
const COMMON: [&str; 7] = [
    "creationdate",
    "displayname",
    "getetag",
    "getlastmodified",
    "resourcetype",
    "supportedlock",
    "lockdiscovery",
];
/// Properties of files only.
const OF_FILES: [&str; 2] = ["getcontentlength", "getcontenttype"];
/// Properties of directories, sent on request only (RFC 4331).
const OF_DIRS: [&str; 2] = ["quota-available-bytes", "quota-used-bytes"];

const SUPPORTED_LOCKS: &str = "<D:lockentry><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>\
    <D:lockentry><D:lockscope><D:shared/></D:lockscope><D:locktype><D:write/></D:locktype></D:lockentry>";

/// Returns whether a property is computed, so that it cannot be set.
#[must_use]
pub fn is_live(name: &Name) -> bool {
    let known = COMMON.iter().chain(&OF_FILES).chain(&OF_DIRS);
    name.space == DAV && known.into_iter().any(|live| *live == name.local)
}

/// The live properties of a file or directory.
pub struct LiveProperties<'a> {
    /// Its name; empty for the root.
    pub name: &'a [u8],
    /// Attributes of the resource.
    pub attr: &'a Attr,
    /// The locks that cover it.
    pub locks: &'a [&'a Lock],
    /// Free space, if requested.
    pub space: Option<&'a StatFs>,
}

impl LiveProperties<'_> {
    /// Returns the names of the default computed properties.
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
            "displayname" => Some(escape_markup(&String::from_utf8_lossy(self.name))),
            "getetag" => Some(escape_markup(&tag(attr))),
            "getlastmodified" => Some(httpdate::fmt_http_date(modified(attr))),
            "resourcetype" => Some(if is_dir { "<D:collection/>".into() } else { String::new() }),
            "supportedlock" => Some(SUPPORTED_LOCKS.into()),
            "lockdiscovery" => Some(self.locks.iter().map(|lock| active(lock)).collect()),
            // A link's size is that of its text, which no GET sends.
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

/// Returns the creation date: the earlier of the two known times, because the formation stores none.
fn date(attr: &Attr) -> String {
    let made = Attr { mtime: attr.mtime.min(attr.ctime), ..*attr };
    let time: SystemTime = modified(&made);
    jiff::Timestamp::try_from(time).map_or_else(|_| "1970-01-01T00:00:00Z".into(), |time| time.to_string())
}

/// Returns a lock as it is shown.
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
        escape_markup(&lock.token)
    )
}
