//! Names under which a formation keeps what is not complete. They mean nothing at a source, and never go there.

/// Start of the names that servers of a formation give.
const START: &[u8] = b".bivouac-";
/// Hexadecimal digits of the word that ends the temporary name of a copy, `.NAME.bivouac-WORD`.
const WORD_LEN: usize = 12;

/// Returns whether a name is the temporary name of a copy: that of `bivouac stage`.
#[must_use]
pub fn is_temporary_copy(name: &[u8]) -> bool {
    let Some((head, word)) = name.len().checked_sub(WORD_LEN).and_then(|at| name.split_at_checked(at)) else {
        return false;
    };
    name.starts_with(b".") && head.ends_with(START) && word.iter().all(u8::is_ascii_hexdigit)
}

/// Returns whether a name is a temporary one: of a server of the formation, or of a copy.
#[must_use]
pub fn is_temporary_name(name: &[u8]) -> bool {
    name.starts_with(START) || is_temporary_copy(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_made_by_us_are_temporary() {
        for name in [".bivouac-uploads", ".bivouac-put-0123", ".f.bivouac-0123456789ab"] {
            assert!(is_temporary_name(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            ".",
            "bivouac-x",
            ".bivouac",
            "f.bivouac-0123456789ab",
            ".f.bivouac-0123456789a",
            ".f.bivouac-0123456789ag",
        ] {
            assert!(!is_temporary_name(name.as_bytes()), "{name}");
        }
        assert!(!is_temporary_copy(b".bivouac-uploads"));
    }
}
