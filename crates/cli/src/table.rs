//! Tables for the terminal.

use crate::output;

/// Returns a table as wide as the terminal, if standard output is one: see [`bivouac_types::table::layout`].
pub fn layout(head: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    bivouac_types::table::layout(output::columns(), head, right, rows)
}
