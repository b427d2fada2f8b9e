//! Catalogues of published data sets, which outlive formations.

use bivouac_source::Environment;
use bivouac_types::hex::to_hex;

use crate::digest::Digest;
use crate::error::{Cause, PublishError, PublishResult};
use crate::manifest::{DataSetFile, Manifest};
use crate::place::Location;
use crate::shelf::{CatalogueStore, open};
use crate::web::Web;
use crate::{metalink, ro_crate};

/// Random bytes of an id.
const ID_RANDOM: usize = 6;
/// Longest part of a title in an id, in letters.
const SLUG_MAX: usize = 40;

/// A catalogue.
pub struct Catalogue<'w> {
    shelf: Box<dyn CatalogueStore + 'w>,
}

/// Entries of a catalogue, and messages for damaged ones.
#[derive(Debug, Default)]
pub struct CatalogueListing {
    /// Data sets, the newest first.
    pub entries: Vec<Manifest>,
    /// Sentences, each with the name of an entry that cannot be read.
    pub damaged: Vec<String>,
}

impl<'w> Catalogue<'w> {
    /// Returns the one at a place.
    ///
    /// # Errors
    /// That there is no way there.
    pub fn open(place: &Location, here: &Environment, web: &'w Web) -> PublishResult<Catalogue<'w>> {
        Ok(Catalogue { shelf: open(place, here, web)? })
    }

    /// Returns the catalogue's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.shelf.name()
    }

    /// Puts a data set in, whole or not at all, under the id that it has.
    ///
    /// # Errors
    /// What the place says; [`Cause::Usage`] for more files than an entry can have.
    pub fn put(&self, manifest: &Manifest, items: &[DataSetFile]) -> PublishResult<()> {
        let metalink = metalink::encode(items);
        let described = ro_crate::encode(manifest, items, &metalink);
        // Whoever reads it refuses what is larger, so nobody is to be given such a one.
        if metalink.len() > metalink::TEXT_MAX || described.len() > ro_crate::TEXT_MAX {
            let text =
                format!("{}: has too many files for one entry; publish its directories", manifest.title);
            return Err(PublishError::new(Cause::Usage, text));
        }
        // The description last: an entry is there once that is, and it has the digest of the metalink.
        let name = ro_crate::metalink_name(&manifest.id);
        self.shelf.put(&manifest.id, &[(&name, metalink.as_bytes()), (ro_crate::FILE, described.as_bytes())])
    }

    /// Returns the descriptions of all data sets.
    ///
    /// # Errors
    /// That it cannot be listed.
    pub fn list(&self) -> PublishResult<CatalogueListing> {
        let mut found = CatalogueListing::default();
        // Directories with other names are not ours, and are no damage.
        for id in self.shelf.list()?.iter().filter(|id| ro_crate::is_id(id)) {
            match self.describe(id) {
                Ok((manifest, _)) => found.entries.push(manifest),
                // Being removed, or not there yet.
                Err(error) if error.cause() == Cause::NotFound => {}
                Err(error) => found.damaged.push(error.to_string()),
            }
        }
        found.entries.sort_by(|a, b| (b.created, &a.id).cmp(&(a.created, &b.id)));
        found.damaged.sort();
        Ok(found)
    }

    /// Returns the description of a data set, and the expected digest of its metalink.
    ///
    /// # Errors
    /// [`Cause::NotFound`], [`Cause::Damaged`].
    pub fn describe(&self, id: &str) -> PublishResult<(Manifest, Digest)> {
        if !ro_crate::is_id(id) {
            let text = format!("{id:?} is no entry's name; see: bivouac find --in {}", self.name());
            return Err(PublishError::new(Cause::Usage, text));
        }
        let text =
            self.shelf.get(id, ro_crate::FILE, ro_crate::TEXT_MAX).map_err(|error| match error.cause() {
                Cause::NotFound => {
                    let text = format!("{}: has no entry {id}; see: bivouac find", self.name());
                    PublishError::new(Cause::NotFound, text)
                }
                _ => error,
            })?;
        let (manifest, digest) = ro_crate::decode(&text).map_err(|why| self.damaged(id, &why))?;
        // A directory that was copied or renamed would otherwise be listed under a name that is not its own.
        if manifest.id == id {
            Ok((manifest, digest))
        } else {
            Err(self.damaged(id, "has the name of another"))
        }
    }

    /// Returns a data set with its files.
    pub fn get(&self, id: &str) -> PublishResult<(Manifest, Vec<DataSetFile>)> {
        let (manifest, digest) = self.describe(id)?;
        let text = self.shelf.get(id, &ro_crate::metalink_name(id), metalink::TEXT_MAX)?;
        if Digest::of(text.as_bytes()) != digest {
            return Err(self.damaged(id, "its metalink is not the one that was published"));
        }
        let items = metalink::decode(&text).map_err(|why| self.damaged(id, &why))?;
        Ok((manifest, items))
    }

    /// Takes one out.
    ///
    /// # Errors
    /// [`Cause::NotFound`].
    pub fn remove(&self, id: &str) -> PublishResult<()> {
        if !ro_crate::is_id(id) {
            // It refuses such a name, with the words that all commands have for it.
            self.describe(id)?;
        }
        self.shelf.remove(id, &[ro_crate::FILE, &ro_crate::metalink_name(id)]).map_err(|error| {
            if error.cause() != Cause::NotFound {
                return error;
            }
            PublishError::new(
                Cause::NotFound,
                format_args!("{}: has no entry {id}; see: bivouac find", self.name()),
            )
        })
    }

    fn damaged(&self, id: &str, why: &str) -> PublishError {
        PublishError::new(Cause::Damaged, format_args!("{}/{id}: {why}", self.name()))
    }
}

/// Returns a new id for a title: readable, and no other's.
///
/// # Errors
/// [`Cause::Other`] without random numbers.
pub fn new_id(title: &str) -> PublishResult<String> {
    let mut random = [0; ID_RANDOM];
    getrandom::fill(&mut random)
        .map_err(|error| PublishError::new(Cause::Other, format_args!("draw random bytes: {error}")))?;
    let letters = title.to_lowercase();
    let words = letters.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let slug: String = words.collect::<Vec<_>>().join("-").chars().take(SLUG_MAX).collect();
    let random = to_hex(&random);
    let dash = if slug.is_empty() || slug.ends_with('-') { "" } else { "-" };
    Ok(format!("{slug}{dash}{random}"))
}

#[cfg(test)]
mod tests;
