//! Of a node: who is asked, and who is waited for.

use super::*;
use bivouac_types::limits::{CONTENTION_MS, CONTENTIONS_MAX};
use bivouac_types::{Ino, Slot};
use parking_lot::Mutex as Plain;

const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const C: ClientId = ClientId(3);
const GIVEN: u32 = (LEASE_MS - LEASE_MARGIN_MS) as u32;
const FILE: Item = Item::Attrs(Ino(5));
const OTHER: Item = Item::Attrs(Ino(6));
const NAME: Item = Item::Name { slot: Slot(0), dir: Ino(5), hash: 7 };

fn after(ms: u64, start: Instant) -> Instant {
    start + Duration::from_millis(ms)
}

fn surely_not(_: ClientId, _: Vec<Invalidation>, _: Duration) -> Option<Duration> {
    Some(Duration::ZERO)
}

fn silent(_: ClientId, _: Vec<Invalidation>, _: Duration) -> Option<Duration> {
    None
}

/// Leases on an item, of which the holders' run for an hour.
fn given_to(clients: &[ClientId], item: Item) -> Leases {
    let leases = Leases::new(2, false);
    for client in clients {
        assert_eq!(leases.look(*client, item, Instant::now()), GIVEN);
        // Before the next one is added, for which those whose leases are over would go.
        prolong(&leases, *client);
    }
    leases
}

/// Has a client's leases run for an hour: however busy the machine is, they are not over in a test.
fn prolong(leases: &Leases, client: ClientId) {
    let hour = Duration::from_secs(3600);
    let mut slot = leases.slots[0].lock();
    for holder in slot.holders.iter_mut().filter(|holder| holder.client == client) {
        holder.until += hour;
        holder.items.values_mut().for_each(|until| *until += hour);
    }
}

/// S453. However many there are that take no message, others are asked, and nobody is waited for.
#[test]
fn who_is_asked_without_a_message_does_not_count() {
    let near: Vec<ClientId> = (100..100 + 2 * INVALIDATIONS_MAX as u64).map(ClientId).collect();
    let leases = given_to(&[&near[..], &[C]].concat(), FILE);
    let asked = Plain::new(Vec::new());
    let ask = |client: ClientId, _: Vec<Invalidation>, wait: Duration| {
        asked.lock().push((client, wait.is_zero()));
        (wait.is_zero() != (client == C)).then_some(Duration::ZERO)
    };
    let _principal = Principal::on_behalf_of(A);
    drop(leases.change(&[FILE], &ask));
    let expected: Vec<_> =
        near.iter().chain([&C]).map(|client| (*client, true)).chain([(C, false)]).collect();
    assert_eq!((&*asked.lock(), leases.waits()), (&expected, 0));
    drop(leases.change(&[FILE], &ask));
    assert_eq!(asked.lock().len(), expected.len(), "all have forgotten it");
}

