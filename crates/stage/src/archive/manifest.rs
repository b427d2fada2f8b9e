//! Manifest of an archived copy: lines of stage manifests, extended attributes and holes. The format is in
//! docs/format.md.

use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bivouac_source::check_path;
use blake3::Hash;

use crate::escape::{escape, unescape};
use crate::manifest_line::{Line, LineKind, ObjectOutcome};
use crate::meta::{Attrs, Xattr, is_kept};
use crate::scan::ObjectKind;
use crate::summary::Summary;
use crate::tree::tree_digest;

/// First line, with the version of the format.
const FIRST: &str = "#bivouac-archive 1\n";
/// Prefix of the first line of any version.
const ANY: &str = "#bivouac-archive ";
const UNFINISHED: &str = "#unfinished\t";
const END: &str = "#end\t";
const XATTR: &str = "#xattr\t";
const HOLES: &str = "#holes";

/// All objects of a copy by name, each directory before its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    pub(crate) objects: Vec<Object>,
}

/// An object of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) line: Line,
    pub(crate) xattrs: Vec<Xattr>,
    /// True if the file has holes.
    pub(crate) holes: bool,
}

/// Content of the manifest object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StoredManifest {
    Complete(Manifest),
    /// A copy is being made, or its command was killed.
    Unfinished,
    /// Damaged; contains the reason.
    Damaged(String),
    /// Written by another release.
    OtherVersion,
}

/// Returns the placeholder of the manifest of an incomplete copy.
pub(crate) fn unfinished(tag: &str) -> String {
    format!("{FIRST}{UNFINISHED}{tag}\n")
}

impl Object {
    pub(crate) fn of(line: Line) -> Object {
        Object { line, xattrs: Vec::new(), holes: false }
    }

    pub(crate) fn attrs(&self) -> Attrs {
        let Line { mode, owner: (uid, gid), mtime, .. } = self.line;
        Attrs { mode, uid, gid, mtime }
    }

    fn encode_into(&self, text: &mut String) {
        text.push_str(&self.line.encode());
        for (name, value) in &self.xattrs {
            let [name, value] =
                [name.as_bytes(), value].map(|bytes| escape(Path::new(OsStr::from_bytes(bytes))));
            text.push_str(&format!("{XATTR}{name}\t{value}\n"));
        }
        if self.holes {
            text.push_str(HOLES);
            text.push('\n');
        }
    }

    fn content(&self) -> Hash {
        match self.line.kind {
            LineKind::Symlink => blake3::hash(self.line.more.as_os_str().as_bytes()),
            // As for the digest of a copied tree, with which this one is compared.
            _ => self.line.digest.unwrap_or(Hash::from_bytes([0; 32])),
        }
    }

    fn kind(&self) -> ObjectKind {
        match self.line.kind {
            LineKind::Dir | LineKind::Unknown => ObjectKind::Dir,
            LineKind::File => ObjectKind::File,
            LineKind::HardLink => ObjectKind::HardLink(0),
            LineKind::Symlink => ObjectKind::Symlink,
            LineKind::Fifo => ObjectKind::Fifo,
        }
    }
}

