//! Storage of a catalogue: small files that are written as a whole, one directory per entry.

mod bucket;
mod dir;
mod server;

use bivouac_source::{Environment, S3Location, S3Source};

use crate::error::{Cause, PublishError, PublishResult};
use crate::place::Location;
use crate::web::Web;
use bucket::Bucket;
use dir::Dir;
use server::Server;

/// The files of a catalogue.
pub trait CatalogueStore: Send + Sync {
    /// Returns its name.
    fn name(&self) -> String;

    /// Writes the files of a new entry in order: the last one makes the entry visible.
    ///
    /// # Errors
    /// [`Cause::Exists`] if there is such an entry; nothing is changed then.
    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()>;

    /// Returns a file of an entry, of at most so many bytes.
    ///
    /// # Errors
    /// [`Cause::NotFound`], [`Cause::Damaged`].
    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String>;

    /// Returns the names of all directories there.
    ///
    /// # Errors
    /// What the place says.
    fn list(&self) -> PublishResult<Vec<String>>;

    /// Removes the files of an entry in order: the first one makes it invisible.
    ///
    /// # Errors
    /// [`Cause::NotFound`] if the first is not there.
    fn remove(&self, entry: &str, files: &[&str]) -> PublishResult<()>;
}

/// Returns the files at a place.
///
/// # Errors
/// That it is none, or that there are no credentials for it.
pub fn open<'a>(
    place: &Location,
    here: &Environment,
    web: &'a Web,
) -> PublishResult<Box<dyn CatalogueStore + 'a>> {
    match place {
        Location::Path(path) => Ok(Box::new(Dir(path.clone()))),
        Location::S3 { bucket, key, endpoint, region } => {
            let slash = if key.is_empty() { "" } else { "/" };
            let prefix = format!("{key}{slash}");
            let (bucket, endpoint, region) = (bucket.clone(), endpoint.clone(), region.clone());
            let store = S3Source::open(&S3Location { bucket, prefix, endpoint, region }, here)?;
            Ok(Box::new(Bucket { store, name: place.url()? }))
        }
        Location::Web(url) => Ok(Box::new(Server { url: url.clone(), web })),
    }
}

fn exists(what: &str) -> PublishError {
    PublishError::new(Cause::Exists, format_args!("{what}: is there already"))
}

fn too_large(what: &str) -> PublishError {
    PublishError::new(Cause::Damaged, format_args!("{what}: is too large, or no text"))
}
