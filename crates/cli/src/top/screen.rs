//! An interval on a terminal, and what keys do there.

use std::collections::VecDeque;
use std::time::Duration;

use bivouac_monitor::rates::{FULL, NodeRates, Rates};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::list::{List, cut, wrapped};
use super::sections::{SECTIONS, Section, SectionView, shares};
use super::text::{headline, space};
use super::{bandwidth, rate};

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
/// Lengths of an interval.
const EVERY_MIN: Duration = Duration::from_millis(250);
const EVERY_MAX: Duration = Duration::from_secs(64);

const KEYS: [(&str, &str); 10] = [
    ("q, F10, Ctrl-C", "end"),
    ("Tab", "all that fits; only nodes, operations, files, processes, what is copied"),
    ("< >, F6", "order the list that is shown, or nodes, by another column"),
    ("Up Down, PgUp PgDn, Home", "move in a list that is longer than the screen"),
    ("Space", "stand still, and go on"),
    ("+ -", "a shorter, or a longer interval"),
    ("h, ?, F1", "this page, and back"),
    ("LOAD", "requests worked on at a time, on average"),
    ("CALLS/S", "reads and writes of programs, as far as nodes were told"),
    ("QUEUE", "jobs of stage under way, and what is not at its source"),
];

/// Effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    /// Redraw.
    Stay,
    /// End.
    End,
    /// Intervals of this length.
    Every(Duration),
}

/// Content of the terminal.
pub struct Screen {
    rates: Option<Rates>,
    /// Bytes written, bytes read and requests of each interval, the last one first.
    history: VecDeque<[f64; 3]>,
    /// The only list shown; `None` for all.
    only: Option<Section>,
    /// Columns that lists are ordered by.
    orders: [(Section, usize); 3],
    offset: usize,
    is_still: bool,
    shows_keys: bool,
    every: Duration,
    has_colors: bool,
    has_blocks: bool,
}

