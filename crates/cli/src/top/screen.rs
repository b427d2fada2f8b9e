//! An interval on a terminal, and what keys do there.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::rates::{FULL, NodeRates};
use super::text::{NODES, OPERATIONS, headline, operation_row, row, space};
use super::{Rates, bandwidth, rate};

/// Intervals that the curves remember: more than any terminal has columns.
const HISTORY: usize = 512;
/// Warnings that are shown at once.
const WARNINGS: usize = 3;
/// Columns of the bar that says how full it is.
const BAR: usize = 20;
/// The column that nodes are ordered by at first.
const LOAD: usize = 6;
/// Columns in which more is first.
const FALLING: std::ops::RangeInclusive<usize> = 3..=8;
/// Lengths of an interval.
const EVERY_MIN: Duration = Duration::from_millis(250);
const EVERY_MAX: Duration = Duration::from_secs(64);

const KEYS: [(&str, &str); 8] = [
    ("q, F10, Ctrl-C", "end"),
    ("Tab", "nodes and operations, nodes only, operations only"),
    ("< >, F6", "order nodes by another column"),
    ("Up Down, PgUp PgDn, Home", "move in a list that is longer than the screen"),
    ("Space", "stand still, and go on"),
    ("+ -", "a shorter, or a longer interval"),
    ("h, ?, F1", "this page, and back"),
    ("LOAD", "requests worked on at a time, on average"),
];

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// To show what has changed.
    Stay,
    /// To end.
    End,
    /// Intervals of this length.
    Every(Duration),
}

/// Which lists there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Both,
    Nodes,
    Operations,
}

/// What the terminal is to show.
pub struct Screen {
    rates: Option<Rates>,
    /// Written, read, requests: of each interval, the last one in front.
    history: VecDeque<[f64; 3]>,
    view: View,
    order: usize,
    offset: usize,
    is_still: bool,
    shows_keys: bool,
    every: Duration,
    has_colors: bool,
    has_blocks: bool,
}

impl Screen {
    /// An empty one. Without `has_blocks` the terminal understands ASCII only.
    pub fn new(every: Duration, has_colors: bool, has_blocks: bool) -> Screen {
        Screen {
            rates: None,
            history: VecDeque::new(),
            view: View::Both,
            order: LOAD,
            offset: 0,
            is_still: false,
            shows_keys: false,
            every,
            has_colors,
            has_blocks,
        }
    }

    /// Takes another interval.
    pub fn show(&mut self, rates: Rates) {
        if self.is_still {
            return;
        }
        let total = &rates.total;
        self.history.push_front([total.written, total.read, total.requests]);
        self.history.truncate(HISTORY);
        self.rates = Some(rates);
    }

