//! A child after a fork, which starts anew: connections and grants are its parent's.

use crate::{direct_file, file, given_up, hidden, members, names, report, serving};

/// Makes a child a process of its own. Takes no locks: their holders may be threads that are not in the child.
pub fn renew() {
    bivouac_client::forked();
    file::renew();
    members::renew();
    names::renew();
    serving::renew();
    given_up::renew();
    direct_file::clear_dirty_mtimes();
    report::renew();
    hidden::close_all_but(report::descriptor());
}
