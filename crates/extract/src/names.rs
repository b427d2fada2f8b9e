//! Lists of hosts as batch systems write them.

/// Most names of one list.
const NAMES_MAX: usize = 100_000;
/// Most digits of a number in a name: a label of a host name has no more, and formatting panics from 2^16 on.
const WIDTH_MAX: usize = 63;

/// Returns the names of a list with ranges: `n[01-03,7],login1`. Nothing if it makes no sense, or too much.
#[must_use]
pub fn hosts_of_list(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for item in split(list)? {
        names.extend(expand(&item)?);
        if names.len() > NAMES_MAX {
            return None;
        }
    }
    Some(names)
}

/// Splits a list at commas outside of brackets.
fn split(list: &str) -> Option<Vec<String>> {
    let mut items = vec![String::new()];
    let mut inside = false;
    for c in list.trim().chars() {
        match c {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                items.push(String::new());
                continue;
            }
            _ => {}
        }
        items.last_mut()?.push(c);
    }
    items.retain(|item| !item.is_empty());
    (!inside).then_some(items)
}

fn expand(item: &str) -> Option<Vec<String>> {
    let Some((before, rest)) = item.split_once('[') else { return Some(vec![item.to_owned()]) };
    let (ranges, after) = rest.split_once(']')?;
    let afters = expand(after)?;
    let mut names = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = first.len();
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        // Before the loop, which would run as long as the numbers say even if there is nothing behind them.
        if width > WIDTH_MAX || last < first || last - first > NAMES_MAX as u64 {
            return None;
        }
        for number in first..=last {
            names.extend(afters.iter().map(|after| format!("{before}{number:0width$}{after}")));
            if names.len() > NAMES_MAX {
                return None;
            }
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_out() {
        let names = hosts_of_list("n[08-10,2],x,r[1-2]c[3-4]").unwrap();
        assert_eq!(names, ["n08", "n09", "n10", "n2", "x", "r1c3", "r1c4", "r2c3", "r2c4"]);
        for wrong in ["n[1-", "n]1[", "n[a-b]", "n[3-1]", "n[1-9999999999]", "a[1-1000][1-1000]"] {
            assert_eq!(hosts_of_list(wrong), None, "{wrong}");
        }
        assert_eq!(hosts_of_list("(null)").unwrap(), ["(null)"]);
    }
}
