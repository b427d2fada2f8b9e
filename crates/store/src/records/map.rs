//! The records of one slot, in order of their keys.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Bound;

/// Key and value in one allocation: half the memory of two, and one cache miss per comparison.
struct Record(Box<[u8]>);

impl Record {
    /// `key` is at most 65,535 bytes long.
    fn new(key: &[u8], value: &[u8]) -> Record {
        let mut bytes = Vec::with_capacity(2 + key.len() + value.len());
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
        Record(bytes.into_boxed_slice())
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
}

impl Borrow<[u8]> for Record {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}

impl Ord for Record {
    fn cmp(&self, other: &Record) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl PartialOrd for Record {
    fn partial_cmp(&self, other: &Record) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Record {
    fn eq(&self, other: &Record) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Record {}

/// By how much a change alters the counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) records: i64,
    pub(super) bytes: i64,
}

impl std::ops::AddAssign for Change {
    fn add_assign(&mut self, other: Change) {
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

/// The records of one slot.
#[derive(Default)]
pub(super) struct SlotMap {
    records: BTreeSet<Record>,
}

impl SlotMap {
    pub(super) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.records.get(key).map(Record::value)
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) -> Change {
        let record = Record::new(key, value);
        let bytes = record.payload_len();
        match self.records.replace(record) {
            Some(old) => Change { records: 0, bytes: bytes - old.payload_len() },
            None => Change { records: 1, bytes },
        }
    }

    pub(super) fn delete(&mut self, key: &[u8]) -> Change {
        match self.records.take(key) {
            Some(old) => Change { records: -1, bytes: -old.payload_len() },
            None => Change::default(),
        }
    }

    /// Keys and values from a key on.
    pub(super) fn range(&self, from: Bound<&[u8]>) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.records.range::<[u8], _>((from, Bound::Unbounded)).map(Record::parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_in_order_of_keys_and_counted() {
        let mut map = SlotMap::default();
        assert_eq!(map.put(b"b", b"22"), Change { records: 1, bytes: 3 });
        assert_eq!(map.put(b"", b"0"), Change { records: 1, bytes: 1 });
        assert_eq!(map.put(b"ab", b""), Change { records: 1, bytes: 2 });
        assert_eq!(map.put(b"b", b"2"), Change { records: 0, bytes: -1 });
        assert_eq!(map.get(b"b"), Some(&b"2"[..]));
        assert_eq!(map.get(b"ab"), Some(&b""[..]));
        assert_eq!(map.get(b"a"), None);
        let keys: Vec<&[u8]> = map.range(Bound::Unbounded).map(|(key, _)| key).collect();
        assert_eq!(keys, [&b""[..], b"ab", b"b"]);
        let keys: Vec<&[u8]> = map.range(Bound::Excluded(b"ab")).map(|(key, _)| key).collect();
        assert_eq!(keys, [b"b"]);
        assert_eq!(map.delete(b"b"), Change { records: -1, bytes: -2 });
        assert_eq!(map.delete(b"b"), Change::default());
    }

    #[test]
    fn the_longest_key_is_told_from_its_value() {
        let mut map = SlotMap::default();
        let key = vec![7u8; u16::MAX as usize];
        map.put(&key, b"value");
        assert_eq!(map.get(&key), Some(&b"value"[..]));
    }
}