    /// Does what a key asks for.
    pub fn key(&mut self, key: KeyEvent) -> Turn {
        if key.kind == KeyEventKind::Release {
            return Turn::Stay;
        }
        let page = 10;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Turn::End,
            KeyCode::Char('q') | KeyCode::F(10) => return Turn::End,
            KeyCode::Esc if self.shows_keys => self.shows_keys = false,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.shows_keys = !self.shows_keys,
            KeyCode::Tab => {
                self.offset = 0;
                self.view = match self.view {
                    View::Both => View::Nodes,
                    View::Nodes => View::Operations,
                    View::Operations => View::Both,
                };
            }
            KeyCode::Char('>') | KeyCode::F(6) => self.order = (self.order + 1) % NODES.len(),
            KeyCode::Char('<') => self.order = (self.order + NODES.len() - 1) % NODES.len(),
            KeyCode::Char(' ') => self.is_still = !self.is_still,
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.offset = self.offset.saturating_add(1),
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(page),
            KeyCode::PageDown => self.offset = self.offset.saturating_add(page),
            KeyCode::Home => self.offset = 0,
            KeyCode::Char('+') => return self.set_every(self.every / 2),
            KeyCode::Char('-') => return self.set_every(self.every * 2),
            _ => {}
        }
        self.offset = self.offset.min(self.longest().saturating_sub(1));
        Turn::Stay
    }

    fn set_every(&mut self, every: Duration) -> Turn {
        self.every = every.clamp(EVERY_MIN, EVERY_MAX);
        Turn::Every(self.every)
    }

    /// Entries of the list that is moved in.
    fn longest(&self) -> usize {
        self.rates.as_ref().map_or(0, |rates| match self.view {
            View::Operations => rates.operations.len(),
            View::Both | View::Nodes => rates.nodes.len(),
        })
    }

    fn style(&self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    /// Draws it all.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let mut rest = Rect { height: area.height.saturating_sub(1), ..area };
        let foot = Rect { y: rest.height, height: area.height.min(1), ..area };
        frame.render_widget(Paragraph::new(self.foot()).style(Modifier::REVERSED), foot);
        if self.shows_keys {
            let width = KEYS.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
            let lines: Vec<Line<'_>> =
                KEYS.iter().map(|(key, what)| Line::from(format!("  {key:<width$}  {what}"))).collect();
            return frame.render_widget(Paragraph::new(lines), rest);
        }
        let Some(rates) = &self.rates else {
            let text = format!("the first interval ends in {} s", self.every.as_secs_f32());
            return frame.render_widget(Paragraph::new(text), rest);
        };
        let head = self.head(rates, usize::from(area.width));
        let height = u16::try_from(head.len()).unwrap_or(u16::MAX).min(rest.height);
        frame.render_widget(Paragraph::new(head), Rect { height, ..rest });
        rest = Rect { y: rest.y + height, height: rest.height - height, ..rest };
        let (nodes, operations) = self.shares(rates, rest);
        self.draw_nodes(frame, rates, nodes);
        self.draw_operations(frame, rates, operations);
    }

    fn foot(&self) -> String {
        let still = if self.is_still { "  standing still" } else { "" };
        format!(" q end  h keys  Tab view  < > order  every {} s{still}", self.every.as_secs_f32())
    }

    fn head(&self, rates: &Rates, width: usize) -> Vec<Line<'_>> {
        let name = Span::styled(headline(rates), Modifier::BOLD);
        let total = &rates.total;
        let curve = |label: &str, value: String, of: usize| {
            let front = format!("{label:<9}{value:>12}  ");
            let values: Vec<f64> = self.history.iter().map(|interval| interval[of]).collect();
            let columns = width.saturating_sub(front.chars().count());
            Line::from(vec![
                Span::raw(front),
                Span::styled(curve(&values, columns, self.has_blocks), self.style(Color::Cyan)),
            ])
        };
        let full = (total.fill().clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let bar = format!("[{}{}] ", "|".repeat(full), " ".repeat(BAR - full));
        let color = if total.fill() >= FULL { Color::Red } else { Color::Green };
        let mut lines = vec![
            Line::from(name),
            curve("written", bandwidth(total.written), 0),
            curve("read", bandwidth(total.read), 1),
            curve("requests", format!("{}/s", rate(total.requests)), 2),
            Line::from(vec![
                Span::raw("space    "),
                Span::styled(bar, self.style(color)),
                Span::raw(space(rates)),
            ]),
        ];
        let alarm = self.style(Color::Red).add_modifier(Modifier::BOLD);
        let shown = rates.warnings.iter().take(WARNINGS);
        lines.extend(shown.map(|warning| Line::styled(format!("! {warning}"), alarm)));
        if rates.warnings.len() > WARNINGS {
            let more = rates.warnings.len() - WARNINGS;
            lines.push(Line::styled(format!("! {more} more: bivouac status"), alarm));
        }
        lines.push(Line::default());
        lines
    }

    /// The places of the two lists; those that have none are empty.
    fn shares(&self, rates: &Rates, rest: Rect) -> (Rect, Rect) {
        let none = Rect { height: 0, ..rest };
        let wanted = |entries: usize| u16::try_from(entries + 1).unwrap_or(u16::MAX);
        match self.view {
            View::Nodes => (rest, none),
            View::Operations => (none, rest),
            View::Both if rest.height < 8 => (rest, none),
            View::Both => {
                let others = wanted(rates.operations.len()).saturating_add(1);
                let most = rest.height.saturating_sub(others).max(rest.height / 2);
                let nodes = Rect { height: wanted(rates.nodes.len()).min(most), ..rest };
                let from = nodes.height + 1;
                (nodes, Rect { y: rest.y + from, height: rest.height.saturating_sub(from), ..rest })
            }
        }
    }

    fn draw_nodes(&self, frame: &mut Frame<'_>, rates: &Rates, area: Rect) {
        let mut nodes: Vec<&NodeRates> = rates.nodes.iter().collect();
        let value = |node: &NodeRates| match self.order {
            3 => node.work.requests,
            4 => node.work.written,
            5 => node.work.read,
            6 => node.work.load,
            7 => node.work.under_way as f64,
            _ => node.work.fill(),
        };
        nodes.sort_by(|a, b| match self.order {
            1 => a.host.cmp(&b.host),
            2 => a.state.cmp(b.state),
            order if FALLING.contains(&order) => value(b).total_cmp(&value(a)),
            _ => a.id.cmp(&b.id),
        });
        let style = |node: &NodeRates| match node.state {
            "ready" if node.work.fill() >= FULL => self.style(Color::Yellow),
            "ready" => Style::new(),
            _ => self.style(Color::Red),
        };
        let rows = nodes.iter().map(|node| (row(node).to_vec(), style(node))).collect();
        let head = |column: usize| match column == self.order {
            true => format!("{}*", NODES[column]),
            false => NODES[column].to_owned(),
        };
        let offset = if self.view == View::Operations { 0 } else { self.offset };
        list(frame, area, (0..NODES.len()).map(head).collect(), 3, rows, offset);
    }

    fn draw_operations(&self, frame: &mut Frame<'_>, rates: &Rates, area: Rect) {
        let rows = rates.operations.iter().map(|one| (operation_row(one).to_vec(), Style::new())).collect();
        let head = OPERATIONS.iter().map(|name| (*name).to_owned()).collect();
        let offset = if self.view == View::Operations { self.offset } else { 0 };
        list(frame, area, head, 1, rows, offset);
    }
}

