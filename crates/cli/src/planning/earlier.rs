//! What a job is by the report of an earlier run of it.

use std::path::Path;

use super::Amount;
use crate::failure::Failure;
use crate::report::{FileRow, Report};

/// What an earlier run did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Earlier {
    /// Nodes of its formation.
    pub nodes: Option<u32>,
    /// What was copied in.
    pub input: Amount,
    /// Bytes that programs read of files that they did not write.
    pub read_bytes: u64,
    /// What was copied out.
    pub output: Amount,
    /// What was written and stayed inside: checkpoints, scratch files.
    pub inside: Amount,
    /// From the first use of a file to the last.
    pub run_ms: u64,
}

impl Earlier {
    /// Reads a report.
    ///
    /// # Errors
    /// That it is none.
    pub fn read(path: &Path) -> Result<Earlier, Failure> {
        Ok(Earlier::of(&Report::read("--report", path)?))
    }

    /// How often input of so many bytes was read, if anything was.
    pub fn reads_of(&self, in_bytes: u64) -> Option<f64> {
        (self.read_bytes > 0 && in_bytes > 0).then(|| self.read_bytes as f64 / in_bytes as f64)
    }

    fn of(report: &Report) -> Earlier {
        let is_written = |file: &&FileRow| file.pattern.writes.bytes > 0;
        let count = |files: usize| u64::try_from(files).unwrap_or(u64::MAX);
        let written: Vec<&FileRow> = report.files.iter().filter(is_written).collect();
        let of_written: u64 = written.iter().map(|file| file.pattern.reads.bytes).sum();
        // Files that are only told together count as read: what was written is among those that were used most.
        let read_bytes = report.total.reads.bytes.saturating_sub(of_written);
        let read_files = count(report.files.len() - written.len()).saturating_add(report.more_files);
        let (staged_in, staged_out) = (report.site.staged_in, report.site.staged_out);
        let stayed = written.iter().filter(|file| !file.gone).count();
        let inside = report.total.writes.bytes.saturating_sub(staged_out);
        let some = |bytes: u64, files: u64| Amount { bytes, files: files.max(1).min(bytes) };
        Earlier {
            nodes: u32::try_from(report.nodes).ok().filter(|nodes| *nodes > 0),
            input: some(staged_in, read_files),
            read_bytes,
            output: some(staged_out, count(stayed)),
            inside: some(inside, count(written.len())),
            run_ms: report.span_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use bivouac_record::{Counts, Pattern};

    use super::*;
    use crate::report::SiteRow;

    fn used(read: u64, written: u64) -> Pattern {
        let counts = |bytes| Counts { ops: 1, bytes, ..Counts::default() };
        Pattern { reads: counts(read), writes: counts(written) }
    }

    fn file(read: u64, written: u64, gone: bool) -> FileRow {
        FileRow { gone, pattern: used(read, written), ..FileRow::default() }
    }

    #[test]
    fn a_run_is_told_apart_by_what_it_read_wrote_and_took_out() {
        let report = Report {
            nodes: 4,
            span_ms: 1500,
            total: used(370, 90),
            files: vec![file(300, 0, false), file(70, 20, false), file(0, 70, true)],
            site: SiteRow { staged_in: 100, staged_out: 20, here: 460 },
            ..Report::default()
        };
        let earlier = Earlier::of(&report);
        assert_eq!((earlier.nodes, earlier.reads_of(100), earlier.run_ms), (Some(4), Some(3.0), 1500));
        assert_eq!(earlier.input, Amount { bytes: 100, files: 1 });
        assert_eq!(earlier.output, Amount { bytes: 20, files: 1 });
        assert_eq!(earlier.inside, Amount { bytes: 70, files: 2 });
        // Many more files, told together.
        let many = Earlier::of(&Report { more_files: 50, ..report });
        assert_eq!(many.input.files, 51);
    }

    #[test]
    fn a_run_without_copies_says_nothing_of_site_storage() {
        let earlier = Earlier::of(&Report { total: used(100, 0), ..Report::default() });
        assert_eq!((earlier.nodes, earlier.reads_of(50), earlier.read_bytes), (None, Some(2.0), 100));
        assert_eq!(earlier.input, Amount::default());
    }
}
