//! Answers of a machine, as text: to look at it elsewhere, and to test against.
//!
//! ```text
//! bivouac-record/1
//! @ file /proc/loadavg
//! |0.52 0.58 0.59 1/389 12345
//! @ real /sys/class/net/eth0/device
//! |/sys/devices/pci0000:00/0000:00:03.0
//! @ space /scratch
//! |1000000 400000 100 90
//! @ output lldpcli -f keyvalue show neighbors
//! |lldp.eth0.chassis.name=sw1
//! ```
//! A file that is there twice was read twice; a space without an answer is of a mount that was not there. Directories
//! have the names of `@ dir`, and of all that is below them in the record.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::machine::{FileSystemSpace, Machine};

/// The first line.
const FIRST: &str = "bivouac-record/1";

/// A question: its kind, and its subject.
type QueryKey = (String, String);

/// Earlier answers of a machine.
#[derive(Debug, Default)]
pub struct RecordedAnswers {
    answers: BTreeMap<QueryKey, Vec<String>>,
    /// Number of times that each was asked.
    asked: RefCell<BTreeMap<QueryKey, usize>>,
}

impl RecordedAnswers {
    /// Reads a record.
    ///
    /// # Errors
    /// What is wrong with the text, with the line.
    pub fn parse(text: &str) -> Result<RecordedAnswers, String> {
        let mut lines = text.lines().enumerate();
        if lines.next().is_none_or(|(_, first)| first.trim_end() != FIRST) {
            return Err(format!(
                "line 1: a record begins with {FIRST}; write one with: bivouac system --record FILE"
            ));
        }
        let mut record = RecordedAnswers::default();
        let mut current: Option<&mut String> = None;
        for (number, line) in lines {
            if let Some(head) = line.strip_prefix("@ ") {
                let (kind, what) = head.split_once(' ').unwrap_or((head, ""));
                let key = (kind.to_owned(), what.trim_end().to_owned());
                let answers = record.answers.entry(key).or_default();
                answers.push(String::new());
                current = answers.last_mut();
            } else if let (Some(content), Some(answer)) = (line.strip_prefix('|'), current.as_mut()) {
                answer.push_str(content);
                answer.push('\n');
            } else if !line.trim().is_empty() && !line.starts_with('#') {
                return Err(format!("line {}: begins with neither '@ ' nor '|'", number + 1));
            }
        }
        Ok(record)
    }

    /// Returns the next answer to a question that was asked several times, or the last one.
    fn next(&self, kind: &str, what: &str) -> Option<String> {
        let key = (kind.to_owned(), what.to_owned());
        let answers = self.answers.get(&key)?;
        let mut asked = self.asked.borrow_mut();
        let count = asked.entry(key).or_default();
        let answer = answers.get(*count).or_else(|| answers.last()).cloned();
        *count += 1;
        answer
    }
}

impl Machine for RecordedAnswers {
    fn text(&self, path: &str) -> Option<String> {
        self.next("file", path)
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let listed = self.next("dir", dir).unwrap_or_default();
        let mut names: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
        let below = format!("{}/", dir.trim_end_matches('/'));
        for (kind, what) in self.answers.keys() {
            if matches!(kind.as_str(), "file" | "real" | "dir")
                && let Some(rest) = what.strip_prefix(&below)
            {
                names.extend(rest.split('/').next().filter(|name| !name.is_empty()).map(str::to_owned));
            }
        }
        names.into_iter().collect()
    }

    fn real(&self, path: &str) -> Option<String> {
        Some(self.next("real", path)?.trim_end().to_owned())
    }

    fn space(&self, path: &str) -> Option<FileSystemSpace> {
        let text = self.next("space", path)?;
        let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(FileSystemSpace { size: next()?, left: next()?, files: next()?, files_left: next()? })
    }

    fn output(&self, program: &[&str]) -> Option<String> {
        self.next("output", &program.join(" "))
    }

    fn pass(&self, ms: u64) -> u64 {
        self.next("pass", "").and_then(|text| text.trim().parse().ok()).unwrap_or(ms).max(1)
    }
}

