//! Locality of parts: every holder serves any part, but those without it locally fetch it over the same links first.

use std::ops::Range;

use ureq::http::{HeaderMap, HeaderValue};
use url::Url;

use crate::holder::ServedFile;

/// Shorter parts cost more requests than they spare links.
const PART_MIN: u64 = 128 << 10;
/// Most stripes of a range that are looked at: 64 GiB of 1 MiB each. Pieces with digests of their own are far shorter.
const STRIPES_MAX: usize = 1 << 16;

/// Holders by part of a file.
#[derive(Debug, PartialEq, Eq)]
pub struct NearbyHolders {
    /// Bytes of a part.
    stripe: u64,
    /// Local holders of each part, by number; they repeat from the last one on.
    holders: Vec<Vec<usize>>,
}

impl NearbyHolders {
    /// Parses what a server reports of a file: `Bivouac-Layout` and `Link` (docs/http.md). `None` if it names no other
    /// server.
    pub fn of(seen: &ServedFile, places: &[(usize, String)]) -> Option<NearbyHolders> {
        let layout = seen.headers.get("bivouac-layout")?.to_str().ok()?;
        let field = |name: &str| {
            layout.split(';').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='))
        };
        let stripe = field("stripe")?.parse().ok().filter(|stripe| *stripe > 0)?;
        let nodes = numbers(field("nodes")?);
        let mut servers = links(&seen.headers);
        // Servers do not link themselves: the answer's own URL and `here` stand for the one that was asked.
        servers.push((seen.url.clone(), numbers(field("here")?)));
        let of_place = |(holder, url): &(usize, String)| {
            let url = Url::parse(url).ok()?;
            let (_, nodes) = servers.iter().find(|(server, _)| *server == url)?;
            Some((*holder, nodes))
        };
        let known: Vec<_> = places.iter().filter_map(of_place).collect();
        let at = |node: &u16| {
            known.iter().filter(|(_, nodes)| nodes.contains(node)).map(|(holder, _)| *holder).collect()
        };
        let holders: Vec<Vec<usize>> = nodes.iter().map(at).collect();
        // With one holder that is known there is nothing to choose.
        (known.len() > 1 && !holders.is_empty()).then_some(NearbyHolders { stripe, holders })
    }

    /// Returns the local holders of the part at an offset.
    pub fn at(&self, offset: u64) -> &[usize] {
        assert!(self.stripe > 0 && !self.holders.is_empty(), "parts of no length, or without places");
        let part = offset / self.stripe % self.holders.len() as u64;
        self.holders.get(part as usize).map_or(&[], Vec::as_slice)
    }

    /// Cuts a range where others have what follows. Where that is too often, nothing is cut; behind [`STRIPES_MAX`]
    /// stripes the rest is one part.
    pub fn cut(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        // The size is a claim of whoever wrote the list of files.
        for _ in 0..STRIPES_MAX {
            if at >= range.end || self.stripe < PART_MIN {
                break;
            }
            let end = (at - at % self.stripe).saturating_add(self.stripe).min(range.end);
            match parts.last_mut().filter(|last| self.at(last.start) == self.at(at)) {
                Some(last) => last.end = end,
                None => parts.push(at..end),
            }
            at = end;
        }
        if !parts.is_empty() && at < range.end {
            parts.push(at..range.end);
        }
        assert!(parts.last().is_none_or(|last| last.end == range.end), "{parts:?} are not all of {range:?}");
        if parts.is_empty() { vec![range] } else { parts }
    }
}

