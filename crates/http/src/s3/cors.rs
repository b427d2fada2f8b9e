//! Rules for pages of other places (CORS): which requests they may have a browser make. They are kept with the bucket,
//! as an extended attribute of its directory, and count for signed requests alone: the key that a user gave a browser
//! opens nothing for such a page.

use std::sync::Arc;
use std::time::Duration;

use bivouac_types::{Errno, FsResult};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use s3s::dto::{
    CORSRule, DeleteBucketCorsInput, DeleteBucketCorsOutput, GetBucketCorsInput, GetBucketCorsOutput,
    PutBucketCorsInput, PutBucketCorsOutput,
};
use s3s::{S3Result, s3_error};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::marks::optional;
use super::{S3Context, bucket, error};
use crate::body::{Body, empty};
use crate::error_response::ErrorResponse;
use crate::locks::ChangeScope;
use crate::tree::Tree;

const CORS: &[u8] = b"user.s3.cors";
/// Upper limit of rules of a bucket.
const RULES_MAX: usize = 100;
const METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

/// Requests that are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    #[serde(default)]
    id: Option<String>,
    origins: Vec<String>,
    methods: Vec<String>,
    #[serde(default)]
    headers: Vec<String>,
    #[serde(default)]
    exposed: Vec<String>,
    #[serde(default)]
    max_age_s: Option<i32>,
}

/// Returns whether a text matches a pattern with at most one `*`.
fn is_like(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, end)) => {
            text.len() >= start.len() + end.len() && text.starts_with(start) && text.ends_with(end)
        }
    }
}

impl Rule {
    fn allows(&self, origin: &str, method: &str, headers: &[String]) -> bool {
        let is_header = |header: &String| {
            self.headers.iter().any(|pattern| is_like(&pattern.to_ascii_lowercase(), header))
        };
        self.origins.iter().any(|pattern| is_like(pattern, origin))
            && self.methods.iter().any(|known| known == method)
            && headers.iter().all(is_header)
    }

    /// Returns the origins that an answer names.
    fn shown_origin(&self, origin: &str) -> String {
        if self.origins.iter().any(|pattern| pattern == "*") { "*".to_owned() } else { origin.to_owned() }
    }

    fn of(rule: CORSRule) -> S3Result<Rule> {
        let own = Rule {
            id: rule.id,
            origins: rule.allowed_origins,
            methods: rule.allowed_methods,
            headers: rule.allowed_headers.unwrap_or_default(),
            exposed: rule.expose_headers.unwrap_or_default(),
            max_age_s: rule.max_age_seconds,
        };
        let has_one_star = |pattern: &String| pattern.matches('*').count() <= 1;
        if own.origins.is_empty() || own.methods.is_empty() {
            return Err(s3_error!(MalformedXML, "a rule has AllowedOrigin and AllowedMethod"));
        }
        if !own.methods.iter().all(|method| METHODS.contains(&method.as_str())) {
            return Err(s3_error!(InvalidRequest, "AllowedMethod is GET, PUT, HEAD, POST or DELETE"));
        }
        if !own.origins.iter().chain(&own.headers).all(has_one_star) {
            return Err(s3_error!(InvalidRequest, "AllowedOrigin and AllowedHeader have one * at most"));
        }
        // Later nobody could be told that a header cannot be sent.
        let is_shown = |text: &String| HeaderValue::from_str(text).is_ok();
        if !own.origins.iter().chain(&own.headers).chain(&own.exposed).all(is_shown) {
            return Err(s3_error!(InvalidRequest, "a rule has what headers of HTTP can say"));
        }
        Ok(own)
    }

    fn shown(self) -> CORSRule {
        let some = |list: Vec<String>| Some(list).filter(|list| !list.is_empty());
        CORSRule {
            allowed_headers: some(self.headers),
            allowed_methods: self.methods,
            allowed_origins: self.origins,
            expose_headers: some(self.exposed),
            id: self.id,
            max_age_seconds: self.max_age_s,
        }
    }
}

