//! Failing lists of operations made short.

/// How often a failing list is tried again with parts left out.
const TRIES_MAX: usize = 400;

/// The shortest list that still fails, as far as leaving out parts finds one.
pub fn shortened<T: Clone>(done: &[T], fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut operations = done.to_vec();
    let (mut piece, mut tries) = (operations.len().div_ceil(2), 0);
    while piece > 0 && tries < TRIES_MAX {
        let (mut at, mut shorter) = (0, false);
        while at < operations.len() && tries < TRIES_MAX {
            let end = (at + piece).min(operations.len());
            let fewer = [&operations[..at], &operations[end..]].concat();
            tries += 1;
            if fails(&fewer) {
                operations = fewer;
                shorter = true;
            } else {
                at = end;
            }
        }
        if !shorter || piece > 1 {
            piece /= 2;
        }
    }
    operations
}

/// The failure, and the list as it is written in a test.
pub fn report<T: Clone + std::fmt::Debug>(text: &str, seed: u64, done: usize, enough: &[T]) -> String {
    let list: String = enough.iter().map(|operation| format!("  {operation:?},\n")).collect();
    format!("{text}\nseed {seed}, operation {done}; these {} are enough:\n[\n{list}]", enough.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_needed_stays() {
        let list: Vec<u32> = (0..200).collect();
        let fails = |list: &[u32]| list.contains(&17) && list.contains(&150);
        assert_eq!(shortened(&list, fails), [17, 150]);
        assert_eq!(shortened(&list, |list| list.contains(&199)), [199]);
    }

    #[test]
    fn the_report_is_a_literal_list() {
        assert_eq!(
            report("bad", 7, 9, &[1, 2]),
            "bad\nseed 7, operation 9; these 2 are enough:\n[\n  1,\n  2,\n]"
        );
    }
}