/// A list with its head. Columns from `right` on are aligned right.
fn list(
    frame: &mut Frame<'_>,
    area: Rect,
    head: Vec<String>,
    right: usize,
    rows: Vec<(Vec<String>, Style)>,
    offset: usize,
) {
    let visible = usize::from(area.height.saturating_sub(1));
    let offset = offset.min(rows.len().saturating_sub(visible));
    let wide = |text: &String| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|(cells, _)| cells.get(column)).map(wide);
        cells.chain(head.get(column).map(wide)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let cells = |texts: &[String]| -> Vec<Cell<'static>> {
        let cell = |(column, (text, width)): (usize, (&String, &usize))| {
            Cell::from(if column < right { format!("{text:<width$}") } else { format!("{text:>width$}") })
        };
        texts.iter().zip(&widths).enumerate().map(cell).collect()
    };
    let shown =
        rows.iter().skip(offset).take(visible).map(|(texts, style)| Row::new(cells(texts)).style(*style));
    let constraints =
        widths.iter().map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
    let table = Table::new(shown.collect::<Vec<_>>(), constraints.collect::<Vec<_>>())
        .column_spacing(2)
        .header(Row::new(cells(&head)).style(Modifier::REVERSED));
    frame.render_widget(table, area);
}

/// Values as a curve, the last one first in `values` and at the right end of the curve; the largest one is as high as it
/// goes.
fn curve(values: &[f64], columns: usize, has_blocks: bool) -> String {
    let levels: [char; 9] = if has_blocks {
        [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
    } else {
        [' ', '_', '.', '-', '-', '=', '+', '*', '#']
    };
    let shown = values.get(..columns.min(values.len())).unwrap_or_default();
    let most = shown.iter().copied().fold(0.0, f64::max);
    let level = |value: &f64| match most > 0.0 && *value > 0.0 {
        // What is there at all is seen.
        true => levels[((value / most * 8.0).round() as usize).clamp(1, 8)],
        false => levels[0],
    };
    let empty = std::iter::repeat_n(' ', columns - shown.len());
    empty.chain(shown.iter().rev().map(level)).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::{OperationRates, Work};
    use super::*;

    fn node(id: u16, load: f64) -> NodeRates {
        NodeRates {
            id,
            host: format!("n{id}"),
            state: if id == 2 { "dead" } else { "ready" },
            work: Work {
                requests: 1000.0,
                written: 1024.0 * 1024.0,
                load,
                capacity_bytes: 100,
                used_bytes: 41,
                ..Work::default()
            },
        }
    }

    fn rates(nodes: u16) -> Rates {
        let nodes: Vec<NodeRates> = (0..nodes).map(|id| node(id, f64::from(id % 7))).collect();
        let operation = |name: &str| OperationRates {
            name: name.into(),
            client: 5.0,
            p50_us: Some(8),
            ..OperationRates::default()
        };
        Rates {
            name: "camp".into(),
            state: "running",
            unix_ms: 61_000,
            total: Work { written: 3.0 * 1024.0 * 1024.0, ..node(0, 1.0).work },
            files: 7,
            nodes,
            operations: vec![operation("Write"), operation("Lookup")],
            warnings: vec!["node 2 on n2 is dead".into()],
            ..Rates::default()
        }
    }

    fn lines(screen: &Screen, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |row| (0..columns).map(|column| buffer[(column, row)].symbol()).collect::<String>();
        (0..rows).map(|row| line(row).trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Turn {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn all_is_on_a_screen_of_80_columns() {
        let mut screen = Screen::new(Duration::from_secs(2), false, false);
        assert_eq!(lines(&screen, 80, 24)[0], "the first interval ends in 2 s");
        screen.show(rates(4));
        let shown = lines(&screen, 80, 24);
        assert_eq!(shown[0], "formation camp: running, 4 nodes, 1 min old");
        assert_eq!(shown[1].split_whitespace().collect::<Vec<_>>(), ["written", "3", "MiB/s", "#"]);
        assert_eq!(shown[1].len(), 80, "the last interval is at the right end");
        assert_eq!(shown[4], "space    [||||||||            ] 41 % of 100 B, 7 files, 0 open");
        assert_eq!(shown[5], "! node 2 on n2 is dead");
        assert_eq!(shown[7], "NODE  HOST  STATE  REQ/S  WRITTEN   READ  LOAD*  UNDER WAY  FULL");
        assert_eq!(shown[8], "3     n3    ready   1000  1 MiB/s  0 B/s   3.00          0  41 %");
        assert_eq!(shown[13], "OPERATION  CLIENTS/S  PEERS/S  LOAD  UNDER WAY   P50  P99");
        assert_eq!(shown[14], "Write            5.0        0  0.00          0  8 µs    -");
        assert!(shown[23].starts_with(" q end  h keys"), "{}", shown[23]);
        assert!(shown.iter().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn keys_order_and_move_and_end() {
        let mut screen = Screen::new(Duration::from_secs(2), true, true);
        screen.show(rates(100));
        let first = |screen: &Screen| lines(screen, 80, 24)[8].split_whitespace().next().unwrap().to_owned();
        assert_eq!(first(&screen), "6", "the load is largest");
        (0..3).for_each(|_| assert_eq!(press(&mut screen, KeyCode::Char('>')), Turn::Stay));
        assert_eq!(first(&screen), "0", "by their numbers");
        press(&mut screen, KeyCode::PageDown);
        assert_eq!(first(&screen), "10");
        for _ in 0..20 {
            press(&mut screen, KeyCode::PageDown);
        }
        assert_eq!(
            lines(&screen, 80, 24)[18].split_whitespace().next(),
            Some("99"),
            "not further than the end"
        );
        press(&mut screen, KeyCode::Up);
        press(&mut screen, KeyCode::Tab);
        assert!(!lines(&screen, 80, 24).iter().any(|line| line.starts_with("OPERATION")));
        press(&mut screen, KeyCode::Tab);
        assert!(lines(&screen, 80, 24)[7].starts_with("OPERATION"));
        press(&mut screen, KeyCode::Char('h'));
        assert!(lines(&screen, 80, 24)[0].contains("Ctrl-C"));
        press(&mut screen, KeyCode::Esc);
        press(&mut screen, KeyCode::Char(' '));
        screen.show(Rates::default());
        assert!(lines(&screen, 80, 24)[0].contains("camp"), "it stands still");
        assert_eq!(press(&mut screen, KeyCode::Char('+')), Turn::Every(Duration::from_secs(1)));
        for _ in 0..9 {
            press(&mut screen, KeyCode::Char('-'));
        }
        assert_eq!(press(&mut screen, KeyCode::Char('-')), Turn::Every(EVERY_MAX));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Turn::End);
        let stop = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(stop), Turn::End);
    }

    #[test]
    fn every_size_of_a_terminal_is_drawn_on() {
        let mut screen = Screen::new(Duration::from_secs(2), true, true);
        screen.show(rates(30));
        for (columns, rows) in [(1, 1), (2, 3), (10, 7), (20, 12), (40, 13), (300, 100)] {
            for _ in 0..3 {
                lines(&screen, columns, rows);
                press(&mut screen, KeyCode::Tab);
            }
        }
    }

    #[test]
    fn a_curve_ends_with_the_last_value() {
        assert_eq!(curve(&[8.0, 4.0, 0.0, 0.001], 6, true), "  ▁ ▄█");
        assert_eq!(curve(&[8.0, 4.0, 0.0, 0.001], 2, false), "-#");
        assert_eq!(curve(&[], 3, true), "   ");
    }
}
