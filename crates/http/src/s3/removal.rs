//! Objects and buckets that are removed.

use bivouac_client::Attr;
use bivouac_types::{Errno, ExpectedFile, FsError, Ino, mode};
use s3s::dto::{
    DeleteBucketOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput,
    DeletedObject, ETagCondition, ObjectIdentifier,
};
use s3s::{S3Result, s3_error};

use super::conditions::RemoveConditions;
use super::objects::{empty_tag, time};
use super::parts::UPLOADS;
use super::request_gate::no_version;
use super::{S3Context, bucket, error, marks, object, xml};
use crate::locks::ChangeScope;
use crate::request_path::RequestPath;

/// Upper limit of objects per removal request.
const DELETED_MAX: usize = 1000;

impl S3Context {
    /// Removes an object. One that is not there is removed, as S3 has it, whatever the conditions.
    fn remove(&self, place: &RequestPath, conditions: &RemoveConditions) -> S3Result<()> {
        self.check_locks(place, ChangeScope::Tree)?;
        let check = |found: &Attr| {
            // A directory is an object only by its name with the slash.
            if found.is_dir() && !place.is_dir {
                return Err(FsError::from(Errno::ENOENT));
            }
            if !conditions.is_empty() && !self.may_remove(place, *found, conditions)? {
                return Err(FsError::from(Errno::ESTALE));
            }
            let expected = ExpectedFile { ino: found.ino, data_version: Some(found.data_version) };
            Ok(conditions.compare_content().then_some(expected))
        };
        match self.tree.remove(&self.access, place, check) {
            Err(full) if full.errno() == Errno::ENOTEMPTY && place.is_dir => self.unset_folder(place),
            // Afterwards the key does not exist, as S3 requires; a directory with entries is no object.
            Err(gone) if matches!(gone.errno(), Errno::ENOENT | Errno::ENOTDIR | Errno::ENOTEMPTY) => Ok(()),
            removed => removed.map_err(error),
        }
    }

    fn may_remove(
        &self,
        place: &RequestPath,
        found: Attr,
        conditions: &RemoveConditions,
    ) -> Result<bool, FsError> {
        // What is read by the name of a link is what the link leads to.
        let is_link = found.mode & mode::TYPE == mode::LINK;
        let attr = if is_link { self.tree.attr(&self.access, place)? } else { found };
        if attr.is_dir() {
            return Ok(conditions.hold(&empty_tag(), 0, &time(&attr)));
        }
        let tag = marks::tag(self.tree.client()?, &attr)?;
        Ok(conditions.hold(&tag, attr.size, &time(&attr)))
    }

    /// Makes a directory with something in it no object any more.
    fn unset_folder(&self, place: &RequestPath) -> S3Result<()> {
        let client = self.tree.client().map_err(error)?;
        let attr = self.tree.attr(&self.access, place).map_err(error)?;
        if !marks::is_folder(client, attr.ino).map_err(error)? {
            return Ok(());
        }
        self.tree.may_change(&self.access, &attr).map_err(error)?;
        let change = self.tree.member().change().map_err(error)?;
        marks::unset_folder(client, &change.ctx, attr.ino).map_err(error)
    }

    pub fn delete(&self, input: DeleteObjectInput) -> S3Result<DeleteObjectOutput> {
        let place = object(&input.bucket, &input.key)?;
        self.is_bucket_of(&place)?;
        let conditions = RemoveConditions {
            if_match: input.if_match,
            size: input.if_match_size,
            modified: input.if_match_last_modified_time,
        };
        self.remove(&place, &conditions).map(|()| DeleteObjectOutput::default())
    }

    pub fn delete_several(&self, input: DeleteObjectsInput) -> S3Result<DeleteObjectsOutput> {
        self.is_bucket(&input.bucket)?;
        if input.delete.objects.len() > DELETED_MAX {
            return Err(s3_error!(MalformedXML, "one request removes at most {DELETED_MAX} objects"));
        }
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for wanted in input.delete.objects {
            let key = xml::text(wanted.key.clone());
            match self.delete_one_of(&input.bucket, wanted) {
                Ok(()) => deleted.push(DeletedObject { key, ..Default::default() }),
                Err(refused) => errors.push(s3s::dto::Error {
                    code: Some(refused.code().as_str().to_owned()),
                    key,
                    message: refused.message().map(str::to_owned),
                    ..Default::default()
                }),
            }
        }
        let is_quiet = input.delete.quiet.unwrap_or(false);
        let deleted = (!is_quiet).then_some(deleted);
        Ok(DeleteObjectsOutput { deleted, errors: Some(errors), ..Default::default() })
    }

    fn delete_one_of(&self, bucket: &str, wanted: ObjectIdentifier) -> S3Result<()> {
        if wanted.version_id.is_some_and(|version| !matches!(version.as_str(), "" | "null")) {
            return Err(no_version());
        }
        let conditions = RemoveConditions {
            if_match: wanted.e_tag.map(ETagCondition::ETag),
            size: wanted.size,
            modified: wanted.last_modified_time,
        };
        self.remove(&object(bucket, &wanted.key)?, &conditions)
    }

    /// Removes a bucket without objects, with its directories and its uploads that are not complete.
    pub fn delete_bucket(&self, name: &str) -> S3Result<DeleteBucketOutput> {
        let attr = self.is_bucket(name)?;
        let place = bucket(name)?;
        self.check_locks(&place, ChangeScope::Tree)?;
        // First: a bucket that stays keeps its uploads.
        self.check_is_empty(attr.ino)?;
        let uploads =
            RequestPath { names: [place.names.clone(), vec![UPLOADS.to_vec()]].concat(), is_dir: false };
        match self.tree.attr(&self.access, &uploads) {
            Err(missing) if missing.errno() == Errno::ENOENT => {}
            found => self.remove_uploads(&uploads, found.map_err(error)?.ino)?,
        }
        self.tree.remove_dirs(&self.access, &place).map_err(|failed| match failed.errno() {
            Errno::ENOTEMPTY => s3_error!(BucketNotEmpty),
            _ => error(failed),
        })?;
        Ok(DeleteBucketOutput::default())
    }

    /// Refuses a bucket with anything that is not removed with it: files, and directories that are objects.
    fn check_is_empty(&self, top: Ino) -> S3Result<()> {
        let client = self.tree.client().map_err(error)?;
        let mut dirs = vec![top];
        while let Some(dir) = dirs.pop() {
            let looked = self.tree.each_entry(dir, |entry| {
                let Some(attr) = entry.attr else { return Ok(()) };
                if dir == top && entry.name == UPLOADS {
                    return Ok(());
                }
                if !attr.is_dir() || marks::is_folder(client, attr.ino)? {
                    return Err(Errno::ENOTEMPTY.into());
                }
                dirs.push(attr.ino);
                Ok(())
            });
            match looked {
                Err(full) if full.errno() == Errno::ENOTEMPTY => return Err(s3_error!(BucketNotEmpty)),
                // Objects that are already gone do not matter.
                Err(gone) if gone.errno() == Errno::ENOENT => {}
                looked => looked.map_err(error)?,
            }
        }
        Ok(())
    }
}
