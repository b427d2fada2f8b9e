//! Bytes as text: two lower-case digits each.

/// Writes bytes, such as a digest.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    text.extend(digits.map(|digit| char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 })));
    text
}

/// Reads bytes; `None` for anything that [`to_hex`] does not write.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(pairs.len());
    for [high, low] in pairs {
        bytes.push(digit(*high)? << 4 | digit(*low)?);
    }
    Some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_whole_lower_case_pairs_are_read() {
        assert_eq!(from_hex("00ff"), Some(vec![0, 255]));
        for bad in ["0", "0g", "FF", "ä"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes: Vec<u8>) {
            prop_assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        }
    }
}