impl Screen {
    /// Creates an empty one. Without `has_blocks` the terminal understands ASCII only.
    pub fn new(every: Duration, has_colors: bool, has_blocks: bool) -> Screen {
        Screen {
            rates: None,
            history: VecDeque::new(),
            only: None,
            orders: [Section::Nodes, Section::Files, Section::Processes].map(|one| (one, one.order())),
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
    pub fn key(&mut self, key: KeyEvent) -> KeyAction {
        // Terminals that tell of releases would have each key count twice.
        if key.kind == KeyEventKind::Release {
            return KeyAction::Stay;
        }
        let page = 10;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return KeyAction::End,
            KeyCode::Char('q') | KeyCode::F(10) => return KeyAction::End,
            KeyCode::Esc if self.shows_keys => self.shows_keys = false,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.shows_keys = !self.shows_keys,
            KeyCode::Tab => {
                self.offset = 0;
                self.only = self.only.map_or(Some(SECTIONS[0]), Section::next);
            }
            KeyCode::Char('>') | KeyCode::F(6) => self.reorder(1),
            KeyCode::Char('<') => self.reorder(self.moved().ordered().columns().len() - 1),
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
        // Else as many presses of Up as were too many would seem to do nothing.
        self.offset = self.offset.min(self.longest().saturating_sub(1));
        KeyAction::Stay
    }

    fn set_every(&mut self, every: Duration) -> KeyAction {
        self.every = every.clamp(EVERY_MIN, EVERY_MAX);
        KeyAction::Every(self.every)
    }

    /// Returns the entries of the list that is moved in.
    fn longest(&self) -> usize {
        self.rates.as_ref().map_or(0, |rates| self.list(self.moved(), rates).rows.len())
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
        self.draw_sections(frame, rates, rest);
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

    /// Returns how full it is. The bar is as long as the text beside it permits, which is wrapped where necessary.
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

    /// Lists that there is room for, in the order of [`SECTIONS`]; or the one that was chosen.
    fn draw_sections(&self, frame: &mut Frame<'_>, rates: &Rates, rest: Rect) {
        let sections: Vec<Section> = self.only.map_or_else(|| SECTIONS.to_vec(), |section| vec![section]);
        let lists: Vec<List> = sections.iter().map(|section| self.list(*section, rates)).collect();
        let rows: Vec<usize> = lists.iter().map(|list| list.rows.len()).collect();
        let places = match self.only {
            Some(_) => vec![rest],
            None => shares(&rows, rest),
        };
        for ((section, list), place) in sections.iter().zip(&lists).zip(places) {
            let is_moved = *section == self.moved();
            list.draw(frame, place, if is_moved { self.offset } else { 0 });
        }
    }

    fn list(&self, section: Section, rates: &Rates) -> List {
        let order = self.order_of(section);
        let SectionView { head, right, least, rows, nodes } = section.shown(rates, order);
        let styles = nodes.into_iter().map(|node| self.style_of(node)).chain(std::iter::repeat(Style::new()));
        let rows = rows.into_iter().zip(styles).collect();
        List { head, right, least, rows, mark: self.mark(), keeps_end: section == Section::Files }
    }

    fn style_of(&self, node: &NodeRates) -> Style {
        match node.state {
            "ready" if node.work.fill() >= FULL => self.style(Color::Yellow),
            "ready" => Style::new(),
            _ => self.style(Color::Red),
        }
    }

    /// Returns the list that keys move in.
    fn moved(&self) -> Section {
        self.only.unwrap_or(Section::Nodes)
    }

    fn order_of(&self, section: Section) -> usize {
        let known = self.orders.iter().find(|(ordered, _)| *ordered == section);
        known.map_or(usize::MAX, |(_, order)| *order)
    }

    /// Orders a list by another column, so many further.
    fn reorder(&mut self, by: usize) {
        let section = self.moved().ordered();
        let columns = section.columns().len();
        let orders = self.orders.iter_mut().filter(|(ordered, _)| *ordered == section);
        orders.for_each(|(_, order)| *order = (*order + by) % columns);
    }
}

/// Values as a curve, the last one first in `values` and at the right end of the curve; the largest one is as high as
/// it goes.
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

    use bivouac_monitor::rates::{
        Activity, FileRates, IntervalWork, JobRates, OperationRates, ProcessRates, UseRates,
    };

    use super::*;

    fn node(id: u16, load: f64) -> NodeRates {
        NodeRates {
            id,
            host: format!("n{id}"),
            state: if id == 2 { "dead" } else { "ready" },
            work: IntervalWork {
                requests: 1000.0,
                written: 1024.0 * 1024.0,
                load,
                capacity_bytes: 100,
                used_bytes: 41,
                ..IntervalWork::default()
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
            total: IntervalWork { written: 3.0 * 1024.0 * 1024.0, ..node(0, 1.0).work },
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

    fn press(screen: &mut Screen, code: KeyCode) -> KeyAction {
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

    fn activity() -> Activity {
        let pace = |calls, written| UseRates { calls, written, read: 512.0 };
        let file = |path: &str, pace| FileRates { path: path.into(), ino: 9, pace };
        let process = |program: &str, pid, pace| ProcessRates {
            program: program.into(),
            pid,
            host: Some("n0".into()),
            pace,
        };
        Activity {
            busy_seconds: 2.0,
            busy_files: vec![file("/out/a", pace(1.0, 4096.0)), file("/out/b", pace(20.0, 1024.0))],
            busy_processes: vec![
                process("solver", 4711, pace(1.0, 4096.0)),
                process("tar", 0, pace(20.0, 0.0)),
            ],
            stages: vec![JobRates {
                job: 3,
                way: "in".into(),
                files: 1,
                files_found: 4,
                bytes: 1 << 20,
                bytes_found: 4 << 20,
                pace: 1024.0,
                ..JobRates::default()
            }],
            unknown: Vec::new(),
        }
    }

    #[test]
    fn what_is_busy_and_what_waits_is_shown_where_there_is_room() {
        let mut screen = Screen::new(Duration::from_secs(2), false, false);
        let rates = Rates {
            activity: Some(activity()),
            unflushed_files: Some(12),
            unflushed_bytes: Some(5 << 20),
            ..rates(2)
        };
        screen.show(rates);
        let high = lines(&screen, 80, 40);
        assert_eq!(
            high[15..27],
            [
                "FILE    CALLS/S  WRITTEN     READ     TOTAL*",
                "/out/a      1.0  4 KiB/s  512 B/s  4.5 KiB/s",
                "/out/b       20  1 KiB/s  512 B/s  1.5 KiB/s",
                "",
                "PROGRAM  HOST   PID  CALLS/S  WRITTEN     READ     TOTAL*",
                "solver   n0    4711      1.0  4 KiB/s  512 B/s  4.5 KiB/s",
                "tar      n0       -       20    0 B/s  512 B/s    512 B/s",
                "",
                "QUEUE       HOST  FILES        BYTES  DONE     RATE",
                "stage in 3  -       1/4  1 MiB/4 MiB  25 %  1 KiB/s",
                "flush       -        12        5 MiB     -        -",
                "",
            ]
        );
        // At 24 lines the last list has no room; each is there alone.
        let low = lines(&screen, 80, 24);
        let heads = |shown: &[String]| {
            let names = ["NODE", "OPERATION", "FILE", "PROGRAM", "QUEUE"];
            names
                .into_iter()
                .filter(|name| shown.iter().any(|line| line.starts_with(name)))
                .collect::<Vec<_>>()
        };
        assert_eq!(heads(&high), ["NODE", "OPERATION", "FILE", "PROGRAM", "QUEUE"]);
        assert_eq!(heads(&low), ["NODE", "OPERATION", "FILE", "PROGRAM"]);
        let mut seen = Vec::new();
        for _ in 0..5 {
            press(&mut screen, KeyCode::Tab);
            seen.extend(heads(&lines(&screen, 80, 24)));
        }
        assert_eq!(seen, ["NODE", "OPERATION", "FILE", "PROGRAM", "QUEUE"]);
    }

    #[test]
    fn busy_files_are_ordered_by_another_column() {
        let mut screen = Screen::new(Duration::from_secs(2), false, false);
        screen.show(Rates { activity: Some(activity()), ..rates(1) });
        (0..3).for_each(|_| assert_eq!(press(&mut screen, KeyCode::Tab), KeyAction::Stay));
        let seen = |screen: &Screen| {
            let shown = lines(screen, 80, 24);
            let at = shown.iter().position(|line| line.starts_with("FILE")).unwrap();
            shown[at..=at + 2].to_vec()
        };
        assert!(seen(&screen)[0].contains("TOTAL*") && seen(&screen)[1].starts_with("/out/a"));
        (0..2).for_each(|_| assert_eq!(press(&mut screen, KeyCode::Char('>')), KeyAction::Stay));
        assert!(seen(&screen)[0].contains("CALLS/S*") && seen(&screen)[1].starts_with("/out/b"));
        press(&mut screen, KeyCode::Char('<'));
        assert!(seen(&screen)[0].contains("FILE*") && seen(&screen)[1].starts_with("/out/a"));
    }

    #[test]
    fn keys_order_and_move_and_end() {
        let mut screen = Screen::new(Duration::from_secs(2), true, true);
        screen.show(rates(100));
        let first = |screen: &Screen| lines(screen, 80, 24)[8].split_whitespace().next().unwrap().to_owned();
        assert_eq!(first(&screen), "6", "the load is largest");
        (0..3).for_each(|_| assert_eq!(press(&mut screen, KeyCode::Char('>')), KeyAction::Stay));
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
        (0..3).for_each(|_| assert_eq!(press(&mut screen, KeyCode::Tab), KeyAction::Stay));
        press(&mut screen, KeyCode::Char('h'));
        assert!(lines(&screen, 80, 24)[0].contains("Ctrl-C"));
        press(&mut screen, KeyCode::Esc);
        press(&mut screen, KeyCode::Char(' '));
        screen.show(Rates::default());
        assert!(lines(&screen, 80, 24)[0].contains("camp"), "it stands still");
        assert_eq!(press(&mut screen, KeyCode::Char('+')), KeyAction::Every(Duration::from_secs(1)));
        for _ in 0..9 {
            press(&mut screen, KeyCode::Char('-'));
        }
        assert_eq!(press(&mut screen, KeyCode::Char('-')), KeyAction::Every(EVERY_MAX));
        assert_eq!(press(&mut screen, KeyCode::Char('q')), KeyAction::End);
        let stop = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(stop), KeyAction::End);
    }

    #[test]
    fn every_size_of_a_terminal_is_drawn_on() {
        let mut screen = Screen::new(Duration::from_secs(2), true, true);
        screen.show(Rates { activity: Some(activity()), ..rates(30) });
        for (columns, rows) in [(1, 1), (2, 3), (10, 7), (20, 12), (40, 13), (300, 100)] {
            for _ in 0..6 {
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
