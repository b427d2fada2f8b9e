//! The last word of a keeper whose formation ends without having been taken down: nobody else is left who could say
//! that outputs are lost.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Keeper;

impl Keeper {
    /// Says what was to come out, if anything was: where the formation was started, for whoever looks there for it.
    pub(super) fn report_loss(&self, why: &str) {
        let Some(kept) = &self.state.keep else { return };
        let name = &self.state.name;
        let hosts: Vec<&str> = self.state.hosts.iter().map(|host| host.name.as_str()).collect();
        let text = format!(
            "formation {name} on {} ended: {why}; {kept}: what is not there is lost with it\n",
            hosts.join(", ")
        );
        log::error!("{}", text.trim_end());
        let file = PathBuf::from(format!("bivouac-{name}.txt"));
        if let Err(error) = append(&file, &text) {
            log::error!(why:% = error; "{}", file.display());
        }
    }
}

/// Appends to a file below the working directory of the command that started this process.
fn append(file: &Path, text: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).create(true).open(file)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_added_to_those_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bivouac-x.txt");
        append(&file, "one\n").unwrap();
        append(&file, "two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    }
}
