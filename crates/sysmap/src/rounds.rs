//! Schedule of transfers: a round-robin tournament, in which nobody plays twice in a round.

/// Rounds in which every two of so many hosts meet once, and none is in two pairs of a round. One of an odd number is
/// left out of each round. By the circle method: one stays, the others move on by a place.
#[must_use]
pub fn rounds(hosts: usize) -> Vec<Vec<(usize, usize)>> {
    let places = hosts + hosts % 2;
    let moving = places.saturating_sub(1);
    let at = |round: usize, place: usize| if place == 0 { 0 } else { 1 + (place - 1 + round) % moving };
    let pair = |round: usize, place: usize| {
        let (one, other) = (at(round, place), at(round, moving - place));
        (one.min(other), one.max(other))
    };
    // The place behind the last host is nobody's: whoever meets it has a break.
    let of =
        |round| (0..places / 2).map(|place| pair(round, place)).filter(|(_, one)| *one < hosts).collect();
    (0..if hosts < 2 { 0 } else { moving }).map(of).collect()
}

/// Returns at most so many of the rounds, spread evenly over them.
#[must_use]
pub fn spread<T>(rounds: Vec<T>, most: usize) -> Vec<T> {
    let (all, most) = (rounds.len(), most.min(rounds.len()));
    let is_chosen = |at: usize| (at + 1) * most / all.max(1) > at * most / all.max(1);
    rounds.into_iter().enumerate().filter(|(at, _)| is_chosen(*at)).map(|(_, round)| round).collect()
}
