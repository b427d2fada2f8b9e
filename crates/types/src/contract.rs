//! The contract of a file or directory as text: what an extended attribute and the command show and take.

use crate::Contract;

/// Name of the extended attribute that shows and sets the contract of a file or directory.
pub const CONTRACT_XATTR: &[u8] = b"user.bivouac.contract";

/// Name of the extended attribute that shows the SHA-256 of a laminated file's content, in hexadecimal digits.
pub const DIGEST_XATTR: &[u8] = b"user.bivouac.sha256";

/// Leaves the contract to the partition.
const OF_PARTITION: &str = "partition";

/// Returns the text of a contract that holds: `strict`, or `strict partition` of an inode without one of its own.
#[must_use]
pub fn format_contract(own: Option<Contract>, effective: Contract) -> String {
    if own.is_some() { effective.to_string() } else { format!("{effective} {OF_PARTITION}") }
}

/// Reads the text of [`format_contract`]: the contract that holds, and whether it is the inode's own.
#[must_use]
pub fn read_contract(text: &str) -> Option<(Contract, bool)> {
    let (word, is_own) = match text.split_once(' ') {
        None => (text, true),
        Some((word, OF_PARTITION)) => (word, false),
        Some(_) => return None,
    };
    word.parse().ok().map(|contract| (contract, is_own))
}

/// Reads a contract that is to be set: a word, or `partition` for none of its own.
///
/// # Errors
/// A sentence that lists what there is.
pub fn parse_contract(text: &str) -> Result<Option<Contract>, String> {
    let word = text.trim_end_matches('\0').trim();
    if word == OF_PARTITION {
        return Ok(None);
    }
    let all = || Contract::WORDS.join(", ");
    word.parse().map(Some).map_err(|_| format!("contract '{word}' is none of {}, {OF_PARTITION}", all()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S730.
    #[test]
    fn contracts_are_read_as_they_are_written() {
        for contract in Contract::ALL {
            let own = format_contract(Some(*contract), *contract);
            assert_eq!(
                (read_contract(&own), parse_contract(&own)),
                (Some((*contract, true)), Ok(Some(*contract)))
            );
            assert_eq!(read_contract(&format_contract(None, *contract)), Some((*contract, false)));
        }
        assert_eq!([read_contract("loose"), read_contract("strict file"), read_contract("")], [None; 3]);
        assert_eq!(format_contract(None, Contract::Session), "session partition");
        assert_eq!(parse_contract("partition"), Ok(None));
        assert_eq!(parse_contract("strict\n\0"), Ok(Some(Contract::Strict)));
    }

    /// S737.
    #[test]
    fn other_words_are_refused_with_a_list() {
        for text in ["", "loose", "partition strict", "strict strict", "strict partition", "Strict"] {
            let refusal = parse_contract(text).unwrap_err();
            assert_eq!(
                refusal,
                format!("contract '{text}' is none of coherent, session, strict, laminated, partition")
            );
        }
    }
}
