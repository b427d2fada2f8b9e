//! Conditions of requests: what an object must be for a request to be carried out.

use bivouac_client::Attr;
use hyper::header::{self, HeaderMap, HeaderValue};
use s3s::dto::{ETag, ETagCondition, Timestamp};
use s3s::{S3Error, S3Result, s3_error};

use super::marks;
use super::objects::{e_tag, time};
use crate::uploads::Replace;

/// Conditions on an object that is read: by `GET`, `HEAD`, or as the source of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadConditions<'a> {
    pub if_match: Option<&'a ETagCondition>,
    pub if_none_match: Option<&'a ETagCondition>,
    pub modified_since: Option<&'a Timestamp>,
    pub unmodified_since: Option<&'a Timestamp>,
}

/// The conditions that a type of the protocol has.
macro_rules! read_conditions {
    ($input:expr) => {
        ReadConditions {
            if_match: $input.if_match.as_ref(),
            if_none_match: $input.if_none_match.as_ref(),
            modified_since: $input.if_modified_since.as_ref(),
            unmodified_since: $input.if_unmodified_since.as_ref(),
        }
    };
}

/// The conditions on the source of a copy.
macro_rules! source_conditions {
    ($input:expr) => {
        ReadConditions {
            if_match: $input.copy_source_if_match.as_ref(),
            if_none_match: $input.copy_source_if_none_match.as_ref(),
            modified_since: $input.copy_source_if_modified_since.as_ref(),
            unmodified_since: $input.copy_source_if_unmodified_since.as_ref(),
        }
    };
}

pub(super) use {read_conditions, source_conditions};

/// Reason why a precondition fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailedCondition {
    Precondition,
    NotModified,
}

impl ReadConditions<'_> {
    /// Evaluates the conditions in the order of RFC 9110 (13.2.2): a date counts only without a tag of its kind.
    fn failure(&self, tag: &ETag, modified: &Timestamp) -> Option<FailedCondition> {
        let is_other = match (self.if_match, self.unmodified_since) {
            (Some(wanted), _) => !is_match(wanted, tag),
            (None, since) => since.is_some_and(|since| modified > since),
        };
        if is_other {
            return Some(FailedCondition::Precondition);
        }
        let is_seen = match (self.if_none_match, self.modified_since) {
            (Some(known), _) => is_named(known, tag),
            (None, since) => since.is_some_and(|since| modified <= since),
        };
        is_seen.then_some(FailedCondition::NotModified)
    }

    /// Checks a request that reads.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NotModified` with the headers that RFC 9110 (15.4.5) asks for.
    pub fn check(&self, tag: &str, attr: &Attr) -> S3Result<()> {
        match self.failure(&e_tag(tag), &time(attr)) {
            None => Ok(()),
            Some(FailedCondition::Precondition) => Err(s3_error!(PreconditionFailed)),
            Some(FailedCondition::NotModified) => Err(not_modified(tag, attr)),
        }
    }

    /// Checks the source of a copy.
    ///
    /// # Errors
    /// `PreconditionFailed`.
    pub fn check_source(&self, tag: &str, attr: &Attr) -> S3Result<()> {
        match self.failure(&e_tag(tag), &time(attr)) {
            None => Ok(()),
            Some(_) => {
                Err(s3_error!(PreconditionFailed, "the source of the copy is not as the request wants it"))
            }
        }
    }
}

fn not_modified(tag: &str, attr: &Attr) -> S3Error {
    let mut error = s3_error!(NotModified);
    let mut headers = HeaderMap::new();
    if let Ok(value) = e_tag(tag).to_http_header() {
        headers.insert(header::ETAG, value);
    }
    if let Some(value) = marks::http_date(&time(attr)).and_then(|date| HeaderValue::from_str(&date).ok()) {
        headers.insert(header::LAST_MODIFIED, value);
    }
    error.set_headers(headers);
    error
}

/// Conditions on an object that is to be written.
#[derive(Clone, Debug, Default)]
pub struct WriteConditions {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
}

