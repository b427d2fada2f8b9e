//! Checksums of S3 besides MD5: declared in headers or trailers, compared before the object gets its name, and stored
//! for readers.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use s3s::checksum::ChecksumHasher;
use s3s::dto::{ChecksumAlgorithm, ChecksumType};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, TrailingHeaders, s3_error};
use serde::{Deserialize, Serialize};

/// The header that names the trailers which come behind a body.
const ANNOUNCED: &str = "x-amz-trailer";
/// Prefix of checksum headers and trailers.
const HEADER_START: &str = "x-amz-checksum-";

/// Algorithm of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

/// Checksums of some bytes, in base64.
pub type Checksums = BTreeMap<Kind, String>;

/// The checksums that a type of the protocol has.
macro_rules! sums {
    ($from:expr) => {{
        use $crate::s3::checksums::{Checksums, Kind};
        let from = &$from;
        let all = [
            (Kind::Crc32, &from.checksum_crc32),
            (Kind::Crc32c, &from.checksum_crc32c),
            (Kind::Crc64Nvme, &from.checksum_crc64nvme),
            (Kind::Sha1, &from.checksum_sha1),
            (Kind::Sha256, &from.checksum_sha256),
        ];
        all.into_iter().filter_map(|(kind, sum)| Some((kind, sum.clone()?))).collect::<Checksums>()
    }};
}

/// Gives a type of the protocol checksums.
macro_rules! set_sums {
    ($to:expr, $sums:expr) => {{
        use $crate::s3::checksums::Kind;
        $to.checksum_crc32 = $sums.get(&Kind::Crc32).cloned();
        $to.checksum_crc32c = $sums.get(&Kind::Crc32c).cloned();
        $to.checksum_crc64nvme = $sums.get(&Kind::Crc64Nvme).cloned();
        $to.checksum_sha1 = $sums.get(&Kind::Sha1).cloned();
        $to.checksum_sha256 = $sums.get(&Kind::Sha256).cloned();
    }};
}

pub(super) use {set_sums, sums};

impl Kind {
    const ALL: [Kind; 5] = [Kind::Crc32, Kind::Crc32c, Kind::Crc64Nvme, Kind::Sha1, Kind::Sha256];

    /// Returns its name in S3.
    const fn name(self) -> &'static str {
        match self {
            Kind::Crc32 => ChecksumAlgorithm::CRC32,
            Kind::Crc32c => ChecksumAlgorithm::CRC32C,
            Kind::Crc64Nvme => ChecksumAlgorithm::CRC64NVME,
            Kind::Sha1 => ChecksumAlgorithm::SHA1,
            Kind::Sha256 => ChecksumAlgorithm::SHA256,
        }
    }

    /// Returns the kind that a request names.
    ///
    /// # Errors
    /// For one that there is not.
    pub fn named(name: &ChecksumAlgorithm) -> S3Result<Kind> {
        let found = Kind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name.as_str()));
        found.ok_or_else(|| {
            s3_error!(InvalidRequest, "checksums are CRC32, CRC32C, CRC64NVME, SHA1 and SHA256")
        })
    }

    pub fn algorithm(self) -> ChecksumAlgorithm {
        ChecksumAlgorithm::from_static(self.name())
    }

    /// Returns the kind that a header or trailer is of.
    fn of_header(name: &str) -> Option<Kind> {
        let name = name.strip_prefix(HEADER_START)?;
        Kind::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }

    /// Returns its CRC algorithm, if it is a CRC: the CRC of the whole follows from those of the pieces.
    fn crc(self) -> Option<CrcAlgorithm> {
        match self {
            Kind::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
            Kind::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
            Kind::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
            Kind::Sha1 | Kind::Sha256 => None,
        }
    }

    fn len(self) -> usize {
        match self {
            Kind::Crc32 | Kind::Crc32c => 4,
            Kind::Crc64Nvme => 8,
            Kind::Sha1 => 20,
            Kind::Sha256 => 32,
        }
    }

    /// Returns the bytes of a checksum, if it can be one.
    fn bytes(self, sum: &str) -> Option<Vec<u8>> {
        STANDARD.decode(sum).ok().filter(|bytes| bytes.len() == self.len())
    }
}