impl Manifest {
    /// Returns totals and digest, equal to those of a copy of the tree.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let count = |kind| self.objects.iter().filter(|object| object.line.kind == kind).count() as u64;
        let files = self.objects.iter().filter(|object| object.line.kind == LineKind::File);
        let contents: Vec<Hash> = self.objects.iter().map(Object::content).collect();
        let entries = self.objects.iter().zip(&contents);
        let digest =
            tree_digest(entries.map(|(object, hash)| (object.kind(), object.line.name.as_path(), hash)));
        Summary {
            files: count(LineKind::File),
            dirs: count(LineKind::Dir),
            links: count(LineKind::Symlink),
            hard_links: count(LineKind::HardLink),
            fifos: count(LineKind::Fifo),
            bytes: files.fold(0, |sum, object| sum.saturating_add(object.line.size)),
            verified: count(LineKind::File),
            digest: *digest.as_bytes(),
            ..Summary::default()
        }
    }

    /// Returns the digests of files by name.
    pub(crate) fn digests(&self) -> HashMap<&Path, Hash> {
        let files = self.objects.iter().filter(|object| object.line.kind == LineKind::File);
        files.filter_map(|object| Some((object.line.name.as_path(), object.line.digest?))).collect()
    }

    pub(crate) fn encode(&self) -> String {
        let mut text = FIRST.to_owned();
        self.objects.iter().for_each(|object| object.encode_into(&mut text));
        let digest = blake3::hash(text.as_bytes());
        text.push_str(&control_line(END, digest.to_hex().as_str()));
        text
    }

    /// Parses a manifest. No object of an accepted one lies outside the tree.
    pub(crate) fn decode(bytes: &[u8]) -> StoredManifest {
        let Ok(text) = str::from_utf8(bytes) else { return StoredManifest::Damaged("is no text".to_owned()) };
        let Some(rest) = text.strip_prefix(FIRST) else {
            let is_other = text.starts_with(ANY);
            return if is_other {
                StoredManifest::OtherVersion
            } else {
                StoredManifest::Damaged("is no manifest".to_owned())
            };
        };
        if rest.starts_with(UNFINISHED) {
            return StoredManifest::Unfinished;
        }
        // The last line is found before anything is parsed: no line of a text that was altered is looked at.
        let cut = text.trim_end_matches('\n').rfind('\n').map_or(0, |at| at + 1);
        let (body, end) = text.split_at_checked(cut).unwrap_or_default();
        // The digest at the end shows a manifest that was cut or altered.
        if end != control_line(END, blake3::hash(body.as_bytes()).to_hex().as_str()) {
            return StoredManifest::Damaged("does not fit the digest at its end".to_owned());
        }
        let mut objects = Vec::new();
        for (number, line) in body.lines().enumerate().skip(1) {
            if add(&mut objects, line).is_none() {
                return StoredManifest::Damaged(format!("has a wrong line {}", number + 1));
            }
        }
        match check(&objects) {
            Ok(()) => StoredManifest::Complete(Manifest { objects }),
            Err(name) => StoredManifest::Damaged(format!("has a wrong object {}", escape(name))),
        }
    }
}

fn control_line(word: &str, value: &str) -> String {
    format!("{word}{value}\n")
}

/// Parses a line; `None` if it is malformed.
fn add(objects: &mut Vec<Object>, line: &str) -> Option<()> {
    if !line.starts_with('#') {
        objects.push(Object::of(Line::decode(line)?));
        return Some(());
    }
    let last = objects.last_mut()?;
    if line == HOLES {
        last.holes = true;
        return Some(());
    }
    let (name, value) = line.strip_prefix(XATTR)?.split_once('\t')?;
    let [name, value] =
        [unescape(name)?, unescape(value)?].map(|path| path.into_os_string().into_encoded_bytes());
    // Whoever may write to the store shall not set attributes here that no copy would have taken.
    let name = CString::new(name).ok().filter(|name| is_kept(name.to_bytes()))?;
    last.xattrs.push((name, value));
    Some(())
}

