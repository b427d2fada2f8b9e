//! The formulas of the publications that the design unites.

/// Returns the nodes from which on a formation is faster than site storage: P* = S / C, with S the bandwidth of site
/// storage and C that of one node (ADA-FS). Nothing where one of both is not positive.
#[must_use]
pub fn break_even(storage: f64, node: f64) -> Option<u64> {
    let nodes = (storage / node).ceil();
    // The bound is for the cast, which would turn infinity into the largest number of nodes.
    (storage > 0.0 && node > 0.0 && nodes.is_finite() && nodes < 1e15).then_some(nodes as u64)
}

/// Returns the nodes that are needed to hold a file of so many bytes: nio = F · k / D, with D the disk of a node, of
/// which the part 1/k may be used (Expand). At least one; nothing where there is no room at all.
#[must_use]
pub fn nodes_for(bytes: u64, k: f64, disk: u64) -> Option<u64> {
    let nodes = (bytes as f64 * k / disk as f64).ceil();
    (disk > 0 && k >= 1.0 && nodes.is_finite() && nodes < 1e15).then_some((nodes as u64).max(1))
}
