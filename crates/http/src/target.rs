//! What a request names: a path out of names as they are in the formation, and the parameters behind it.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Longest path of a request, in bytes, as it is written.
const PATH_LEN_MAX: usize = 16 << 10;

/// What names of the server's own files begin with: what is being put, and parts. Nobody is shown them, or gets at them.
pub const RESERVED: &[u8] = b".bivouac-";

/// Whether a name is one of the server's own.
#[must_use]
pub fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(RESERVED)
}

/// What is behind a place in a path or URL: nothing, or a slash and more; `None` if it is not of that place.
#[must_use]
pub fn behind<'a>(path: &'a str, place: &str) -> Option<&'a str> {
    path.strip_prefix(place).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What is written as `%XX` in a path.
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
pub struct Target {
    /// The names; never empty, `.` or `..`, and without slashes and NULs.
    pub names: Vec<Vec<u8>>,
    /// Whether it ends in a slash, as a directory's.
    pub is_dir: bool,
}

impl Target {
    /// From a request's path. Names are told apart before they are decoded, so that no encoded slash makes two of one.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(path: &str) -> Result<Target, &'static str> {
        if path.len() > PATH_LEN_MAX {
            return Err("the path is too long");
        }
        let rest = path.strip_prefix('/').ok_or("the path does not begin with a slash")?;
        let mut names = Vec::new();
        for part in rest.split('/').filter(|part| !part.is_empty()) {
            let name: Vec<u8> = percent_decode_str(part).collect();
            check(&name)?;
            if is_reserved(&name) {
                return Err("names that begin with .bivouac- are the server's own");
            }
            names.push(name);
        }
        Ok(Target { is_dir: names.is_empty() || path.ends_with('/'), names })
    }

    /// From a path that is not encoded.
    ///
    /// # Errors
    /// As [`Target::parse`].
    pub fn plain(path: &[u8]) -> Result<Target, &'static str> {
        let mut names = Vec::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            check(name)?;
            names.push(name.to_vec());
        }
        Ok(Target { is_dir: names.is_empty() || path.ends_with(b"/"), names })
    }

    /// What of it is below `top`; `None` if it is not.
    #[must_use]
    pub fn below(&self, top: &Target) -> Option<Target> {
        let names = self.names.strip_prefix(top.names.as_slice())?;
        Some(Target { names: names.to_vec(), is_dir: self.is_dir })
    }

    /// As a path.
    #[must_use]
    pub fn path(&self) -> Vec<u8> {
        let mut path = vec![b'/'];
        path.extend_from_slice(&self.names.join(&b'/'));
        if self.is_dir && !self.names.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// As a request writes it.
    #[must_use]
    pub fn encoded(&self) -> String {
        let mut text: String = self.names.iter().map(|name| format!("/{}", encoded(name))).collect();
        if self.is_dir {
            text.push('/');
        }
        text
    }

    /// Its last name.
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

/// A name as a request writes it. What is no UTF-8 is encoded byte by byte.
#[must_use]
pub fn encoded(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => utf8_percent_encode(text, ESCAPED).to_string(),
        Err(_) => name.iter().map(|byte| format!("%{byte:02X}")).collect(),
    }
}

/// A request's parameters, without values those that have none.
pub fn parameters(query: Option<&str>) -> impl Iterator<Item = (&str, Option<&str>)> {
    let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').map_or((part, None), |(name, value)| (name, Some(value))))
}

/// Whether a request's parameters have one of this name, with any value.
#[must_use]
pub fn has_parameter(query: Option<&str>, name: &str) -> bool {
    parameters(query).any(|(known, _)| known == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_before_they_are_decoded() {
        let target = Target::parse("/a%20b//c%C3%A4/").unwrap();
        assert_eq!(target.names, [b"a b".to_vec(), "cä".into()]);
        assert!(target.is_dir);
        assert_eq!(target.encoded(), "/a%20b/c%C3%A4/");
        assert_eq!(target.path(), "/a b/cä/".as_bytes());
        assert_eq!(Target::parse("/").unwrap(), Target { names: vec![], is_dir: true });
        assert_eq!(Target::parse("/%ff").unwrap().encoded(), "/%FF");
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
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Target::parse("/..a/b..").is_ok());
        assert!(Target::parse(&format!("/{}", "x".repeat(PATH_LEN_MAX))).is_err());
        assert!(Target::plain(b"/a/../b").is_err());
    }

    #[test]
    fn what_is_below_a_directory() {
        let (top, inside) = (Target::parse("/a/b").unwrap(), Target::parse("/a/b/c/").unwrap());
        assert_eq!(inside.below(&top).unwrap().path(), b"/c/");
        assert_eq!(Target::parse("/a/bc").unwrap().below(&top), None);
        assert_eq!(Target::parse("/a").unwrap().below(&top), None);
        assert_eq!(top.below(&top).unwrap().names, Vec::<Vec<u8>>::new());
    }

    #[test]
    fn parameters_are_found_by_name() {
        assert!(
            has_parameter(Some("a&metalink"), "metalink") && has_parameter(Some("metalink=4"), "metalink")
        );
        assert!(!has_parameter(Some("metalinks=metalink"), "metalink") && !has_parameter(None, "metalink"));
    }
}
