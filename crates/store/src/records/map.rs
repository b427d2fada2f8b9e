//! The records of one slot, in order of their keys.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

/// The first bytes of a key, with zeros behind a shorter one: in the order of keys, but that several keys may share
/// one.
type Head = [u64; 2];

fn head_of(key: &[u8]) -> Head {
    let mut bytes = [0; size_of::<Head>()];
    bytes.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let both = u128::from_be_bytes(bytes);
    [(both >> 64) as u64, both as u64]
}

/// Memory of a record besides its own bytes: its place in the tree, which is two thirds full.
const PLACE_LEN: u64 = 64;

/// Returns the number of bytes of memory for a record with so many bytes of key and value: what the allocator hands out
/// for them, and its place.
pub(super) fn footprint(payload_len: u64) -> u64 {
    PLACE_LEN + (payload_len + 2 + 8).next_multiple_of(16)
}

/// Key and value in one allocation: half the memory of two.
struct Record(Box<[u8]>);

impl Record {
    /// Creates a record; `key` is at most 65,535 bytes long.
    fn new(key: &[u8], value: &[u8]) -> Record {
        assert!(key.len() <= usize::from(u16::MAX), "a key of {} bytes", key.len());
        let len = (key.len() as u16).to_le_bytes();
        Record([&len, key, value].concat().into_boxed_slice())
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        let (len, rest) = self.0.split_first_chunk::<2>().unwrap_or((&[0, 0], &[]));
        rest.split_at_checked(usize::from(u16::from_le_bytes(*len))).unwrap_or((rest, &[]))
    }

    fn key(&self) -> &[u8] {
        self.parts().0
    }

    fn value(&self) -> &[u8] {
        self.parts().1
    }

    fn payload_len(&self) -> i64 {
        self.0.len() as i64 - 2
    }

    /// Returns its contribution to the counts.
    fn counted(&self) -> Change {
        let bytes = self.payload_len();
        Change { records: 1, bytes, memory: footprint(bytes.unsigned_abs()) as i64 }
    }
}

/// The records whose keys share a head, in order of their keys: never none, hardly ever more than one.
enum Bucket {
    One(Record),
    Many(Vec<Record>),
}

impl Bucket {
    fn as_slice(&self) -> &[Record] {
        match self {
            Bucket::One(record) => std::slice::from_ref(record),
            Bucket::Many(records) => records,
        }
    }

    fn get(&self, key: &[u8]) -> Option<&Record> {
        let records = self.as_slice();
        records.get(records.binary_search_by(|record| record.key().cmp(key)).ok()?)
    }

    /// Returns the record that had the key before.
    fn put(&mut self, record: Record) -> Option<Record> {
        match self {
            Bucket::One(old) if old.key() == record.key() => Some(std::mem::replace(old, record)),
            Bucket::One(_) => {
                // Keys that share their first 16 bytes are rare, so most buckets hold one record without a list
                // around it.
                let Bucket::One(old) = std::mem::replace(self, Bucket::Many(Vec::new())) else { return None };
                let mut both = vec![old, record];
                both.sort_unstable_by(|a, b| a.key().cmp(b.key()));
                *self = Bucket::Many(both);
                None
            }
            Bucket::Many(records) => match records.binary_search_by(|old| old.key().cmp(record.key())) {
                Ok(at) => records.get_mut(at).map(|old| std::mem::replace(old, record)),
                Err(at) => {
                    records.insert(at, record);
                    None
                }
            },
        }
    }

    /// Takes one of several records out; a single one stays, and goes with its bucket.
    fn take(&mut self, key: &[u8]) -> Option<Record> {
        let Bucket::Many(records) = self else { return None };
        let at = records.binary_search_by(|record| record.key().cmp(key)).ok()?;
        let taken = records.remove(at);
        assert!(!records.is_empty(), "a bucket of several records had one");
        if let [_] = records.as_slice() {
            let last = records.pop()?;
            *self = Bucket::One(last);
        }
        Some(taken)
    }
}

/// By how much a change alters the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) records: i64,
    pub(super) bytes: i64,
    pub(super) memory: i64,
}

impl std::ops::AddAssign for Change {
    fn add_assign(&mut self, other: Change) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.memory += other.memory;
    }
}

impl std::ops::Neg for Change {
    type Output = Change;

    fn neg(self) -> Change {
        Change { records: -self.records, bytes: -self.bytes, memory: -self.memory }
    }
}

/// The records of one slot. A search compares heads, which are in the tree's own nodes, and follows a pointer only to
/// what it has found: pointers to keys would be a cache miss for each comparison.
#[derive(Default)]
pub(super) struct SlotMap {
    records: BTreeMap<Head, Bucket>,
}

