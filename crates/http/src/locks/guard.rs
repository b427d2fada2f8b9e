//! Conditions of the `If` header, and protection of locked resources.

use std::sync::Arc;

use bivouac_types::{Errno, FsError};
use hyper::StatusCode;
use hyper::header::HeaderMap;

use super::condition::{self, ConditionList, RequiredState};
use super::lock::{self, ChangeScope, Lock, TokenHolder};
use super::{ended, table};
use crate::conditions;
use crate::dav_headers;
use crate::error_response::ErrorResponse;
use crate::request_path::RequestPath;
use crate::tree::{Access, Tree};
use crate::xml;

/// Lock conditions of a request.
#[derive(Clone, Debug, Default)]
pub struct LockConditions {
    lists: Vec<ConditionList>,
    tokens: Vec<String>,
}

impl LockConditions {
    /// Parses the lock conditions of a request.
    ///
    /// # Errors
    /// 400.
    pub fn of(headers: &HeaderMap) -> Result<LockConditions, ErrorResponse> {
        let Some(text) = dav_headers::condition(headers)? else { return Ok(LockConditions::default()) };
        let lists = condition::parse(text).map_err(ErrorResponse::bad_request)?;
        let states = lists.iter().flat_map(|list| &list.conditions).map(|condition| &condition.state);
        // Also those behind Not: what is in the header is submitted (RFC 4918, 10.4.1).
        let tokens = states.filter_map(|state| match state {
            RequiredState::Token(token) => Some(token.clone()),
            RequiredState::Tag(_) => None,
        });
        Ok(LockConditions { tokens: tokens.collect(), lists })
    }

    /// Returns the tokens that it shows.
    #[must_use]
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Returns whether the header has a condition on the state of the request's target.
    #[must_use]
    pub fn says_state(&self, target: &RequestPath, headers: &HeaderMap) -> bool {
        let is_target = |url: &String| {
            let about = dav_headers::here(url, headers).ok().flatten();
            about.is_some_and(|about| lock::path(&about) == lock::path(target))
        };
        let about_it = self.lists.iter().filter(|list| list.about.as_ref().is_none_or(is_target));
        about_it.flat_map(|list| &list.conditions).any(|one| matches!(one.state, RequiredState::Tag(_)))
    }

    /// Refuses a request whose conditions do not hold (412), or that changes a locked resource (423). It may block.
    ///
    /// # Errors
    /// That; what the formation says.
    pub fn check(
        &self,
        tree: &Arc<Tree>,
        asks: RequestHead<'_>,
        changes: &[(&RequestPath, ChangeScope)],
    ) -> Result<Vec<Lock>, ErrorResponse> {
        // Locks outside of the key's path are not revealed.
        if changes.iter().any(|(target, _)| target.below(&asks.access.prefix).is_none()) {
            return Err(FsError::from(Errno::EACCES).into());
        }
        let mut all = table::all(tree)?;
        self.check_conditions(tree, asks, &all)?;
        let shown = TokenHolder { key: &asks.access.key.id, tokens: &self.tokens };
        for (target, reach) in changes {
            let path = lock::path(target);
            while let Some(lock) = lock::stopped(&all, &path, *reach, shown) {
                let token = lock.token.clone();
                if !ended::end_if_gone(tree, lock)? {
                    return Err(locked(lock));
                }
                all.retain(|lock| lock.token != token);
            }
        }
        Ok(all)
    }

    fn check_conditions(
        &self,
        tree: &Arc<Tree>,
        asks: RequestHead<'_>,
        all: &[Lock],
    ) -> Result<(), ErrorResponse> {
        if self.lists.is_empty() {
            return Ok(());
        }
        for list in &self.lists {
            if holds(tree, asks, all, list)? {
                return Ok(());
            }
        }
        Err(ErrorResponse::new(StatusCode::PRECONDITION_FAILED, "what the If header wants does not hold"))
    }
}

/// Access, path and headers of a request.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    pub access: &'a Access,
    pub target: &'a RequestPath,
    pub headers: &'a HeaderMap,
}

/// Returns whether all conditions of a list hold. Resources of other servers, and invisible ones, have no state.
fn holds(
    tree: &Arc<Tree>,
    asks: RequestHead<'_>,
    all: &[Lock],
    list: &ConditionList,
) -> Result<bool, ErrorResponse> {
    let about = match list.about.as_deref() {
        None => Some(asks.target.clone()),
        Some(url) => dav_headers::here(url, asks.headers)?,
    };
    let path = about.as_ref().map(lock::path);
    let tag = || {
        let attr = about.as_ref().and_then(|target| tree.attr(asks.access, target).ok());
        attr.map(|attr| conditions::tag(&attr))
    };
    Ok(list.conditions.iter().all(|condition| {
        let is_so = match &condition.state {
            RequiredState::Token(token) => path
                .as_deref()
                .is_some_and(|path| all.iter().any(|lock| lock.token == *token && lock.covers(path))),
            RequiredState::Tag(wanted) => tag().is_some_and(|tag| tag == *wanted),
        };
        is_so == condition.holds
    }))
}

/// Returns the error of a locked resource.
#[must_use]
pub fn locked(lock: &Lock) -> ErrorResponse {
    let href = if lock.path.is_empty() { "/" } else { &lock.path };
    ErrorResponse::xml(StatusCode::LOCKED, xml::error("lock-token-submitted", Some(href)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_the_target_is_told_from_others() {
        let target = RequestPath::parse("/d/f").unwrap();
        for (text, says) in [
            ("([\"x\"])", true),
            ("(<urn:a>)(<urn:a> Not [\"x\"])", true),
            ("</d/f> ([\"x\"])", true),
            ("<http://h/d/f> ([\"x\"])", true),
            ("(<urn:a>)", false),
            ("</d> ([\"x\"])", false),
            ("<http://other/d/f> ([\"x\"])", false),
            ("</d> ([\"x\"]) </d/f> (<urn:a>)", false),
        ] {
            let headers: HeaderMap =
                [(hyper::header::HOST, "h"), (hyper::header::HeaderName::from_static("if"), text)]
                    .into_iter()
                    .map(|(name, value)| (name, value.parse().unwrap()))
                    .collect();
            let guard = LockConditions::of(&headers).unwrap();
            assert_eq!(guard.says_state(&target, &headers), says, "{text}");
        }
        assert!(!LockConditions::default().says_state(&target, &HeaderMap::new()));
    }
}
