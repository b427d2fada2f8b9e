//! Whether a request may change what it wants to: the conditions of its `If`, and locks whose tokens it does not show.

use std::sync::Arc;

use bivouac_types::{Errno, FsError};
use hyper::StatusCode;
use hyper::header::HeaderMap;

use super::condition::{self, List, State};
use super::locks::{self, Lock, Reach, Shown};
use super::{asked, kept, locking, xml};
use crate::conditions;
use crate::refusal::Refusal;
use crate::target::Target;
use crate::tree::{Access, Tree};

/// What a request says of locks.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    lists: Vec<List>,
    tokens: Vec<String>,
}

impl Guard {
    /// Of a request.
    ///
    /// # Errors
    /// 400.
    pub fn of(headers: &HeaderMap) -> Result<Guard, Refusal> {
        let Some(text) = asked::condition(headers)? else { return Ok(Guard::default()) };
        let lists = condition::parse(text).map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why))?;
        let states = lists.iter().flat_map(|list| &list.conditions).map(|condition| &condition.state);
        let tokens = states.filter_map(|state| match state {
            State::Token(token) => Some(token.clone()),
            State::Tag(_) => None,
        });
        Ok(Guard { tokens: tokens.collect(), lists })
    }

    /// The tokens that it shows.
    #[must_use]
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Whether it says what state the target of the request has to have, or not to have.
    #[must_use]
    pub fn says_state(&self, target: &Target, headers: &HeaderMap) -> bool {
        let is_target = |url: &String| {
            let about = asked::here(url, headers).ok().flatten();
            about.is_some_and(|about| locks::path(&about) == locks::path(target))
        };
        let about_it = self.lists.iter().filter(|list| list.about.as_ref().is_none_or(is_target));
        about_it.flat_map(|list| &list.conditions).any(|one| matches!(one.state, State::Tag(_)))
    }

    /// Refuses a request whose conditions do not hold (412), or that something locked is in the way of (423). This may
    /// block.
    ///
    /// # Errors
    /// That; what the formation says.
    pub fn check(
        &self,
        tree: &Arc<Tree>,
        asks: Asks<'_>,
        changes: &[(&Target, Reach)],
    ) -> Result<Vec<Lock>, Refusal> {
        // What is locked elsewhere is not told.
        if changes.iter().any(|(target, _)| target.below(&asks.access.prefix).is_none()) {
            return Err(FsError::from(Errno::EACCES).into());
        }
        let mut all = kept::all(tree)?;
        self.check_conditions(tree, asks, &all)?;
        let shown = Shown { key: &asks.access.key.id, tokens: &self.tokens };
        for (target, reach) in changes {
            let path = locks::path(target);
            while let Some(lock) = locks::stopped(&all, &path, *reach, shown) {
                let token = lock.token.clone();
                if !locking::end_if_gone(tree, lock)? {
                    return Err(locked(lock));
                }
                all.retain(|lock| lock.token != token);
            }
        }
        Ok(all)
    }

    fn check_conditions(&self, tree: &Arc<Tree>, asks: Asks<'_>, all: &[Lock]) -> Result<(), Refusal> {
        if self.lists.is_empty() {
            return Ok(());
        }
        for list in &self.lists {
            if holds(tree, asks, all, list)? {
                return Ok(());
            }
        }
        Err(Refusal::new(StatusCode::PRECONDITION_FAILED, "what the If header wants does not hold"))
    }
}

/// Who asks for what.
#[derive(Clone, Copy)]
pub struct Asks<'a> {
    pub access: &'a Access,
    pub target: &'a Target,
    pub headers: &'a HeaderMap,
}

/// Whether all of a list holds. What is at another server, or cannot be seen, has no state.
fn holds(tree: &Arc<Tree>, asks: Asks<'_>, all: &[Lock], list: &List) -> Result<bool, Refusal> {
    let about = match list.about.as_deref() {
        None => Some(asks.target.clone()),
        Some(url) => asked::here(url, asks.headers)?,
    };
    let path = about.as_ref().map(locks::path);
    let tag = || {
        let attr = about.as_ref().and_then(|target| tree.attr(asks.access, target).ok());
        attr.map(|attr| conditions::tag(&attr))
    };
    Ok(list.conditions.iter().all(|condition| {
        let is_so = match &condition.state {
            State::Token(token) => path
                .as_deref()
                .is_some_and(|path| all.iter().any(|lock| lock.token == *token && lock.covers(path))),
            State::Tag(wanted) => tag().is_some_and(|tag| tag == *wanted),
        };
        is_so == condition.holds
    }))
}

/// That something is locked, and where.
#[must_use]
pub fn locked(lock: &Lock) -> Refusal {
    let href = if lock.path.is_empty() { "/" } else { &lock.path };
    Refusal::xml(StatusCode::LOCKED, xml::error("lock-token-submitted", Some(href)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_of_the_target_is_told_from_others() {
        let target = Target::parse("/d/f").unwrap();
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
            let guard = Guard::of(&headers).unwrap();
            assert_eq!(guard.says_state(&target, &headers), says, "{text}");
        }
        assert!(!Guard::default().says_state(&target, &HeaderMap::new()));
    }
}
