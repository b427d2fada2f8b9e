//! Paths of requests, decoded to names in the formation.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Longest path of a request, in bytes, as it is written.
const PATH_LEN_MAX: usize = 16 << 10;

/// Prefix of the server's hidden names: uploads and parts.
pub const RESERVED: &[u8] = b".bivouac-";

/// Returns whether a name is hidden.
#[must_use]
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(RESERVED)
}

/// Returns the part of a path behind a prefix: empty, or a slash and more; `None` for other paths.
#[must_use]
pub fn behind<'a>(path: &'a str, place: &str) -> Option<&'a str> {
    path.strip_prefix(place).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Characters that are encoded in a path.
// Also what means something in XML and HTML: paths are written into both as they are.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'\'')
    .add(b'+')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A path from the root of the formation on.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RequestPath {
    /// The names; never empty, `.` or `..`, and without slashes and NULs.
    pub names: Vec<Vec<u8>>,
    /// True if it ends in a slash.
    pub is_dir: bool,
}

impl RequestPath {
    /// Parses a request's path. It is split before names are decoded, so an encoded slash separates nothing.
    ///
    /// # Errors
    /// A description of what is malformed.
    pub fn parse(path: &str) -> Result<RequestPath, &'static str> {
        if path.len() > PATH_LEN_MAX {
            return Err("the path is too long");
        }
        let rest = path.strip_prefix('/').ok_or("the path does not begin with a slash")?;
        let mut names = Vec::new();
        // Several slashes are one, as in a mount.
        for part in rest.split('/').filter(|part| !part.is_empty()) {
            let name: Vec<u8> = percent_decode_str(part).collect();
            check(&name)?;
            if is_reserved(&name) {
                return Err("names that begin with .bivouac- are the server's own");
            }
            names.push(name);
        }
        Ok(RequestPath { is_dir: names.is_empty() || path.ends_with('/'), names })
    }

    /// Creates it from a path that is not encoded.
    pub fn plain(path: &[u8]) -> Result<RequestPath, &'static str> {
        let mut names = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            check(name)?;
            names.push(name.to_vec());
        }
        Ok(RequestPath { is_dir: names.is_empty() || path.ends_with(b"/"), names })
    }

    /// Returns the part below `top`; `None` if it is not below.
    #[must_use]
    pub fn below(&self, top: &RequestPath) -> Option<RequestPath> {
        let names = self.names.strip_prefix(top.names.as_slice())?;
        Some(RequestPath { names: names.to_vec(), is_dir: self.is_dir })
    }

    /// Returns the path in the formation.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        let mut path = vec![b'/'];
        path.extend_from_slice(&self.names.join(&b'/'));
        if self.is_dir && !self.names.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// Returns the encoded path.
    #[must_use]
    pub fn encoded(&self) -> String {
        let mut text: String = self.names.iter().map(|name| format!("/{}", encoded(name))).collect();
        if self.is_dir {
            text.push('/');
        }
        text
    }

    /// Returns the path of the directory that it is in; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<RequestPath> {
        let (_, names) = self.names.split_last()?;
        Some(RequestPath { names: names.to_vec(), is_dir: true })
    }

    /// Returns the last name; `None` for the root.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        self.names.last().map(Vec::as_slice)
    }
}

fn check(name: &[u8]) -> Result<(), &'static str> {
    if matches!(name, b"." | b"..") {
        return Err("a name in the path is . or ..");
    }
    if name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err("a name in the path has an encoded slash or NUL in it");
    }
    Ok(())
}

/// Returns a name as a request writes it. What is no UTF-8 is encoded byte by byte.
#[must_use]
pub fn encoded(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => utf8_percent_encode(text, ESCAPED).to_string(),
        Err(_) => name.iter().map(|byte| format!("%{byte:02X}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_before_they_are_decoded() {
        let target = RequestPath::parse("/a%20b//c%C3%A4/").unwrap();
        assert_eq!(target.names, [b"a b".to_vec(), "cä".into()]);
        assert!(target.is_dir);
        assert_eq!(target.encoded(), "/a%20b/c%C3%A4/");
        assert_eq!(target.path(), "/a b/cä/".as_bytes());
        assert_eq!(RequestPath::parse("/").unwrap(), RequestPath { names: vec![], is_dir: true });
        assert_eq!(RequestPath::parse("/%ff").unwrap().encoded(), "/%FF");
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for wrong in [
            "",
            "a",
            "/..",
            "/a/../b",
            "/%2e%2e/etc",
            "/.%2E/x",
            "/a%2fb",
            "/a%2Fb",
            "/a%00",
            "/./a",
            "/a/%2e",
            "*",
        ] {
            assert!(RequestPath::parse(wrong).is_err(), "{wrong}");
        }
        assert!(RequestPath::parse("/..a/b..").is_ok());
        assert!(RequestPath::parse(&format!("/{}", "x".repeat(PATH_LEN_MAX))).is_err());
        assert!(RequestPath::plain(b"/a/../b").is_err());
    }

    #[test]
    fn what_is_below_a_directory() {
        let (top, inside) = (RequestPath::parse("/a/b").unwrap(), RequestPath::parse("/a/b/c/").unwrap());
        assert_eq!(inside.below(&top).unwrap().path(), b"/c/");
        assert_eq!(RequestPath::parse("/a/bc").unwrap().below(&top), None);
        assert_eq!(RequestPath::parse("/a").unwrap().below(&top), None);
        assert_eq!(top.below(&top).unwrap().names, Vec::<Vec<u8>>::new());
    }
}
