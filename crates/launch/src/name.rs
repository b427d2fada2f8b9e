//! Names of formations: they become names of directories and parts of arguments.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name, in bytes.
pub const NAME_LEN_MAX: usize = 64;

/// A checked name: 1 to 64 of `A-Z a-z 0-9 . _ -`, beginning with none of `.` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FormationName(String);

impl FormationName {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for FormationName {
    fn default() -> FormationName {
        FormationName("default".into())
    }
}

impl FromStr for FormationName {
    type Err = String;

    fn from_str(text: &str) -> Result<FormationName, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty() {
            return Err("a name is empty; write 1 to 64 of A-Z a-z 0-9 . _ -".into());
        }
        if text.len() > NAME_LEN_MAX {
            return Err(format!("name is {} bytes long; {NAME_LEN_MAX} at most", text.len()));
        }
        if let Some(bad) = text.chars().find(|c| !allowed(*c)) {
            return Err(format!("name '{text}' has the character {bad:?}; allowed are A-Z a-z 0-9 . _ -"));
        }
        match text.starts_with(['.', '-']) {
            true => Err(format!("name '{text}' begins with '.' or '-'; begin with a letter or digit")),
            false => Ok(FormationName(text.into())),
        }
    }
}

impl TryFrom<String> for FormationName {
    type Error = String;

    fn try_from(text: String) -> Result<FormationName, String> {
        text.parse()
    }
}

impl From<FormationName> for String {
    fn from(name: FormationName) -> String {
        name.0
    }
}

impl fmt::Display for FormationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_checked() {
        for (bad, says) in
            [("", "empty"), ("a/b", "'/'"), (".", "begins"), ("-x", "begins"), ("ä", "'ä'"), ("a b", "' '")]
        {
            let refusal = bad.parse::<FormationName>().unwrap_err();
            assert!(refusal.contains(says), "{refusal}");
        }
        assert!("x".repeat(65).parse::<FormationName>().unwrap_err().contains("65 bytes"));
        assert_eq!("Run-7_a.b".parse::<FormationName>().unwrap().as_str(), "Run-7_a.b");
    }

    proptest! {
        #[test]
        fn an_accepted_name_is_one_plain_component(text in any::<String>()) {
            if let Ok(name) = text.parse::<FormationName>() {
                let path = std::path::Path::new(name.as_str());
                prop_assert_eq!(path.file_name().and_then(|n| n.to_str()), Some(text.as_str()));
            }
        }
    }
}
