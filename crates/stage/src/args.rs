//! The arguments of `--in SRC[:DST]` and `--out SRC:DST`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// One thing to copy. The path in the formation is relative to its root and has no `..`; it is empty for the root
/// itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    /// Source path.
    pub src: PathBuf,
    /// Target path.
    pub dst: PathBuf,
}

/// Parses `SRC[:DST]`: `SRC` is a path of this machine, `DST` one in the formation (an absolute one counts from its
/// root), by default the last name of `SRC`. A `DST` with a slash at its end is the directory that `SRC` is copied
/// into.
/// `\:` is a colon in a name, `\\` a backslash.
///
/// # Errors
/// A sentence that names the argument, what is wrong with it and what to write.
pub fn parse_in(argument: impl AsRef<OsStr>) -> Result<Transfer, String> {
    let argument = argument.as_ref();
    let (src, dst) = sides(argument)?;
    let dst = match dst {
        Some(dst) => into_dir(&src, dst),
        None => src.file_name().map(PathBuf::from).ok_or_else(|| no_last_name(argument))?,
    };
    Ok(Transfer { dst: inside(argument, &dst)?, src })
}

/// Parses `SRC:DST`: `SRC` is a path in the formation (an absolute one counts from its root), `DST` one of this
/// machine. A `DST` with a slash at its end is the directory that `SRC` is copied into. `\:` is a colon in a name, `\\`
/// a backslash.
///
/// # Errors
/// A sentence that names the argument, what is wrong with it and what to write.
pub fn parse_out(argument: impl AsRef<OsStr>) -> Result<Transfer, String> {
    let argument = argument.as_ref();
    let (src, dst) = sides(argument)?;
    let dst = dst.ok_or_else(|| refusal(argument, "has no target; write SRC:DST"))?;
    let src = inside(argument, &src)?;
    Ok(Transfer { dst: into_dir(&src, dst), src })
}

/// Returns the target path of `src` with the rule of `cp`: below a target that ends in a slash. A source without a
/// name, as the formation's root, has its entries copied there.
fn into_dir(src: &Path, dst: PathBuf) -> PathBuf {
    match src.file_name() {
        Some(name) if dst.as_os_str().as_bytes().ends_with(b"/") => dst.join(name),
        _ => dst,
    }
}

/// Refuses a URL with an explanation: copies are made between paths.
///
/// # Errors
/// A sentence that says what to do instead.
pub fn refuse_url(path: &OsStr) -> Result<(), String> {
    let bytes = path.as_bytes();
    let scheme = bytes.windows(3).position(|three| three == b"://").and_then(|end| bytes.get(..end));
    let is_scheme = |scheme: &[u8]| {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        scheme.first().is_some_and(u8::is_ascii_alphabetic) && scheme.iter().all(is_part)
    };
    if !scheme.is_some_and(is_scheme) {
        return Ok(());
    }
    let remedy = "is a URL, and copies are made between paths; to use an object store, put a partition in front of it, \
                  which brings and flushes by itself: bivouac partition create DIR --source s3://BUCKET/PREFIX \
                  (a file of that name is written ./NAME)";
    Err(refusal(path, remedy))
}

/// Splits at the one colon that is not escaped.
fn sides(argument: &OsStr) -> Result<(PathBuf, Option<PathBuf>), String> {
    let url = |at: &usize| refuse_url(OsStr::from_bytes(argument.as_bytes().get(*at..).unwrap_or_default()));
    let behind_colons =
        argument.as_bytes().iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at + 1);
    std::iter::once(0).chain(behind_colons).try_for_each(|at| url(&at))?;
    let mut sides = vec![Vec::new()];
    let mut bytes = argument.as_bytes().iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next_if(|next| matches!(next, b':' | b'\\')) } else { None };
        match (escaped, sides.last_mut()) {
            (None, _) if byte == b':' => sides.push(Vec::new()),
            (escaped, Some(side)) => side.push(escaped.unwrap_or(byte)),
            (_, None) => {}
        }
    }
    if sides.iter().any(Vec::is_empty) {
        return Err(refusal(argument, "has an empty path; write SRC or SRC:DST"));
    }
    let mut paths = sides.into_iter().map(|side| PathBuf::from(OsString::from_vec(side)));
    match (paths.next(), paths.next(), paths.next()) {
        (Some(src), dst, None) => Ok((src, dst)),
        _ => Err(refusal(argument, "has more than one colon; write \\: for a colon in a name")),
    }
}

