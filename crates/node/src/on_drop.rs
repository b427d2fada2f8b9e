//! Code that runs when a scope is left, also by a panic.

/// Calls a function when it is dropped.
pub struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnDrop<F> {
    /// Creates a guard. Where a panic drops it, a second panic of `act` ends the process: `act` asserts nothing then.
    pub fn new(act: F) -> OnDrop<F> {
        OnDrop(Some(act))
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}
