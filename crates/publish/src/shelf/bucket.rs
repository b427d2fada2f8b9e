//! Objects of a store that speaks S3.

use bivouac_source::{Attrs, Precondition, S3Source, Source};

use super::{CatalogueStore, too_large};
use crate::error::{Cause, PublishResult};

/// The objects below a prefix.
pub struct Bucket {
    /// The store, below the prefix.
    pub store: S3Source,
    /// Name of the bucket.
    pub name: String,
}

impl Bucket {
    fn path(entry: &str, file: &str) -> Vec<u8> {
        format!("{entry}/{file}").into_bytes()
    }

    fn put_file(&self, path: &[u8], bytes: &[u8]) -> PublishResult<()> {
        let (store, attrs) = (&self.store, Attrs { perm: 0o644, ..Attrs::default() });
        let size = bytes.len() as u64;
        let upload = store.begin(path, size, &attrs)?;
        let put = || {
            let len = usize::try_from(store.piece_size(size).unwrap_or(size)).unwrap_or(usize::MAX).max(1);
            let mut pieces = Vec::new();
            for (number, piece) in bytes.chunks(len).enumerate() {
                pieces.push(store.put(&upload, (number * len) as u64, piece)?);
            }
            store.verify(&upload, &pieces)?;
            // Absent, so that of two who publish under one name one fails, and nothing is replaced.
            store.commit(&upload, &pieces, &attrs, &Precondition::Absent)
        };
        match put() {
            Ok(_) => Ok(()),
            Err(error) => {
                let _as_far_as_it_goes = store.abort(&upload);
                Err(error.into())
            }
        }
    }
}

impl CatalogueStore for Bucket {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn put(&self, entry: &str, files: &[(&str, &[u8])]) -> PublishResult<()> {
        let mut done: Vec<Vec<u8>> = Vec::new();
        for (file, bytes) in files {
            let path = Bucket::path(entry, file);
            if let Err(error) = self.put_file(&path, bytes) {
                // The answer may be lost, and not the file: removing the others would leave an entry without them.
                let has_come = error.cause() != Cause::Exists;
                let is_there = || self.get(entry, file, bytes.len()).map(|found| found.as_bytes() == *bytes);
                match has_come.then(is_there) {
                    Some(Ok(true)) => {
                        done.push(path);
                        continue;
                    }
                    Some(Err(unknown)) if unknown.cause() != Cause::NotFound => return Err(error),
                    _ => {}
                }
                done.iter().for_each(|path| drop(self.store.remove(path, None)));
                return Err(error);
            }
            done.push(path);
        }
        Ok(())
    }

    fn get(&self, entry: &str, file: &str, max: usize) -> PublishResult<String> {
        let path = Bucket::path(entry, file);
        let version = self.store.stat(&path)?.version;
        let what = format!("{}/{entry}/{file}", self.name);
        let size =
            usize::try_from(version.size).ok().filter(|size| *size <= max).ok_or_else(|| too_large(&what))?;
        let mut bytes = vec![0; size];
        let read = if size == 0 { 0 } else { self.store.read(&path, &version, 0, &mut bytes)? };
        bytes.truncate(read);
        String::from_utf8(bytes).map_err(|_| too_large(&what))
    }

    fn list(&self) -> PublishResult<Vec<String>> {
        let entries = self.store.list(b"")?.into_iter().filter(|entry| entry.meta.is_dir());
        Ok(entries.filter_map(|entry| String::from_utf8(entry.name).ok()).collect())
    }

    fn remove(&self, entry: &str, files: &[&str]) -> PublishResult<()> {
        for (number, file) in files.iter().enumerate() {
            let path = Bucket::path(entry, file);
            if number == 0 {
                // A store says nothing of the removal of what is not there, and a caller wants to know.
                self.store.stat(&path)?;
            }
            self.store.remove(&path, None)?;
        }
        Ok(())
    }
}
