//! Random numbers from the system.

use crate::{LaunchError, LaunchResult};

/// Returns `N` random bytes.
///
/// # Errors
/// When the system has none.
pub fn random_bytes<const N: usize>() -> LaunchResult<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| LaunchError::system("random numbers", std::io::Error::other(e)))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_the_same() {
        assert_ne!(random_bytes::<16>().unwrap(), random_bytes::<16>().unwrap());
    }
}
