//! Archives that are buckets of an object store.

use std::path::Path;

use bivouac_source::{Cause, S3Location, S3Source, SourceError};
use bivouac_stage::archive::{Archive, ArchiveError, sweep};
use bivouac_stage::{CopyOptions, Summary};
use bivouac_types::hex::to_hex;
use bivouac_types::{Site, Source};

use super::{ArchiveRequest, CompletedArchive, DAMAGED, is_signs, unless_interrupted};
use crate::environment;
use crate::failure::Failure;

/// Objects of a bucket below a prefix.
pub struct Bucket {
    url: Source,
    place: S3Location,
}

impl Bucket {
    /// Parses a URL of a bucket.
    pub fn parse(text: &str) -> Result<Bucket, String> {
        let url: Source = text.parse()?;
        match url.site() {
            Site::S3 { bucket, prefix, endpoint, region } => {
                let (bucket, prefix) = (bucket.clone(), prefix.clone());
                let place = S3Location { bucket, prefix, endpoint: endpoint.clone(), region: region.clone() };
                Ok(Bucket { url, place })
            }
            Site::Directory { .. } | Site::Formation { .. } => {
                Err(format!("{text}: is no bucket; write s3://BUCKET/PREFIX"))
            }
        }
    }

    /// Returns the objects below a name in it.
    fn below(&self, name: &str) -> Result<S3Source, Failure> {
        let prefix = format!("{}{name}/", self.place.prefix);
        S3Source::open(&S3Location { prefix, ..self.place.clone() }, &environment::objects()).map_err(refused)
    }

    /// Returns the URL of what has a name in it.
    fn url_of(&self, name: &str) -> String {
        let text = self.url.as_str();
        let (place, said) = text.split_at(text.find('?').unwrap_or(text.len()));
        format!("{}/{name}{said}", place.trim_end_matches('/'))
    }

    /// Puts a copy of a pool there, object by object; what an earlier command has put of it stays.
    pub fn put(&self, asked: &ArchiveRequest<'_>) -> Result<CompletedArchive, Failure> {
        let store = self.below(asked.name)?;
        let archive = Archive::new(&store, asked.signs);
        let place = self.url_of(&format!("{}/{}", asked.name, asked.signs));
        let failed = |error: ArchiveError| match error {
            ArchiveError::Differs(path) => asked.failed(format_args!("{}: {DAMAGED}", path.display())),
            error => asked.failed(error),
        };
        sweep(&store, asked.signs, is_signs).map_err(failed)?;
        let what = format!("{} to {place}", asked.site.display());
        let draft = unless_interrupted(&what, |cancel| {
            archive.put(asked.site, &CopyOptions { cancel, ..CopyOptions::default() })
        })?;
        let draft = draft.map_err(failed)?;
        let summary = draft.summary();
        if let Err(objection) = asked.must_be_kept(&summary, place.as_bytes()) {
            let _or_the_next_command_sweeps_it = draft.discard();
            return Err(objection);
        }
        draft.commit().map_err(failed)?;
        Ok(CompletedArchive { summary, place: place.into_bytes() })
    }

    /// Makes a tree of the copy that is there, if it has this digest; answers what it has.
    ///
    /// # Errors
    /// Why it is not made: then nothing is.
    pub fn fetch(&self, digest: Option<&str>, to: &Path) -> Result<Summary, Failure> {
        let (rest, signs) = self.place.prefix.trim_end_matches('/').rsplit_once('/').unwrap_or_default();
        let above = S3Location { prefix: format!("{rest}/"), ..self.place.clone() };
        let store = S3Source::open(&above, &environment::objects()).map_err(refused)?;
        let archive = Archive::new(&store, signs);
        let failed = |error: ArchiveError| Failure::new(1, error);
        let manifest = archive.manifest().map_err(failed)?;
        let summary = manifest.summary();
        // Compared before anything is fetched: what is not the pool's copy is not written to site storage.
        if digest == Some(to_hex(&summary.digest).as_str()) {
            let fetched = unless_interrupted(&format!("{} to {}", self.url, to.display()), |cancel| {
                archive.fetch(&manifest, to, &CopyOptions { cancel, ..CopyOptions::default() })
            })?;
            fetched.map_err(failed)?;
        }
        Ok(summary)
    }
}

/// Returns the failure for an error of the source. Places that are none are the user's mistake, found before anything
/// is asked.
fn refused(error: SourceError) -> Failure {
    Failure::new(if error.cause() == Cause::BadName { 2 } else { 1 }, error)
}