/// Returns a path in the formation, relative to its root.
fn inside(argument: &OsStr, path: &Path) -> Result<PathBuf, String> {
    let mut relative = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => relative.push(name),
            Component::ParentDir => {
                return Err(refusal(
                    argument,
                    "has .. in its path in the formation; write that path without it",
                ));
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(relative)
}

fn no_last_name(argument: &OsStr) -> String {
    refusal(argument, "does not end in a name; write SRC:DST")
}

fn refusal(argument: &OsStr, what: &str) -> String {
    format!("'{}' {what}", argument.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair(transfer: Result<Transfer, String>) -> (String, String) {
        let transfer = transfer.unwrap();
        (transfer.src.display().to_string(), transfer.dst.display().to_string())
    }

    /// S270.
    #[test]
    fn urls_are_refused_with_what_to_do_instead() {
        for argument in ["s3://bucket/run", "https://h/x", "res:s3://bucket/run", "s3://bucket/run:in"] {
            for outcome in [parse_in(argument), parse_out(argument)] {
                let text = outcome.unwrap_err();
                assert!(text.contains("is a URL") && text.contains("partition create"), "{text}");
            }
        }
        for path in ["./s3://bucket", "/a/s3://b", "s3:/bucket", "://x", "1s://x", "a"] {
            refuse_url(OsStr::new(path)).unwrap();
        }
    }

    #[test]
    fn in_arguments() {
        for (argument, src, dst) in [
            ("a/b:c", "a/b", "c"),
            ("a/b", "a/b", "b"),
            ("/data/set/", "/data/set/", "set"),
            ("../up/x", "../up/x", "x"),
            ("a:/x/./y/", "a", "x/y/a"),
            ("d/f:sub/", "d/f", "sub/f"),
            ("d/f/:/", "d/f/", "f"),
            ("..:sub/", "..", "sub"),
            (".:/", ".", ""),
            (r"a\:b", "a:b", "a:b"),
            (r"a\:b:c\:d", "a:b", "c:d"),
            (r"a\\:b", r"a\", "b"),
            (r"a\b", r"a\b", r"a\b"),
            (r"a\", r"a\", r"a\"),
        ] {
            assert_eq!(pair(parse_in(argument)), (src.into(), dst.into()), "{argument}");
        }
    }

    #[test]
    fn out_arguments() {
        assert_eq!(pair(parse_out("/res/x:../keep/x")), ("res/x".into(), "../keep/x".into()));
        assert_eq!(pair(parse_out(".:/site/all")), (String::new(), "/site/all".into()));
        assert_eq!(pair(parse_out("/res/x:od/")), ("res/x".into(), "od/x".into()));
        assert_eq!(pair(parse_out("x/:/")), ("x".into(), "/x".into()));
        assert_eq!(pair(parse_out(".:od/")), (String::new(), "od/".into()));
    }

    #[test]
    fn refusals_name_the_argument_and_the_remedy() {
        for (argument, says) in [
            ("", "empty path"),
            (":b", "empty path"),
            ("a:", "empty path"),
            ("a:b:c", r"write \:"),
            ("a:../b", "has .. in its path in the formation; write that path without it"),
            ("a:b/../c", "has .. in its path in the formation; write that path without it"),
            ("a:b/../../c", "has .. in its path in the formation; write that path without it"),
            ("/", "does not end in a name"),
            ("..", "does not end in a name"),
            (".", "does not end in a name"),
        ] {
            let refusal = parse_in(argument).unwrap_err();
            assert!(refusal.contains(says) && refusal.contains(argument), "{argument}: {refusal}");
        }
        assert!(parse_out("a").unwrap_err().contains("has no target"));
        assert!(
            parse_out("../a:b")
                .unwrap_err()
                .contains("has .. in its path in the formation; write that path without it")
        );
    }

    #[test]
    fn names_need_not_be_text() {
        let transfer = parse_in(OsStr::from_bytes(b"d/\xff:\xfe")).unwrap();
        assert_eq!(transfer.src.as_os_str().as_bytes(), b"d/\xff");
        assert_eq!(transfer.dst.as_os_str().as_bytes(), b"\xfe");
    }

    proptest! {
        #[test]
        fn the_formation_side_never_leaves_the_formation(argument: Vec<u8>) {
            let argument = OsString::from_vec(argument);
            let stays = |path: &Path| path.components().all(|c| matches!(c, Component::Normal(_)));
            if let Ok(transfer) = parse_in(&argument) {
                prop_assert!(stays(&transfer.dst));
            }
            if let Ok(transfer) = parse_out(&argument) {
                prop_assert!(stays(&transfer.src));
            }
        }

        #[test]
        fn escaped_paths_come_back(src in "[a-c:\\\\]{1,6}", dst in "[a-c:\\\\]{1,6}") {
            let escape = |path: &str| path.replace('\\', r"\\").replace(':', r"\:");
            let argument = format!("{}:{}", escape(&src), escape(&dst));
            prop_assert_eq!(pair(parse_in(argument)), (src, dst));
        }
    }
}
