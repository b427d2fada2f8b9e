//! Types of files.

/// Returns the type of a file, by the ending of its name.
#[must_use]
pub fn content_type(name: &[u8]) -> &'static str {
    const TYPES: [(&str, &str); 22] = [
        ("txt", "text/plain; charset=utf-8"),
        ("log", "text/plain; charset=utf-8"),
        ("out", "text/plain; charset=utf-8"),
        ("md", "text/plain; charset=utf-8"),
        ("csv", "text/csv; charset=utf-8"),
        ("html", "text/html; charset=utf-8"),
        ("htm", "text/html; charset=utf-8"),
        ("css", "text/css; charset=utf-8"),
        ("js", "text/javascript; charset=utf-8"),
        ("json", "application/json"),
        ("xml", "application/xml"),
        ("pdf", "application/pdf"),
        ("png", "image/png"),
        ("jpg", "image/jpeg"),
        ("jpeg", "image/jpeg"),
        ("gif", "image/gif"),
        ("svg", "image/svg+xml"),
        ("mp4", "video/mp4"),
        ("gz", "application/gzip"),
        ("zip", "application/zip"),
        ("tar", "application/x-tar"),
        ("h5", "application/x-hdf5"),
    ];
    let ending = name.rsplit(|byte| *byte == b'.').next().filter(|ending| ending.len() < name.len());
    let known =
        TYPES.iter().find(|(known, _)| ending.is_some_and(|e| e.eq_ignore_ascii_case(known.as_bytes())));
    known.map_or("application/octet-stream", |(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_go_by_the_ending() {
        assert_eq!(content_type(b"a.b.JSON"), "application/json");
        for plain in ["json", "a.", "a.unknown", ""] {
            assert_eq!(content_type(plain.as_bytes()), "application/octet-stream", "{plain}");
        }
    }
}