fn numbers(text: &str) -> Vec<u16> {
    text.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

/// Returns the servers with the same, and their nodes.
fn links(headers: &HeaderMap) -> Vec<(Url, Vec<u16>)> {
    let link = |value: &HeaderValue| {
        let (url, rest) = value.to_str().ok()?.trim().strip_prefix('<')?.split_once('>')?;
        let nodes = rest.split(';').find_map(|field| field.trim().strip_prefix("nodes="))?;
        Some((Url::parse(url).ok()?, numbers(nodes.trim_matches('"'))))
    };
    headers.get_all("link").iter().filter_map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(layout: &str, links: &[&str]) -> ServedFile {
        let mut headers = HeaderMap::new();
        headers.insert("bivouac-layout", layout.parse().unwrap());
        for link in links {
            headers.append("link", link.parse().unwrap());
        }
        ServedFile { headers, url: Url::parse("https://n1:8443/d/f").unwrap() }
    }

    fn places() -> Vec<(usize, String)> {
        let urls = ["https://n1:8443/d/f", "https://n2:8443/d/f", "https://n3:8443/d/f"];
        urls.iter().map(|url| (*url).to_owned()).enumerate().map(|(at, url)| (at + 4, url)).collect()
    }

    #[test]
    fn parts_are_at_those_whose_nodes_have_them() {
        let said = seen(
            "stripe=100; nodes=2,0,1,3; here=0",
            &[
                "<https://n2:8443/d/f>; rel=duplicate; pri=2; nodes=\"1,2\"",
                "<https://n3:8443/d/f>; rel=duplicate; pri=3; nodes=\"7\"",
                "</d/f?metalink>; rel=describedby; type=\"application/metalink4+xml\"",
            ],
        );
        let near = NearbyHolders::of(&said, &places()).unwrap();
        let at = |offset| near.at(offset);
        assert_eq!([at(0), at(99), at(100), at(250), at(399)], [&[5][..], &[5], &[4], &[5], &[]]);
        assert_eq!((at(400), at(u64::MAX)), (&[5][..], at(u64::MAX % 400)));
    }

    #[test]
    fn ranges_are_cut_where_others_go_on() {
        const K: u64 = 1024;
        let near = |stripe, holders: &[&[usize]]| NearbyHolders {
            stripe,
            holders: holders.iter().map(|holders| holders.to_vec()).collect(),
        };
        let cut = |near: &NearbyHolders, start, end| {
            near.cut(start..end).into_iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        let of_four = near(256 * K, &[&[1], &[1], &[2], &[1, 2]]);
        let of_all = [(0, 512 * K), (512 * K, 768 * K), (768 * K, 1024 * K)];
        assert_eq!(cut(&of_four, 0, 1024 * K), of_all, "two of the same are one");
        assert_eq!(cut(&of_four, 300 * K, 400 * K), [(300 * K, 400 * K)]);
        assert_eq!(cut(&of_four, 1000 * K, 1030 * K), [(1000 * K, 1024 * K), (1024 * K, 1030 * K)]);
        assert_eq!(cut(&near(64 * K, &[&[1], &[2]]), 0, 1024 * K), [(0, 1024 * K)], "requests cost, too");
        assert_eq!(cut(&near(u64::MAX, &[&[1]]), 5, u64::MAX), [(5, u64::MAX)]);
        assert_eq!(cut(&of_four, 0, 0), [(0, 0)]);
        let huge = cut(&near(128 * K, &[&[1], &[2]]), 0, u64::MAX);
        assert_eq!(
            (huge.len(), huge.last()),
            (STRIPES_MAX + 1, Some(&(8 << 30, u64::MAX))),
            "a size is a claim"
        );
        let of_one = cut(&near(128 * K, &[&[1]]), 0, u64::MAX);
        assert_eq!(of_one, [(0, 8 << 30), (8 << 30, u64::MAX)]);
    }

    #[test]
    fn what_says_nothing_of_others_is_no_help() {
        let link = "<https://n2:8443/d/f>; nodes=\"1\"";
        for (layout, links) in [
            ("stripe=0; nodes=0,1; here=0", &[link][..]),
            ("stripe=x; nodes=0,1; here=0", &[link]),
            ("stripe=100; nodes=; here=0", &[link]),
            ("stripe=100; nodes=0,1", &[link]),
            ("stripe=100; nodes=0,1; here=0", &[]),
            ("stripe=100; nodes=0,1; here=0", &["<https://other/d/f>; nodes=\"1\""]),
            ("", &["<", ">", "<>; nodes=", "<https://n2:8443/d/f> nodes"]),
        ] {
            assert_eq!(NearbyHolders::of(&seen(layout, links), &places()), None, "{layout}");
        }
    }
}
