//! Checks of what a gateway says: it is another site's, and may be anybody's who got hold of a key.

use std::collections::HashSet;

use bivouac_source::{
    Attrs, Cause, Entry, Listing, Meta, SourceError, SourceResult, TEMPORARY, Upload, Version,
};
use bivouac_types::limits::{
    FILE_SIZE_MAX, NAME_LEN_MAX, SYMLINK_LEN_MAX, XATTR_LIST_LEN_MAX, XATTR_VALUE_LEN_MAX,
};
use bivouac_types::{Timestamp, mode};

/// Upper limit of a version's tag, in bytes.
const TAG_LEN_MAX: usize = 128;
/// Set-user-id and set-group-id: another site does not say whose rights a program here gets.
const SET_ID: u32 = 0o6000;
/// Prefix of extended attributes of users.
const USER: &[u8] = b"user.";
/// Nanoseconds per second.
const NANOS: u32 = 1_000_000_000;

/// Users and groups of both sides: those of the two processes stand for each other, all others for themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerSwap {
    /// The user and group of this process.
    pub here: (u32, u32),
    /// The user and group of the gateway.
    pub far: (u32, u32),
}

impl OwnerSwap {
    /// Returns attributes as the other side has them.
    pub fn swap(&self, attrs: &Attrs) -> Attrs {
        let one = |id: u32, here: u32, far: u32| match id {
            id if id == here => far,
            id if id == far => here,
            id => id,
        };
        let uid = one(attrs.uid, self.here.0, self.far.0);
        Attrs { uid, gid: one(attrs.gid, self.here.1, self.far.1), ..attrs.clone() }
    }
}

fn odd(what: &str) -> SourceError {
    SourceError::new(Cause::Other, format!("the gateway does not keep to the protocol: {what}"))
}

fn is_time(time: Timestamp) -> bool {
    time.nanos < NANOS
}

/// Checks a version.
pub fn version(version: Version) -> SourceResult<Version> {
    let is_tag = version.tag.len() <= TAG_LEN_MAX && !version.tag.contains(|one: char| one.is_control());
    match version.size <= FILE_SIZE_MAX && is_time(version.mtime) && is_tag {
        true => Ok(version),
        false => Err(odd("a version that no file has")),
    }
}

/// Checks attributes that something is to get, and takes from them what another site does not decide on.
pub fn given(attrs: Attrs, kind: u32) -> SourceResult<Attrs> {
    check_attrs(&attrs)?;
    let perm = if kind == mode::DIR { attrs.perm } else { attrs.perm & !SET_ID };
    Ok(Attrs { perm, ..attrs })
}

fn check_attrs(attrs: &Attrs) -> SourceResult<()> {
    if attrs.perm & !mode::PERM != 0 || !is_time(attrs.mtime) || !is_time(attrs.atime) {
        return Err(odd("permissions or times that no file has"));
    }
    let names: usize = attrs.xattrs.iter().map(|(name, _)| name.len() + 1).sum();
    let is_xattr = |(name, value): &(Vec<u8>, Vec<u8>)| {
        name.starts_with(USER)
            && name.len() > USER.len()
            && name.len() <= NAME_LEN_MAX
            && !name.contains(&0)
            && value.len() <= XATTR_VALUE_LEN_MAX
    };
    match names <= XATTR_LIST_LEN_MAX && attrs.xattrs.iter().all(is_xattr) {
        true => Ok(()),
        false => Err(odd("extended attributes that are no user's")),
    }
}

/// Checks metadata, and takes from it what another site does not decide on.
pub fn meta(found: Meta, owners: &OwnerSwap) -> SourceResult<Meta> {
    let Meta { kind, attrs, version: known, target, .. } = &found;
    let kinds = [mode::FILE, mode::DIR, mode::LINK, mode::FIFO, mode::SOCKET, mode::CHAR, mode::BLOCK];
    if !kinds.contains(kind) {
        return Err(odd("a kind of file that there is not"));
    }
    check_attrs(attrs)?;
    let is_target = match *kind {
        mode::LINK => !target.is_empty() && target.len() <= SYMLINK_LEN_MAX && !target.contains(&0),
        _ => target.is_empty(),
    };
    if !is_target {
        return Err(odd("a symbolic link that leads nowhere, or a target of what is none"));
    }
    let known = version(known.clone())?;
    let mut attrs = owners.swap(attrs);
    if *kind != mode::DIR {
        attrs.perm &= !SET_ID;
    }
    Ok(Meta { attrs, version: known, ..found })
}

