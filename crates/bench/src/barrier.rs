//! The barrier of a measurement, which its processes pass together.

use crate::BenchResult;

/// A barrier between the processes of a measurement.
pub trait Barrier {
    /// Waits until all have arrived.
    ///
    /// # Errors
    /// Another process has ended.
    fn wait(&mut self) -> BenchResult<()>;
}

/// A process alone, which waits for nobody.
#[cfg(test)]
pub struct LoneProcess(pub usize);

#[cfg(test)]
impl Barrier for LoneProcess {
    fn wait(&mut self) -> BenchResult<()> {
        self.0 += 1;
        Ok(())
    }
}
