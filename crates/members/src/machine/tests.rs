use super::*;

const OPTIONS: Options = Options {
    period_ms: 1000,
    direct_ms: 500,
    suspect_ms: 2000,
    start_ms: 0,
    helpers: 2,
    fanout: 2,
    news_max: 8,
    dead_every: 2,
};

fn node(number: u16) -> NodeId {
    NodeId(number)
}

/// Node 0 of so many, and the moment of its first probe with what it commands then.
fn probing(count: usize) -> (Members, u64, NodeId) {
    let mut members = Members::new(node(0), count, OPTIONS, 7, 0);
    let now = members.next_tick().unwrap();
    let commands = members.handle(now, &Event::Tick);
    let [Command::Probe { to, .. }] = commands[..] else { panic!("{commands:?}") };
    // The first period is cut short; the second is as all that follow.
    members.handle(now, &Event::Answered(to));
    let now = members.next_tick().unwrap();
    let commands = members.handle(now, &Event::Tick);
    let [Command::Probe { to, .. }] = commands[..] else { panic!("{commands:?}") };
    (members, now, to)
}

fn changes(commands: &[Command]) -> Vec<(NodeId, Liveness)> {
    let changed = commands.iter().filter_map(|command| match command {
        Command::Changed(news) => Some((news.node, news.liveness)),
        _ => None,
    });
    changed.collect()
}

#[test]
fn one_that_answers_is_left_alone_until_the_next_period() {
    let (mut members, now, to) = probing(5);
    assert_eq!(members.handle(now + 10, &Event::Answered(to)), []);
    assert_eq!(members.next_tick(), Some(now + 1000));
    let mut asked = vec![to];
    for turn in 1..3 {
        let now = now + turn * 1000;
        let commands = members.handle(now, &Event::Tick);
        let [Command::Probe { to, .. }] = commands[..] else { panic!("{commands:?}") };
        members.handle(now, &Event::Answered(to));
        asked.push(to);
    }
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), 3, "all in turn");
}

#[test]
fn one_that_is_silent_is_probed_through_others_suspected_and_then_dead() {
    let (mut members, now, to) = probing(5);
    assert_eq!(members.next_tick(), Some(now + 500));
    let commands = members.handle(now + 500, &Event::Tick);
    let asked = |command: &Command| matches!(command, Command::AskFor { target, .. } if *target == to);
    assert!(commands.len() == 2 && commands.iter().all(asked), "{commands:?}");
    let commands = members.handle(now + 1000, &Event::Tick);
    assert_eq!(changes(&commands), [(to, Liveness::Suspect)]);
    assert!(commands.iter().any(|command| matches!(command, Command::Tell { to: told, .. } if *told == to)));
    let mut dead_at = None;
    for at in 1001..10_000 {
        let commands = members.handle(now + at, &Event::Tick);
        if changes(&commands).contains(&(to, Liveness::Dead)) {
            dead_at = Some(at);
            let told = commands.iter().filter(|command| matches!(command, Command::Tell { .. })).count();
            assert!(told >= OPTIONS.fanout, "others hear of it at once");
            break;
        }
        for command in &commands {
            if let Command::Probe { to, .. } = command {
                members.handle(now + at, &Event::Answered(*to));
            }
        }
    }
    // Twice as long as usual: one failure makes it doubt itself.
    assert_eq!(dead_at, Some(1000 + 2 * OPTIONS.suspect_ms));
    assert_eq!(members.epoch(1), 2);
}

#[test]
fn who_was_never_heard_of_may_still_be_starting() {
    let options = Options { start_ms: 9000, ..OPTIONS };
    let mut members = Members::new(node(0), 2, options, 7, 0);
    members.handle(100, &Event::Tick);
    let mut now = 100;
    let mut suspected = None;
    while suspected.is_none() {
        now = members.next_tick().unwrap().max(now);
        let commands = members.handle(now, &Event::Tick);
        suspected = (!changes(&commands).is_empty()).then_some(now);
        let asked = commands.iter().any(|command| matches!(command, Command::AskFor { .. }));
        assert!(!asked || now >= 9100, "others know no more");
    }
    assert!(suspected.is_some_and(|at| (9100..12_000).contains(&at)), "{suspected:?}");
    // Once it was heard of, it has no such time.
    let mut members = Members::new(node(0), 2, options, 7, 0);
    members.handle(100, &Event::Tick);
    members.handle(100, &Event::Heard { from: node(1), news: &[] });
    assert_eq!(changes(&members.handle(1100, &Event::Tick)), [(node(1), Liveness::Suspect)]);
}

#[test]
fn a_refused_probe_goes_to_the_others_at_once() {
    let (mut members, now, to) = probing(3);
    let commands = members.handle(now + 1, &Event::Failed(to));
    assert!(matches!(commands[..], [Command::AskFor { target, .. }] if target == to), "{commands:?}");
    assert_eq!(members.handle(now + 2, &Event::Reached(to)), []);
    assert_eq!(members.next_tick(), Some(now + 1000));
}