/// Creates a hasher of several algorithms.
pub fn hasher(kinds: impl IntoIterator<Item = Kind>) -> ChecksumHasher {
    let mut hasher = ChecksumHasher::default();
    for kind in kinds {
        match kind {
            Kind::Crc32 => hasher.crc32 = Some(Default::default()),
            Kind::Crc32c => hasher.crc32c = Some(Default::default()),
            Kind::Crc64Nvme => hasher.crc64nvme = Some(Default::default()),
            Kind::Sha1 => hasher.sha1 = Some(Default::default()),
            Kind::Sha256 => hasher.sha256 = Some(Default::default()),
        }
    }
    hasher
}

/// Checksums that a request declares in headers and trailers.
#[derive(Debug, Default)]
pub struct DeclaredChecksums {
    pub md5: Option<String>,
    sums: Checksums,
    announced: Vec<Kind>,
    trailers: Option<TrailingHeaders>,
}

impl DeclaredChecksums {
    /// # Errors
    /// For checksums that can be none, and trailers that there are not.
    pub fn new<I>(
        request: &mut S3Request<I>,
        sums: Checksums,
        md5: Option<String>,
    ) -> S3Result<DeclaredChecksums> {
        if let Some((kind, _)) = sums.iter().find(|(kind, sum)| kind.bytes(sum).is_none()) {
            let text = format!("the checksum {} has another length, in base64", kind.name());
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, text));
        }
        let announced = announced(&request.headers)?;
        // Empty until all of the body was read.
        let trailers = request.trailing_headers.take();
        if !announced.is_empty() && trailers.is_none() {
            return Err(s3_error!(InvalidRequest, "trailers come behind a body by chunks (aws-chunked)"));
        }
        Ok(DeclaredChecksums { md5, sums, announced, trailers })
    }

    /// Creates a hasher of all declared checksums.
    pub fn hasher(&self) -> ChecksumHasher {
        hasher(self.sums.keys().chain(&self.announced).copied())
    }

    /// Compares the body with the declared checksums, after all of it has been read.
    ///
    /// # Errors
    /// `BadDigest` for other bytes, `MalformedTrailerError` for other trailers than those that were announced.
    pub fn compare(&self, md5: &[u8], sums: &Checksums) -> S3Result<()> {
        if self.md5.as_ref().is_some_and(|said| *said != STANDARD.encode(md5)) {
            return Err(s3_error!(BadDigest));
        }
        check_all(&self.sums, sums)?;
        let behind = self.trailers.as_ref().and_then(TrailingHeaders::take).unwrap_or_default();
        check_all(&behind_body(&behind, &self.announced)?, sums)
    }
}

/// Returns the checksums that are to come in trailers.
fn announced(headers: &HeaderMap) -> S3Result<Vec<Kind>> {
    let mut kinds = Vec::new();
    for value in headers.get_all(ANNOUNCED) {
        let wrong =
            || s3_error!(InvalidRequest, "x-amz-trailer names checksums: x-amz-checksum-crc32 and the like");
        for name in value.to_str().map_err(|_| wrong())?.split(',') {
            kinds.push(Kind::of_header(&name.trim().to_ascii_lowercase()).ok_or_else(wrong)?);
        }
    }
    Ok(kinds)
}

/// Returns the checksums in trailers: each that was announced, once, and nothing else.
fn behind_body(trailers: &HeaderMap, announced: &[Kind]) -> S3Result<Checksums> {
    let wrong = || {
        let text = "the body ends with the trailers that x-amz-trailer names, each once, and with no others";
        let mut refused = S3Error::with_message(S3ErrorCode::Custom("MalformedTrailerError".into()), text);
        refused.set_status_code(StatusCode::BAD_REQUEST);
        refused
    };
    let mut sums = Checksums::new();
    for (name, value) in trailers {
        let kind =
            Kind::of_header(name.as_str()).filter(|kind| announced.contains(kind)).ok_or_else(wrong)?;
        let value = value.to_str().map_err(|_| wrong())?;
        if sums.insert(kind, value.to_owned()).is_some() {
            return Err(wrong());
        }
    }
    if announced.iter().all(|kind| sums.contains_key(kind)) { Ok(sums) } else { Err(wrong()) }
}

