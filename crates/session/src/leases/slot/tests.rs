//! Of one slot, with moments as arguments.

use std::time::Duration;

use super::*;
use bivouac_types::limits::LEASE_MS_MIN;
use bivouac_types::{Ino, Slot};
use proptest::prelude::*;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const FILE: Item = Item::Attrs(Ino(5));
const OTHER: Item = Item::Attrs(Ino(6));
const NAME: Item = Item::Name { slot: Slot(0), dir: Ino(5), hash: 7 };

fn after(ms: u64, start: Instant) -> Instant {
    start + Duration::from_millis(ms)
}

/// A state that grants at any moment.
fn grant(state: &mut SlotLeases, client: ClientId, item: Item, begun: Instant, now: Instant) -> u64 {
    let lease_ms = state.leaves_others(client, item, begun, now);
    if lease_ms < LEASE_MS_MIN {
        return 0;
    }
    state.holder(client, now).take(item, now + Duration::from_millis(lease_ms), now);
    lease_ms
}

fn has(state: &SlotLeases, client: ClientId, item: Item, now: Instant) -> bool {
    state.holders.iter().any(|holder| holder.client == client && holder.has(item, now))
}

#[test]
fn readers_share_and_a_lone_writer_keeps_its_lease() {
    let (mut state, now) = (SlotLeases::default(), Instant::now());
    assert_eq!([A, B].map(|client| grant(&mut state, client, NAME, now, now)), [LEASE_MS; 2]);
    state.place(NAME).begin(A);
    let later = after(1, now);
    assert_eq!([A, B].map(|client| grant(&mut state, client, NAME, later, later)), [LEASE_MS, 0]);
    assert_eq!(grant(&mut state, B, FILE, later, later), LEASE_MS, "nobody changes that");
}

/// S378. What was read before a change, and is answered after it, is not cached: not even if the change has come and
/// gone in between.
#[test]
fn an_answer_that_was_begun_before_a_change_is_over_gets_no_lease() {
    let (mut state, now) = (SlotLeases::default(), Instant::now());
    state.place(NAME).begin(A);
    state.place(NAME).end(A, after(5, now));
    let later = after(10 * LEASE_QUIET_MS, now);
    assert_eq!(grant(&mut state, B, NAME, after(4, now), later), 0);
    assert_eq!(grant(&mut state, B, NAME, after(5, now), later), 0);
    assert_eq!(grant(&mut state, A, NAME, now, later), LEASE_MS, "it is its own change");
    assert_eq!(grant(&mut state, B, NAME, after(6, now), later), LEASE_MS);
    // A's next change does not hide that B has changed something, and the other way round.
    state.place(NAME).begin(B);
    state.place(NAME).end(B, later);
    state.place(NAME).begin(A);
    state.place(NAME).end(A, after(1, later));
    let last = after(10 * LEASE_QUIET_MS, later);
    assert_eq!([A, B].map(|client| grant(&mut state, client, NAME, later, last)), [0, 0]);
}

/// S63.
#[test]
fn leases_are_short_beside_the_time_since_the_last_change() {
    let (mut state, now) = (SlotLeases::default(), Instant::now());
    state.place(NAME).begin(A);
    state.place(NAME).end(A, now);
    let given = |state: &mut SlotLeases, ms| grant(state, B, NAME, after(1, now), after(ms, now));
    assert_eq!(given(&mut state, LEASE_MS_MIN * LEASE_PART - 1), 0);
    assert_eq!(given(&mut state, LEASE_MS_MIN * LEASE_PART), LEASE_MS_MIN);
    assert_eq!(given(&mut state, LEASE_QUIET_MS / 2), LEASE_MS / 2);
    assert_eq!(given(&mut state, 2 * LEASE_QUIET_MS), LEASE_MS);
}

/// S61.
#[test]
fn a_change_of_everything_concerns_every_item_and_the_other_way_round() {
    let (mut state, now) = (SlotLeases::default(), Instant::now());
    let all = Item::Slot(Slot(0));
    state.place(all).begin(A);
    assert_eq!([FILE, NAME].map(|item| grant(&mut state, B, item, now, now)), [0, 0]);
    state.place(all).end(A, now);
    let later = after(LEASE_QUIET_MS, now);
    assert_eq!(grant(&mut state, B, all, later, later), LEASE_MS);
    assert!([FILE, OTHER, NAME, all].iter().all(|item| has(&state, B, *item, later)));
    state.place(NAME).begin(A);
    assert_eq!(grant(&mut state, B, all, later, later), 0);
}

