//! Grants, recalls, losses and fences, one after the other.

use super::*;
use TokenMode::{Read, Write};

const FILE: Ino = Ino(5);
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const C: ClientId = ClientId(3);

fn wanted(mode: TokenMode, start: u64, len: u64) -> TokenRequest {
    let required = ByteRange::at(start, len);
    TokenRequest { mode, required, desired: vec![required] }
}

fn granted(step: RequestOutcome) -> Grant {
    match step {
        RequestOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn who_is_alone_gets_the_whole_file() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let grant = granted(manager.ask(FILE, A, 1, (&wanted(Write, 10, 5), false), now));
    assert_eq!(grant.ranges, [ByteRange::ALL]);
    // Read by somebody else: what was written remains readable.
    let RequestOutcome::Recall(recalls) = manager.ask(FILE, B, 1, (&wanted(Read, 0, 4), false), now) else {
        panic!()
    };
    assert_eq!((recalls.len(), recalls[0].client, recalls[0].upto), (1, A, grant.serial));
    manager.yielded(FILE, A, recalls[0].upto, Read, &[ByteRange::at(0, 4)]);
    assert_eq!(
        granted(manager.ask(FILE, B, 1, (&wanted(Read, 0, 4), false), now)).ranges,
        [ByteRange::at(0, 4)]
    );
    manager.check();
    assert_eq!(manager.counts(FILE), (3, 2, 0));
    assert!(matches!(manager.ask(FILE, C, 4, (&wanted(Write, 2, 4), false), now), RequestOutcome::Recall(_)));
    let (held, waiting) = manager.list(FILE);
    let expected =
        [(A, Read, ByteRange::at(0, 4)), (A, Write, ByteRange::from(4)), (B, Read, ByteRange::at(0, 4))];
    assert_eq!((held, waiting), (expected.to_vec(), vec![(C, Write, ByteRange::at(2, 4))]));
    assert!(manager.is_waiting(FILE, C, 4));
    manager.cancel(FILE, C, 4, &[]);
    assert!(!manager.is_waiting(FILE, C, 4));
}

#[test]
fn what_is_granted_later_is_not_taken_by_an_answer_that_comes_late() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let first = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 4), false), now));
    manager.yielded(FILE, A, first.serial, Write, &[ByteRange::ALL]);
    assert_eq!(manager.counts(FILE), (0, 0, 0));
    granted(manager.ask(FILE, A, 2, (&wanted(Write, 0, 4), false), now));
    manager.yielded(FILE, A, first.serial, Write, &[ByteRange::ALL]);
    assert_eq!(manager.counts(FILE).0, 1);
}

#[test]
fn requests_that_conflict_are_granted_in_order() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now)).serial;
    assert!(matches!(manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now), RequestOutcome::Recall(_)));
    assert_eq!(
        manager.ask(FILE, C, 1, (&wanted(Write, 4, 8), false), now),
        RequestOutcome::Queued { is_new: true }
    );
    // Its own holder stands in the queue, too.
    assert_eq!(
        manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), now),
        RequestOutcome::Queued { is_new: true }
    );
    assert_eq!(
        manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), now),
        RequestOutcome::Queued { is_new: false }
    );
    let RequestOutcome::Recall(recalls) = manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now) else {
        panic!()
    };
    assert_eq!(recalls[0].waiting, [2], "that is not on its way");
    manager.yielded(FILE, A, serial, Write, &[ByteRange::ALL]);
    assert_eq!(
        granted(manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now)).ranges,
        [ByteRange::at(0, 8)]
    );
    // Who has not been heard of for long is not waited for.
    let later = now + SILENCE_MAX;
    manager.yielded(FILE, B, u64::MAX, Write, &[ByteRange::ALL]);
    assert_eq!(
        granted(manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), later)).ranges,
        [ByteRange::ALL]
    );
}

