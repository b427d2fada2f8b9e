//! Words that people mistype.

/// Letters to be added, removed or changed to make one word of the other (Levenshtein's distance).
#[must_use]
pub fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, wanted) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *wanted);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// Returns the word that differs least, if by no more than a third of its letters, and at least one.
#[must_use]
pub fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &'a str| {
        let letters = distance(word, known);
        (letters <= (known.len() / 3).max(1)).then_some((letters, known))
    };
    known.into_iter().filter_map(near).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_textbook() {
        for (one, other, letters) in
            [("", "", 0), ("kitten", "sitting", 3), ("abc", "", 3), ("stripe", "strip", 1)]
        {
            assert_eq!((distance(one, other), distance(other, one)), (letters, letters));
        }
    }

    #[test]
    fn what_is_similar_is_found_and_what_is_not_is_not() {
        let known = ["stripe", "width", "read"];
        assert_eq!(similar("strpie", known), Some("stripe"));
        assert_eq!(similar("raed", known), None);
        assert_eq!(similar("widht", known), None);
        assert_eq!(similar("wdth", known), Some("width"));
    }
}
