//! Entries of the fuzzer: decoders return, and accept only what is consistent.

use bivouac_source::{Listing, Meta};
use bivouac_wire::{Decode, Encode};

use crate::protocol::{Coded, HEAD_LEN, Head, ListedDir, Request, Usage, Welcome};
use crate::validate::{self, OwnerSwap};

fn both<T: for<'a> Decode<'a> + Encode>(bytes: &[u8]) -> Option<T> {
    let value = T::from_bytes(bytes).ok()?;
    assert_eq!(value.to_bytes(), bytes, "a value has two forms");
    Some(value)
}

/// A message of either side: the first byte says which.
pub fn message(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let owners = OwnerSwap { here: (1, 1), far: (2, 2) };
    match kind % 6 {
        0 => drop(both::<Request>(bytes)),
        1 => drop(both::<Welcome>(bytes)),
        2 => drop(both::<Usage>(bytes)),
        3 => drop(both::<Coded<Meta>>(bytes).map(|found| validate::meta(found.0, &owners))),
        4 => {
            let listed = both::<Vec<ListedDir>>(bytes).into_iter().flatten();
            listed.filter_map(|dir| dir.listing).for_each(|Coded(found): Coded<Listing>| {
                let _refused_or_not = validate::listing(found, &owners);
            });
        }
        _ => {
            if let Some(head) = bytes.first_chunk::<HEAD_LEN>().and_then(Head::from_bytes) {
                assert_eq!(Head::from_bytes(&head.to_bytes()), Some(head));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_are_no_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            message(&bytes);
        }
    }
}
