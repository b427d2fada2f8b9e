//! Charts as SVG: bars with their spread, and curves. Plain enough to be written by hand.

use std::fmt::Write;

use crate::report::{Measured, Report, Row, Unit, number};
use bivouac_types::escape_markup;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 210.0;
const RIGHT: f64 = 110.0;
const BAR: f64 = 16.0;
const GAP: f64 = 12.0;
const TOP: f64 = 44.0;
const COLOURS: [&str; 6] = ["#2f6db3", "#b8bec6", "#d9822b", "#4c9f70", "#8c6bb1", "#c44e52"];

/// A chart of all rows, a panel for each unit: medians as bars, least and greatest as a line across the end.
#[must_use]
pub fn bars(report: &Report) -> String {
    let mut body = String::new();
    let mut y = TOP;
    for unit in units(report) {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.unit == unit).collect();
        y = panel(&mut body, &rows, unit, &targets(report), y);
    }
    legend(&mut body, &targets(report), y);
    document(&report.title, &body, y + 30.0)
}

/// A line of a curve: its name, and points of increasing x.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name of the line.
    pub name: String,
    /// The points.
    pub points: Vec<(f64, f64)>,
}

/// A chart of curves over one axis, from zero.
#[must_use]
pub fn curves(title: &str, x_label: &str, y_label: &str, all: &[Curve]) -> String {
    const HEIGHT: f64 = 300.0;
    let points = || all.iter().flat_map(|curve| &curve.points);
    let (x_max, y_max) = (greatest(points().map(|p| p.0)), greatest(points().map(|p| p.1)));
    let (left, width) = (70.0, WIDTH - 100.0);
    let place = |x: f64, y: f64| (left + x / x_max * width, TOP + HEIGHT - y / y_max * HEIGHT);
    let mut body = String::new();
    for part in 0..=4 {
        let value = y_max * f64::from(part) / 4.0;
        let (_, y) = place(0.0, value);
        line(&mut body, (left, y), (left + width, y), "#dddddd");
        text(&mut body, (left - 6.0, y + 4.0), "end", &number(value));
    }
    for (curve, colour) in all.iter().zip(COLOURS.iter().cycle()) {
        let corners: Vec<_> = curve.points.iter().map(|(x, y)| place(*x, *y)).collect();
        let path: Vec<_> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        put(
            &mut body,
            format_args!(
                r#"<polyline fill="none" stroke="{colour}" stroke-width="2" points="{}"/>"#,
                path.join(" ")
            ),
        );
        for (x, y) in corners {
            put(&mut body, format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#));
        }
    }
    if let Some(curve) = all.first() {
        for (x, _) in &curve.points {
            text(&mut body, (place(*x, 0.0).0, TOP + HEIGHT + 16.0), "middle", &number(*x));
        }
    }
    let bottom = TOP + HEIGHT + 36.0;
    text(&mut body, (left + width / 2.0, bottom), "middle", &format!("{x_label} (down: {y_label})"));
    let names: Vec<&str> = all.iter().map(|curve| curve.name.as_str()).collect();
    legend(&mut body, &names, bottom + 10.0);
    document(title, &body, bottom + 40.0)
}

fn units(report: &Report) -> Vec<Unit> {
    let mut units = Vec::new();
    for row in &report.rows {
        if !units.contains(&row.unit) {
            units.push(row.unit);
        }
    }
    units
}

fn targets(report: &Report) -> Vec<&str> {
    let mut targets: Vec<&str> = Vec::new();
    for measured in report.rows.iter().flat_map(|row| &row.targets) {
        if !targets.contains(&measured.target.as_str()) {
            targets.push(&measured.target);
        }
    }
    targets
}

/// Draws one panel and returns where the next may begin.
fn panel(body: &mut String, rows: &[&Row], unit: Unit, targets: &[&str], top: f64) -> f64 {
    let most = greatest(rows.iter().flat_map(|row| &row.targets).map(|measured| measured.summary.max));
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let mut y = top;
    for row in rows {
        let middle = y + BAR * row.targets.len() as f64 / 2.0 + 4.0;
        text(body, (LEFT - 8.0, middle), "end", &format!("{} [{}]", row.what, unit.symbol()));
        for measured in &row.targets {
            let colour = targets.iter().position(|target| *target == measured.target);
            bar(body, measured, colour.unwrap_or(0), scale, y);
            y += BAR;
        }
        y += GAP;
    }
    y + GAP
}

fn bar(body: &mut String, measured: &Measured, colour: usize, scale: f64, y: f64) {
    let crate::stats::Summary { min, median, max } = measured.summary;
    let colour = COLOURS.get(colour % COLOURS.len()).copied().unwrap_or_default();
    let (width, height, middle) = (median.max(0.0) * scale, BAR - 3.0, y + BAR / 2.0 - 1.5);
    put(
        body,
        format_args!(
            r#"<rect x="{LEFT:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        ),
    );
    line(body, (LEFT + min.max(0.0) * scale, middle), (LEFT + max.max(0.0) * scale, middle), "#333333");
    let ratio = measured.ratio.map_or(String::new(), |ratio| format!(" ×{}", number(ratio.median)));
    let after = LEFT + max.max(0.0) * scale + 6.0;
    text(body, (after, middle + 4.0), "start", &format!("{}{ratio}", number(median)));
}

fn legend(body: &mut String, names: &[&str], y: f64) {
    let mut x = 20.0;
    for (name, colour) in names.iter().zip(COLOURS.iter().cycle()) {
        put(body, format_args!(r#"<rect x="{x:.1}" y="{y:.1}" width="12" height="12" fill="{colour}"/>"#));
        text(body, (x + 18.0, y + 10.0), "start", name);
        x += 40.0 + 7.0 * name.chars().count() as f64;
    }
}

fn document(title: &str, body: &str, height: f64) -> String {
    let mut head = String::new();
    text(&mut head, (20.0, 24.0), "start", title);
    format!(
        concat!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h:.0}" viewBox="0 0 {w} {h:.0}" "#,
            "font-family=\"sans-serif\" font-size=\"12\">\n",
            "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{head}{body}</svg>\n",
        ),
        w = WIDTH,
        h = height,
        head = head,
        body = body
    )
}

fn line(body: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let ((x1, y1), (x2, y2)) = (from, to);
    put(
        body,
        format_args!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}"/>"#),
    );
}

fn text(body: &mut String, at: (f64, f64), anchor: &str, content: &str) {
    let (x, y) = at;
    put(
        body,
        format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            escape_markup(content)
        ),
    );
}

