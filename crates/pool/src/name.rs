//! Names of pools, and how one is meant.

use std::fmt;
use std::str::FromStr;

/// Longest name.
const NAME_MAX: usize = 64;

/// A name of a pool: what can be the name of a directory anywhere, and needs no quotes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PoolName(String);

impl PoolName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PoolName {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolName, String> {
        let odd = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"._-".contains(*c));
        let rule = "a name has 1 to 64 of A-Z a-z 0-9 . _ - and begins with a letter or a digit";
        match (odd, text.chars().next()) {
            (Some(odd), _) => Err(format!("has the character {odd:?}; {rule}")),
            // A first `-` would be taken for an option, and a first `.` hides the directory.
            (None, Some(first)) if first.is_ascii_alphanumeric() && text.len() <= NAME_MAX => {
                Ok(PoolName(text.to_owned()))
            }
            _ => Err(rule.to_owned()),
        }
    }
}

/// A pool as it is meant: one's own by its name, another user's as `UID/NAME`; of several of a name, which have ended,
/// one by its number, as `NAME#7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRef {
    /// Its owner; `None` for the caller.
    pub owner: Option<u32>,
    /// Its name.
    pub name: PoolName,
    /// Its number; nothing means the one that lives, else the last one.
    pub id: Option<i64>,
}

impl fmt::Display for PoolRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.map_or(Ok(()), |owner| write!(f, "{owner}/"))?;
        f.write_str(self.name.as_str())?;
        self.id.map_or(Ok(()), |id| write!(f, "#{id}"))
    }
}

impl FromStr for PoolRef {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolRef, String> {
        let (rest, id) = match text.split_once('#') {
            Some((rest, id)) => (rest, Some(id)),
            None => (text, None),
        };
        let no_id = |id: &str| format!("'{id}' is no number of a pool; it is meant as NAME#7");
        let id = id.map(|id| id.parse().ok().filter(|id| *id > 0).ok_or_else(|| no_id(id))).transpose()?;
        let Some((owner, name)) = rest.split_once('/') else {
            return Ok(PoolRef { owner: None, name: rest.parse()?, id });
        };
        let wrong = |_| format!("'{owner}' is no user id; another user's pool is meant as UID/NAME");
        Ok(PoolRef { owner: Some(owner.parse().map_err(wrong)?), name: name.parse()?, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_of_directories() {
        for good in ["mesh", "0", "run-1.b_2", &"x".repeat(64)] {
            assert_eq!(good.parse::<PoolName>().unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", ".x", "-x", "_x", "a b", "a\nb", "é", "a'b", "a\0", &"x".repeat(65)] {
            assert!(bad.parse::<PoolName>().unwrap_err().contains("64"), "{bad:?}");
        }
    }

    #[test]
    fn another_users_pool_is_named_with_the_user() {
        let of = |text: &str| text.parse::<PoolRef>();
        assert_eq!(of("mesh").unwrap().owner, None);
        assert_eq!(
            (of("7/mesh").unwrap().owner, of("7/mesh").unwrap().to_string()),
            (Some(7), "7/mesh".into())
        );
        let earlier = of("7/mesh#3").unwrap();
        assert_eq!((earlier.id, earlier.to_string()), (Some(3), "7/mesh#3".into()));
        for bad in ["mesh#", "mesh#x", "mesh#0", "mesh#-1", "#3", "mesh#3#4"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        for bad in ["/mesh", "x/mesh", "-1/mesh", "7/", "7/a/b", "7/.."] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
