//! The `If` header (RFC 4918, 10.4): lists of lock tokens and entity tags. One list has to hold in all of its parts.

/// Upper limit of lists in a header, and of conditions in all of them.
const LISTS_MAX: usize = 64;
const CONDITIONS_MAX: usize = 256;

/// Conditions that are to hold together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionList {
    /// Resource of the list, if it is not that of the request.
    pub about: Option<String>,
    /// The conditions.
    pub conditions: Vec<Condition>,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// True if the condition must hold, false if it must not.
    pub holds: bool,
    /// The condition.
    pub state: RequiredState,
}

/// A state of what is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredState {
    /// The resource is locked with this token.
    Token(String),
    /// The resource has this entity tag.
    Tag(String),
}

const WRONG: &str = "the If header is not as RFC 4918 (10.4) writes it";

/// Reads a header.
///
/// # Errors
/// A description of what is malformed.
pub fn parse(text: &str) -> Result<Vec<ConditionList>, &'static str> {
    let mut rest = text.trim_start();
    let (mut lists, mut about, mut count) = (Vec::new(), None, 0);
    while !rest.is_empty() {
        if rest.starts_with('<') {
            // One that nothing follows says nothing.
            let (url, behind) = bracketed(rest, '<', '>')?;
            if !behind.trim_start().starts_with('(') {
                return Err(WRONG);
            }
            about = Some(url.to_owned());
            rest = behind.trim_start();
            continue;
        }
        let (conditions, behind) = list(rest)?;
        count += conditions.len();
        // A resource is that of all lists behind it, up to the next one.
        lists.push(ConditionList { about: about.clone(), conditions });
        if lists.len() > LISTS_MAX || count > CONDITIONS_MAX {
            return Err("the If header has too many conditions");
        }
        rest = behind.trim_start();
    }
    if lists.is_empty() { Err(WRONG) } else { Ok(lists) }
}

/// Returns a list, and what is behind it.
fn list(text: &str) -> Result<(Vec<Condition>, &str), &'static str> {
    let mut rest = text.strip_prefix('(').ok_or(WRONG)?.trim_start();
    let mut conditions = Vec::new();
    loop {
        if let Some(behind) = rest.strip_prefix(')') {
            return if conditions.is_empty() { Err(WRONG) } else { Ok((conditions, behind)) };
        }
        let is_not = rest.get(..3).is_some_and(|word| word.eq_ignore_ascii_case("not"));
        if is_not {
            rest = rest.get(3..).unwrap_or_default().trim_start();
        }
        let (state, behind) = state(rest)?;
        conditions.push(Condition { holds: !is_not, state });
        rest = behind.trim_start();
    }
}

fn state(text: &str) -> Result<(RequiredState, &str), &'static str> {
    if text.starts_with('<') {
        let (token, behind) = bracketed(text, '<', '>')?;
        return Ok((RequiredState::Token(token.to_owned()), behind));
    }
    // A tag is quoted, and may have brackets in it.
    let inner = text.strip_prefix('[').ok_or(WRONG)?;
    let (weak, quoted) = inner.strip_prefix("W/").map_or(("", inner), |rest| ("W/", rest));
    let (tag, behind) = bracketed(quoted, '"', '"')?;
    let behind = behind.strip_prefix(']').ok_or(WRONG)?;
    Ok((RequiredState::Tag(format!("{weak}\"{tag}\"")), behind))
}

/// Splits a text at a pair of brackets; returns the inside and the rest.
fn bracketed(text: &str, open: char, close: char) -> Result<(&str, &str), &'static str> {
    text.strip_prefix(open).and_then(|rest| rest.split_once(close)).ok_or(WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(holds: bool, token: &str) -> Condition {
        Condition { holds, state: RequiredState::Token(token.into()) }
    }

    fn tag(holds: bool, tag: &str) -> Condition {
        Condition { holds, state: RequiredState::Tag(tag.into()) }
    }

    #[test]
    fn lists_are_about_what_is_named_before_them() {
        let untagged = parse("(<urn:a> [\"x]\"])(Not <DAV:no-lock>[W/\"y\"])").unwrap();
        assert_eq!(
            untagged,
            [
                ConditionList { about: None, conditions: vec![token(true, "urn:a"), tag(true, "\"x]\"")] },
                ConditionList {
                    about: None,
                    conditions: vec![token(false, "DAV:no-lock"), tag(true, "W/\"y\"")]
                },
            ]
        );
        let tagged = parse("<http://h/a> (<t>) ( not [\"e\"] ) </b>(<u>)").unwrap();
        let about: Vec<_> = tagged.iter().map(|list| list.about.as_deref().unwrap()).collect();
        assert_eq!(about, ["http://h/a", "http://h/a", "/b"]);
        assert_eq!(tagged[1].conditions, [tag(false, "\"e\"")]);
    }

    #[test]
    fn anything_else_is_refused() {
        for wrong in [
            "",
            " ",
            "()",
            "(",
            "<a>",
            "(<a>",
            "(<a)",
            "<a> <b> (<c>)",
            "([x])",
            "([\"x\")",
            "(\"x\")",
            "x",
            "(Not)",
            "(<a>) x",
            "(<a>))",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&"(<a>)".repeat(LISTS_MAX)).is_ok());
        assert!(parse(&"(<a>)".repeat(LISTS_MAX + 1)).is_err());
        assert!(parse(&format!("({})", "<a>".repeat(CONDITIONS_MAX + 1))).is_err());
    }
}
