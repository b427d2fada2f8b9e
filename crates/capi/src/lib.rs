//! `libbivouac`: the client for programs in C. The header, `include/bivouac.h`, is the documentation.
//!
//! Every function catches panics, looks at its pointers, and turns errors into errno and a sentence.

mod connection;
mod descriptors;
mod directory;
mod failure;
mod file;
mod flags;
mod lists;
mod names;
mod places;
mod pointers;
mod shared;
mod shown;

pub use connection::{Formation, bivouac_connect, bivouac_disconnect};
pub use descriptors::{bivouac_connect_descriptor, bivouac_open_descriptor, bivouac_open_number};
pub use directory::{Directory, Entry, bivouac_closedir, bivouac_opendir, bivouac_readdir};
pub use failure::bivouac_error;
pub use file::{
    File, bivouac_allocate, bivouac_close, bivouac_fgetxattr, bivouac_fsetxattr, bivouac_fstat,
    bivouac_fsync, bivouac_ftruncate, bivouac_open, bivouac_pread, bivouac_pwrite,
};
pub use lists::{Piece, bivouac_read_list, bivouac_write_list};
pub use names::{
    bivouac_lstat, bivouac_mkdir, bivouac_rename, bivouac_rmdir, bivouac_stat, bivouac_truncate,
    bivouac_unlink,
};
pub use places::{bivouac_targets_here, bivouac_traffic_so_far};
pub use shared::{bivouac_claim, bivouac_lock, bivouac_open_unnamed};
pub use shown::{ShowCallback, bivouac_show};
