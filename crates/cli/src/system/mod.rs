//! Maps of machines: gathered from hosts, and written in several forms.

mod forms;
mod gathering;
mod measured_text;
mod measuring;
mod tables;

pub use forms::{to_xml, to_yaml};
pub use gathering::{gather, near_to, of_file, of_this_host};
pub use measuring::{Told, measure, open};
pub use tables::{changes, speed, text};