impl SlotMap {
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.records.get(&head_of(key))?.get(key).map(Record::value)
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Change {
        let record = Record::new(key, value);
        let mut change = record.counted();
        let old = match self.records.entry(head_of(key)) {
            Entry::Occupied(mut bucket) => bucket.get_mut().put(record),
            Entry::Vacant(place) => {
                place.insert(Bucket::One(record));
                None
            }
        };
        if let Some(old) = old {
            change += -old.counted();
        }
        change
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Change {
        let Entry::Occupied(mut bucket) = self.records.entry(head_of(key)) else { return Change::default() };
        let taken = match bucket.get() {
            // A bucket without records would be met by each search of its head, so it goes with its last one.
            Bucket::One(record) if record.key() == key => {
                let Bucket::One(record) = bucket.remove() else { return Change::default() };
                Some(record)
            }
            // Another key with the same head, or one of several.
            _ => bucket.get_mut().take(key),
        };
        taken.map_or(Change::default(), |old| -old.counted())
    }

    /// Returns the keys and values from a key on.
    pub(super) fn range(&self, from: Bound<&[u8]>) -> impl Iterator<Item = (&[u8], &[u8])> {
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => Bound::Included(head_of(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        // Keys of the first bucket may be less than the one to begin with.
        let from = from.map(<[u8]>::to_vec);
        let is_before = move |record: &&Record| match &from {
            Bound::Included(key) => record.key() < key.as_slice(),
            Bound::Excluded(key) => record.key() <= key.as_slice(),
            Bound::Unbounded => false,
        };
        let buckets = self.records.range((first, Bound::Unbounded));
        buckets.flat_map(|(_, bucket)| bucket.as_slice()).skip_while(is_before).map(Record::parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_are_in_order_of_keys_and_counted() {
        let mut map = SlotMap::default();
        let small = footprint(3) as i64;
        assert_eq!(map.put(b"b", b"22"), Change { records: 1, bytes: 3, memory: small });
        assert_eq!(map.put(b"", b"0"), Change { records: 1, bytes: 1, memory: small });
        assert_eq!(map.put(b"ab", b""), Change { records: 1, bytes: 2, memory: small });
        assert_eq!(map.put(b"b", b"2"), Change { records: 0, bytes: -1, memory: 0 });
        assert_eq!(map.get(b"b"), Some(&b"2"[..]));
        assert_eq!(map.get(b"ab"), Some(&b""[..]));
        assert_eq!(map.get(b"a"), None);
        let keys: Vec<&[u8]> = map.range(Bound::Unbounded).map(|(key, _)| key).collect();
        assert_eq!(keys, [&b""[..], b"ab", b"b"]);
        let keys: Vec<&[u8]> = map.range(Bound::Excluded(b"ab")).map(|(key, _)| key).collect();
        assert_eq!(keys, [b"b"]);
        assert_eq!(map.delete(b"b"), Change { records: -1, bytes: -2, memory: -small });
        assert_eq!(map.delete(b"b"), Change::default());
    }

    /// Keys of few bytes, around the length of a head, so that many share one.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let behind = prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..4);
        (prop::sample::select(vec![0, 13, 14, 15, 16]), behind).prop_map(|(zeros, behind)| {
            let mut key = vec![0; zeros];
            key.extend(behind);
            key
        })
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_map(changes in prop::collection::vec((key(), any::<bool>()), 0..60), from in key()) {
            let (mut map, mut model) = (SlotMap::default(), std::collections::BTreeMap::new());
            for (at, (key, put)) in changes.into_iter().enumerate() {
                let value = vec![7; at % 5];
                let old = if put { model.insert(key.clone(), value.clone()) } else { model.remove(&key) };
                let counted = |value: &Vec<u8>| {
                    let bytes = (key.len() + value.len()) as i64;
                    Change { records: 1, bytes, memory: footprint(bytes as u64) as i64 }
                };
                let mut expected = -old.as_ref().map_or(Change::default(), counted);
                if put {
                    expected += counted(&value);
                }
                prop_assert_eq!(if put { map.put(&key, &value) } else { map.delete(&key) }, expected);
                prop_assert_eq!(map.get(&key), model.get(&key).map(Vec::as_slice));
            }
            let listed = |bound: Bound<&[u8]>| -> Vec<(Vec<u8>, Vec<u8>)> {
                map.range(bound).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
            };
            let wanted = |bound: Bound<&[u8]>| -> Vec<(Vec<u8>, Vec<u8>)> {
                let range = model.range::<[u8], _>((bound, Bound::Unbounded));
                range.map(|(key, value)| (key.clone(), value.clone())).collect()
            };
            for bound in [Bound::Included(from.as_slice()), Bound::Excluded(from.as_slice()), Bound::Unbounded] {
                prop_assert_eq!(listed(bound), wanted(bound));
            }
        }
    }

    #[test]
    fn the_longest_key_is_told_from_its_value() {
        let mut map = SlotMap::default();
        let key = vec![7u8; u16::MAX as usize];
        map.put(&key, b"value");
        assert_eq!(map.get(&key), Some(&b"value"[..]));
    }
}