fn check_all(said: &Checksums, are: &Checksums) -> S3Result<()> {
    match said.iter().find(|(kind, sum)| are.get(kind) != Some(sum)) {
        None => Ok(()),
        Some((kind, _)) => {
            let text = format!("the {} that was said is not that of the bytes that came", kind.name());
            Err(S3Error::with_message(S3ErrorCode::BadDigest, text))
        }
    }
}

/// The checksums that are kept of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredChecksums {
    pub sums: Checksums,
    /// True if the checksum covers the checksums of parts instead of the bytes.
    #[serde(default)]
    pub is_composite: bool,
}

impl StoredChecksums {
    pub fn of(sums: Checksums) -> StoredChecksums {
        StoredChecksums { sums, is_composite: false }
    }

    /// Returns its type in S3.
    pub fn kind(&self) -> Option<ChecksumType> {
        (!self.sums.is_empty()).then(|| type_of(!self.is_composite))
    }

    /// Returns the checksum of a multipart upload whose parts all have one: of all bytes, or of the checksums of the
    /// parts.
    pub fn joined(kind: Kind, is_whole: bool, parts: &[(Checksums, u64)]) -> Option<StoredChecksums> {
        let all = parts.iter().map(|(sums, len)| Some((kind.bytes(sums.get(&kind)?)?, *len)));
        let all: Vec<(Vec<u8>, u64)> = all.collect::<Option<_>>()?;
        let sum = if is_whole { whole(kind, &all)? } else { composite(kind, &all)? };
        Some(StoredChecksums { sums: Checksums::from([(kind, sum)]), is_composite: !is_whole })
    }
}

/// Returns the S3 type of a full-object or composite checksum.
pub fn type_of(is_whole: bool) -> ChecksumType {
    let kind = if is_whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
    ChecksumType::from_static(kind)
}

fn composite(kind: Kind, parts: &[(Vec<u8>, u64)]) -> Option<String> {
    let mut hasher = hasher([kind]);
    parts.iter().for_each(|(sum, _)| hasher.update(sum));
    let mut sums = sums!(hasher.finalize());
    sums.remove(&kind).map(|sum| format!("{sum}-{}", parts.len()))
}

/// Returns a CRC of all bytes, out of those of the parts.
fn whole(kind: Kind, parts: &[(Vec<u8>, u64)]) -> Option<String> {
    let crc = kind.crc()?;
    let number = |sum: &[u8]| sum.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mut parts = parts.iter().map(|(sum, len)| (number(sum), *len));
    let (first, _) = parts.next()?;
    let all = parts.fold(first, |all, (sum, len)| crc_fast::checksum_combine(crc, all, sum, len));
    let bytes = all.to_be_bytes();
    bytes.get(bytes.len() - kind.len()..).map(|bytes| STANDARD.encode(bytes))
}

