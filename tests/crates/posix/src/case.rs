//! A case, and the words in which it says what it wants.

use std::fmt::Debug;

use rustix::io::{Errno, Result};

use crate::env::Env;

/// What came of a case: nothing, or what was otherwise than it should be.
pub type Outcome = std::result::Result<(), String>;

type Run = Box<dyn Fn(&Env) -> Outcome>;

/// One case.
pub struct Case {
    /// Call or subject, and condition: `rename/enotempty_over_full_dir`.
    pub name: String,
    /// Whether it takes several users, so root to be them.
    pub needs_root: bool,
    /// Runs it in an empty directory.
    pub run: Run,
}

/// A case for any user.
pub fn case(name: impl Into<String>, run: impl Fn(&Env) -> Outcome + 'static) -> Case {
    Case { name: name.into(), needs_root: false, run: Box::new(run) }
}

/// A case with several users.
pub fn root_case(name: impl Into<String>, run: impl Fn(&Env) -> Outcome + 'static) -> Case {
    Case { name: name.into(), needs_root: true, run: Box::new(run) }
}

/// What a system call is expected to say.
pub trait Expect<T> {
    /// It succeeds.
    fn must(self, what: &str) -> std::result::Result<T, String>;
    /// It fails in this way.
    fn fails(self, errno: Errno, what: &str) -> Outcome;
}

impl<T> Expect<T> for Result<T> {
    fn must(self, what: &str) -> std::result::Result<T, String> {
        self.map_err(|errno| format!("{what}: {errno:?}, should succeed"))
    }

    fn fails(self, errno: Errno, what: &str) -> Outcome {
        match self {
            Err(found) if found == errno => Ok(()),
            Err(found) => Err(format!("{what}: {found:?}, should be {errno:?}")),
            Ok(_) => Err(format!("{what}: succeeded, should be {errno:?}")),
        }
    }
}

/// Two values are the same.
pub fn same<T: PartialEq + Debug>(what: &str, found: T, wanted: T) -> Outcome {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, should be {wanted:?}")) }
}

/// A condition holds.
pub fn holds(what: &str, condition: bool) -> Outcome {
    if condition { Ok(()) } else { Err(format!("does not hold: {what}")) }
}
