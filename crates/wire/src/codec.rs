//! The encoding of bodies and records: little-endian integers; bytes and lists behind a `u32`
//! count; options behind a byte that is 0 or 1; structures field by field in their order.

use bivouac_types::{
    Attr, ClientId, Contract, ExpectedFile, FormationId, Ino, Layout, NodeId, OpId, OpenId, PartitionId,
    Placement, SetAttr, SetTime, Slot, StatFs, TargetIndex, Timestamp,
};

/// Reason why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The input ends inside a value.
    Truncated,
    /// Input is left over behind the last value.
    Trailing,
    /// A value that the format does not allow.
    Invalid(&'static str),
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DecodeError::Truncated => f.write_str("bytes end inside a value"),
            DecodeError::Trailing => f.write_str("bytes are left over behind the last value"),
            DecodeError::Invalid(what) => write!(f, "invalid {what}"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A value that can be appended to a body.
pub trait Encode {
    /// Appends the value's bytes.
    fn encode(&self, out: &mut Vec<u8>);

    /// Returns the value's bytes alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(USUAL_LEN);
        self.encode(&mut out);
        out
    }
}

/// Room for the bytes of most values, so that they are not moved while they are encoded.
const USUAL_LEN: usize = 128;

/// A value that can be taken from a body; it may borrow from it.
pub trait Decode<'a>: Sized {
    /// Takes the value from the front of `input`.
    ///
    /// # Errors
    /// When the bytes end early or say something that the type does not allow.
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Takes the value from `bytes`, which must hold nothing else.
    ///
    /// # Errors
    /// As [`Decode::decode`], and when bytes are left over.
    fn from_bytes(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let value = Self::decode(&mut input)?;
        if input.is_empty() { Ok(value) } else { Err(DecodeError::Trailing) }
    }
}

/// The bytes that are still to be decoded.
#[derive(Clone, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    /// Returns whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes `len` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Encode for $ty {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl Decode<'_> for $ty {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok(<$ty>::from_le_bytes(input.take_array()?))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i32, i64);

macro_rules! newtypes {
    ($($ty:ident),*) => {$(
        impl Encode for $ty {
            fn encode(&self, out: &mut Vec<u8>) {
                self.0.encode(out);
            }
        }
        impl Decode<'_> for $ty {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                Ok($ty(Decode::decode(input)?))
            }
        }
    )*};
}
newtypes!(Ino, Slot, NodeId, PartitionId, TargetIndex, ClientId, OpId, OpenId, FormationId);

impl<const N: usize> Encode for [u8; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Decode<'_> for [u8; N] {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        input.take_array()
    }
}

macro_rules! arrays {
    ($($ty:ty),*) => {$(
        impl<const N: usize> Encode for [$ty; N] {
            fn encode(&self, out: &mut Vec<u8>) {
                self.iter().for_each(|item| item.encode(out));
            }
        }
        impl<const N: usize> Decode<'_> for [$ty; N] {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let mut items = [0; N];
                for item in &mut items {
                    *item = Decode::decode(input)?;
                }
                Ok(items)
            }
        }
    )*};
}
// By name: an implementation for all types would overlap with that of `[u8; N]`, which is copied in one go.
arrays!(u32, u64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode<'_> for bool {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        // Other numbers are refused, so that a value has one encoding alone.
        match u8::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Invalid("boolean")),
        }
    }
}

impl Encode for &[u8] {
    fn encode(&self, out: &mut Vec<u8>) {
        assert!(u32::try_from(self.len()).is_ok(), "{} bytes in one value", self.len());
        (self.len() as u32).encode(out);
        out.extend_from_slice(self);
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let len = u32::decode(input)? as usize;
        input.take(len)
    }
}

impl Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl Decode<'_> for String {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = <&[u8]>::decode(input)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Invalid("text"))
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        assert!(u32::try_from(self.len()).is_ok(), "{} items in one list", self.len());
        (self.len() as u32).encode(out);
        let begin = out.len();
        self.iter().for_each(|item| item.encode(out));
        // The decoder takes a list with more items than bytes for damaged.
        assert!(out.len() - begin >= self.len(), "an item of a list takes no byte");
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Vec<T> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = u32::decode(input)? as usize;
        // Every item takes at least one byte, so a huge count cannot make us reserve memory.
        let mut items = Vec::with_capacity(count.min(input.0.len()).min(4096));
        for _ in 0..count {
            // Otherwise a count alone would make a list of up to 2^32 items, if an item had no bytes.
            if input.is_empty() {
                return Err(DecodeError::Truncated);
            }
            items.push(T::decode(input)?);
        }
        Ok(items)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if bool::decode(input)? { T::decode(input).map(Some) } else { Ok(None) }
    }
}

impl Encode for () {
    fn encode(&self, _out: &mut Vec<u8>) {}
}

impl Decode<'_> for () {
    fn decode(_input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

/// Implements the codec of existing structures, field by field.
#[macro_export]
macro_rules! codec_struct {
    ($ty:ident { $($field:ident),* $(,)? }) => {
        impl $crate::Encode for $ty {
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::Encode::encode(&self.$field, out);)*
                // Of a structure without fields the parameter would be unused.
                let _ = out;
            }
        }
        impl $crate::Decode<'_> for $ty {
            fn decode(input: &mut $crate::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                $(let $field = $crate::Decode::decode(input)?;)*
                let _ = input;
                Ok($ty { $($field),* })
            }
        }
    };
}

