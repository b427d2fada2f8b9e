//! Ids of keys, for HTTP and for links: no secrets.

/// Prefix of an id.
pub const KEY_ID_START: &str = "BVK";
/// Characters of an id behind that.
pub const KEY_ID_LEN: usize = 17;
/// The characters of an id: five bits each.
pub const KEY_ID_CHARS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
