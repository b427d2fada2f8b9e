//! Rates on a terminal and as text, as `top` shows them.

mod list;
mod screen;
mod sections;
mod text;

pub use screen::{KeyAction, Screen};
pub use text::table;

use bivouac_types::units::format_size;

/// Returns a rate in few letters: `0`, `3.2`, `41k`.
fn rate(value: f64) -> String {
    match value {
        _ if value < 0.05 => "0".into(),
        _ if value < 9.95 => format!("{value:.1}"),
        _ if value < 9999.5 => format!("{value:.0}"),
        _ if value < 9_999_500.0 => format!("{:.0}k", value / 1e3),
        _ => format!("{:.0}M", value / 1e6),
    }
}

/// Returns the bytes per second.
fn bandwidth(bytes: f64) -> String {
    // Negative rates there are not.
    format!("{}/s", format_size(bytes.max(0.0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_take_few_letters() {
        let said = [0.0, 0.049, 0.05, 3.21, 9.949, 9.951, 999.6, 9999.0, 10_000.0, 123_456.0, 1e7].map(rate);
        assert_eq!(said, ["0", "0", "0.1", "3.2", "9.9", "10", "1000", "9999", "10k", "123k", "10M"]);
        assert_eq!(bandwidth(1.5 * 1024.0 * 1024.0), "1.5 MiB/s");
    }
}
