//! A list in as many columns as the terminal has.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Cell, Row, Table};

/// Least width that a column of text is cut to.
const TEXT_MIN: usize = 6;

/// A list with its head.
pub struct List {
    pub head: Vec<String>,
    /// Columns from here on are aligned right, and never cut; those before are text.
    pub right: usize,
    /// Columns that are left out where there is no room for all, the first of these first.
    pub least: Vec<usize>,
    pub rows: Vec<(Vec<String>, Style)>,
    /// Stands for what was cut off.
    pub mark: char,
    /// True if the end of the first column says more than its beginning.
    pub keeps_end: bool,
}

/// Layout of a list: numbers and widths of columns, and the space between them.
#[derive(Debug, PartialEq, Eq)]
struct ListLayout {
    columns: Vec<(usize, usize)>,
    spacing: usize,
}

impl ListLayout {
    /// Creates the layout of columns of these widths, of which the first `texts` can be cut: closer together first,
    /// then text is cut, then columns are left out.
    fn new(widths: &[usize], texts: usize, least: &[usize], room: usize) -> ListLayout {
        let mut columns: Vec<(usize, usize)> = widths.iter().copied().enumerate().collect();
        if needed(&columns, 2) <= room {
            return ListLayout { columns, spacing: 2 };
        }
        let mut least = least.iter();
        loop {
            let excess = needed(&columns, 1).saturating_sub(room);
            let mut cut = columns.clone();
            if shrink(&mut cut, texts, excess) {
                return ListLayout { columns: cut, spacing: 1 };
            }
            let Some(left_out) = least.next() else { return ListLayout { columns: cut, spacing: 1 } };
            columns.retain(|(column, _)| column != left_out);
        }
    }
}

fn needed(columns: &[(usize, usize)], spacing: usize) -> usize {
    columns.iter().map(|(_, width)| width).sum::<usize>() + spacing * columns.len().saturating_sub(1)
}

/// Takes so much away from columns of text, from the widest one first; whether there was so much.
fn shrink(columns: &mut [(usize, usize)], texts: usize, excess: usize) -> bool {
    for _ in 0..excess {
        let text = columns.iter_mut().filter(|(column, width)| *column < texts && *width > TEXT_MIN);
        let Some((_, width)) = text.max_by_key(|(_, width)| *width) else { return false };
        *width -= 1;
    }
    true
}

impl List {
    /// Draws what there is room for, from the entry of number `offset` on.
    pub fn draw(&self, frame: &mut Frame<'_>, area: Rect, offset: usize) {
        let visible = usize::from(area.height.saturating_sub(1));
        let offset = offset.min(self.rows.len().saturating_sub(visible));
        let fit = ListLayout::new(&self.widths(), self.right, &self.least, usize::from(area.width));
        let shown = self.rows.iter().skip(offset).take(visible);
        let rows = shown.map(|(texts, style)| Row::new(self.cells(texts, &fit)).style(*style));
        let constraints = fit.columns.iter().map(|(_, width)| Constraint::Length(narrow(*width)));
        let table = Table::new(rows.collect::<Vec<_>>(), constraints.collect::<Vec<_>>())
            .column_spacing(narrow(fit.spacing))
            .header(Row::new(self.cells(&self.head, &fit)).style(Modifier::REVERSED));
        frame.render_widget(table, area);
    }

    fn widths(&self) -> Vec<usize> {
        let wide = |text: &String| text.chars().count();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(cells, _)| cells.get(column)).map(wide);
            cells.chain(self.head.get(column).map(wide)).max().unwrap_or(0)
        };
        (0..self.head.len()).map(width).collect()
    }

    fn cells(&self, texts: &[String], fit: &ListLayout) -> Vec<Cell<'static>> {
        let cell = |(column, width): &(usize, usize)| {
            let cut = if self.keeps_end && *column == 0 { cut_front } else { cut };
            let text = texts.get(*column).map_or_else(String::new, |text| cut(text, *width, self.mark));
            Cell::from(if *column < self.right {
                format!("{text:<width$}")
            } else {
                format!("{text:>width$}")
            })
        };
        fit.columns.iter().map(cell).collect()
    }
}

fn narrow(width: usize) -> u16 {
    u16::try_from(width).unwrap_or(u16::MAX)
}

/// Returns a text in at most so many columns, with a mark at its end if it was longer.
pub fn cut(text: &str, width: usize, mark: char) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let short: String =
        text.chars().take(width.saturating_sub(1)).chain((width > 0).then_some(mark)).collect();
    assert_eq!(short.chars().count(), width, "a cell is cut to another width than its column has");
    short
}

/// Cuts a text at its front, with the mark at its beginning.
fn cut_front(text: &str, width: usize, mark: char) -> String {
    let turned = |text: &str| text.chars().rev().collect::<String>();
    turned(&cut(&turned(text), width, mark))
}

/// Returns a text in lines of at most so many columns, broken between words where that is possible.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut letters: Vec<char> = word.chars().collect();
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && used + 1 + letters.len() <= width {
            lines.last_mut().into_iter().for_each(|line| line.push(' '));
        } else if used > 0 {
            lines.push(String::new());
        }
        while letters.len() > width {
            let rest = letters.split_off(width);
            lines.last_mut().into_iter().for_each(|line| line.extend(letters.iter()));
            lines.push(String::new());
            letters = rest;
        }
        lines.last_mut().into_iter().for_each(|line| line.extend(letters.iter()));
    }
    assert!(
        lines.iter().all(|line| line.chars().count() <= width),
        "a line is wider than the {width} it has"
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_move_closer_then_text_is_cut_then_columns_are_left_out() {
        let widths = [4, 20, 8, 6, 9];
        let fit = |room| ListLayout::new(&widths, 3, &[3, 2], room);
        let whole: Vec<(usize, usize)> = widths.into_iter().enumerate().collect();
        assert_eq!(fit(55), ListLayout { columns: whole.clone(), spacing: 2 });
        assert_eq!(fit(54), ListLayout { columns: whole, spacing: 1 });
        assert_eq!(
            fit(45),
            ListLayout { columns: vec![(0, 4), (1, 14), (2, 8), (3, 6), (4, 9)], spacing: 1 }
        );
        assert_eq!(fit(35), ListLayout { columns: vec![(0, 4), (1, 6), (2, 6), (3, 6), (4, 9)], spacing: 1 });
        assert_eq!(fit(34), ListLayout { columns: vec![(0, 4), (1, 10), (2, 8), (4, 9)], spacing: 1 });
        assert_eq!(fit(21), ListLayout { columns: vec![(0, 4), (1, 6), (4, 9)], spacing: 1 });
    }

    #[test]
    fn texts_are_cut_and_wrapped() {
        assert_eq!(
            (cut("node", 4, '~'), cut("nodes", 4, '~'), cut("x", 0, '~')),
            ("node".into(), "nod~".into(), String::new())
        );
        assert_eq!((cut_front("/a/file", 5, '~'), cut_front("/a", 2, '~')), ("~file".into(), "/a".into()));
        assert_eq!(wrapped("a node is away", 6), ["a node", "is", "away"]);
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrapped("", 3), [""]);
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_it_may_be_nor_lost(text in "[a-c ]{0,40}", width in 1_usize..12) {
            let lines = wrapped(&text, width);
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:?}");
            let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
            prop_assert!(cut(&text, width, '~').chars().count() <= width);
        }
    }
}