fn put(body: &mut String, element: std::fmt::Arguments<'_>) {
    let _infallible = writeln!(body, "{element}");
}

/// The greatest of some figures; 1 if there is none above zero, so that it can divide.
fn greatest(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.fold(0.0, f64::max);
    if most > 0.0 { most } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn bars_are_as_long_as_their_medians() {
        let svg = bars(&sample());
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        // 5 GB/s is the greatest of its panel: 440 wide; the medians are 3 and 4.
        assert!(svg.contains(r##"width="264.0" height="13.0" fill="#2f6db3""##), "{svg}");
        assert!(svg.contains(r##"width="352.0" height="13.0" fill="#b8bec6""##), "{svg}");
        assert!(svg.contains(">3.00 ×0.75</text>") && svg.contains(">create [1/s]</text>"));
        assert_eq!(svg.matches("<rect").count(), 1 + 5 + 2, "background, bars, legend");
    }

    #[test]
    fn curves_go_through_their_points() {
        let curve = |name: &str, points: &[(f64, f64)]| Curve { name: name.into(), points: points.to_vec() };
        let svg = curves(
            "start",
            "nodes",
            "ms",
            &[curve("up", &[(1.0, 10.0), (4.0, 40.0)]), curve("down", &[(4.0, 20.0)])],
        );
        assert!(svg.contains(r#"points="235.0,269.0 730.0,44.0""#), "{svg}");
        assert!(svg.contains(r#"<circle cx="730.0" cy="194.0""#), "{svg}");
        assert!(svg.contains(">nodes (down: ms)</text>") && svg.contains(">up</text>"));
    }

    #[test]
    fn nothing_and_odd_names_are_drawn_too() {
        let mut report = sample();
        report.rows.clear();
        report.title = "a < b & c".into();
        let svg = bars(&report);
        assert!(svg.contains(">a &lt; b &amp; c</text>") && !svg.contains("NaN"));
        assert!(!curves("x", "y", "z", &[]).contains("NaN"));
    }
}