#[cfg(test)]
pub fn fuzzed(text: &str, bytes: &[u8]) {
    let headers: HeaderMap = [(ANNOUNCED, text)]
        .into_iter()
        .filter_map(|(n, v)| Some((n.parse().ok()?, v.parse().ok()?)))
        .collect();
    let kinds = announced(&headers).unwrap_or_default();
    assert!(kinds.is_empty() || behind_body(&HeaderMap::new(), &kinds).is_err());
    let _ = (Kind::Sha1.bytes(text), serde_json::from_slice::<StoredChecksums>(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    fn of(kind: Kind, bytes: &[u8]) -> Checksums {
        let mut hasher = hasher([kind]);
        hasher.update(bytes);
        sums!(hasher.finalize())
    }

    /// The check values of the catalogues of CRCs, and of FIPS 180.
    #[test]
    fn checksums_are_those_of_the_standards() {
        for (kind, expected) in [
            (Kind::Crc32, "y/Q5Jg=="),
            (Kind::Crc32c, "4waSgw=="),
            (Kind::Crc64Nvme, "rosUhgp5mIg="),
            (Kind::Sha1, "98O8HYCOBHMq32eZZczDTKeuNEE="),
            (Kind::Sha256, "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ] {
            let sums = of(kind, b"123456789");
            let len = kind.bytes(expected).map(|bytes| bytes.len());
            assert_eq!(
                (len, &sums),
                (Some(kind.len()), &Checksums::from([(kind, expected.to_owned())])),
                "{kind:?}"
            );
            assert_eq!(Kind::named(&kind.algorithm()).unwrap(), kind);
        }
        assert!(Kind::named(&ChecksumAlgorithm::from("MD4".to_owned())).is_err());
    }

    #[test]
    fn parts_give_the_checksum_of_the_whole() {
        for kind in [Kind::Crc32, Kind::Crc32c, Kind::Crc64Nvme] {
            let parts = [&b"12"[..], b"", b"3456789"].map(|part| (of(kind, part), part.len() as u64));
            let kept = StoredChecksums::joined(kind, true, &parts).unwrap();
            assert_eq!(kept, StoredChecksums::of(of(kind, b"123456789")), "{kind:?}");
            assert!(
                StoredChecksums::joined(kind, false, &parts).unwrap().sums[&kind].ends_with("-3"),
                "{kind:?}"
            );
        }
        let parts = [(of(Kind::Sha1, b"x"), 1)];
        assert_eq!(StoredChecksums::joined(Kind::Sha1, true, &parts), None);
        assert_eq!(StoredChecksums::joined(Kind::Sha256, false, &parts), None);
        assert!(StoredChecksums::joined(Kind::Sha1, false, &parts).unwrap().is_composite);
        assert_eq!(StoredChecksums::joined(Kind::Crc32, true, &[]), None);
    }

    #[test]
    fn trailers_are_what_was_announced() {
        let kinds = |value: &str| announced(&headers(&[(ANNOUNCED, value)]));
        assert_eq!(kinds("X-Amz-Checksum-CRC32").unwrap(), [Kind::Crc32]);
        assert_eq!(kinds("x-amz-checksum-sha1, x-amz-checksum-crc32c").unwrap(), [Kind::Sha1, Kind::Crc32c]);
        for wrong in
            ["", ",", "x-amz-checksum-", "x-amz-checksum-md5", "x-amz-checksum-crc32,", "crc32", "host"]
        {
            assert!(kinds(wrong).is_err(), "{wrong}");
        }
        let sum = ("x-amz-checksum-crc32", "y/Q5Jg==");
        let behind = |lines: &[_], kinds: &[Kind]| behind_body(&headers(lines), kinds);
        assert_eq!(behind(&[sum], &[Kind::Crc32]).unwrap(), of(Kind::Crc32, b"123456789"));
        assert_eq!(behind(&[], &[]).unwrap(), Checksums::new());
        for (lines, kinds) in [
            (&[][..], &[Kind::Crc32][..]),
            (&[sum], &[]),
            (&[sum], &[Kind::Sha1]),
            (&[sum], &[Kind::Crc32, Kind::Sha1]),
            (&[sum, sum], &[Kind::Crc32]),
            (&[sum, ("x-other", "1")], &[Kind::Crc32]),
        ] {
            let refused = behind(lines, kinds).unwrap_err();
            assert_eq!(refused.code().as_str(), "MalformedTrailerError", "{lines:?}");
            assert_eq!(refused.status_code(), Some(StatusCode::BAD_REQUEST));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let said = DeclaredChecksums { sums: of(Kind::Crc32c, b"said"), ..DeclaredChecksums::default() };
        assert!(said.compare(b"", &of(Kind::Crc32c, b"said")).is_ok());
        for other in [of(Kind::Crc32c, b"sent"), Checksums::new()] {
            assert_eq!(*said.compare(b"", &other).unwrap_err().code(), S3ErrorCode::BadDigest);
        }
    }
}