/// Its question was left without an end: nobody got a lease on the item any more, as long as the daemon lived.
#[test]
fn a_question_that_panics_ends_with_its_change() {
    let leases = given_to(&[B, C], FILE);
    let short = Instant::now() + Duration::from_millis(20);
    for holder in &mut leases.slots[0].lock().holders {
        holder.until = short;
        holder.items.values_mut().for_each(|until| *until = short);
    }
    let _principal = Principal::on_behalf_of(A);
    drop(leases.change(&[FILE], &|_, _, _| panic!("a test's question")));
    assert!(leases.slots[0].lock().holders.iter().all(|holder| holder.asked == 0));
    let until = Instant::now() + Duration::from_secs(20);
    // What was changed a moment ago is leased for a short time only, or not at all.
    while leases.look(ClientId(4), FILE, Instant::now()) == 0 {
        assert!(Instant::now() < until, "nobody gets a lease any more");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// S20. Also where it would get no lease.
#[test]
fn who_shows_a_name_by_a_rename_is_asked_about_it() {
    let (leases, later) = (Leases::new(1, false), Instant::now() + Duration::from_secs(3600));
    (0..CONTENTIONS_MAX).for_each(|_| leases.contention.note(A, later));
    assert_eq!(leases.look(A, NAME, Instant::now()), 0);
    leases.hold(A, NAME);
    prolong(&leases, A);
    let asked = Plain::new(Vec::new());
    let ask = |client: ClientId, what: Vec<Invalidation>, _: Duration| {
        asked.lock().push((client, what));
        Some(Duration::ZERO)
    };
    let _principal = Principal::on_behalf_of(B);
    drop(leases.change(&[FILE, NAME], &ask));
    assert_eq!(*asked.lock(), [(A, vec![invalidation(NAME).unwrap()])]);
    drop(leases.change(&[NAME], &ask));
    assert_eq!(asked.lock().len(), 1, "it has forgotten it");
}

/// S453. Each is asked while the other still thinks about it, and gets no leases before it has answered: they would
/// be renewed by answers on other things.
#[test]
fn holders_are_asked_at_once_and_get_no_leases_meanwhile() {
    let (leases, both) = (given_to(&[B, C], FILE), std::sync::Barrier::new(2));
    let _principal = Principal::on_behalf_of(A);
    let ask = |client, _, wait: Duration| {
        if wait.is_zero() {
            return None;
        }
        both.wait();
        assert_eq!(leases.look(client, OTHER, Instant::now()), 0);
        Some(Duration::ZERO)
    };
    drop(leases.change(&[FILE], &ask));
    assert_eq!(leases.waits(), 0);
    assert_eq!([B, C].map(|client| leases.look(client, OTHER, Instant::now())), [GIVEN; 2]);
}

/// S453. One is silent until the other has answered, and has its leases back.
#[test]
fn a_silent_holder_delays_no_answer_of_another() {
    for silent in [B, C] {
        let other = if silent == B { C } else { B };
        let leases = given_to(&[B, C], FILE);
        let _principal = Principal::on_behalf_of(A);
        let ask = |client, _, wait: Duration| {
            if wait.is_zero() {
                return None;
            }
            while client == silent && leases.look(other, OTHER, Instant::now()) == 0 {
                std::thread::yield_now();
            }
            Some(Duration::from_millis(u64::from(client == silent)))
        };
        drop(leases.change(&[FILE], &ask));
        assert_eq!(leases.waits(), 1);
    }
}

/// S60, S271.
#[test]
fn who_says_that_it_caches_nothing_is_not_waited_for() {
    let (leases, asked) = (given_to(&[A, B], FILE), Plain::new(Vec::new()));
    let _principal = Principal::on_behalf_of(A);
    let ask = |client, what, _| {
        asked.lock().push((client, what));
        Some(Duration::ZERO)
    };
    let changing = leases.change(&[FILE, NAME], &ask);
    assert!(changing.is_some() && leases.waits() == 0);
    let of_file = Invalidation { ino: Ino(5), name: None };
    assert_eq!(std::mem::take(&mut *asked.lock()), [(B, vec![of_file])], "of what it has, once");
    assert_eq!(leases.look(B, FILE, Instant::now()), 0);
    assert_eq!(leases.look(B, OTHER, Instant::now()), GIVEN, "nothing else is concerned");
    drop(changing);
    drop(leases.change(&[FILE], &|_, _, _| panic!("it has said so")));
    assert!(leases.contention.contenders.lock().times().next().is_none(), "nobody had to be waited for");
}

/// S60, S62.
#[test]
fn who_cannot_tell_is_waited_for() {
    let leases = Leases::new(1, false);
    [B, C].iter().for_each(|client| assert_eq!(leases.look(*client, FILE, Instant::now()), GIVEN));
    let until = leases.slots[0].lock().holders.iter().map(|holder| holder.until).max().unwrap();
    let _principal = Principal::on_behalf_of(A);
    drop(leases.change(&[FILE], &|client, _, _| (client == B).then_some(Duration::ZERO)));
    assert!(Instant::now() >= until);
    let contenders: Vec<_> = leases.contention.contenders.lock().times().collect();
    assert!(contenders.is_empty() || contenders == [(C, 1)], "B was not waited for");
    // On a busy machine the lease may be over between the look at it and the wait.
    assert!(leases.waits() <= 1);
}

/// S60.
#[test]
fn who_says_how_long_is_waited_for_no_longer() {
    let leases = given_to(&[B], FILE);
    let _principal = Principal::on_behalf_of(A);
    let begun = Instant::now();
    drop(leases.change(&[FILE], &|_, _, _| Some(Duration::from_millis(20))));
    assert!(begun.elapsed() >= Duration::from_millis(20) && leases.waits() == 1, "and not for an hour");
    drop(leases.change(&[FILE], &|_, _, _| panic!("it is over")));
}

/// While one change waits for a holder, so does another one of the same.
#[test]
fn nobody_counts_as_asked_before_it_was_waited_for() {
    let leases = given_to(&[B], FILE);
    let asked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in [A, C] {
            let (leases, asked) = (&leases, &asked);
            scope.spawn(move || {
                let _principal = Principal::on_behalf_of(client);
                let ask = |_, _, _| {
                    asked.fetch_add(1, Ordering::SeqCst);
                    // Both have begun before either goes on.
                    while asked.load(Ordering::SeqCst) < 2 {
                        std::thread::yield_now();
                    }
                    Some(Duration::from_millis(1))
                };
                drop(leases.change(&[FILE], &ask));
            });
        }
    });
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

/// S64. Who was waited for may know all names, and go on to know them while its leases are renewed: so they are not.
#[test]
fn who_was_waited_for_gets_no_lease_in_the_slot_meanwhile() {
    let leases = given_to(&[B], FILE);
    let _principal = Principal::on_behalf_of(A);
    let ask = |goes_on| move |_: ClientId, _: Vec<Invalidation>, _: Duration| Some(goes_on);
    drop(leases.change(&[FILE], &ask(Duration::from_millis(1))));
    assert_eq!(leases.look(B, OTHER, Instant::now()), 0, "for as long as what it had may run");
    let leases = given_to(&[B], FILE);
    drop(leases.change(&[FILE], &ask(Duration::ZERO)));
    assert_eq!(leases.look(B, OTHER, Instant::now()), GIVEN);
}

#[test]
fn many_are_waited_for_and_not_asked() {
    let clients: Vec<ClientId> = (10..).map(ClientId).take(INVALIDATIONS_MAX + 1).collect();
    let (leases, until) = (given_to(&clients, FILE), Instant::now() + LEASE);
    // All at the same time, so that no busy machine makes them few.
    for holder in &mut leases.slots[0].lock().holders {
        holder.until = until;
        holder.items.values_mut().for_each(|of_item| *of_item = until);
    }
    let _principal = Principal::on_behalf_of(A);
    drop(leases.change(&[FILE], &|_, _, wait| {
        assert!(wait.is_zero(), "they are too many");
        None
    }));
    assert!(Instant::now() >= until);
}

/// S60.
#[test]
fn who_is_waited_for_often_gets_none_at_the_node() {
    let (leases, now) = (Leases::new(2, false), Instant::now());
    for time in 1..=CONTENTIONS_MAX {
        assert_eq!(leases.look(B, FILE, now), GIVEN, "{time}");
        leases.contention.note(B, now);
    }
    assert_eq!([B, C].map(|client| leases.look(client, FILE, now)), [0, GIVEN]);
    assert!(!leases.contention.bars(B, after(CONTENTION_MS, now)), "and is forgotten");
    assert_eq!(leases.look(B, FILE, now), GIVEN);
}

#[test]
fn leases_of_an_earlier_daemon_are_waited_for_whatever_is_said() {
    let leases = Leases::new(1, true);
    let until = leases.earlier.unwrap();
    let given = leases.look(B, OTHER, Instant::now());
    assert!(given == 0 || Instant::now() >= until, "who has leases of that one gets none behind them");
    let _principal = Principal::on_behalf_of(A);
    drop(leases.change(&[FILE], &surely_not));
    assert!(Instant::now() >= until);
    assert_eq!(leases.look(B, OTHER, Instant::now()), GIVEN);
}

#[test]
fn who_acts_within_acts_for_itself_and_who_does_not_waits_for_nobody() {
    let leases = given_to(&[C], Item::Slot(Slot(0)));
    assert!(leases.change(&[Item::Slot(Slot(0))], &silent).is_none(), "nobody is told of it");
    let client = || leases.change(&[], &silent).map(|changing| changing.client);
    let _outer = Principal::on_behalf_of(A);
    let inner = Principal::on_behalf_of(B);
    assert_eq!(client(), Some(B));
    drop(inner);
    assert_eq!(client(), Some(A));
    drop(leases.change(&[Item::Slot(Slot(7))], &silent));
    assert_eq!(leases.look(A, Item::Slot(Slot(7)), Instant::now()), 0, "a slot that there is not");
}

/// It would be waited for until its leases are over.
#[test]
fn who_has_ended_is_neither_asked_nor_waited_for() {
    let leases = given_to(&[B], FILE);
    leases.forget(B);
    let _principal = Principal::on_behalf_of(A);
    drop(leases.change(&[FILE], &|_, _, _| panic!("it has ended")));
    assert_eq!(leases.waits(), 0);
}
