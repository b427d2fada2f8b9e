//! Text of other programs and users on a terminal.

use std::borrow::Cow;

/// Returns a name or a message, as one line that does nothing to a terminal: control characters are replaced by U+FFFD.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    replaced(text, |_, _| false)
}

/// Returns text of several lines that does nothing else to a terminal: like [`printable`], but line feeds, carriage
/// returns before them, and tabs stay.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    replaced(text, |control, next| matches!(control, '\n' | '\t') || (control, next) == ('\r', Some('\n')))
}

fn replaced(text: &str, stays: impl Fn(char, Option<char>) -> bool) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut characters = text.chars().peekable();
    let mut shown = String::with_capacity(text.len());
    while let Some(one) = characters.next() {
        let is_shown = !one.is_control() || stays(one, characters.peek().copied());
        shown.push(if is_shown { one } else { char::REPLACEMENT_CHARACTER });
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_nothing_to_a_terminal() {
        assert!(matches!(printable("plain \u{e4}"), Cow::Borrowed("plain \u{e4}")));
        assert_eq!(printable("a\u{1b}[2J\nb\u{9b}"), "a\u{fffd}[2J\u{fffd}b\u{fffd}");
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(printable_lines("a\tb\r\nc\rd\u{7}\n"), "a\tb\r\nc\u{fffd}d\u{fffd}\n");
    }
}