/// Checks that the objects form a tree; returns the name of the first that does not belong to it.
fn check(objects: &[Object]) -> Result<(), &Path> {
    let (mut seen, mut dirs, mut files) = (HashSet::new(), HashSet::new(), HashMap::new());
    for (number, Object { line, .. }) in objects.iter().enumerate() {
        let name = line.name.as_path();
        // A directory comes before what is in it, so that no name leads outside the tree.
        let is_in_tree = match name.parent() {
            None => number == 0 && line.kind == LineKind::Dir,
            Some(parent) => dirs.contains(parent) && check_path(name.as_os_str().as_bytes()).is_ok(),
        };
        let is_sound = match line.kind {
            LineKind::Dir => dirs.insert(name),
            LineKind::File => files.insert(name, (line.digest, line.size)).is_none() && line.digest.is_some(),
            // Of a file in front of it, which is there when the link is made.
            LineKind::HardLink => files.get(line.more.as_path()) == Some(&(line.digest, line.size)),
            LineKind::Symlink => {
                let target = line.more.as_os_str().as_bytes();
                !target.is_empty() && !target.contains(&0)
            }
            LineKind::Fifo => true,
            LineKind::Unknown => false,
        };
        let is_done = line.state == ObjectOutcome::Done && line.mode & !0o7777 == 0;
        if !(is_in_tree && is_sound && is_done && seen.insert(name)) {
            return Err(name);
        }
    }
    if objects.is_empty() { Err(Path::new("")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::PathBuf;

    fn object(kind: LineKind, name: &str) -> Object {
        let line = Line {
            mode: 0o750,
            owner: (7, 8),
            mtime: (-4, 5),
            ..Line::outcome_only(ObjectOutcome::Done, Path::new(name), "")
        };
        Object::of(Line { kind, ..line })
    }

    fn manifest(name: &str, value: Vec<u8>) -> Manifest {
        let mut file = object(LineKind::File, name);
        (file.line.digest, file.line.size, file.holes) = (Some(blake3::hash(b"x")), 1, true);
        file.xattrs = vec![(c"user.\xff\t".to_owned(), value), (c"user.b".to_owned(), Vec::new())];
        let line =
            Line { kind: LineKind::HardLink, name: "z".into(), more: name.into(), ..file.line.clone() };
        let mut link = object(LineKind::Symlink, "y");
        link.line.more = PathBuf::from("../n\n");
        Manifest { objects: vec![object(LineKind::Dir, ""), file, link, Object::of(line)] }
    }

    #[test]
    fn what_is_wrong_is_named_and_never_taken() {
        let text = manifest("a", Vec::new()).encode();
        for at in 0..text.len() {
            let mut cut = text.as_bytes().to_vec();
            let is_none = |bytes: &[u8]| {
                matches!(Manifest::decode(bytes), StoredManifest::Damaged(_) | StoredManifest::OtherVersion)
            };
            assert!(is_none(&cut[..at]), "{at}");
            cut[at] ^= 1;
            assert!(is_none(&cut), "{at}");
        }
        assert_eq!(Manifest::decode(unfinished("x").as_bytes()), StoredManifest::Unfinished);
        assert_eq!(Manifest::decode(b"#bivouac-archive 12\n"), StoredManifest::OtherVersion);
        assert_eq!(Manifest::decode(&Manifest::default().encode().into_bytes()), {
            StoredManifest::Damaged("has a wrong object ".to_owned())
        });
        let mut twice = manifest("a", Vec::new());
        twice.objects.push(twice.objects[1].clone());
        let mut other = manifest("a", Vec::new());
        other.objects[3].line.size = 2;
        let mut linked = manifest("a", Vec::new());
        linked.objects.push(object(LineKind::Fifo, "y/through"));
        let mut up = manifest("a", Vec::new());
        up.objects.push(object(LineKind::Dir, ".."));
        for wrong in [twice, other, linked, up] {
            assert!(
                matches!(Manifest::decode(wrong.encode().as_bytes()), StoredManifest::Damaged(_)),
                "{wrong:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_manifest_comes_back(name in "[^/\0]{1,9}", value: Vec<u8>) {
            prop_assume!(!matches!(&name[..], "." | ".." | "y" | "z"));
            let manifest = manifest(&name, value);
            prop_assert_eq!(Manifest::decode(manifest.encode().as_bytes()), StoredManifest::Complete(manifest));
        }

        #[test]
        fn any_lines_are_a_tree_or_none(lines in proptest::collection::vec("(#xattr\t|#holes|done\t|[dfhlp]\t|0644\t|1:1\t|-\t|a){0,14}", 0..5)) {
            let body = format!("{FIRST}{}\n", lines.join("\n"));
            let text = format!("{body}{}", control_line(END, blake3::hash(body.as_bytes()).to_hex().as_str()));
            let _no_panic = Manifest::decode(text.as_bytes());
        }
    }
}