#[test]
fn one_recall_serves_all_readers_that_wait() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 100), false), now)).serial;
    let [ours, beside, far] = [wanted(Read, 10, 10), wanted(Read, 15, 10), wanted(Read, 50, 5)];
    let d = ClientId(4);
    let recalled = |step| match step {
        RequestOutcome::Recall(recalls) => recalls,
        other => panic!("no recall: {other:?}"),
    };
    // Who comes while a recall is under way, for the same bytes, asks nobody.
    let first = recalled(manager.ask(FILE, B, 1, (&ours, false), now));
    assert_eq!(first[0].wanted.required, ours.required);
    assert_eq!(manager.ask(FILE, B, 1, (&ours, false), now), RequestOutcome::Queued { is_new: false });
    assert_eq!(manager.ask(FILE, C, 1, (&ours, false), now), RequestOutcome::Queued { is_new: true });
    // The next one asks for all that wait.
    let second = recalled(manager.ask(FILE, d, 1, (&far, false), now));
    assert_eq!(second[0].wanted.desired, [far.required, ours.required]);
    // Without an answer that promises anything, whoever comes next asks again.
    manager.recall_ended(FILE, A);
    let third = recalled(manager.ask(FILE, ClientId(5), 1, (&beside, false), now));
    assert_eq!(third[0].wanted.required, ByteRange { start: 10, end: 25 });
    assert!(third[0].wanted.desired.contains(&far.required));
    manager.yielded(FILE, A, serial, Read, &[ByteRange { start: 10, end: 25 }, far.required]);
    for (client, wanted) in [(B, &ours), (C, &ours), (d, &far), (ClientId(5), &beside)] {
        granted(manager.ask(FILE, client, 1, (wanted, false), now));
    }
    manager.check();
    // Behind a writer that waits, readers wait as well.
    let recalls = recalled(manager.ask(FILE, ClientId(6), 1, (&wanted(Write, 10, 1), false), now));
    assert_eq!(recalls.iter().map(|recall| recall.client).collect::<Vec<_>>(), [A, B, C]);
    assert_eq!(
        manager.ask(FILE, ClientId(7), 1, (&ours, false), now),
        RequestOutcome::Queued { is_new: true }
    );
    // A request of a client that is to give something back may have been granted, as far as it knows.
    assert_eq!(
        manager.ask(FILE, B, 2, (&wanted(Write, 10, 1), false), now),
        RequestOutcome::Queued { is_new: true }
    );
    let again = recalled(manager.ask(FILE, ClientId(6), 1, (&wanted(Write, 10, 1), false), now));
    assert_eq!((again.len(), again[0].client, &again[0].waiting), (1, B, &vec![2]));
    let later = now + RECALL_AGAIN;
    assert_eq!(recalled(manager.ask(FILE, ClientId(6), 1, (&wanted(Write, 10, 1), false), later)).len(), 3);
}

#[test]
fn what_a_call_that_gave_up_was_granted_is_given_back_and_nothing_else() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now)).serial;
    manager.yielded(FILE, A, serial, Write, &[ByteRange::from(8)]);
    granted(manager.ask(FILE, B, 2, (&wanted(Write, 20, 8), false), now));
    manager.cancel(FILE, B, 2, &[ByteRange::at(20, 8)]);
    granted(manager.ask(FILE, C, 3, (&wanted(Write, 20, 8), false), now));
    // Another call of the same client has the bytes by now.
    manager.cancel(FILE, C, 2, &[ByteRange::at(20, 8)]);
    assert!(matches!(manager.ask(FILE, B, 4, (&wanted(Read, 20, 8), false), now), RequestOutcome::Recall(_)));
}

