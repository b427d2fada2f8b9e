//! Bytes as text in the state file.

use bivouac_types::FormationId;
pub use bivouac_types::hex::{from_hex, to_hex};

/// Reads a formation's id.
#[must_use]
pub fn formation_from_hex(text: &str) -> Option<FormationId> {
    from_hex(text)?.try_into().ok().map(FormationId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_sixteen_bytes() {
        assert_eq!(formation_from_hex("00"), None);
        assert_eq!(formation_from_hex(&"01".repeat(16)), Some(FormationId([1; 16])));
    }
}