/// Checks a listing: of a directory, with names that are names, each once.
pub fn listing(found: Listing, owners: &OwnerSwap) -> SourceResult<Listing> {
    let dir = meta(found.dir, owners)?;
    if !dir.is_dir() {
        return Err(odd("the entries of what is no directory"));
    }
    let mut names = HashSet::new();
    for Entry { name, .. } in &found.entries {
        let is_path = matches!(name.as_slice(), b"" | b"." | b"..");
        if is_path
            || name.iter().any(|byte| matches!(byte, 0 | b'/'))
            || name.starts_with(TEMPORARY.as_bytes())
        {
            return Err(odd("a name that no entry of a directory has"));
        }
        if !names.insert(name.as_slice()) {
            return Err(odd("a name that is there twice"));
        }
    }
    let checked = |Entry { name, meta: found }| Ok(Entry { name, meta: meta(found, owners)? });
    let entries = found.entries.into_iter().map(checked).collect::<SourceResult<_>>()?;
    Ok(Listing { dir, entries, digest: found.digest })
}

/// Checks an upload that was planned here: only its tag is the gateway's.
pub fn upload(planned: &Upload, begun: Upload) -> SourceResult<Upload> {
    let is_same = (&begun.path, begun.size, &begun.token) == (&planned.path, planned.size, &planned.token);
    let is_tag = begun.tag.len() <= TAG_LEN_MAX && !begun.tag.contains(|one: char| one.is_control());
    if is_same && is_tag { Ok(begun) } else { Err(odd("another upload than was begun")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNERS: OwnerSwap = OwnerSwap { here: (5, 5), far: (7, 8) };

    fn file(name: &[u8]) -> Entry {
        Entry { name: name.to_vec(), meta: Meta { kind: mode::FILE, ..Meta::default() } }
    }

    fn dir(entries: Vec<Entry>) -> Listing {
        Listing { dir: Meta { kind: mode::DIR, ..Meta::default() }, entries, digest: 1 }
    }

    #[test]
    fn what_no_file_system_says_is_refused() {
        assert!(listing(dir(vec![file(b"a"), file(b"b")]), &OWNERS).is_ok());
        for wrong in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", b".bivouac-1"] {
            let refused = listing(dir(vec![file(wrong)]), &OWNERS).unwrap_err();
            assert!(refused.to_string().contains("a name that no entry"), "{refused}");
        }
        assert!(listing(dir(vec![file(b"a"), file(b"a")]), &OWNERS).is_err());
        assert!(listing(Listing { dir: file(b"").meta, ..dir(Vec::new()) }, &OWNERS).is_err());
        let good = file(b"a").meta;
        let attrs = |attrs: Attrs| Meta { attrs, ..good.clone() };
        let time = Timestamp { secs: 0, nanos: NANOS };
        for wrong in [
            Meta { kind: 0, ..good.clone() },
            Meta { kind: mode::FIFO | mode::CHAR, ..good.clone() },
            Meta { kind: mode::LINK, ..good.clone() },
            Meta { target: b"x".to_vec(), ..good.clone() },
            Meta { kind: mode::LINK, target: vec![b'x'; 5000], ..good.clone() },
            Meta { version: Version { size: u64::MAX, ..Version::default() }, ..good.clone() },
            Meta { version: Version { tag: "x".repeat(200), ..Version::default() }, ..good.clone() },
            attrs(Attrs { perm: 0o10_000, ..Attrs::default() }),
            attrs(Attrs { mtime: time, ..Attrs::default() }),
            attrs(Attrs { xattrs: vec![(b"trusted.x".to_vec(), Vec::new())], ..Attrs::default() }),
            attrs(Attrs { xattrs: vec![(b"user.".to_vec(), Vec::new())], ..Attrs::default() }),
            attrs(Attrs { xattrs: vec![(b"user.x".to_vec(), vec![0; 70_000])], ..Attrs::default() }),
        ] {
            assert!(meta(wrong.clone(), &OWNERS).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn another_site_gives_no_rights() {
        let attrs = Attrs { perm: 0o6755, uid: 7, gid: 8, ..Attrs::default() };
        let found = meta(Meta { kind: mode::FILE, attrs, ..Meta::default() }, &OWNERS).unwrap().attrs;
        assert_eq!((found.perm, found.uid, found.gid), (0o755, 5, 5));
        let back = OWNERS.swap(&found);
        assert_eq!((back.uid, back.gid), (7, 8));
        assert_eq!(OWNERS.swap(&Attrs { uid: 9, ..back }).uid, 9);
    }

    #[test]
    fn an_upload_is_the_one_that_was_planned() {
        let planned = Upload { path: b"f".to_vec(), size: 3, token: "t".into(), ..Upload::default() };
        let begun = Upload { tag: "1f".into(), ..planned.clone() };
        assert!(upload(&planned, begun.clone()).is_ok());
        assert!(upload(&planned, Upload { path: b"g".to_vec(), ..begun.clone() }).is_err());
        assert!(upload(&planned, Upload { tag: "\n".into(), ..begun }).is_err());
    }
}
