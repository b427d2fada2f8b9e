//! What a job is to do, as it is written down.

use std::path::{Path, PathBuf};

use crate::line::{escape, parse_time, time, unescape};
use crate::meta::Time;
use crate::tag::Tag;
use crate::{Select, Transfer};

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Into the formation.
    In,
    /// Out of it.
    Out,
}

impl Way {
    /// `in` or `out`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Way::In => "in",
            Way::Out => "out",
        }
    }
}

/// What of the source is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Changed {
    /// Everything.
    #[default]
    All,
    /// What is not as it was staged in.
    SinceIn,
    /// What the place that it goes to has not: neither was it staged in from there, nor out to there, and is unchanged
    /// since.
    SinceStaged,
    /// What changed at or after a time.
    Since(Time),
}

/// What a job is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Which way.
    pub way: Way,
    /// What, and where to. The side that is not in the formation is absolute.
    pub transfers: Vec<Transfer>,
    /// What of it.
    pub changed: Changed,
    /// Patterns for what is copied; none means everything.
    pub include: Vec<String>,
    /// Patterns for what is not.
    pub exclude: Vec<String>,
    /// Whether what was written is read back and compared.
    pub verify: bool,
    /// Workers; 0 means as many as are useful.
    pub jobs: usize,
    /// Bytes per second; 0 means as many as possible.
    pub limit: u64,
    /// Where the user wants the manifest, too.
    pub manifest: Option<PathBuf>,
    pub(crate) tag: Tag,
}

/// First line of the file; the number is the version of the format.
const HEAD: &str = "bivouac-stage\t1";

impl Order {
    /// An order for everything, without conditions.
    #[must_use]
    pub fn new(way: Way, transfers: Vec<Transfer>) -> Order {
        Order {
            way,
            transfers,
            changed: Changed::All,
            include: Vec::new(),
            exclude: Vec::new(),
            verify: false,
            jobs: 0,
            limit: 0,
            manifest: None,
            tag: Tag::draw(),
        }
    }

    pub(crate) fn select(&self) -> Result<Select, String> {
        Select::new(&self.include, &self.exclude)
    }

    pub(crate) fn encode(&self) -> String {
        let changed = match self.changed {
            Changed::All => "all".to_owned(),
            Changed::SinceIn => "in".to_owned(),
            Changed::SinceStaged => "staged".to_owned(),
            Changed::Since(at) => time(at),
        };
        let mut text =
            format!("{HEAD}\nway\t{}\ntag\t{}\nchanged\t{changed}\n", self.way.word(), self.tag.as_str());
        text += &format!("verify\t{}\njobs\t{}\nlimit\t{}\n", self.verify, self.jobs, self.limit);
        let mut add = |key: &str, value: &Path| text += &format!("{key}\t{}\n", escape(value));
        self.include.iter().for_each(|pattern| add("include", Path::new(pattern)));
        self.exclude.iter().for_each(|pattern| add("exclude", Path::new(pattern)));
        self.manifest.iter().for_each(|path| add("manifest", path));
        self.transfers.iter().for_each(|transfer| text += &transfer_line("transfer", transfer));
        text
    }

    /// Reads what [`Order::encode`] wrote; `None` if it is anything else.
    pub(crate) fn decode(text: &str) -> Option<Order> {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return None;
        }
        let mut order = Order { tag: Tag::draw(), ..Order::new(Way::In, Vec::new()) };
        for line in lines {
            let (key, value) = line.split_once('\t')?;
            match key {
                "way" => order.way = [Way::In, Way::Out].into_iter().find(|way| way.word() == value)?,
                "tag" => order.tag = Tag::parse(value)?,
                "changed" => order.changed = parse_changed(value)?,
                "verify" => order.verify = value.parse().ok()?,
                "jobs" => order.jobs = value.parse().ok()?,
                "limit" => order.limit = value.parse().ok()?,
                "include" => order.include.push(unescape(value)?.into_os_string().into_string().ok()?),
                "exclude" => order.exclude.push(unescape(value)?.into_os_string().into_string().ok()?),
                "manifest" => order.manifest = Some(unescape(value)?),
                "transfer" => order.transfers.push(parse_transfer(value)?),
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

fn parse_changed(text: &str) -> Option<Changed> {
    match text {
        "all" => Some(Changed::All),
        "in" => Some(Changed::SinceIn),
        "staged" => Some(Changed::SinceStaged),
        text => parse_time(text).map(Changed::Since),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        let odd = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        let transfers = vec![
            Transfer { src: odd(b"/a\t\n\\\xff"), dst: PathBuf::new() },
            Transfer { src: "b".into(), dst: odd(b"/\xfe") },
        ];
        for changed in [Changed::All, Changed::SinceIn, Changed::SinceStaged, Changed::Since((-5, 6))] {
            let order = Order {
                changed,
                include: vec!["*.h5".into(), "a\tb".into()],
                exclude: vec!["tmp/**".into()],
                verify: true,
                jobs: 3,
                limit: 1 << 20,
                manifest: Some("/m".into()),
                ..Order::new(Way::Out, transfers.clone())
            };
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
    }

    #[test]
    fn what_is_no_order_is_none() {
        let text = Order::new(Way::In, Vec::new()).encode();
        for broken in [
            "",
            "x",
            &text.replace("\t1\n", "\t2\n"),
            &text.replace("tag", "gat"),
            &text.replace("way\tin", "way\tup"),
        ] {
            assert_eq!(Order::decode(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_an_order_or_none(text: String) {
            Order::decode(&text);
            Order::decode(&format!("{HEAD}\n{text}"));
        }
    }
}
