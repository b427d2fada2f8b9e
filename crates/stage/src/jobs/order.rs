//! The recorded specification of a job.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::args::Transfer;
use crate::escape::{escape, unescape};
use crate::meta::{UnixTime, format_time, parse_time};
use crate::select::PathFilter;
use crate::temporary_tag::Tag;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the formation.
    In,
    /// Out of the formation.
    Out,
}

impl Direction {
    /// Returns `in` or `out`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }

    /// Formats source and target for people, the formation's path from its root.
    #[must_use]
    pub fn describe(self, transfer: &Transfer) -> String {
        let Transfer { src, dst } = transfer;
        match self {
            Direction::In => format!("{} to /{}", escape(src), escape(dst)),
            Direction::Out => format!("/{} to {}", escape(src), escape(dst)),
        }
    }

    /// Returns absolute source and target for scripts, the formation's path from its root.
    #[must_use]
    pub fn absolute(self, transfer: &Transfer) -> (String, String) {
        let site = |path: &Path| path.to_string_lossy().into_owned();
        let inside = |path: &Path| Path::new("/").join(path).to_string_lossy().into_owned();
        match self {
            Direction::In => (site(&transfer.src), inside(&transfer.dst)),
            Direction::Out => (inside(&transfer.src), site(&transfer.dst)),
        }
    }

    /// Refuses two sources with one target, where the second would replace what the first has brought; directories are
    /// merged, but of those in a formation it is not known before that they are some.
    ///
    /// # Errors
    /// A sentence that names both, and what to do.
    pub fn check_targets(self, transfers: &[Transfer]) -> Result<(), String> {
        let mut sources = HashMap::new();
        for Transfer { src, dst } in transfers {
            // An absolute path has neither `.` nor slashes that say nothing.
            let target = if self == Direction::Out { std::path::absolute(dst).ok() } else { None };
            let is_dir = self == Direction::In && src.is_dir();
            let earlier = sources.insert(target.unwrap_or_else(|| dst.clone()), (src, is_dir));
            if let Some((earlier, was_dir)) = earlier
                && !(is_dir && was_dir)
            {
                let (earlier, src, dst) = (earlier.display(), src.display(), dst.display());
                return Err(format!(
                    "{earlier} and {src} have one target, {dst}: the second would replace the first; give each a target \
                     of its own, for instance with DIR/ for both"
                ));
            }
        }
        Ok(())
    }
}

/// Selects objects by their changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChangeFilter {
    /// Everything.
    #[default]
    All,
    /// Changes since the stage-in.
    SinceIn,
    /// Everything that the target lacks: neither staged in from there nor staged out to there since its last change.
    SinceStaged,
    /// Changes at or after a time.
    Since(UnixTime),
}

/// Specification of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Direction.
    pub way: Direction,
    /// Transfers. The path outside of the formation is absolute.
    pub transfers: Vec<Transfer>,
    /// Selection by changes.
    pub changed: ChangeFilter,
    /// Patterns of objects to copy; none means all.
    pub include: Vec<String>,
    /// Patterns of objects not to copy.
    pub exclude: Vec<String>,
    /// True to read back and compare what was written.
    pub verify: bool,
    /// Workers; 0 for the default.
    pub jobs: usize,
    /// Rate limit in bytes per second; 0 for none.
    pub limit: u64,
    /// Additional path of the manifest.
    pub manifest: Option<PathBuf>,
    /// Paths in the formation that are omitted with everything below them.
    pub except: Vec<PathBuf>,
    pub(crate) is_set: bool,
    pub(crate) tag: Tag,
}

/// First line of the file, with the version of the format.
const HEAD: &str = "bivouac-stage\t1";

impl JobSpec {
    /// Creates a specification that copies everything without conditions.
    #[must_use]
    pub fn new(way: Direction, transfers: Vec<Transfer>) -> JobSpec {
        JobSpec {
            way,
            transfers,
            changed: ChangeFilter::All,
            include: Vec::new(),
            exclude: Vec::new(),
            verify: false,
            jobs: 0,
            limit: 0,
            manifest: None,
            except: Vec::new(),
            is_set: false,
            tag: Tag::random(),
        }
    }

    /// Creates a specification for one set ([`super::FoundSet`]) to copy out: it replaces the target as a whole, and
    /// not at all if it changes during the copy.
    #[must_use]
    pub(crate) fn of_set(transfer: Transfer) -> JobSpec {
        JobSpec { is_set: true, ..JobSpec::new(Direction::Out, vec![transfer]) }
    }

