//! Formation files: what `up` and `run` would be told by options, and partitions, in TOML.
//!
//! ```toml
//! [formation]            # keys are the long options of `up`
//! nodes = 4
//! name = "camp"
//! volume = ["/local:100g"]
//! stripe = "1m"
//!
//! [[partition]]          # keys are the options of `partition create`
//! path = "/checkpoints"
//! nodes = "0-3"
//! rule = ["*.plt: stripe=64k"]
//! ```

mod arguments;
mod formation;
mod partition;
mod values;

use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::failure::Failure;
use crate::partitioning::Plan;

pub use arguments::with_file;
pub use formation::as_argument;

/// Most bytes of a formation file.
const FILE_MAX: u64 = 1 << 20;

/// Content of a formation file.
#[derive(Debug, Default, PartialEq)]
pub struct FormationFile {
    /// Long options of `up` and their values, in the order of the file.
    pub formation: Vec<(String, String)>,
    /// Partitions, in the order of the file.
    pub partitions: Vec<Plan>,
}

/// Something that is wrong in a formation file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Position, in bytes from the start.
    at: usize,
    /// Description, with what to write instead.
    text: String,
}

/// Reads a formation file.
///
/// # Errors
/// Every problem with its line, and exit code 2; 1 for a file that cannot be read.
pub fn read(path: &Path) -> Result<FormationFile, Failure> {
    let failed = |cause: String| Failure::new(1, format_args!("{}: {cause}", path.display()));
    let found = std::fs::metadata(path).map_err(|error| failed(format!("{error}; check its path")))?;
    // A pipe can be read once, and this is read twice: for options, and for partitions.
    if !found.is_file() {
        return Err(failed("is no regular file; name one".into()));
    }
    if found.len() > FILE_MAX {
        return Err(failed(format!("has {} bytes: a formation file has at most {FILE_MAX}", found.len())));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    parse(&text).map_err(|problems| {
        let lines: Vec<String> = problems
            .iter()
            .map(|problem| format!("{}:{}: {}", path.display(), line_of(&text, problem.at), problem.text))
            .collect();
        Failure::new(2, lines.join("\n"))
    })
}

/// Parses a formation file.
///
/// # Errors
/// All problems in it, in the order of the text.
pub fn parse(text: &str) -> Result<FormationFile, Vec<Problem>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut problems: Vec<Problem> = errors
        .iter()
        .map(|error| Problem {
            at: error.span().map_or(0, |span| span.start),
            text: error.message().to_owned(),
        })
        .collect();
    let mut file = FormationFile::default();
    if problems.is_empty() {
        for (key, value) in table.get_ref() {
            let at = key.span().start;
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("formation", DeValue::Table(table)) => {
                    file.formation = formation::read(table, at, &mut problems);
                }
                ("partition", DeValue::Array(all)) => {
                    let read = all.iter().filter_map(|one| partition::read(one, &mut problems));
                    file.partitions = read.collect();
                }
                ("formation", _) => {
                    problems.push(Problem::new(at, "formation is a table: write [formation]"))
                }
                ("partition", _) => {
                    problems.push(Problem::new(at, "partitions are a list: write [[partition]]"));
                }
                (other, _) => problems.push(unknown(at, other, &["formation", "partition"])),
            }
        }
    }
    partition::check_paths(table.get_ref(), &mut problems);
    problems.sort_by_key(|problem| problem.at);
    if problems.is_empty() { Ok(file) } else { Err(problems) }
}

impl Problem {
    fn new(at: usize, text: impl Into<String>) -> Problem {
        Problem { at, text: text.into() }
    }
}

/// Returns a key that there is not, and what may have been meant.
fn unknown(at: usize, key: &str, known: &[&str]) -> Problem {
    let hint = match bivouac_types::words::similar(key, known.iter().copied()) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => format!("there are {}", known.join(", ")),
    };
    Problem::new(at, format!("unknown key '{key}': {hint}"))
}

/// Returns the line of a byte, from 1 on.
fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"
# a comment
[formation]
nodes = 4
volume = ["/a:1g", "/b:2g"]
stripe = "64k"
wait = "5s"

[[partition]]
path = "/chk"
nodes = "0-1"
capacity = "10g"
rule = ["*.plt: stripe=64k", "*: stripe=8k"]

