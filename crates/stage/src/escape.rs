//! Textual form of names in manifests, journals and messages.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Escapes tabs, line ends, control characters, backslashes and bytes that are not UTF-8: `\t`, `\n`, `\\`, `\xHH`, as
/// `printf %b` reads them.
#[must_use]
pub fn escape(name: &Path) -> String {
    let mut text = String::new();
    for chunk in name.as_os_str().as_bytes().utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                char if char.is_ascii_control() => text.push_str(&format!("\\x{:02x}", u32::from(char))),
                char => text.push(char),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    // Lines and their fields are separated by these two.
    assert!(!text.contains(['\t', '\n']), "an escaped name has a separator");
    text
}

pub(crate) fn unescape(text: &str) -> Option<PathBuf> {
    let mut name = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let (byte, used) = match (first, tail) {
            (b'\\', [b'\\', ..]) => (b'\\', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'x', high, low, ..]) => (hex(*high)? << 4 | hex(*low)?, 4),
            (b'\\', _) => return None,
            (byte, _) => (*byte, 1),
        };
        name.push(byte);
        rest = rest.get(used..)?;
    }
    Some(PathBuf::from(OsString::from_vec(name)))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}
