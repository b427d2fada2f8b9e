//! Output to standard output and standard error that tolerates readers that are gone.
//!
//! `println!` and `eprintln!` panic where the reader has gone (`bivouac run … 2>&1 | head -1`), in the middle of
//! whatever is going on. Here a reader that has gone has read enough, and what cannot be written for another reason is
//! remembered until the end. Errors of the system have one style in all that is written, also in JSON.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use bivouac_types::{named, printable_lines};
use serde::Serialize;

/// The version of the schema of JSON (docs/json.md). It grows when a field goes, or means something else.
pub const SCHEMA: u32 = 1;

/// Reason why something was not written to standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);
/// True if the reader of standard output has gone.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// True if anything was written to standard output.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Like `print!`.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// Like `println!`.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// Like `eprintln!`.
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($text)*))) };
}

/// Writes to standard output. Names in the text may be other users': nothing of it moves a cursor.
pub fn write(text: Arguments<'_>) {
    write_bytes(printable_lines(&named(&text.to_string())).as_bytes());
}

/// Writes a path, and ends the line. A program gets it as it is; a terminal without what moves a cursor.
pub fn write_path(path: &Path) {
    if io::stdout().is_terminal() {
        return write(format_args!("{}\n", path.display()));
    }
    write_bytes(&[path.as_os_str().as_bytes(), b"\n"].concat());
}

/// Clears the terminal at standard output.
pub fn clear_screen() {
    write_bytes(b"\x1b[H\x1b[2J\x1b[3J");
}

fn write_bytes(bytes: &[u8]) {
    BEGUN.store(true, Ordering::Relaxed);
    let mut stdout = io::stdout().lock();
    // What is left in the buffer is written when the process ends, and errors of that are ignored.
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    if written.as_ref().is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        CLOSED.store(true, Ordering::Relaxed);
    }
    note(&FAILURE, written);
}

/// Returns whether whoever read standard output has gone.
pub fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Returns whether anything was written to standard output.
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}

/// Returns a value as JSON, indented or in one line; an object begins with the version of the schema.
pub fn json(value: &impl Serialize, is_indented: bool) -> io::Result<String> {
    let text = json_value(value, is_indented)?;
    Ok(match (text.strip_prefix("{\n"), text.strip_prefix('{')) {
        (Some(fields), _) => format!("{{\n  \"schema\": {SCHEMA},\n{fields}"),
        (None, Some("}")) => format!("{{\"schema\":{SCHEMA}}}"),
        (None, Some(fields)) => format!("{{\"schema\":{SCHEMA},{fields}"),
        (None, None) => text,
    })
}

/// Returns a value as JSON, without the version of the schema. Control characters that JSON may have as they are get
/// escaped as well: a terminal would obey them, and [`write`] would replace them.
pub fn json_value(value: &impl Serialize, is_indented: bool) -> io::Result<String> {
    let text = if is_indented { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) }?;
    let is_control = |c: char| ('\u{7f}'..='\u{9f}').contains(&c);
    if !text.contains(is_control) {
        return Ok(text);
    }
    let escaped = |c: char| if is_control(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() };
    Ok(text.chars().map(escaped).collect())
}

/// Returns the number of columns of the terminal at standard output; `None` if it is none.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Writes to standard error. There is nobody to tell that it failed.
pub fn complain(text: Arguments<'_>) {
    // In one call: standard error has no buffer, and daemons and other commands may write to the same file.
    let text = text.to_string();
    let _nobody_listens = io::stderr().lock().write_all(printable_lines(&named(&text)).as_bytes());
}

/// Takes the error of writing to standard output, if there was one.
pub fn failure() -> Option<io::Error> {
    FAILURE.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
}

fn note(failure: &Mutex<Option<io::Error>>, written: io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_the_version_of_the_schema() {
        let object = serde_json::json!({ "b": [1], "a": {} });
        for is_indented in [false, true] {
            let text = json(&object, is_indented).unwrap();
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                (&read["schema"], &read["b"], &read["a"]),
                (&SCHEMA.into(), &object["b"], &object["a"])
            );
            let empty: serde_json::Value =
                serde_json::from_str(&json(&serde_json::json!({}), is_indented).unwrap()).unwrap();
            assert_eq!(empty, serde_json::json!({ "schema": SCHEMA }));
            assert_eq!(json(&[0_u8; 0], is_indented).unwrap(), "[]");
        }
    }

    #[test]
    fn names_in_json_are_what_they_were() {
        let name = "a\u{7f}b\u{85}c\u{1b}d\u{fffd}é";
        for is_indented in [false, true] {
            let text = json(&serde_json::json!({ "name": name }), is_indented).unwrap();
            assert_eq!(printable_lines(&text), text, "nothing is left to be replaced");
            let read: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["name"], name);
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is() {
        let failure = Mutex::new(None);
        note(&failure, Ok(()));
        note(&failure, Err(ErrorKind::BrokenPipe.into()));
        assert!(failure.lock().unwrap().is_none());
        note(&failure, Err(ErrorKind::StorageFull.into()));
        note(&failure, Err(ErrorKind::Other.into()));
        assert_eq!(failure.lock().unwrap().take().unwrap().kind(), ErrorKind::StorageFull);
    }
}
