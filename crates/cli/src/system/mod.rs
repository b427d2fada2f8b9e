//! Maps of machines: gathered from hosts, and written in several forms.

mod forms;
mod gathering;
mod tables;

pub use forms::{to_xml, to_yaml};
pub use gathering::{gather, of_file, of_this_host};
pub use tables::{changes, text};