    /// Returns whether the job copies one set out.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_set
    }

    /// Returns the selection for a transfer.
    pub(crate) fn select(&self, transfer: &Transfer) -> Result<PathFilter, String> {
        let inside = if self.way == Direction::Out { &transfer.src } else { &transfer.dst };
        let except = self.except.iter().filter_map(|path| path.strip_prefix(inside).ok());
        Ok(PathFilter::new(&self.include, &self.exclude)?.without(except.map(Path::to_owned).collect()))
    }

    pub(crate) fn encode(&self) -> String {
        let changed = match self.changed {
            ChangeFilter::All => "all".to_owned(),
            ChangeFilter::SinceIn => "in".to_owned(),
            ChangeFilter::SinceStaged => "staged".to_owned(),
            ChangeFilter::Since(at) => format_time(at),
        };
        let mut text =
            format!("{HEAD}\nway\t{}\ntag\t{}\nchanged\t{changed}\n", self.way.word(), self.tag.as_str());
        text += &format!("verify\t{}\njobs\t{}\nlimit\t{}\n", self.verify, self.jobs, self.limit);
        let mut add = |key: &str, value: &Path| text += &format!("{key}\t{}\n", escape(value));
        self.include.iter().for_each(|pattern| add("include", Path::new(pattern)));
        self.exclude.iter().for_each(|pattern| add("exclude", Path::new(pattern)));
        self.manifest.iter().for_each(|path| add("manifest", path));
        self.except.iter().for_each(|path| add("except", path));
        // Written only if set, so that releases without sets can read all other specifications.
        if self.is_set {
            text += "set\ttrue\n";
        }
        self.transfers.iter().for_each(|transfer| text += &transfer_line("transfer", transfer));
        text
    }

    /// Parses what [`JobSpec::encode`] wrote; `None` if it is malformed.
    pub(crate) fn decode(text: &str) -> Option<JobSpec> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return None;
        }
        let mut order = JobSpec { tag: Tag::random(), ..JobSpec::new(Direction::In, Vec::new()) };
        for line in lines {
            let (key, value) = line.split_once('\t')?;
            match key {
                "way" => {
                    order.way = [Direction::In, Direction::Out].into_iter().find(|way| way.word() == value)?
                }
                "tag" => order.tag = Tag::parse(value)?,
                "changed" => order.changed = parse_changed(value)?,
                "verify" => order.verify = value.parse().ok()?,
                "jobs" => order.jobs = value.parse().ok()?,
                "limit" => order.limit = value.parse().ok()?,
                "include" => order.include.push(unescape(value)?.into_os_string().into_string().ok()?),
                "exclude" => order.exclude.push(unescape(value)?.into_os_string().into_string().ok()?),
                "manifest" => order.manifest = Some(unescape(value)?),
                "except" => order.except.push(unescape(value)?),
                "set" => order.is_set = value.parse().ok()?,
                "transfer" => order.transfers.push(parse_transfer(value)?),
                // Of a later release: what it says may be just what the copy must not ignore.
                _ => return None,
            }
        }
        Some(order)
    }
}

pub(crate) fn transfer_line(key: &str, transfer: &Transfer) -> String {
    format!("{key}\t{}\t{}\n", escape(&transfer.src), escape(&transfer.dst))
}

pub(crate) fn parse_transfer(text: &str) -> Option<Transfer> {
    let (src, dst) = text.split_once('\t')?;
    Some(Transfer { src: unescape(src)?, dst: unescape(dst)? })
}

fn parse_changed(text: &str) -> Option<ChangeFilter> {
    match text {
        "all" => Some(ChangeFilter::All),
        "in" => Some(ChangeFilter::SinceIn),
        "staged" => Some(ChangeFilter::SinceStaged),
        text => parse_time(text).map(ChangeFilter::Since),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn two_sources_have_two_targets() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let to = |src: &Path, dst: &str| Transfer { src: src.to_owned(), dst: dst.into() };
        let (a, b) = (Path::new("a"), Path::new("b"));
        Direction::Out.check_targets(&[to(a, "t/a"), to(b, "t/b")]).unwrap();
        for dst in ["t", "./t", "t/"] {
            let text = Direction::Out.check_targets(&[to(a, "t"), to(b, dst)]).unwrap_err();
            assert!(text.contains("a and b have one target"), "{text}");
        }
        // Trees that are here are merged.
        Direction::In.check_targets(&[to(dir.path(), ""), to(dir.path(), "")]).unwrap();
        Direction::In.check_targets(&[to(dir.path(), "x"), to(&file, "x")]).unwrap_err();
        Direction::In.check_targets(&[to(&file, "x"), to(&file, "x")]).unwrap_err();
    }

    #[test]
    fn names_that_would_break_a_line_are_escaped() {
        let odd = Transfer { src: "/a\nb".into(), dst: "c\u{1b}[2J".into() };
        assert_eq!(Direction::In.describe(&odd), r"/a\nb to /c\x1b[2J");
        assert_eq!(Direction::Out.describe(&Transfer { src: "r".into(), dst: "b".into() }), "/r to b");
        let absolute = Direction::Out.absolute(&Transfer { src: "r".into(), dst: "/x".into() });
        assert_eq!(absolute, ("/r".into(), "/x".into()));
    }

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let odd = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let transfers = vec![
            Transfer { src: odd(b"/a\t\n\\\xff"), dst: PathBuf::new() },
            Transfer { src: "b".into(), dst: odd(b"/\xfe") },
        ];
        for changed in [
            ChangeFilter::All,
            ChangeFilter::SinceIn,
            ChangeFilter::SinceStaged,
            ChangeFilter::Since((-5, 6)),
        ] {
            let order = JobSpec {
                changed,
                include: vec!["*.h5".into(), "a\tb".into()],
                exclude: vec!["tmp/**".into()],
                verify: true,
                jobs: 3,
                limit: 1 << 20,
                manifest: Some("/m".into()),
                except: vec!["b/c".into()],
                is_set: true,
                ..JobSpec::new(Direction::Out, transfers.clone())
            };
            assert_eq!(JobSpec::decode(&order.encode()), Some(order));
        }
    }

    #[test]
    fn what_is_no_order_is_none() {
        let text = JobSpec::new(Direction::In, Vec::new()).encode();
        for broken in [
            "",
            "x",
            &text.replace("\t1\n", "\t2\n"),
            &text.replace("tag", "gat"),
            &text.replace("way\tin", "way\tup"),
        ] {
            assert_eq!(JobSpec::decode(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_order_or_none(text: String) {
            JobSpec::decode(&text);
            JobSpec::decode(&format!("{HEAD}\n{text}"));
        }
    }
}
