//! Virtual-hosted buckets, `BUCKET.DOMAIN`, for a configured domain whose names all resolve to this server.

use hyper::header::{self, HeaderMap};
use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// The domain, in small letters.
#[derive(Clone, Debug)]
pub struct BucketDomain(String);

impl BucketDomain {
    /// Creates the domain of this name.
    #[must_use]
    pub fn new(name: &str) -> BucketDomain {
        BucketDomain(name.trim_end_matches('.').to_ascii_lowercase())
    }

    /// Returns the bucket that a host has in its name, be there a port behind it or not. Hosts that are not of the
    /// domain have none, and have it in the path.
    fn bucket(&self, host: &str) -> Option<String> {
        let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
        // Full names may be written with a dot at their end.
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let bucket = name.strip_suffix(&self.0)?.strip_suffix('.')?;
        if bucket.is_empty() { None } else { Some(bucket.to_owned()) }
    }

    /// Returns whether the host name of a request contains a bucket.
    #[must_use]
    pub fn has_bucket(&self, headers: &HeaderMap) -> bool {
        self.bucket_of(headers).is_some()
    }

    /// Returns the bucket that a request has in the name of its host.
    #[must_use]
    pub fn bucket_of(&self, headers: &HeaderMap) -> Option<String> {
        self.bucket(headers.get(header::HOST)?.to_str().ok()?)
    }
}

impl S3Host for BucketDomain {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        Ok(match self.bucket(host) {
            Some(bucket) => VirtualHost::new(&*self.0).with_bucket(bucket),
            None => VirtualHost::new(host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S645.
    #[test]
    fn buckets_are_in_front_of_the_domain_and_nowhere_else() {
        let domain = BucketDomain::new("S3.Camp.example.");
        for (host, bucket) in [
            ("data.s3.camp.example", Some("data")),
            ("Data.S3.camp.example:8443", Some("data")),
            ("my.data.s3.camp.example:1", Some("my.data")),
            ("data.s3.camp.example.", Some("data")),
            ("s3.camp.example:8443", None),
            (".s3.camp.example", None),
            ("datas3.camp.example", None),
            ("data.s3.camp.example.evil", None),
            ("127.0.0.1:8443", None),
            ("[::1]:8443", None),
            ("node7", None),
            ("", None),
        ] {
            assert_eq!(domain.bucket(host).as_deref(), bucket, "{host}");
            assert_eq!(domain.parse_host_header(host).unwrap().bucket(), bucket, "{host}");
        }
    }
}
