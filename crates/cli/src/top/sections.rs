//! The lists of the screen: which there are, how they are ordered, and how they share the lines.

use std::cmp::Ordering;

use bivouac_monitor::rates::{Activity, FileRates, NodeRates, ProcessRates, Rates, UseRates};
use ratatui::layout::Rect;

use super::text::{
    FILES, NODES, OPERATIONS, PROCESSES, QUEUE, file_row, has_hosts, operation_row, process_row, queue_rows,
    row,
};

/// Rows that a list has at least, if it has as many.
const ROWS_MIN: u16 = 3;
/// Columns that are left out on a narrow terminal, the first of these first: what something is, how loaded and how full
/// it is stays longest.
const LEAST_OF_NODES: [usize; 6] = [7, 5, 4, 3, 2, 1];
const LEAST_OF_OPERATIONS: [usize; 5] = [4, 2, 5, 3, 6];
const LEAST_OF_FILES: [usize; 3] = [3, 2, 1];
const LEAST_OF_PROCESSES: [usize; 5] = [5, 4, 1, 3, 2];
const LEAST_OF_QUEUE: [usize; 4] = [1, 2, 4, 3];

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Nodes,
    Operations,
    Files,
    Processes,
    Queue,
}

/// All of them: where there is no room for all, the first of these stay.
pub const SECTIONS: [Section; 5] =
    [Section::Nodes, Section::Operations, Section::Files, Section::Processes, Section::Queue];

/// Content of a list.
pub struct SectionView<'a> {
    pub head: Vec<String>,
    /// Columns from here on are numbers.
    pub right: usize,
    pub least: Vec<usize>,
    pub rows: Vec<Vec<String>>,
    /// Of nodes, those of the rows.
    pub nodes: Vec<&'a NodeRates>,
}

impl Section {
    /// Returns the list behind this one, if this is not the last.
    pub fn next(self) -> Option<Section> {
        let at = SECTIONS.iter().position(|section| *section == self)?;
        SECTIONS.get(at + 1).copied()
    }

    /// Returns the list whose order keys change while this one is looked at.
    pub fn ordered(self) -> Section {
        match self {
            Section::Files | Section::Processes => self,
            _ => Section::Nodes,
        }
    }

    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Section::Nodes => &NODES,
            Section::Operations => &OPERATIONS,
            Section::Files => &FILES,
            Section::Processes => &PROCESSES,
            Section::Queue => &QUEUE,
        }
    }

    /// Returns the column that it is ordered by at first.
    pub fn order(self) -> usize {
        match self {
            Section::Nodes => 6,
            Section::Files => 4,
            Section::Processes => 6,
            // No column has this number: they come in their order.
            Section::Operations | Section::Queue => usize::MAX,
        }
    }

    /// Returns its content, ordered by a column.
    pub fn shown(self, rates: &Rates, order: usize) -> SectionView<'_> {
        let (right, least): (usize, &[usize]) = match self {
            Section::Nodes => (3, &LEAST_OF_NODES),
            Section::Operations => (1, &LEAST_OF_OPERATIONS),
            Section::Files => (1, &LEAST_OF_FILES),
            Section::Processes => (2, &LEAST_OF_PROCESSES),
            Section::Queue => (2, &LEAST_OF_QUEUE),
        };
        let none = Activity::default();
        let activity = rates.activity.as_ref().unwrap_or(&none);
        let nodes = if self == Section::Nodes { nodes(rates, order) } else { Vec::new() };
        let rows: Vec<Vec<String>> = match self {
            Section::Nodes => nodes.iter().map(|node| row(node).to_vec()).collect(),
            Section::Operations => rates.operations.iter().map(|one| operation_row(one).to_vec()).collect(),
            Section::Files => sorted(&activity.busy_files, order, by_file)
                .into_iter()
                .map(|one| file_row(one).into())
                .collect(),
            Section::Processes => sorted(&activity.busy_processes, order, by_process)
                .into_iter()
                .map(|one| process_row(one).into())
                .collect(),
            Section::Queue => queue_rows(rates).into_iter().map(Into::into).collect(),
        };
        let head = |(column, name): (usize, &&str)| match column == order {
            true => format!("{name}*"),
            false => (*name).to_owned(),
        };
        let head = self.columns().iter().enumerate().map(head).collect();
        let mut shown = SectionView { head, right, least: least.to_vec(), rows, nodes };
        let columns = shown.head.len();
        assert!(
            shown.rows.iter().all(|row| row.len() == columns),
            "a row of {self:?} has not {columns} cells"
        );
        if matches!(self, Section::Processes | Section::Queue) && !has_hosts(rates) {
            shown.leave_out(1);
        }
        shown
    }
}

impl SectionView<'_> {
    /// Leaves out a column of text.
    fn leave_out(&mut self, column: usize) {
        assert!(column < self.right, "column {column} is no text: numbers begin at {}", self.right);
        self.head.remove(column);
        self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
        self.right -= 1;
        self.least.retain(|least| *least != column);
        self.least.iter_mut().filter(|least| **least > column).for_each(|least| *least -= 1);
    }
}