#[test]
fn what_is_held_is_known_until_the_lease_is_over() {
    let (mut state, now) = (SlotLeases::default(), Instant::now());
    grant(&mut state, B, NAME, now, now);
    assert!(has(&state, B, NAME, now) && !has(&state, B, FILE, now) && !has(&state, A, NAME, now));
    // Kept by leases on other things for at least as long as its own.
    (1..20).for_each(|turn| _ = grant(&mut state, B, FILE, now, after(turn * 5, now)));
    assert!(has(&state, B, NAME, after(LEASE_MS - 1, now)));
    (20..60).for_each(|turn| _ = grant(&mut state, B, FILE, now, after(turn * 5, now)));
    assert!(!has(&state, B, NAME, after(60 * 5, now)), "and is forgotten then");
    // Too many are all.
    (0..2 * ITEMS_MAX as u64).for_each(|ino| _ = grant(&mut state, B, Item::Attrs(Ino(ino)), now, now));
    assert!(has(&state, B, OTHER, now) && state.holders[0].items.len() < ITEMS_MAX);
    state.holders[0].give_up(OTHER);
    assert!(!has(&state, B, OTHER, now) && has(&state, B, Item::Attrs(Ino(9999)), now));
    (0..GIVEN_UP_MAX as u64).for_each(|ino| state.holders[0].give_up(Item::Attrs(Ino(100 + ino))));
    assert!(state.holders[0].given_up.len() <= GIVEN_UP_MAX && has(&state, B, OTHER, now), "asked again");
}

/// S64. Who knows all names has to be asked of each, for as long as it has leases in the slot without a break.
#[test]
fn who_knows_all_names_is_asked_until_its_leases_have_a_break() {
    let (mut state, now) = (SlotLeases::default(), Instant::now());
    let lease = |at| after(at + LEASE_MS, now);
    state.holder(B, now).take(Item::Whole(Slot(0)), lease(0), now);
    (1..20).for_each(|turn| state.holder(B, now).take(FILE, lease(turn * 50), after(turn * 50, now)));
    assert!(has(&state, B, NAME, after(1000, now)));
    state.holder(B, now).take(FILE, lease(5000), after(5000, now));
    assert!(!has(&state, B, NAME, after(5000, now)) && has(&state, B, FILE, after(5000, now)));
    // Or until it has been asked once: it does not know them any more then.
    let now = after(5000, now);
    state.holder(B, now).take(Item::Whole(Slot(0)), after(LEASE_MS, now), now);
    state.holder(B, now).forget(NAME);
    (1..5).for_each(|turn| {
        state.holder(B, now).take(FILE, after(turn * 50 + LEASE_MS, now), after(turn * 50, now));
    });
    assert!(!has(&state, B, Item::Name { slot: Slot(0), dir: Ino(5), hash: 9 }, after(200, now)));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client begins to read an item; its answer gets its lease, and is cached, at the end of the read.
    Read(u64, u64),
    EndRead(usize),
    /// A client changes an item: all at once, or until the end.
    Begin(u64, u64),
    EndChange(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u64..4, 0u64..4).prop_map(|(client, item)| Step::Read(client, item)),
        4 => (0usize..4).prop_map(Step::EndRead),
        2 => (1u64..4, 0u64..4).prop_map(|(client, item)| Step::Begin(client, item)),
        2 => (0usize..4).prop_map(Step::EndChange),
        2 => prop_oneof![0u64..5, 300u64..1200].prop_map(Step::Pass),
    ]
}

proptest! {
    /// S20, S378. Whatever comes when: nobody caches what another client's finished change has made wrong.
    #[test]
    fn nobody_caches_what_has_changed(steps in proptest::collection::vec(step(), 1..120)) {
        let item = |number: u64| if number == 3 { Item::Slot(Slot(0)) } else { Item::Attrs(Ino(number)) };
        let concerns = |one: u64, other: u64| one == other || one == 3 || other == 3;
        let (mut state, mut now) = (SlotLeases::default(), Instant::now());
        let mut versions = [0u64; 4];
        // What was read by whom, in which version; what is cached until when; who changes what.
        let mut reads: Vec<(u64, u64, [u64; 4], Instant)> = Vec::new();
        let mut cached: Vec<(u64, u64, [u64; 4], Instant)> = Vec::new();
        let mut changes: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Read(client, number) => reads.push((client, number, versions, now)),
                Step::EndRead(at) if at < reads.len() => {
                    let (client, number, seen, begun) = reads.swap_remove(at);
                    let lease_ms = grant(&mut state, ClientId(client), item(number), begun, now);
                    cached.push((client, number, seen, now + Duration::from_millis(lease_ms)));
                }
                Step::Begin(client, number) => {
                    state.place(item(number)).begin(ClientId(client));
                    for holder in &mut state.holders {
                        if holder.client != ClientId(client) && holder.has(item(number), now) {
                            let drops = |one: &(u64, u64, [u64; 4], Instant)| {
                                ClientId(one.0) == holder.client && concerns(one.1, number)
                            };
                            cached.retain(|one| !drops(one));
                            if number != 3 {
                                holder.give_up(item(number));
                            }
                        }
                    }
                    changes.push((client, number));
                }
                Step::EndChange(at) if at < changes.len() => {
                    let (client, number) = changes.swap_remove(at);
                    (0..4).filter(|one| concerns(*one, number)).for_each(|one| versions[one as usize] += 1);
                    // Its own caches are its kernel's to keep right.
                    cached.retain(|one| one.0 != client);
                    reads.retain(|one| one.0 != client);
                    state.place(item(number)).end(ClientId(client), now);
                }
                Step::EndRead(_) | Step::EndChange(_) => {}
                Step::Pass(ms) => now += Duration::from_millis(ms),
            }
            for (client, number, seen, until) in &cached {
                let is_right = seen[*number as usize] == versions[*number as usize];
                prop_assert!(is_right || *until <= now, "client {client}, item {number}");
            }
        }
    }
}