[[partition]]
path = "/in/put"
for = "30g"
keep = 0.8
width = 2
"#;

    fn problems(text: &str) -> Vec<(usize, String)> {
        let found = parse(text).unwrap_err().into_iter();
        found.map(|problem| (line_of(text, problem.at), problem.text)).collect()
    }

    #[test]
    fn a_file_says_what_options_would() {
        let file = parse(GOOD).unwrap();
        let said = |key: &str| -> Vec<&str> {
            file.formation.iter().filter(|(known, _)| known == key).map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!((said("nodes"), said("volume")), (vec!["4"], vec!["/a:1g", "/b:2g"]));
        let [chk, input] = &file.partitions[..] else { panic!("{:?}", file.partitions) };
        assert_eq!((chk.path.as_slice(), chk.settings.rules.len()), (&b"/chk"[..], 2));
        assert!(!chk.says_stripe, "that of the formation");
        assert_eq!(chk.nodes.as_ref().map(ToString::to_string), Some("0,1".into()));
        let sizing = input.sizing.unwrap();
        assert_eq!((sizing.bytes, sizing.keep, input.settings.width), (30 << 30, 0.8, 2));
        assert_eq!(parse(""), Ok(FormationFile::default()));
        let served = parse("[formation]\nhttp = \"8443\"\nhttp-domain = \"s3.camp\"\n").unwrap();
        assert_eq!(served.formation.len(), 2, "keys that need others are taken with them");
        let open = parse("[formation]\nallow-other = true\nmount = \"/m\"\n").unwrap();
        assert_eq!(open.formation.len(), 2);
    }

    #[test]
    fn mistakes_are_explained_by_line() {
        for (text, line, says) in [
            ("[formation]\nnods = 4\n", 2, "unknown key 'nods': did you mean 'nodes'?"),
            ("[formaton]\n", 1, "unknown key 'formaton': did you mean 'formation'?"),
            ("x = 1\n", 1, "unknown key 'x': there are formation, partition"),
            ("[formation]\nnodes = \"many\"\n", 2, "nodes: 'many'"),
            ("[formation]\n\nnodes = 0\n", 3, "nodes: a formation needs a node"),
            ("[formation]\nnodes = 5000\n", 2, "at most 256 nodes"),
            ("[formation]\nstripe = 5000\n", 2, "not a multiple of 4096"),
            ("[formation]\nstripe = \"big\"\n", 2, "'big' is not a size"),
            ("[formation]\nwidth = 3\nnodes = 2\n", 2, "only 2 targets"),
            ("[formation]\nwait = true\n", 2, "wait: true is no value"),
            ("[formation]\nnodes = [1, 2]\n", 2, "nodes: takes one value"),
            ("[formation]\nname = \"a/b\"\n", 2, "has the character '/'"),
            ("[formation]\ndb = \"x\"\n", 2, "unknown key 'db'"),
            ("[formation]\nttl = 5\n", 2, "'5' has no unit"),
            ("[formation]\nin = \"a\"\nout = \"x\"\n", 3, "has no target"),
            ("[formation]\nhosts = \"a,b\"\nnodes = 2\n", 3, "exclude each other"),
            ("[formation]\nmount = \"/a\"\nmount-each = \"/b\"\n", 3, "exclude each other"),
            ("[formation]\nstripe = \"1m\"\nhttp-domain = \"a.b\"\n", 1, "it needs http as well"),
            ("[formation]\nnodes = 1\nnodes = 2\n", 3, "duplicate key"),
            ("[formation]\nnodes = \n", 2, "string"),
            ("formation = 3\n", 1, "write [formation]"),
            ("[partition]\npath = \"/a\"\n", 1, "write [[partition]]"),
            ("[[partition]]\nnodes = 1\n", 1, "a partition needs a path"),
            (
                "[[partition]]\npath = \"/a\"\nstrip = 4096\n",
                3,
                "unknown key 'strip': did you mean 'stripe'?",
            ),
            ("[[partition]]\npath = \"/a\"\nstripe = 5000\n", 3, "not a multiple of 4096"),
            ("[[partition]]\npath = \"/a\"\nplacement = \"near\"\n", 3, "none of striped, local, hashed"),
            ("[[partition]]\npath = \"/a\"\nnodes = \"3-1\"\n", 3, "3 is above 1"),
            ("[[partition]]\npath = \"/a\"\nkeep = 0.5\n", 3, "keep goes with for"),
            ("[[partition]]\npath = \"/a\"\nfor = \"1g\"\nnodes = 2\n", 4, "nodes and for"),
            ("[[partition]]\npath = \"/a\"\nfor = \"1g\"\nkeep = 2.0\n", 4, "not a part of a whole"),
            ("[[partition]]\npath = \"/a\"\nrule = [\"*.x\"]\n", 3, "not of the form"),
            (
                "[[partition]]\npath = \"/a\"\nsharing = \"alone\"\nclients = 2\n",
                3,
                "none of dedicated, semi-dedicated, shared",
            ),
            ("[[partition]]\npath = \"/a\"\nsharing = \"shared\"\n", 3, "sharing goes with clients"),
            ("[[partition]]\npath = \"/a\"\nclients = 0\n", 3, "clients"),
            ("[[partition]]\npath = \"/a/../b\"\n", 2, "has '..'"),
            ("[[partition]]\n\npath = \"/a\\u0000b\"\n", 3, "path: has a control character (U+0000)"),
            (
                "[[partition]]\npath = \"/a\"\nrule = [\n\"*.x: stripe=64k\",\n\"*\\n: width=1\"]\n",
                5,
                "U+000A",
            ),
            (
                "[formation]\nnodes = 1\nvolume = [\"/v\\u001b\"]\n",
                3,
                "volume: has a control character (U+001B)",
            ),
            ("[formation]\nvolume = \"/v\\u0085\"\n", 2, "volume: has a control character (U+0085)"),
            ("[[partition]]\npath = \"/\"\n", 2, "the formation's own directory"),
            ("[[partition]]\npath = \"/a\"\n[[partition]]\npath = \"a/\"\n", 4, "is there already"),
        ] {
            let found = problems(text);
            assert!(found.iter().any(|(at, said)| *at == line && said.contains(says)), "{text}: {found:?}");
        }
        let both = problems("[formation]\nnods = 1\nstripe = 5\n[[partition]]\nwidht = 1\n");
        assert_eq!(both.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 4, 5], "{both:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,60}", cut in 0..GOOD.len(), key in "[a-z-]{0,8}", value in "[\"0-9a-z.]{0,6}") {
            let _ = parse(&text);
            let _ = GOOD.get(..cut).map(parse);
            let _ = parse(&format!("[formation]\n{key} = {value}\n[[partition]]\npath=\"/a\"\n{key} = {value}\n"));
        }
    }
}
