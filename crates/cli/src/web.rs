//! Content of the page for browsers, from the same functions as the commands'.

use std::sync::Arc;

use bivouac_http::{MakeView, Page, PageView, PathExplainer, Views};
use bivouac_launch::{Environment, FormationState, StateDir};
use bivouac_monitor::StageMonitor;
use bivouac_monitor::rates::RateSeries;
use bivouac_monitor::report::gather;
use bivouac_monitor::status::look_at_all;

use crate::explain;
use crate::failure::Failure;
use crate::report_file::ReportFormat;

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";

/// Returns the views of a formation with all of its nodes, wherever they are. Where it was started, more is known of
/// its hosts.
pub fn views(here: &Environment, part: &StateDir, state: &FormationState) -> Views {
    let dir = whole(here, part, state);
    let series = Arc::new(RateSeries::new(dir.clone()));
    let stages = StageMonitor::new(part.clone());
    let reported = |form: ReportFormat, content_type: &'static str| {
        let dir = dir.clone();
        move || {
            Ok::<_, Failure>(Page { content_type, bytes: form.render(&gather(&dir)?, None)?.into_bytes() })
        }
    };
    let (as_html, as_json) = (reported(ReportFormat::Html, HTML), reported(ReportFormat::Json, JSON));
    let looked = dir.clone();
    let of_all = vec![
        view("top.json", move |query| Ok(json(series.since(since(query))?))),
        view("status.json", move |_| Ok(json(crate::output::json(&look_at_all(&looked)?, false)?))),
        view("stage.json", move |_| Ok(json(stages.list()?.to_string()))),
        view("report.html", move |_| as_html()),
        view("report.json", move |_| as_json()),
    ];
    let explain: PathExplainer = Box::new(|file| {
        let text = explain::json(file.client, (file.path, file.dir), file.ino, file.sees_places);
        text.map(json).map_err(|failure| failure.to_string())
    });
    Views { of_all, explain }
}

fn whole(here: &Environment, part: &StateDir, state: &FormationState) -> StateDir {
    let whole = StateDir::wholes(here).into_iter().find(|(name, _)| *name == state.name).map(|(_, dir)| dir);
    // One of the same name may be another.
    let is_same =
        |dir: &StateDir| dir.read().ok().flatten().is_some_and(|whole| whole.formation == state.formation);
    whole.filter(is_same).unwrap_or_else(|| part.clone())
}

fn json(text: String) -> Page {
    Page { content_type: JSON, bytes: text.into_bytes() }
}

fn view(
    name: &'static str,
    make: impl Fn(Option<&str>) -> Result<Page, Failure> + Send + Sync + 'static,
) -> PageView {
    let make: MakeView = Box::new(move |query| make(query).map_err(|failure| failure.to_string()));
    PageView { name, make }
}

/// Returns up to when the browser has data, in milliseconds since 1970.
fn since(query: Option<&str>) -> u64 {
    let parts = query.unwrap_or_default().split('&');
    parts.filter_map(|part| part.strip_prefix("since=")?.parse().ok()).next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_a_number() {
        assert_eq!([Some("since=12"), Some("x&since=5"), Some("since=-1"), None].map(since), [12, 5, 0, 0]);
    }
}
