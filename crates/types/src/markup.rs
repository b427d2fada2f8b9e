//! Text in HTML and XML.

/// Returns the text so that nothing of it is markup, in an element or an attribute. Characters that XML cannot
/// represent are replaced by U+FFFD.
#[must_use]
pub fn escape_markup(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML parsers normalize a carriage return to a line feed.
            '\r' => escaped.push_str("&#13;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() && !matches!(control, '\n' | '\t') => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_markup() {
        assert_eq!(escape_markup("<a href='x'>&\"\u{1}"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\u{fffd}");
        assert_eq!(escape_markup("a\r\u{fffe}\u{ffff}\u{fffc}"), "a&#13;\u{fffd}\u{fffd}\u{fffc}");
    }
}
