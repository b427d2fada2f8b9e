//! An interval on a terminal, and what keys do there.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::list::{List, cut, wrapped};
use super::rates::{FULL, NodeRates};
use super::text::{NODES, OPERATIONS, headline, operation_row, row, space};
use super::{Rates, bandwidth, rate};

/// Intervals that the curves remember: more than any terminal has columns.
const HISTORY: usize = 512;
/// Warnings that are shown at once.
const WARNINGS: usize = 3;
/// Columns of the bar that says how full it is, and of what is in front of what is beside it.
const BAR: usize = 20;
const BAR_MIN: usize = 5;
const LABEL: usize = 9;
/// Lines that a warning may have.
const WARNING_LINES: usize = 2;
/// Columns that are left out on a narrow terminal, the first of these first: what nodes and operations are, how loaded and
/// how full they are stays longest.
const LEAST_OF_NODES: [usize; 6] = [7, 5, 4, 3, 2, 1];
const LEAST_OF_OPERATIONS: [usize; 5] = [4, 2, 5, 3, 6];
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
        let total = &rates.total;
        let curve = |label: &str, value: String, of: usize| {
            let front = format!("{label:<LABEL$}{value:>12}  ");
            let values: Vec<f64> = self.history.iter().map(|interval| interval[of]).collect();
            let columns = width.saturating_sub(front.chars().count());
            Line::from(vec![
                Span::raw(front),
                Span::styled(curve(&values, columns, self.has_blocks), self.style(Color::Cyan)),
            ])
        };
        let mut lines: Vec<Line<'_>> = wrapped(&headline(rates), width)
            .into_iter()
            .map(|line| Line::styled(line, Modifier::BOLD))
            .collect();
        lines.extend([
            curve("written", bandwidth(total.written), 0),
            curve("read", bandwidth(total.read), 1),
            curve("requests", format!("{}/s", rate(total.requests)), 2),
        ]);
        lines.extend(self.space(rates, width));
        let alarm = self.style(Color::Red).add_modifier(Modifier::BOLD);
        for warning in rates.warnings.iter().take(WARNINGS) {
            let mut parts = wrapped(&format!("! {warning}"), width).into_iter();
            lines.extend(parts.by_ref().take(WARNING_LINES - 1).map(|part| Line::styled(part, alarm)));
            let rest = parts.collect::<Vec<_>>().join(" ");
            if !rest.is_empty() {
                lines.push(Line::styled(cut(&rest, width, self.mark()), alarm));
            }
        }
        if rates.warnings.len() > WARNINGS {
            let more = rates.warnings.len() - WARNINGS;
            lines.push(Line::styled(format!("! {more} more: bivouac status"), alarm));
        }
        lines.push(Line::default());
        lines
    }

    /// How full it is: the bar is as long as what is said beside it lets it be, and that goes on below where it must.
    fn space(&self, rates: &Rates, width: usize) -> Vec<Line<'_>> {
        let (fill, text) = (rates.total.fill(), space(rates));
        let beside = width.saturating_sub(LABEL + text.chars().count() + "[] ".len());
        let columns = beside.clamp(BAR_MIN, BAR);
        let full = (fill.clamp(0.0, 1.0) * columns as f64).round() as usize;
        let bar = format!("[{}{}] ", "|".repeat(full), " ".repeat(columns - full));
        let color = if fill >= FULL { Color::Red } else { Color::Green };
        let room = width.saturating_sub(LABEL + bar.len());
        let mut parts = wrapped(&text, room).into_iter();
        let first = vec![
            Span::raw(format!("{:<LABEL$}", "space")),
            Span::styled(bar, self.style(color)),
            Span::raw(parts.next().unwrap_or_default()),
        ];
        let rest = parts.collect::<Vec<_>>().join(" ");
        let below = wrapped(&rest, width.saturating_sub(LABEL)).into_iter().filter(|line| !line.is_empty());
        let below = below.map(|line| Line::from(format!("{:<LABEL$}{line}", "")));
        std::iter::once(Line::from(first)).chain(below).collect()
    }

    /// Stands for what was cut off.
    fn mark(&self) -> char {
        if self.has_blocks { '…' } else { '~' }
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
        let head = (0..NODES.len()).map(head).collect();
        List { head, right: 3, least: &LEAST_OF_NODES, rows, mark: self.mark() }.draw(frame, area, offset);
    }

    fn draw_operations(&self, frame: &mut Frame<'_>, rates: &Rates, area: Rect) {
        let rows = rates.operations.iter().map(|one| (operation_row(one).to_vec(), Style::new())).collect();
        let head = OPERATIONS.iter().map(|name| (*name).to_owned()).collect();
        let offset = if self.view == View::Operations { self.offset } else { 0 };
        List { head, right: 1, least: &LEAST_OF_OPERATIONS, rows, mark: self.mark() }
            .draw(frame, area, offset);
    }
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
    fn what_matters_is_on_a_narrow_screen_too() {
        let mut screen = Screen::new(Duration::from_secs(2), false, false);
        let mut rates = rates(4);
        for node in &mut rates.nodes {
            node.host = format!("compute-rack7-{}.cluster.example", node.host);
            (node.work.written, node.work.read) = (1234.5 * 1048576.0, 1023.9 * 1048576.0);
        }
        (rates.unsent_bytes, rates.unflushed_bytes) = (123 << 20, Some(45 << 30));
        rates.warnings = vec!["node 2 on n2 was given up: died 5 times within 60 s, at last: killed by signal 11 (SIGSEGV); see: bivouac logs".into()];
        screen.show(rates);
        let shown = lines(&screen, 80, 24);
        let text = shown.join("\n");
        assert!(text.contains("FULL") && text.matches("41 %").count() == 5, "{text}");
        assert!(text.contains("compute-") && text.contains("dead") && text.contains("1.2 GiB/s"), "{text}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("not sent") && flat.contains("45 GiB not flushed"), "{text}");
        assert!(flat.contains("(SIGSEGV); see: bivouac logs"), "{text}");
        let narrow = lines(&screen, 40, 24).join("\n");
        assert!(narrow.contains("LOAD*") && narrow.matches("41 %").count() >= 4, "{narrow}");
        assert!(narrow.contains("P99"), "{narrow}");
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
