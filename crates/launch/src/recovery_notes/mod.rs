//! Notes of a formation for its recovery: a note of its state and the list of its lives on the volumes, and an index of
//! its disks in the user's state directory.

pub(crate) mod index;
pub(crate) mod lives;
pub(crate) mod volume_note;

pub(crate) use index::{forget, noted_directories};
pub use index::{forget_former, forget_whole, remember, remember_whole};
pub use lives::older_host;
pub(crate) use lives::{begin as begin_life, serve as serve_life};
pub(crate) use volume_note::{why_volumes_are_kept, write_all as write_notes};
