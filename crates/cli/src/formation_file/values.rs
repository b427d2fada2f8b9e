//! Values as options would be given them.

use toml::Spanned;
use toml::de::DeValue;

use super::Problem;

/// Returns a value as text; `None` with a problem if it is of a kind that no option has, or has characters that no name
/// and no number has.
pub fn scalar(key: &str, value: &Spanned<DeValue<'_>>, problems: &mut Vec<Problem>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => match text.chars().find(|letter| letter.is_control()) {
            None => Some(text.to_string()),
            Some(letter) => {
                let code = u32::from(letter);
                let text = format!("{key}: has a control character (U+{code:04X}) in it: write it without");
                problems.push(Problem::new(value.span().start, text));
                None
            }
        },
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(word) => {
            problems.push(Problem::new(value.span().start, format!("{key}: {word} is no value for it")));
            None
        }
        other => {
            let text = format!("{key}: takes one value, not a {}", other.type_str());
            problems.push(Problem::new(value.span().start, text));
            None
        }
    }
}

/// Returns a value, or a list of them, each with its position.
pub fn list(key: &str, value: &Spanned<DeValue<'_>>, problems: &mut Vec<Problem>) -> Vec<(usize, String)> {
    match value.get_ref() {
        DeValue::Array(all) => {
            let one = |one: &Spanned<DeValue<'_>>| Some((one.span().start, scalar(key, one, problems)?));
            all.iter().filter_map(one).collect()
        }
        _ => scalar(key, value, problems).into_iter().map(|text| (value.span().start, text)).collect(),
    }
}