#[test]
fn what_an_earlier_process_had_is_not_given_back_by_the_next_one() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now)).serial;
    assert!(matches!(manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now), RequestOutcome::Recall(_)));
    manager.restart(A, now);
    // The recall has met the new process, which has nothing.
    manager.yielded(FILE, A, serial, Write, &[ByteRange::at(0, 8)]);
    let RequestOutcome::Fence(fence) = manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now) else {
        panic!()
    };
    manager.fenced(FILE, fence);
    let step = manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now);
    assert_eq!(step, RequestOutcome::Inherited { until: now + RESUME });
    granted(manager.ask(FILE, A, 7, (&wanted(Write, 0, 8), true), now));
}

#[test]
fn desired_bytes_are_granted_as_far_as_they_are_free() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let serial = granted(manager.ask(FILE, A, 1, (&wanted(Write, 1000, 8), false), now)).serial;
    manager.yielded(FILE, A, serial, Write, &[ByteRange { start: 0, end: 1000 }, ByteRange::from(1008)]);
    let ahead = TokenRequest { desired: vec![ByteRange::from(10)], ..wanted(Write, 10, 5) };
    let grant = granted(manager.ask(FILE, B, 1, (&ahead, false), now));
    assert_eq!(crate::ranges::without(&[ByteRange { start: 10, end: 1000 }], &grant.ranges), []);
    assert!(!overlap(&grant.ranges, &ByteRange::from(1000)), "{grant:?}");
    let comb = vec![ByteRange::at(2000, 4), ByteRange::at(1004, 4), ByteRange::at(3000, 4)];
    let grant = granted(manager.ask(
        FILE,
        C,
        1,
        (&TokenRequest { desired: comb, ..wanted(Write, 2000, 4) }, false),
        now,
    ));
    assert_eq!(grant.ranges, [ByteRange::at(2000, 4), ByteRange::at(3000, 4)]);
    manager.check();
}

#[test]
fn a_lost_client_is_fenced_before_anybody_gets_what_it_had() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
    manager.lose(A);
    let RequestOutcome::Fence(fence) = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now) else {
        panic!()
    };
    manager.lose(A);
    manager.fenced(FILE, fence);
    granted(manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now));
    manager.revoke(FILE, B);
    assert!(matches!(manager.ask(FILE, C, 1, (&wanted(Read, 0, 8), false), now), RequestOutcome::Fence(_)));
    // Another process of it goes on first with what the earlier one was doing.
    let mut manager = Manager::default();
    granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
    manager.restart(A, now);
    let RequestOutcome::Fence(fence) = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now) else {
        panic!()
    };
    manager.fenced(FILE, fence);
    let step = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), now);
    assert_eq!(step, RequestOutcome::Inherited { until: now + RESUME });
    assert_eq!(
        granted(manager.ask(FILE, A, 1, (&wanted(Write, 2, 4), true), now)).ranges,
        [ByteRange::at(2, 4)]
    );
    manager.check();
    let late = now + RESUME;
    let step = manager.ask(FILE, B, 1, (&wanted(Read, 0, 8), false), late);
    assert!(matches!(step, RequestOutcome::Recall(_)), "nothing is kept for long: {step:?}");
    // What it goes on with and has not got does not keep others waiting for what it has.
    let mut manager = Manager::default();
    granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
    manager.yielded(FILE, A, u64::MAX, Write, &[ByteRange::from(8)]);
    granted(manager.ask(FILE, B, 1, (&wanted(Write, 8, 8), false), now));
    manager.restart(A, now);
    let is_granted = (0..30).any(|tenth| {
        let now = now + tenth * Duration::from_millis(100);
        let step = manager.ask(FILE, C, 1, (&wanted(Write, 0, 8), false), now);
        if let RequestOutcome::Fence(fence) = step {
            manager.fenced(FILE, fence);
        }
        manager.ask(FILE, A, 7, (&wanted(Write, 0, 16), true), now);
        matches!(step, RequestOutcome::Granted(_))
    });
    assert!(is_granted, "it waits as long as the other asks");
    // One that left in order needs no fence.
    let mut manager = Manager::default();
    granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
    manager.leave(A);
    granted(manager.ask(FILE, B, 1, (&wanted(Write, 0, 8), false), now));
    // What an earlier daemon granted to somebody who is lost may be any file.
    manager.lose_unknown();
    assert!(matches!(manager.ask(Ino(6), C, 1, (&wanted(Read, 0, 8), false), now), RequestOutcome::Fence(_)));
}