/// Defines messages that own their fields.
macro_rules! owned {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])* #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }
        $crate::codec_struct!($name { $($field),* });
    )*};
}

/// Implements the codec of an enumeration: the number of the variant as a byte, then its fields in their order. `$what`
/// names it in the error for an unknown number.
#[macro_export]
macro_rules! codec_enum {
    ($ty:ident, $what:literal {
        $($variant:ident $(($($item:ident),*))? $({ $($field:ident),* })? = $number:literal),* $(,)?
    }) => {
        impl $crate::Encode for $ty {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $($ty::$variant $(($($item),*))? $({ $($field),* })? => {
                        out.push($number);
                        $($($crate::Encode::encode($item, out);)*)?
                        $($($crate::Encode::encode($field, out);)*)?
                    })*
                }
            }
        }
        impl $crate::Decode<'_> for $ty {
            fn decode(input: &mut $crate::Reader<'_>) -> Result<Self, $crate::DecodeError> {
                Ok(match <u8 as $crate::Decode>::decode(input)? {
                    $($number => {
                        $($(let $item = $crate::Decode::decode(input)?;)*)?
                        $($(let $field = $crate::Decode::decode(input)?;)*)?
                        $ty::$variant $(($($item),*))? $({ $($field),* })?
                    })*
                    _ => return Err($crate::DecodeError::Invalid($what)),
                })
            }
        }
    };
}

codec_struct!(Timestamp { secs, nanos });
codec_struct!(Attr {
    ino,
    mode,
    nlink,
    uid,
    gid,
    rdev,
    size,
    atime,
    mtime,
    ctime,
    epoch,
    layout,
    holes,
    data_version,
    contract
});
codec_struct!(ExpectedFile { ino, data_version });
codec_struct!(SetAttr { mode, uid, gid, size, atime, mtime, ctime, kill_suid });
codec_struct!(StatFs { block_size, blocks, blocks_free, files, files_free });

impl Encode for Layout {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.stripe, self.width).encode(out);
        (self.base, self.targets).encode(out);
    }
}

impl Decode<'_> for Layout {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (stripe, width) = Decode::decode(input)?;
        let (base, targets) = Decode::decode(input)?;
        let layout = Layout { stripe, width, base, targets };
        // Whoever has a layout divides by its stripe, its width and its targets.
        layout.check().map_err(|_| DecodeError::Invalid("layout"))?;
        Ok(layout)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<'a, A: Decode<'a>, B: Decode<'a>> Decode<'a> for (A, B) {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((A::decode(input)?, B::decode(input)?))
    }
}

codec_enum!(SetTime, "time" { Now = 0, At(time) = 1 });

codec_enum!(Contract, "contract" { Coherent = 0, Session = 1, Strict = 2, Laminated = 3 });

codec_enum!(Placement, "placement" { Striped = 0, Local = 1, Hashed = 2 });

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(0x0102_0304_u32.to_bytes(), [4, 3, 2, 1]);
        assert_eq!((&b"ab"[..]).to_bytes(), [2, 0, 0, 0, b'a', b'b']);
        assert_eq!(Some(7u8).to_bytes(), [1, 7]);
        assert_eq!(vec![1u16, 2].to_bytes(), [2, 0, 0, 0, 1, 0, 2, 0]);
        let layout = Layout { stripe: 4096, width: 2, base: TargetIndex::new(PartitionId(3), 1), targets: 4 };
        assert_eq!(layout.to_bytes(), [0, 16, 0, 0, 2, 0, 1, 0, 3, 0, 4, 0]);
        assert_eq!(SetTime::Now.to_bytes(), [0]);
        assert_eq!(
            Timestamp { secs: -1, nanos: 5 }.to_bytes()[..9],
            [255, 255, 255, 255, 255, 255, 255, 255, 5]
        );
    }

    #[test]
    fn what_is_not_allowed_is_an_error() {
        assert_eq!(bool::from_bytes(&[2]), Err(DecodeError::Invalid("boolean")));
        assert_eq!(u32::from_bytes(&[1, 2, 3]), Err(DecodeError::Truncated));
        assert_eq!(u8::from_bytes(&[1, 2]), Err(DecodeError::Trailing));
        assert_eq!(Layout::from_bytes(&[0; 12]), Err(DecodeError::Invalid("layout")));
        assert_eq!(Vec::<u64>::from_bytes(&[255; 4]), Err(DecodeError::Truncated));
        assert_eq!(String::from_bytes(&[1, 0, 0, 0, 0xff]), Err(DecodeError::Invalid("text")));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Attr::from_bytes(&bytes);
            let _ = SetAttr::from_bytes(&bytes);
            let _ = Vec::<String>::from_bytes(&bytes);
            let _ = Option::<Layout>::from_bytes(&bytes);
        }

        #[test]
        fn values_come_back(size in any::<u64>(), mode in any::<Option<u32>>(), secs in any::<i64>(), kill in any::<bool>()) {
            let set = SetAttr {
                mode, size: Some(size), mtime: Some(SetTime::At(Timestamp { secs, nanos: 7 })),
                atime: Some(SetTime::Now), kill_suid: kill, ..SetAttr::default()
            };
            prop_assert_eq!(SetAttr::from_bytes(&set.to_bytes()), Ok(set));
        }
    }
}
