//! Errors of system calls in one style everywhere: the table's words and the errno's name.

use std::borrow::Cow;
use std::io;

use crate::Errno;

/// Separator of the system's text of an error and its number.
const MARK: &str = " (os error ";

/// Returns a text with `no such file or directory (ENOENT)` wherever it has the system's words for that error and its
/// number. Whatever leaves the program for people passes here, so that it does not matter which type an error had on
/// the way.
#[must_use]
pub fn named(text: &str) -> Cow<'_, str> {
    if !text.contains(MARK) {
        return Cow::Borrowed(text);
    }
    let (mut said, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, behind)) = rest.split_once(MARK) {
        match SystemErrorText::of(before, behind) {
            Some(SystemErrorText { errno, words, behind }) => {
                said.push_str(before.get(..before.len() - words).unwrap_or(before));
                said.push_str(&errno.to_string());
                rest = behind;
            }
            None => {
                said.push_str(before);
                said.push_str(MARK);
                rest = behind;
            }
        }
    }
    said.push_str(rest);
    Cow::Owned(said)
}

/// The system's text for an errno of the table.
struct SystemErrorText<'a> {
    errno: Errno,
    /// Length of the system's words.
    words: usize,
    behind: &'a str,
}

impl SystemErrorText<'_> {
    fn of<'a>(before: &str, behind: &'a str) -> Option<SystemErrorText<'a>> {
        let (number, behind) = behind.split_once(')')?;
        let code: i32 = number.parse().ok()?;
        let errno = Errno::from_code(code);
        let system = io::Error::from_raw_os_error(code).to_string();
        let (words, _) = system.split_once(MARK)?;
        let is_known = errno.code() == code && errno.name().is_some() && before.ends_with(words);
        is_known.then_some(SystemErrorText { errno, words: words.len(), behind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn system(errno: Errno) -> String {
        io::Error::from_raw_os_error(errno.code()).to_string()
    }

    #[test]
    fn every_error_of_the_table_is_named_wherever_it_stands() {
        let known = (1..200).map(Errno::from_code).filter(|errno| errno.name().is_some());
        let mut seen = 0;
        for errno in known {
            let text = format!("a: {}; {} again", system(errno), system(errno));
            assert_eq!(named(&text), format!("a: {errno}; {errno} again"));
            seen += 1;
        }
        assert!(seen > 50, "{seen}");
        assert_eq!(named(&system(Errno::ENOENT)), "no such file or directory (ENOENT)");
    }

    #[test]
    fn what_is_no_error_stays_as_it_is() {
        for text in
            ["", "x", "a (os error 2)", "a (os error 2", "(os error )", "No (os error x) (os error 99999)"]
        {
            assert_eq!(named(text), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_borne(before: String, number: i32, after: String) {
            let text = format!("{before}{MARK}{number}){after}{MARK}{after}");
            assert!(named(&text).ends_with(&after));
        }
    }
}
