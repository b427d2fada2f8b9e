//! Parameters of a file's layout. The arithmetic is in `bivouac-layout`.

use std::fmt;

use crate::limits::{STRIPE_MAX, STRIPE_MIN};
use crate::{PartitionId, TargetIndex};

/// Rule for the base target and width of a new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Stripes go round over `width` targets from a base target that the file's number decides.
    #[default]
    Striped,
    /// All bytes on one target of the node that the file was created through.
    Local,
    /// The whole file on one target, chosen by the file's number.
    Hashed,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Placement::Striped => "striped",
            Placement::Local => "local",
            Placement::Hashed => "hashed",
        })
    }
}

impl std::str::FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Placement, String> {
        match text {
            "striped" => Ok(Placement::Striped),
            "local" => Ok(Placement::Local),
            "hashed" => Ok(Placement::Hashed),
            _ => Err(format!("placement '{text}' is none of striped, local, hashed")),
        }
    }
}

/// Layout of a file. Stripe `k` is on target `(base + k mod width) mod targets` of the partition that `base` is a
/// target of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Bytes per stripe; a power of two is not required, a multiple of 4096 is.
    pub stripe: u32,
    /// Targets that the file uses, 1 ..= `targets`.
    pub width: u16,
    /// Target of stripe 0; its position is below `targets`.
    pub base: TargetIndex,
    /// Targets of the partition.
    pub targets: u16,
}

impl Layout {
    /// Checks that the parameters are consistent.
    ///
    /// # Errors
    /// A sentence that names the parameter, its value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        check_stripe(u64::from(self.stripe))?;
        if self.width == 0 || self.width > self.targets {
            return Err(format!("width {} is not within 1 and {} (targets)", self.width, self.targets));
        }
        if self.base.position() >= self.targets {
            return Err(format!("base target {} is not below {} (targets)", self.base, self.targets));
        }
        Ok(())
    }

    /// Returns the partition of the file.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        self.base.partition()
    }
}

/// Checks that a stripe size is allowed.
///
/// # Errors
/// A sentence that names the value and what is allowed.
pub fn check_stripe(stripe: u64) -> Result<(), String> {
    if stripe < u64::from(STRIPE_MIN) || stripe > u64::from(STRIPE_MAX) {
        return Err(format!("stripe size {stripe} is not within {STRIPE_MIN} and {STRIPE_MAX} bytes"));
    }
    // So that a page of the file is one page, and one block with a checksum, of one subfile.
    if !stripe.is_multiple_of(u64::from(STRIPE_MIN)) {
        return Err(format!("stripe size {stripe} is not a multiple of {STRIPE_MIN} bytes"));
    }
    Ok(())
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stripe={} width={} base={} targets={}", self.stripe, self.width, self.base, self.targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_parameters_are_refused_by_name() {
        let good = Layout { stripe: 4096, width: 2, base: TargetIndex(1), targets: 2 };
        assert_eq!(good.check(), Ok(()));
        let refusal = |layout: Layout| layout.check().unwrap_err();
        assert!(refusal(Layout { stripe: 0, ..good }).contains("stripe size 0"));
        assert!(refusal(Layout { stripe: 5000, ..good }).contains("multiple"));
        assert!(refusal(Layout { width: 3, ..good }).contains("width 3"));
        assert!(refusal(Layout { width: 0, ..good }).contains("width 0"));
        assert!(refusal(Layout { base: TargetIndex(2), ..good }).contains("base target 2"));
    }
}
