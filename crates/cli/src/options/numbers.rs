//! Numbers as people write them, and what is said of those that cannot be.

use bivouac_types::units::parse_size;

/// Most nodes that an option can say; how many of them a machine can have is looked at later.
const NODES_MAX: u64 = 65_535;

/// Reads a whole number from `least` to `most`.
///
/// # Errors
/// The parser's: a sentence that says what may be written.
pub fn number<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| read(text, least, most, &format!("at most {most}"))
}

/// Reads the number of a machine's nodes.
///
/// # Errors
/// A sentence that says what may be written.
pub fn nodes(text: &str) -> Result<u16, String> {
    // 0 and what is too many for this kind of formation are refused with their remedies, once all options are known.
    read(text, 0, NODES_MAX, "at most 256 (with --in-process 1024)")
}

/// Reads a number of bytes per second.
///
/// # Errors
/// A sentence that says what may be written.
pub fn rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err(format!(
            "at {text} bytes per second nothing would ever be done; write a rate such as 500m, or leave the option out"
        )),
        rate => Ok(rate),
    }
}

fn read<T: TryFrom<u64>>(text: &str, least: u64, most: u64, bound: &str) -> Result<T, String> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("'{text}' is not a number; write for instance {}", least.max(4).min(most)));
    }
    // Digits alone do not fit only if they are too many.
    let value: u64 = digits.parse().unwrap_or(u64::MAX);
    if value < least {
        return Err(format!("{text} is too small; at least {least}"));
    }
    T::try_from(value).ok().filter(|_| value <= most).ok_or_else(|| format!("{text} is too many; {bound}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_others_are_refused_in_words() {
        assert_eq!((number::<u16>(0, 9)("7"), number::<u32>(1, 9)("+9")), (Ok(7), Ok(9)));
        for (text, says) in [
            ("", "not a number"),
            ("-1", "not a number"),
            ("1.5", "not a number"),
            ("10", "at most 9"),
            ("0", "at least 1"),
        ] {
            let refusal = number::<u16>(1, 9)(text).unwrap_err();
            assert!(refusal.contains(says), "{text}: {refusal}");
        }
        assert_eq!(nodes("100000").unwrap_err(), "100000 is too many; at most 256 (with --in-process 1024)");
        assert!(nodes("999999999999999999999999").unwrap_err().contains("at most 256"));
        assert_eq!(nodes("0"), Ok(0));
        assert_eq!(rate("2k"), Ok(2048));
        assert!(rate("0").unwrap_err().contains("leave the option out") && rate("x").is_err());
    }
}
