//! The page's text, in the program: nothing of it comes from elsewhere.

/// A static part of the page.
pub struct Asset {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub content_type: &'static str,
    /// Content.
    pub text: &'static str,
}

/// The page.
pub const INDEX: &str = include_str!("index.html");

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All static parts.
pub const ASSETS: &[Asset] = &[
    Asset { name: "page.css", content_type: "text/css; charset=utf-8", text: include_str!("page.css") },
    Asset { name: "icon.svg", content_type: "image/svg+xml", text: include_str!("icon.svg") },
    Asset { name: "main.js", content_type: SCRIPT, text: include_str!("main.js") },
    Asset { name: "ask.js", content_type: SCRIPT, text: include_str!("ask.js") },
    Asset { name: "dom.js", content_type: SCRIPT, text: include_str!("dom.js") },
    Asset { name: "units.js", content_type: SCRIPT, text: include_str!("units.js") },
    Asset { name: "charts.js", content_type: SCRIPT, text: include_str!("charts.js") },
    Asset { name: "overview.js", content_type: SCRIPT, text: include_str!("overview.js") },
    Asset { name: "files.js", content_type: SCRIPT, text: include_str!("files.js") },
    Asset { name: "changes.js", content_type: SCRIPT, text: include_str!("changes.js") },
    Asset { name: "where.js", content_type: SCRIPT, text: include_str!("where.js") },
    Asset { name: "activity.js", content_type: SCRIPT, text: include_str!("activity.js") },
    Asset { name: "shares.js", content_type: SCRIPT, text: include_str!("shares.js") },
    Asset { name: "report.js", content_type: SCRIPT, text: include_str!("report.js") },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_from_elsewhere() {
        for (name, text) in ASSETS.iter().map(|asset| (asset.name, asset.text)).chain([("index", INDEX)]) {
            for outside in ["https://", "//cdn", "@import", "url(", "eval(", "new Function"] {
                assert!(!text.contains(outside), "{name}: {outside}");
            }
            let places = text.matches("http://").count();
            // The name of SVG in the language of its elements, which nothing is fetched from.
            assert_eq!(places, text.matches("http://www.w3.org/2000/svg").count(), "{name}");
        }
    }

    #[test]
    fn names_become_text_and_never_markup() {
        for asset in ASSETS {
            for markup in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "DOMParser"]
            {
                assert!(!asset.text.contains(markup), "{}: {markup}", asset.name);
            }
        }
    }

    #[test]
    fn every_script_that_is_asked_for_is_there() {
        for asset in ASSETS.iter().filter(|asset| asset.content_type == SCRIPT) {
            for named in
                asset.text.lines().filter_map(|line| line.strip_prefix("import ")?.split("\"./").nth(1))
            {
                let named = named.trim_end_matches("\";");
                assert!(ASSETS.iter().any(|other| other.name == named), "{}: {named}", asset.name);
            }
        }
        for (start, end) in [("href=\"", '"'), ("src=\"", '"')] {
            for named in INDEX.split(start).skip(1).filter_map(|rest| rest.split(end).next()) {
                assert!(named.starts_with('#') || ASSETS.iter().any(|asset| asset.name == named), "{named}");
            }
        }
    }
}