#[test]
fn files_that_were_lost_or_fenced_are_not_remembered_for_ever() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let ask = |manager: &mut Manager, ino| manager.ask(Ino(ino), B, 1, (&wanted(Write, 0, 8), false), now);
    let fence = |step| match step {
        RequestOutcome::Fence(fence) => fence,
        other => panic!("no fence: {other:?}"),
    };
    // One that was fenced, and that nobody needs, is forgotten at once.
    granted(manager.ask(FILE, A, 1, (&wanted(Write, 0, 8), false), now));
    manager.lose(A);
    let done = fence(ask(&mut manager, FILE.0));
    manager.fenced(FILE, done);
    granted(ask(&mut manager, FILE.0));
    manager.leave(B);
    assert_eq!(manager.files.len(), 0);
    // A fence that ends when all is forgotten is one of an earlier loss.
    manager.fenced(FILE, done);
    granted(ask(&mut manager, FILE.0));
    manager.leave(B);
    assert_eq!(manager.files.len(), 0);
    // Of many that were lost, each is fenced, however long that is ago.
    let many = 3 * REMEMBERED_MAX as u64;
    for ino in 0..many {
        granted(manager.ask(Ino(ino), A, 1, (&wanted(Write, 0, 8), false), now));
    }
    manager.lose(A);
    for ino in (0..many).rev() {
        let first = fence(ask(&mut manager, ino));
        manager.fenced(Ino(ino), first);
        if let RequestOutcome::Fence(second) = ask(&mut manager, ino) {
            manager.fenced(Ino(ino), second);
        }
        if ino % 512 == 0 {
            manager.leave(B);
        }
        assert!(manager.files.len() <= 3 * REMEMBERED_MAX, "{}", manager.files.len());
    }
    ask(&mut manager, many);
    assert!(manager.files.len() <= REMEMBERED_MAX + 1, "{}", manager.files.len());
}

#[test]
fn a_client_reclaims_what_nobody_got_meanwhile() {
    let (mut manager, now) = (Manager::default(), Instant::now());
    let all = |mode| (FILE, mode, ByteRange::ALL);
    // Of an earlier daemon: who comes first.
    let (first, has) = manager.reclaim(A, None, &[(FILE, Write, ByteRange::at(0, 8))]);
    assert_eq!(has, [(FILE, Write, ByteRange::at(0, 8))]);
    assert_eq!(manager.reclaim(B, None, &[all(Read)]).1, [(FILE, Read, ByteRange::from(8))]);
    manager.check();
    // Of this one: what it still has here, without what it does not name.
    let grant = granted(manager.ask(FILE, A, 1, (&wanted(Write, 2, 2), false), now));
    let (_, has) = manager.reclaim(A, Some(grant.serial), &[(FILE, Write, ByteRange { start: 4, end: 20 })]);
    assert_eq!(has, [(FILE, Write, ByteRange { start: 4, end: 8 })]);
    manager.check();
    // What was granted while it did so stays.
    let grant = granted(manager.ask(FILE, A, 2, (&wanted(Write, 0, 2), false), now));
    assert!(grant.serial > first);
    assert_eq!(manager.reclaim(A, Some(grant.serial - 1), &[]).1, []);
    assert!(matches!(manager.ask(FILE, C, 1, (&wanted(Read, 0, 1), false), now), RequestOutcome::Recall(_)));
    manager.lose(A);
    assert_eq!(manager.reclaim(A, Some(u64::MAX), &[all(Write)]).1, [], "it was lost");
}