impl WriteConditions {
    /// Parses the conditions of a request whose protocol type has none.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no tag.
    pub fn of_headers(headers: &HeaderMap) -> S3Result<WriteConditions> {
        let condition = |name| {
            let mut values = headers.get_all(name).iter();
            let Some(value) = values.next() else { return Ok(None) };
            let parsed = ETagCondition::parse_http_header(value.as_bytes());
            match (parsed, values.next()) {
                (Ok(condition), None) => Ok(Some(condition)),
                _ => Err(s3_error!(InvalidArgument, "If-Match and If-None-Match have one tag, or *")),
            }
        };
        Ok(WriteConditions {
            if_match: condition(header::IF_MATCH)?,
            if_none_match: condition(header::IF_NONE_MATCH)?,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.if_none_match.is_none()
    }

    /// Returns the replacement rule; `found` is the present object with its tag.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` where a tag is wanted and nothing is there.
    pub fn replace(&self, found: Option<(&Attr, &str)>) -> S3Result<Replace> {
        match (&self.if_match, &self.if_none_match, found) {
            (None, None, _) => Ok(Replace::Always),
            // As S3 answers, where HTTP has 412.
            (Some(_), _, None) => Err(s3_error!(NoSuchKey)),
            (None, Some(_), None) => Ok(Replace::Never),
            // No content was compared, so another one that came meanwhile may be replaced, too.
            (Some(ETagCondition::Any), None, Some(_)) => Ok(Replace::Existing),
            (wanted, known, Some((attr, tag))) => {
                let tag = e_tag(tag);
                let is_other = wanted.as_ref().is_some_and(|wanted| !is_match(wanted, &tag));
                if is_other || known.as_ref().is_some_and(|known| is_named(known, &tag)) {
                    return Err(s3_error!(PreconditionFailed));
                }
                Ok(Replace::Only(*attr))
            }
        }
    }
}

/// Conditions on an object that is to be removed.
#[derive(Clone, Debug, Default)]
pub struct RemoveConditions {
    pub if_match: Option<ETagCondition>,
    /// Size, in bytes.
    pub size: Option<i64>,
    pub modified: Option<Timestamp>,
}

impl RemoveConditions {
    pub fn is_empty(&self) -> bool {
        self.if_match.is_none() && self.size.is_none() && self.modified.is_none()
    }

    /// Returns whether the conditions are about the content, and not only the existence of the object.
    pub fn compare_content(&self) -> bool {
        let compares_tag = self.if_match.as_ref().is_some_and(|wanted| wanted.as_etag().is_some());
        compares_tag || self.size.is_some() || self.modified.is_some()
    }

    /// Returns whether an object with this tag, size and time may be removed.
    pub fn hold(&self, tag: &str, size: u64, modified: &Timestamp) -> bool {
        self.if_match.as_ref().is_none_or(|wanted| is_match(wanted, &e_tag(tag)))
            && self.size.is_none_or(|wanted| u64::try_from(wanted) == Ok(size))
            && self.modified.as_ref().is_none_or(|wanted| wanted == modified)
    }
}

/// Returns whether a tag matches `If-Match`; weak tags do not.
fn is_match(wanted: &ETagCondition, tag: &ETag) -> bool {
    wanted.as_etag().is_none_or(|wanted| wanted.strong_cmp(tag))
}

/// Returns whether a tag matches `If-None-Match`.
fn is_named(known: &ETagCondition, tag: &ETag) -> bool {
    known.as_etag().is_none_or(|known| known.weak_cmp(tag))
}

/// Returns whether a `Range` applies: `If-Range` names the state of the object.
pub fn range_counts(headers: &HeaderMap, tag: &str, attr: &Attr) -> bool {
    let Some(seen) = headers.get(header::IF_RANGE) else { return true };
    let seen = seen.to_str().unwrap_or_default().trim();
    if let Ok(ETagCondition::ETag(seen)) = ETagCondition::parse_http_header(seen.as_bytes()) {
        return seen.strong_cmp(&e_tag(tag));
    }
    marks::timestamp(seen).is_some_and(|date| date == time(attr))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(text: &str) -> Option<ETagCondition> {
        Some(ETagCondition::parse_http_header(text.as_bytes()).unwrap())
    }

    fn date(text: &str) -> Option<Timestamp> {
        Some(marks::timestamp(text).unwrap())
    }

    #[test]
    fn dates_count_where_no_tag_is_said() {
        let (then, before) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:36 GMT");
        let (precondition, not_modified) =
            (Some(FailedCondition::Precondition), Some(FailedCondition::NotModified));
        for (if_match, if_none_match, since, until, failure) in [
            (None, None, None, None, None),
            (tag("\"a\""), None, None, None, None),
            (tag("*"), None, None, None, None),
            (tag("\"b\""), None, None, None, precondition),
            (tag("W/\"a\""), None, None, None, precondition),
            (None, tag("\"a\""), None, None, not_modified),
            (None, tag("W/\"a\""), None, None, not_modified),
            (None, tag("*"), None, None, not_modified),
            (None, tag("\"b\""), None, None, None),
            (None, None, date(then), None, not_modified),
            (None, None, date(before), None, None),
            (None, tag("\"b\""), date(then), None, None),
            (None, None, None, date(then), None),
            (None, None, None, date(before), precondition),
            (tag("\"a\""), None, None, date(before), None),
            (tag("\"b\""), tag("\"a\""), None, None, precondition),
        ] {
            let conditions = ReadConditions {
                if_match: if_match.as_ref(),
                if_none_match: if_none_match.as_ref(),
                modified_since: since.as_ref(),
                unmodified_since: until.as_ref(),
            };
            let modified = date(then).unwrap();
            assert_eq!(conditions.failure(&e_tag("a"), &modified), failure, "{conditions:?}");
        }
    }

    #[test]
    fn both_conditions_of_what_is_written_have_to_hold() {
        let headers = |pairs: &[(&'static str, &str)]| -> HeaderMap {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, value.parse().unwrap());
            }
            headers
        };
        let free = |pairs| WriteConditions::of_headers(&headers(pairs)).unwrap().replace(None);
        assert_eq!(free(&[]).unwrap(), Replace::Always);
        assert_eq!(free(&[("if-none-match", "*")]).unwrap(), Replace::Never);
        assert_eq!(free(&[("if-none-match", "\"a\"")]).unwrap(), Replace::Never);
        assert!(free(&[("if-match", "*")]).is_err() && free(&[("if-match", "\"a\"")]).is_err());
        assert!(WriteConditions::of_headers(&headers(&[("if-match", "a, b")])).is_err());
        let twice = WriteConditions::of_headers(&headers(&[("if-match", "\"a\""), ("if-match", "\"b\"")]));
        assert!(twice.is_err());
    }

    #[test]
    fn all_conditions_of_what_is_removed_have_to_hold() {
        let (then, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT");
        for (if_match, size, modified, holds) in [
            (None, None, None, true),
            (tag("\"a\""), Some(3), date(then), true),
            (tag("*"), None, None, true),
            (tag("\"b\""), Some(3), date(then), false),
            (tag("\"a\""), Some(4), None, false),
            (None, Some(-3), None, false),
            (None, Some(3), date(later), false),
        ] {
            let conditions = RemoveConditions { if_match, size, modified };
            assert_eq!(conditions.hold("a", 3, &date(then).unwrap()), holds, "{conditions:?}");
        }
    }
}