/// Returns the nodes, by a column: more is first but for names and numbers.
fn nodes(rates: &Rates, order: usize) -> Vec<&NodeRates> {
    let value = |node: &NodeRates| match order {
        3 => node.work.requests,
        4 => node.work.written,
        5 => node.work.read,
        6 => node.work.load,
        7 => node.work.under_way as f64,
        _ => node.work.fill(),
    };
    sorted(&rates.nodes, order, |a, b, order| match order {
        1 => a.host.cmp(&b.host),
        2 => a.state.cmp(b.state),
        3..=8 => value(b).total_cmp(&value(a)),
        _ => a.id.cmp(&b.id),
    })
}

fn sorted<T>(all: &[T], order: usize, compare: impl Fn(&T, &T, usize) -> Ordering) -> Vec<&T> {
    let mut all: Vec<&T> = all.iter().collect();
    all.sort_by(|a, b| compare(a, b, order));
    all
}

fn by_file(a: &FileRates, b: &FileRates, order: usize) -> Ordering {
    match order {
        0 => a.path.cmp(&b.path),
        order => by_pace(&a.pace, &b.pace, order),
    }
}

fn by_process(a: &ProcessRates, b: &ProcessRates, order: usize) -> Ordering {
    match order {
        0 => a.program.cmp(&b.program),
        1 => a.host.cmp(&b.host),
        2 => a.pid.cmp(&b.pid),
        order => by_pace(&a.pace, &b.pace, order - 2),
    }
}

/// Compares by calls, bytes written, bytes read, or both.
fn by_pace(a: &UseRates, b: &UseRates, order: usize) -> Ordering {
    let value = |pace: &UseRates| match order {
        1 => pace.calls,
        2 => pace.written,
        3 => pace.read,
        _ => pace.total(),
    };
    value(b).total_cmp(&value(a))
}

/// Returns the places of lists with so many rows, one below the other with a line between them. Those for which there
/// is no room have none, the last of them first; nor has one without rows, but for the first.
pub fn shares(rows: &[usize], rest: Rect) -> Vec<Rect> {
    let wanted: Vec<u16> =
        rows.iter().map(|rows| u16::try_from(*rows).unwrap_or(u16::MAX).saturating_add(1)).collect();
    let mut heights = vec![0_u16; rows.len()];
    let mut left = rest.height;
    for (at, (height, wanted)) in heights.iter_mut().zip(&wanted).enumerate() {
        let least = (*wanted).min(ROWS_MIN + 1);
        let gap = u16::from(at > 0);
        if *wanted == 1 && at > 0 {
            continue;
        }
        match left.checked_sub(least + gap) {
            Some(more) => (*height, left) = (least, more),
            None if at == 0 => (*height, left) = (left, 0),
            None => break,
        }
    }
    // Line by line, so that one that is long does not keep others from what they need.
    while left > 0 {
        let before = left;
        for (height, wanted) in heights.iter_mut().zip(&wanted).filter(|(height, _)| **height > 0) {
            let more = u16::from(*height < *wanted && left > 0);
            (*height, left) = (*height + more, left - more);
        }
        if left == before {
            break;
        }
    }
    let used: usize = heights.iter().map(|height| usize::from(*height)).sum();
    assert!(used <= usize::from(rest.height), "lists take {used} lines, and there are {}", rest.height);
    let mut y = rest.y;
    let place = |height: u16| {
        let place = Rect { y, height, ..rest };
        y = if height > 0 { y.saturating_add(height + 1) } else { y };
        place
    };
    heights.into_iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heights(rows: &[usize], height: u16) -> Vec<u16> {
        let places = shares(rows, Rect { x: 0, y: 5, width: 80, height });
        places.iter().map(|place| place.height).collect()
    }

    #[test]
    fn the_last_list_is_left_out_first() {
        assert_eq!(heights(&[2, 5, 3, 3, 1], 23), [3, 6, 4, 4, 2], "with 4 lines between");
        assert_eq!(heights(&[2, 5, 3, 3, 1], 22), [3, 5, 4, 4, 2]);
        assert_eq!(heights(&[2, 5, 3, 3, 1], 20), [3, 6, 4, 4, 0]);
        assert_eq!(heights(&[2, 5, 3, 3, 1], 16), [3, 6, 4, 0, 0]);
        assert_eq!(heights(&[2, 5, 0, 3, 1], 16), [3, 4, 0, 4, 2], "what has nothing to show takes no room");
        assert_eq!(heights(&[100, 2], 16), [12, 3]);
        assert_eq!(heights(&[100, 2], 3), [3, 0]);
    }

    proptest! {
        #[test]
        fn lists_are_on_the_screen_and_below_each_other(rows in proptest::collection::vec(0_usize..300, 1..6), height in 0_u16..200) {
            let rest = Rect { x: 0, y: 7, width: 80, height };
            let places = shares(&rows, rest);
            let mut from = rest.y;
            for (place, rows) in places.iter().zip(&rows).filter(|(place, _)| place.height > 0) {
                prop_assert!(place.y >= from && place.bottom() <= rest.bottom(), "{places:?}");
                prop_assert!(usize::from(place.height) <= rows + 1);
                from = place.bottom() + 1;
            }
        }
    }
}