#[test]
fn probes_are_made_for_others() {
    let mut members = Members::new(node(0), 4, OPTIONS, 7, 0);
    let commands = members.handle(0, &Event::ProbeFor { asker: node(1), target: node(2) });
    let probes = |command: &Command| matches!(command, Command::Probe { to, .. } if *to == node(2));
    assert!(commands.iter().any(probes), "{commands:?}");
    let commands = members.handle(0, &Event::Answered(node(2)));
    assert!(
        matches!(commands[..], [Command::Report { to, target, .. }] if (to, target) == (node(1), node(2)))
    );
    assert_eq!(members.handle(0, &Event::Answered(node(2))), [], "once");
    for target in [0, 9] {
        assert_eq!(members.handle(0, &Event::ProbeFor { asker: node(1), target: node(target) }), []);
    }
}

#[test]
fn who_is_taken_for_dead_says_otherwise_and_is_believed() {
    let mut members = Members::new(node(0), 4, OPTIONS, 7, 0);
    let dead = MembershipUpdate { node: node(0), incarnation: 0, liveness: Liveness::Dead };
    let commands = members.handle(0, &Event::Heard { from: node(1), news: &[dead] });
    assert!(commands.contains(&Command::Accused(Liveness::Dead)));
    let own = members.news_for(node(1))[0];
    assert_eq!(own, MembershipUpdate { node: node(0), incarnation: 1, liveness: Liveness::Alive });
    let mut other = Members::new(node(1), 4, OPTIONS, 8, 0);
    other.handle(0, &Event::Heard { from: node(2), news: &[dead] });
    assert_eq!(other.news_for(node(0))[1], dead, "who is dead hears so first");
    let commands = other.handle(0, &Event::Heard { from: node(0), news: &[own] });
    assert_eq!(changes(&commands), [(node(0), Liveness::Alive)]);
    assert_eq!((members.epoch(1), other.epoch(1)), (3, 3));
    assert_eq!(members.handle(0, &Event::Heard { from: node(1), news: &[dead] }), [], "old news");
    assert_eq!(members.incarnation(), 1);
}

#[test]
fn a_restarted_node_learns_its_incarnation() {
    let mut members = Members::new(node(0), 2, OPTIONS, 7, 0);
    let known = MembershipUpdate { node: node(0), incarnation: 5, liveness: Liveness::Alive };
    let commands = members.handle(0, &Event::Heard { from: node(1), news: &[known] });
    assert!(commands.contains(&Command::Accused(Liveness::Alive)), "{commands:?}");
    assert_eq!((members.known()[0], members.incarnation()), (known, 5));
}

#[test]
fn who_stood_still_lets_the_time_pass_again() {
    let (mut members, now, to) = probing(5);
    let commands = members.handle(now + 60_000, &Event::Tick);
    assert_eq!(commands, [Command::StoodStill(59_500)]);
    assert_eq!(members.known()[usize::from(to.0)].liveness, Liveness::Alive);
    assert_eq!(members.next_tick(), Some(now + 60_500));
    members.handle(now + 60_010, &Event::Answered(to));
    assert_eq!(members.epoch(1), 1);
}

#[test]
fn what_the_supervisor_knows_is_believed() {
    let mut members = Members::new(node(0), 3, OPTIONS, 7, 0);
    let commands = members.handle(0, &Event::Lost(node(2)));
    assert_eq!(changes(&commands), [(node(2), Liveness::Dead)]);
    assert_eq!(members.handle(0, &Event::Lost(node(0))), [], "not of this node itself");
    assert_eq!(members.handle(0, &Event::Lost(node(9))), []);
}

#[test]
fn nobody_is_watched_where_nobody_else_is() {
    let mut members = Members::new(node(0), 1, OPTIONS, 7, 0);
    assert_eq!((members.next_tick(), members.handle(1 << 40, &Event::Tick)), (None, vec![]));
    let mut members = Members::new(node(0), 3, Options::never(), 7, 0);
    assert_eq!((members.next_tick(), members.handle(1 << 40, &Event::Tick)), (None, vec![]));
    let commands = members.handle(1 << 40, &Event::Lost(node(1)));
    assert_eq!((changes(&commands), members.next_tick()), (vec![(node(1), Liveness::Dead)], None));
}

#[test]
fn limits_follow_from_how_soon_a_death_is_to_be_known() {
    for ms in [0, 1, 5, 1000, 5000, 60_000] {
        let Options { period_ms, direct_ms, suspect_ms, .. } = Options::dead_after(ms);
        assert!(period_ms > 0 && direct_ms > 0 && direct_ms <= period_ms);
        assert!(2 * period_ms + suspect_ms <= ms.max(5));
    }
}

#[test]
#[should_panic(expected = "node 1 has incarnation 2 after 3")]
fn an_incarnation_never_goes_back() {
    let mut members = Members::new(NodeId(0), 2, Options::dead_after(1000), 7, 0);
    let news = |incarnation| MembershipUpdate { node: NodeId(1), incarnation, liveness: Liveness::Alive };
    let heard = Event::Heard { from: NodeId(1), news: &[news(3), news(2)] };
    members.handle(0, &heard);
    assert_eq!(members.known()[1], news(3), "older news are none");
    members.learn(0, news(2), None, &mut Vec::new());
}

#[test]
fn the_highest_incarnation_is_no_way_back_to_the_first() {
    let mut members = Members::new(NodeId(0), 2, Options::dead_after(1000), 7, 0);
    let news = [MembershipUpdate { node: NodeId(0), incarnation: u32::MAX, liveness: Liveness::Suspect }];
    members.handle(0, &Event::Heard { from: NodeId(1), news: &news });
    assert_eq!(members.incarnation(), u32::MAX);
}
