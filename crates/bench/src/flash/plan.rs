//! Bytes of each file that each process writes, as FLASH-IO does: a simulation on blocks of cells writes its state to
//! a checkpoint, and a few variables for pictures to two plot files. A file is a dataset per variable, one behind the
//! other; a dataset has the blocks of all processes, process by process.
//!
//! With P processes, blocks of b³ cells and 80 blocks per process, the checkpoint has 24 · 80 · b³ · 8 · P bytes, the
//! plot file of values at the centres of cells 4 · 80 · b³ · 4 · P, and that of values at their corners
//! 4 · 80 · (b + 1)³ · 4 · P.

use serde::{Deserialize, Serialize};

/// Blocks of a process.
pub const BLOCKS: u64 = 80;
/// Variables of a checkpoint.
pub const VARIABLES: u64 = 24;
/// Variables of a plot file.
pub const PLOT_VARIABLES: u64 = 4;

/// A file of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// All variables, in double precision; a process writes all of its blocks of a variable at once.
    Checkpoint,
    /// Some variables at the centres of cells, in single precision; a call per block.
    Centred,
    /// Some variables at the corners of cells, in single precision; a call per block.
    Corner,
}

impl Kind {
    /// The name of its file.
    pub fn file_name(self) -> &'static str {
        match self {
            Kind::Checkpoint => "checkpoint",
            Kind::Centred => "plot-centred",
            Kind::Corner => "plot-corner",
        }
    }

    fn variables(self) -> u64 {
        if self == Kind::Checkpoint { VARIABLES } else { PLOT_VARIABLES }
    }
}

/// Size of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashPlan {
    /// Processes.
    pub procs: u32,
    /// Cells along an edge of a block.
    pub edge: u32,
}

/// Bytes that one call writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl FlashPlan {
    /// Bytes of one variable of one block.
    fn block_len(self, kind: Kind) -> u64 {
        let edge = u64::from(self.edge);
        match kind {
            Kind::Checkpoint => edge.pow(3) * size_of::<f64>() as u64,
            Kind::Centred => edge.pow(3) * size_of::<f32>() as u64,
            Kind::Corner => (edge + 1).pow(3) * size_of::<f32>() as u64,
        }
    }

    /// Bytes of one variable of one process.
    fn share(self, kind: Kind) -> u64 {
        BLOCKS * self.block_len(kind)
    }

    /// Bytes of one variable.
    fn dataset(self, kind: Kind) -> u64 {
        self.share(kind) * u64::from(self.procs)
    }

    /// Bytes of a file.
    pub fn file_len(self, kind: Kind) -> u64 {
        self.dataset(kind) * kind.variables()
    }

    /// Pieces that a process writes of a file, in its order.
    pub fn pieces(self, kind: Kind, rank: u32) -> impl Iterator<Item = Piece> {
        let len = if kind == Kind::Checkpoint { self.share(kind) } else { self.block_len(kind) };
        let first = u64::from(rank) * self.share(kind);
        (0..kind.variables()).flat_map(move |variable| {
            let start = variable * self.dataset(kind) + first;
            (0..self.share(kind) / len).map(move |number| Piece { offset: start + number * len, len })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KINDS: [Kind; 3] = [Kind::Checkpoint, Kind::Centred, Kind::Corner];

    #[test]
    fn totals_are_those_of_the_formula() {
        for (procs, edge) in [(1, 8), (8, 8), (32, 16), (32, 8)] {
            let (plan, p, b) = (FlashPlan { procs, edge }, u64::from(procs), u64::from(edge));
            assert_eq!(plan.file_len(Kind::Checkpoint), 24 * 80 * b * b * b * 8 * p);
            assert_eq!(plan.file_len(Kind::Centred), 4 * 80 * b * b * b * 4 * p);
            assert_eq!(plan.file_len(Kind::Corner), 4 * 80 * (b + 1) * (b + 1) * (b + 1) * 4 * p);
        }
        let usual = FlashPlan { procs: 32, edge: 8 };
        assert_eq!(KINDS.map(|kind| usual.file_len(kind)), [251_658_240, 20_971_520, 29_859_840]);
    }

    #[test]
    fn a_process_writes_a_variable_at_once_or_block_by_block() {
        let plan = FlashPlan { procs: 2, edge: 8 };
        let checkpoint: Vec<Piece> = plan.pieces(Kind::Checkpoint, 1).collect();
        assert_eq!(checkpoint.len(), 24);
        assert_eq!(checkpoint[0], Piece { offset: 327_680, len: 327_680 });
        assert_eq!(checkpoint[1].offset, 3 * 327_680);
        let corner: Vec<Piece> = plan.pieces(Kind::Corner, 0).collect();
        assert_eq!(corner.len(), 320);
        assert_eq!(corner[..2], [Piece { offset: 0, len: 2916 }, Piece { offset: 2916, len: 2916 }]);
        assert_eq!(corner[80].offset, 2 * 80 * 2916);
    }

    proptest! {
        #[test]
        fn processes_leave_no_gap_and_do_not_overlap(procs in 1u32..33, edge in 1u32..17) {
            let plan = FlashPlan { procs, edge };
            for kind in KINDS {
                let mut pieces: Vec<Piece> = (0..procs).flat_map(|rank| plan.pieces(kind, rank)).collect();
                pieces.sort_by_key(|piece| piece.offset);
                let mut end = 0;
                for piece in pieces {
                    prop_assert_eq!(piece.offset, end);
                    prop_assert!(piece.len > 0);
                    end += piece.len;
                }
                prop_assert_eq!(end, plan.file_len(kind));
            }
        }
    }
}
