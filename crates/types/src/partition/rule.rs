//! Exceptions from a partition's policies, by pattern.

use std::fmt;
use std::str::FromStr;

use super::settings::contract;
use super::{Contract, Glob, Pin, ReadPolicy, WritePolicy};
use crate::check_stripe;
use crate::units::{exact_size, parse_size};

/// Settings for files that match a pattern: `*.chk: write=through stripe=4m`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The files.
    pub glob: Glob,
    /// When their content is brought to the nodes.
    pub read: Option<ReadPolicy>,
    /// When their content goes to site storage.
    pub write: Option<WritePolicy>,
    /// Stripe size of new ones, in bytes.
    pub stripe: Option<u32>,
    /// The pinning of new files.
    pub pin: Option<Pin>,
    /// Contract of new ones; of a pattern `DIR/**`, of new directories of that name right below the partition's
    /// directory.
    pub contract: Option<Contract>,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.glob)?;
        self.read.iter().try_for_each(|read| write!(f, " read={read}"))?;
        self.write.iter().try_for_each(|policy| write!(f, " write={policy}"))?;
        self.stripe.iter().try_for_each(|stripe| write!(f, " stripe={}", exact_size(u64::from(*stripe))))?;
        self.pin.iter().try_for_each(|pin| write!(f, " pin={pin}"))?;
        self.contract.iter().try_for_each(|contract| write!(f, " contract={contract}"))
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        let shape =
            || format!("rule '{text}' is not of the form 'GLOB: read=… write=… stripe=… pin=… contract=…'");
        // The colon that ends a pattern is followed by a space: patterns may have colons of their own.
        let (glob, words) = text.split_once(": ").ok_or_else(shape)?;
        let glob = glob.trim().parse()?;
        let mut rule = Rule { glob, read: None, write: None, stripe: None, pin: None, contract: None };
        for word in words.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(shape)?;
            rule.assign(key, value).map_err(|why| format!("rule '{text}': {why}"))?;
        }
        rule.check().map_err(|why| format!("rule '{text}' {why}")).map(|()| rule)
    }
}

impl Rule {
    fn assign(&mut self, key: &str, value: &str) -> Result<(), String> {
        let is_new = match key {
            "read" => self.read.replace(value.parse()?).is_none(),
            "write" => self.write.replace(value.parse()?).is_none(),
            "stripe" => self.stripe.replace(stripe(value)?).is_none(),
            "pin" => self.pin.replace(value.parse()?).is_none(),
            "contract" => self.contract.replace(contract(value)?).is_none(),
            _ => return Err(format!("'{key}' is none of read, write, stripe, pin, contract")),
        };
        if is_new { Ok(()) } else { Err(format!("'{key}' is said twice")) }
    }

    fn check(&self) -> Result<(), &'static str> {
        let of_content = self.read.is_some() || self.write.is_some();
        if !of_content && self.stripe.is_none() && self.pin.is_none() && self.contract.is_none() {
            return Err("changes nothing: say read=, write=, stripe=, pin= or contract=");
        }
        if self.write == Some(WritePolicy::Never) {
            return Err("keeps files from their source: write=never is said of a whole partition");
        }
        // A node that makes a file knows its name, not its path.
        if self.stripe.is_some() && self.glob.is_of_paths() {
            return Err("gives a path a stripe size: stripe= goes by names only, without a slash");
        }
        if self.pin.is_some() && self.glob.is_of_paths() {
            return Err("pins a path: pin= goes by names only, without a slash; bivouac pin takes paths");
        }
        if self.contract.is_some() && self.glob.is_of_paths() && self.glob.top_directory().is_none() {
            return Err(
                "gives a path a contract: contract= goes by names, without a slash, and by directories right below \
                        the partition's, as DIR/**; bivouac contract set takes paths",
            );
        }
        Ok(())
    }
}

/// Reads a stripe size.
pub(super) fn stripe(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    check_stripe(bytes)?;
    u32::try_from(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_written() {
        let rule: Rule = "*.chk: write=through  stripe=4MiB".parse().unwrap();
        assert_eq!((rule.read, rule.write, rule.stripe), (None, Some(WritePolicy::Through), Some(4 << 20)));
        assert_eq!(rule.to_string(), "*.chk: write=through stripe=4m");
        let pinned: Rule = "*.so: pin=yes".parse().unwrap();
        assert_eq!((pinned.pin, pinned.to_string()), (Some(Pin::Yes), "*.so: pin=yes".to_owned()));
        let strict: Rule = "*.db: contract=strict".parse().unwrap();
        assert_eq!(
            (strict.contract, strict.to_string()),
            (Some(Contract::Strict), "*.db: contract=strict".into())
        );
        let below: Rule = "ckpt*/**: contract=session".parse().unwrap();
        assert_eq!((below.contract, below.glob.top_directory()), (Some(Contract::Session), Some("ckpt*")));
        let odd: Rule = "a:b/*: read=at-start".parse().unwrap();
        assert_eq!((odd.glob.as_str(), odd.read), ("a:b/*", Some(ReadPolicy::AtStart)));
    }

    #[test]
    fn bad_rules_are_refused_by_name() {
        let refusal = |text: &str| text.parse::<Rule>().unwrap_err();
        assert!(refusal("*.chk").contains("not of the form"));
        assert!(refusal("*.chk: fast").contains("not of the form"));
        assert!(refusal("*.chk: speed=9").contains("'speed' is none of read, write, stripe, pin, contract"));
        assert!(refusal("*.chk: stripe=5000").contains("multiple"));
        assert!(refusal("*.chk: stripe=4k stripe=8k").contains("said twice"));
        assert!(refusal("a/*.chk: stripe=4k").contains("without a slash"));
        assert!(refusal("a/*.chk: pin=yes").contains("without a slash"));
        assert!(refusal("*.chk: pin=maybe").contains("'maybe' is none of no, yes"));
        assert!(refusal("*.chk: ").contains("changes nothing"));
        assert!(
            refusal("*.db: contract=loose").contains("contract 'loose' is none of coherent, session, strict")
        );
        for path in ["a/*.db", "/*.db", "a/b/**", "{a,b/c}/**", "**/a/**", "/**"] {
            let text = refusal(&format!("{path}: contract=strict"));
            assert!(text.contains("as DIR/**; bivouac contract set takes paths"), "{text}");
        }
        assert!(refusal("*.chk: write=never").contains("of a whole partition"));
        assert!(refusal("[: read=on-open").contains("not closed"));
    }
}