/// A machine that writes down what another one says.
pub struct Recorder<'a> {
    machine: &'a dyn Machine,
    said: RefCell<String>,
}

impl<'a> Recorder<'a> {
    /// Creates the recorder of a machine.
    #[must_use]
    pub fn new(machine: &'a dyn Machine) -> Recorder<'a> {
        Recorder { machine, said: RefCell::new(format!("{FIRST}\n")) }
    }

    /// Returns everything that the machine answered, in the form that [`RecordedAnswers::parse`] reads.
    #[must_use]
    pub fn into_text(self) -> String {
        self.said.into_inner()
    }

    fn note(&self, kind: &str, what: &str, answer: &str) {
        let mut said = self.said.borrow_mut();
        let _ = writeln!(said, "@ {kind} {what}");
        for line in answer.lines() {
            let _ = writeln!(said, "|{line}");
        }
    }
}

impl std::fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("said", &self.said.borrow().len()).finish_non_exhaustive()
    }
}

impl Machine for Recorder<'_> {
    fn text(&self, path: &str) -> Option<String> {
        self.machine.text(path).inspect(|text| self.note("file", path, text))
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let names = self.machine.names(dir);
        if !names.is_empty() {
            self.note("dir", dir, &names.join("\n"));
        }
        names
    }

    fn real(&self, path: &str) -> Option<String> {
        self.machine.real(path).inspect(|real| self.note("real", path, real))
    }

    fn space(&self, path: &str) -> Option<FileSystemSpace> {
        let found = self.machine.space(path);
        // Also that there is none: a mount may have gone since it was looked at first.
        let text = found.as_ref().map(|FileSystemSpace { size, left, files, files_left }| {
            format!("{size} {left} {files} {files_left}")
        });
        self.note("space", path, &text.unwrap_or_default());
        found
    }

    fn output(&self, program: &[&str]) -> Option<String> {
        self.machine.output(program).inspect(|text| self.note("output", &program.join(" "), text))
    }

    fn pass(&self, ms: u64) -> u64 {
        let passed = self.machine.pass(ms);
        self.note("pass", "", &passed.to_string());
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_said_again() {
        let text = "bivouac-record/1\n@ file /a/b\n|1\n@ file /a/b\n|2\n@ real /a/c\n|/x\n@ space /s\n|4 3 2 1\n@ output p -q\n|o\n@ pass \n|7\n";
        let first = RecordedAnswers::parse(text).unwrap();
        let recorder = Recorder::new(&first);
        let ask = |machine: &dyn Machine| {
            let files =
                [machine.text("/a/b"), machine.text("/a/b"), machine.text("/a/b"), machine.text("/z")];
            let others = (machine.names("/a"), machine.real("/a/c"), machine.space("/s"));
            (files, others, machine.output(&["p", "-q"]), machine.pass(5), machine.names("/none"))
        };
        let said = ask(&recorder);
        assert_eq!(said.0, [Some("1\n".into()), Some("2\n".into()), Some("2\n".into()), None]);
        assert_eq!(said.1.0, ["b", "c"]);
        assert_eq!(said.3, 7);
        let second = RecordedAnswers::parse(&recorder.into_text()).unwrap();
        assert_eq!(ask(&second), said);
    }

    #[test]
    fn a_mount_that_has_gone_is_gone_again() {
        let text = "bivouac-record/1\n@ space /s\n|4 3 2 1\n@ space /s\n";
        let record = RecordedAnswers::parse(text).unwrap();
        let recorder = Recorder::new(&record);
        assert!(recorder.space("/s").is_some());
        assert!(recorder.space("/s").is_none());
        assert_eq!(recorder.into_text(), text);
    }

    #[test]
    fn what_is_no_record_is_refused() {
        assert!(RecordedAnswers::parse("").unwrap_err().starts_with("line 1: "));
        assert!(RecordedAnswers::parse("bivouac-record/1\n|stray").unwrap_err().starts_with("line 2: "));
        assert!(RecordedAnswers::parse("bivouac-record/1\n# said\n\n@ file /x\n").is_ok());
    }
}