/// Readers of rules at a time: a small part of the threads that may wait for nodes.
const READERS_MAX: usize = 4;
/// Longest time that a request waits for the rules of its bucket.
const READ_WAIT: Duration = Duration::from_secs(10);

/// Turns for reading the rules of a bucket, which strangers can ask for.
#[derive(Clone)]
pub struct RuleReaders(Arc<Semaphore>);

impl Default for RuleReaders {
    fn default() -> RuleReaders {
        RuleReaders(Arc::new(Semaphore::new(READERS_MAX)))
    }
}

impl RuleReaders {
    /// Runs `act`, which reads rules, on a thread that may block.
    ///
    /// # Errors
    /// 503 after [`READ_WAIT`]: readers of other requests may wait for a node that does not answer. That the server is
    /// shutting down.
    pub async fn read<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ErrorResponse> {
        self.read_within(READ_WAIT, act).await
    }

    async fn read_within<T: Send + 'static>(
        &self,
        wait: Duration,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ErrorResponse> {
        let reading = async {
            let turn = Arc::clone(&self.0).acquire_owned().await.ok();
            // The permit is released when the thread is done: a client that disconnects does not stop the thread.
            let reader = spawn_blocking(move || {
                let _turn = turn;
                act()
            });
            Ok(reader.await?)
        };
        let late = |_| {
            let text = "the rules of the bucket cannot be read at the moment; try again";
            ErrorResponse::new(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        tokio::time::timeout(wait, reading).await.map_err(late)?
    }
}

/// Returns the rules of a bucket.
pub fn rules(tree: &Tree, bucket_name: &str) -> FsResult<Vec<Rule>> {
    let client = tree.client()?;
    let Ok(place) = bucket(bucket_name) else { return Ok(Vec::new()) };
    let attr = match client.find(&place.path(), false) {
        Ok(attr) if attr.is_dir() => attr,
        Ok(_) => return Ok(Vec::new()),
        Err(missing) if matches!(missing.errno(), Errno::ENOENT | Errno::ENOTDIR) => return Ok(Vec::new()),
        Err(other) => return Err(other),
    };
    let kept = optional(client.getxattr(attr.ino, CORS))?;
    // Users can set the attribute in a mount: what makes no sense allows nothing.
    Ok(kept.and_then(|value| serde_json::from_slice(&value).ok()).unwrap_or_default())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns whether a request is a CORS preflight.
pub fn is_preflight(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN) && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Says whether a request may follow.
///
/// # Errors
/// 403 if not.
pub fn preflight(rules: &[Rule], headers: &HeaderMap) -> Result<Response<Body>, ErrorResponse> {
    let origin = text(headers, header::ORIGIN).unwrap_or_default();
    let method = text(headers, header::ACCESS_CONTROL_REQUEST_METHOD).unwrap_or_default();
    let asked = text(headers, header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
    let names: Vec<String> = asked
        .split(',')
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty())
        .collect();
    let Some(rule) = rules.iter().find(|rule| rule.allows(origin, method, &names)) else {
        let text = "AccessForbidden: the bucket has no rule for such requests of pages of other places; \
                    give it one: aws s3api put-bucket-cors";
        return Err(ErrorResponse::new(StatusCode::FORBIDDEN, text));
    };
    let mut response = empty(StatusCode::OK);
    let answer = response.headers_mut();
    show(rule, origin, answer);
    let mut insert = |name, text: &str| {
        if let Ok(value) = HeaderValue::from_str(text) {
            answer.insert(name, value);
        }
    };
    insert(header::ACCESS_CONTROL_ALLOW_METHODS, &rule.methods.join(", "));
    if !names.is_empty() {
        insert(header::ACCESS_CONTROL_ALLOW_HEADERS, &names.join(", "));
    }
    if let Some(seconds) = rule.max_age_s {
        insert(header::ACCESS_CONTROL_MAX_AGE, &seconds.to_string());
    }
    Ok(response)
}

fn show(rule: &Rule, origin: &str, headers: &mut HeaderMap) {
    if let Ok(value) = HeaderValue::from_str(&rule.shown_origin(origin)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, value);
    }
    if let Ok(value) = HeaderValue::from_str(&rule.exposed.join(", "))
        && !value.is_empty()
    {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, value);
    }
    let vary = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method";
    headers.append(header::VARY, HeaderValue::from_static(vary));
}

/// Lets the page that asked read the answer, if a rule allows that.
pub fn allow(rules: &[Rule], (origin, method): (&str, &str), headers: &mut HeaderMap) {
    match rules.iter().find(|rule| rule.allows(origin, method, &[])) {
        Some(rule) => show(rule, origin, headers),
        // The response depends on the origin, so caches must not share it.
        None if !rules.is_empty() => {
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        None => {}
    }
}

impl S3Context {
    pub fn cors(&self, input: &GetBucketCorsInput) -> S3Result<GetBucketCorsOutput> {
        self.is_bucket(&input.bucket)?;
        let rules = rules(&self.tree, &input.bucket).map_err(error)?;
        if rules.is_empty() {
            return Err(s3_error!(
                NoSuchCORSConfiguration,
                "the bucket has no rules for pages of other places"
            ));
        }
        Ok(GetBucketCorsOutput { cors_rules: Some(rules.into_iter().map(Rule::shown).collect()) })
    }

    pub fn set_cors(&self, input: PutBucketCorsInput) -> S3Result<PutBucketCorsOutput> {
        let rules = input.cors_configuration.cors_rules;
        if rules.is_empty() || rules.len() > RULES_MAX {
            return Err(s3_error!(MalformedXML, "a bucket has 1 to {RULES_MAX} rules"));
        }
        let rules = rules.into_iter().map(Rule::of).collect::<S3Result<Vec<_>>>()?;
        self.keep_cors(&input.bucket, Some(&rules))?;
        Ok(PutBucketCorsOutput::default())
    }

    pub fn remove_cors(&self, input: &DeleteBucketCorsInput) -> S3Result<DeleteBucketCorsOutput> {
        self.keep_cors(&input.bucket, None)?;
        Ok(DeleteBucketCorsOutput::default())
    }

    /// Keeps the rules of a bucket; they are of all of it, so they need a key for the bucket or more.
    fn keep_cors(&self, name: &str, rules: Option<&[Rule]>) -> S3Result<()> {
        self.is_bucket(name)?;
        let place = bucket(name)?;
        let attr = self.tree.attr(&self.access, &place).map_err(error)?;
        self.check_locks(&place, ChangeScope::Content)?;
        self.tree.may_change(&self.access, &attr).map_err(error)?;
        let client = self.tree.client().map_err(error)?;
        let change = self.tree.member().change().map_err(error)?;
        match rules {
            None => optional(client.removexattr(&change.ctx, attr.ino, CORS)).map(drop),
            Some(rules) => {
                let text = serde_json::to_vec(rules).unwrap_or_default();
                client.setxattr(&change.ctx, attr.ino, CORS, &text, 0)
            }
        }
        .map_err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(origins: &[&str], methods: &[&str], headers: &[&str]) -> Rule {
        let all = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Rule { origins: all(origins), methods: all(methods), headers: all(headers), ..Rule::default() }
    }

    fn asked(origin: &str, method: &str, names: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, origin.parse().unwrap());
        headers.insert(header::ACCESS_CONTROL_REQUEST_METHOD, method.parse().unwrap());
        headers.insert(header::ACCESS_CONTROL_REQUEST_HEADERS, names.parse().unwrap());
        headers
    }

    #[test]
    fn pages_of_other_places_ask_for_what_a_rule_allows() {
        let rules = [
            rule(&["https://*.example.org"], &["GET", "PUT"], &["X-Amz-*", "content-type"]),
            rule(&["*"], &["HEAD"], &[]),
        ];
        for (origin, method, names, shown) in [
            ("https://a.example.org", "PUT", "x-amz-date, Content-Type", Some("https://a.example.org")),
            ("https://a.example.org", "GET", "", Some("https://a.example.org")),
            ("https://a.example.org", "DELETE", "", None),
            ("https://a.example.org", "PUT", "authorization", None),
            ("https://example.org", "GET", "", None),
            ("https://a.example.org.evil", "GET", "", None),
            ("null", "HEAD", "", Some("*")),
            ("", "GET", "", None),
        ] {
            let answer = preflight(&rules, &asked(origin, method, names));
            let got = answer.as_ref().ok().map(|answer| {
                answer.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN].to_str().unwrap().to_owned()
            });
            assert_eq!(got.as_deref(), shown, "{origin} {method} {names}");
            if let Ok(answer) = answer {
                assert!(!answer.headers().contains_key(header::ACCESS_CONTROL_ALLOW_CREDENTIALS));
            }
        }
        let mut headers = HeaderMap::new();
        allow(&rules, ("https://evil", "GET"), &mut headers);
        assert_eq!(headers.len(), 1, "nothing is allowed");
        assert_eq!(headers[header::VARY], "Origin");
        headers.clear();
        allow(&rules, ("https://a.example.org", "GET"), &mut headers);
        assert_eq!(headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example.org");
        assert!(!is_preflight(&headers));
    }

    /// Strangers who ask and hang up take no more threads than those who wait for their answers.
    #[test]
    fn few_threads_read_rules_for_strangers() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let readers = RuleReaders::default();
        let (begins, begun) = std::sync::mpsc::channel();
        let (allow, allowed) = std::sync::mpsc::channel::<()>();
        let allowed = Arc::new(std::sync::Mutex::new(allowed));
        let ask = |number: usize| {
            let (readers, begins, allowed) = (readers.clone(), begins.clone(), Arc::clone(&allowed));
            runtime.spawn(async move {
                let read = readers.read(move || {
                    begins.send(number).unwrap();
                    let _ends_too = allowed.lock().unwrap().recv();
                });
                read.await.unwrap();
            })
        };
        let asked: Vec<_> = (0..3 * READERS_MAX).map(ask).collect();
        let first: Vec<usize> = (0..READERS_MAX).map(|_| begun.recv().unwrap()).collect();
        for (number, task) in asked.iter().enumerate() {
            if first.contains(&number) {
                task.abort();
            }
        }
        let left: Vec<_> = asked
            .into_iter()
            .enumerate()
            .filter_map(|(number, task)| {
                if first.contains(&number) {
                    assert!(runtime.block_on(task).unwrap_err().is_cancelled());
                    return None;
                }
                Some(task)
            })
            .collect();
        assert_eq!(readers.0.available_permits(), 0);
        assert!(begun.try_recv().is_err(), "others wait for their turns");
        for _ in 0..3 * READERS_MAX {
            allow.send(()).unwrap();
        }
        left.into_iter().for_each(|task| runtime.block_on(task).unwrap());
        let all = first.len() + begun.try_iter().count();
        assert_eq!(all, 3 * READERS_MAX, "each had a turn");
    }

    /// Readers that wait for a node do not hold up others for longer than a bound.
    #[test]
    fn who_gets_no_turn_is_told() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let readers = RuleReaders(Arc::new(Semaphore::new(0)));
        let asked = async { readers.read_within(Duration::from_millis(1), || ()).await };
        let late = runtime.block_on(asked).unwrap_err();
        assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn rules_are_checked_before_they_are_kept() {
        let rule = |origin: &str, method: &str| CORSRule {
            allowed_headers: None,
            allowed_methods: vec![method.to_owned()],
            allowed_origins: vec![origin.to_owned()],
            expose_headers: None,
            id: None,
            max_age_seconds: None,
        };
        assert!(Rule::of(rule("https://*", "GET")).is_ok());
        for wrong in [rule("*.*", "GET"), rule("*", "get"), rule("*", "OPTIONS"), rule("a\nb", "GET")] {
            assert!(Rule::of(wrong).is_err());
        }
    }
}
