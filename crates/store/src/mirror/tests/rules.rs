//! The rules of mirrors, each by itself.

use super::*;
use crate::{DirVolume, FailingVolume, OperationKind, VolumeFault, VolumeIdentity};
use bivouac_types::FormationId;
use bivouac_wire::VolumeChange;

#[test]
fn a_mirrored_volume_is_a_volume() {
    crate::conformance::volume(|| {
        let link = TestLink::to(memory);
        let mirror = mirror(&memory(), &link, options(1));
        complete(&mirror);
        // The link keeps what the mirror needs.
        mirrored_volumes(&mirror).remove(0)
    });
}

#[test]
fn what_is_written_before_the_first_session_is_at_the_backup_behind_it() {
    let (link, own) = (TestLink::to(memory), memory());
    let first = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&first).remove(0);
    volume.make_dir("00").unwrap();
    write(&*volume, "00/a", 3, b"abc").unwrap();
    assert_eq!(first.serve_state(), ServeState::Waits);
    complete(&first);
    assert_eq!(first.serve_state(), ServeState::Serves);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
    // Another daemon of the same primary: the backup knows what was under way.
    write(&*volume, "00/a", 0, b"xy").unwrap();
    let second = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&second).remove(0);
    write(&*volume, "00/b", 0, b"b").unwrap();
    let before = link.replica(BACKUP).epoch();
    assert!(before.is_complete);
    complete(&second);
    assert_eq!(link.replica(BACKUP).epoch().session, before.session + 1);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

#[test]
fn a_change_of_a_killed_primary_that_only_the_backup_has_goes() {
    let (link, own) = (TestLink::to(memory), memory());
    let first = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&first).remove(0);
    volume.make_dir("00").unwrap();
    write(&*volume, "00/a", 0, b"abc").unwrap();
    complete(&first);
    let session = link.replica(BACKUP).epoch().session;
    for (sequence, change, payload) in [
        (90, VolumeChange::Write { name: "00/a".into(), extents: vec![(1, 9)] }, &b"123456789"[..]),
        (91, VolumeChange::Create { name: "00/new".into() }, b""),
    ] {
        let channel = sequence as u16 - 60;
        let request =
            ApplyChangesRequest { epoch: 1, session, channel, sequence, changes: vec![(0, change)] };
        assert_eq!(link.replica(BACKUP).apply(&request, &[IoSlice::new(payload)]), all_made(&request));
    }
    assert_ne!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
    let second = mirror(&own, &link, options(1));
    complete(&second);
    assert!(link.replica(BACKUP).epoch().is_complete);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

/// S800: the backup has a change that only the primary's memory knows, and both end, one behind the other.
#[test]
fn a_change_that_nobody_knows_any_more_goes() {
    let (link, own) = (TestLink::to(memory), memory());
    let first = mirror(&own, &link, options(1));
    write(&*mirrored_volumes(&first).remove(0), "f", 0, b"abcdef").unwrap();
    complete(&first);
    let session = link.replica(BACKUP).epoch().session;
    let change = VolumeChange::SetLen { name: "f".into(), len: 2 };
    let changes = vec![(0, change)];
    let request = ApplyChangesRequest { epoch: 1, session, channel: 9, sequence: 1, changes };
    assert_eq!(link.replica(BACKUP).apply(&request, &[]), all_made(&request));
    link.restart(BACKUP);
    let (continues, anew) = (Some(session), false);
    let request = BeginReplicaRequest { epoch: 1, volumes: 1, lease_ms: 1, continues, anew };
    let begun = link.replica(BACKUP).begin(&request);
    assert!(begun.is_complete && begun.suspects.is_empty(), "the primary knows");
    complete(&mirror(&own, &link, options(1)));
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

/// S800.
#[test]
fn volumes_that_were_lost_do_not_become_what_the_backup_has() {
    let dir = tempfile::tempdir().unwrap();
    let note_at = || Some(dir.path().to_owned());
    let first_options = || MirrorOptions { is_first: true, note_at: note_at(), ..options(1) };
    let link = TestLink::to(memory);
    // The answer to the first message gets lost: it may be said again.
    link.mishaps.lock().push_back(Mishap::AnswerLost);
    let first = mirror(&memory(), &link, first_options());
    write(&*mirrored_volumes(&first).remove(0), "f", 0, b"abc").unwrap();
    assert_eq!(read_mirror_note(dir.path()).unwrap(), None);
    complete(&first);
    let role = MirrorRole::Primary { backup: Some(BACKUP), epoch: 1, has_unsent: false };
    assert_eq!(read_mirror_note(dir.path()).unwrap().map(|note| note.role), Some(role));
    for restarts in [false, true] {
        std::fs::remove_file(dir.path().join("bivouac-mirror")).unwrap_or_default();
        if restarts {
            link.restart(BACKUP);
        }
        let again = mirror(&memory(), &link, first_options());
        write(&*mirrored_volumes(&again).remove(0), "other", 0, b"x").unwrap();
        for _ in 0..5 {
            again.tend();
        }
        assert_eq!(again.serve_state(), ServeState::Waits);
        assert!(link.replica(BACKUP).epoch().is_complete);
        assert_eq!(bytes(&*link.volumes(BACKUP)[0], "f"), b"abc");
        assert_eq!(
            read_mirror_note(dir.path()).unwrap(),
            None,
            "the next daemon does not take them for its own"
        );
    }
    assert_eq!(link.replica(BACKUP).seal(2).unwrap().volumes.len(), 1);
}

/// S802.
#[test]
fn behind_a_seal_nothing_of_the_old_primary_counts() {
    let (link, own, lease) = (TestLink::to(memory), memory(), Duration::from_millis(300));
    let mirror = mirror(&own, &link, MirrorOptions { lease, ..options(4) });
    let volume = mirrored_volumes(&mirror).remove(0);
    write(&*volume, "f", 0, b"abc").unwrap();
    assert!(matches!(link.replica(BACKUP).seal(5), Err(SealError::Refused(_))), "not complete");
    let begun = std::time::Instant::now();
    complete(&mirror);
    assert!(matches!(link.replica(BACKUP).seal(4), Err(SealError::Refused(_))), "its own epoch");
    let sealed = link.replica(BACKUP).seal(5).unwrap();
    // On a busy machine it may be over by then.
    assert!(sealed.wait_ms > 0 || begun.elapsed() >= lease, "the primary has a lease");
    assert_eq!(sealed.volumes, ["/replica/0"]);
    assert!(write(&*volume, "f", 0, b"xyz").is_err());
    assert_eq!(bytes(&*link.volumes(BACKUP)[0], "f"), b"abc");
    assert_eq!(mirror.serve_state(), ServeState::Superseded);
    assert_eq!(bytes(&*own[0], "f"), b"abc", "nothing is done here that the backup refuses");
    // Also another daemon of it, and another of the backup.
    link.restart(BACKUP);
    let again = super::mirror(&own, &link, options(4));
    again.tend();
    assert_eq!(again.wait_to_serve(), ServeState::Superseded);
    while link.replica(BACKUP).seal(5).unwrap().wait_ms > 0 {
        std::thread::yield_now();
    }
}

/// S803.
#[test]
fn a_primary_that_is_cut_off_serves_nothing_once_its_lease_is_over() {
    let (link, own) = (TestLink::to(memory), memory());
    let short = Duration::from_millis(50);
    let mirror = mirror(&own, &link, MirrorOptions { lease: short, patience: short * 4, ..options(1) });
    complete(&mirror);
    link.mishaps.lock().extend([Mishap::RequestLost; 100_000]);
    while mirror.serve_state() == ServeState::Serves {
        std::thread::yield_now();
    }
    let sealed = link.replica(BACKUP).seal(2).unwrap();
    assert!(sealed.wait_ms <= 50 + 50 / 8 + 1);
    assert_eq!(mirror.wait_to_serve(), ServeState::Waits);
    let volume = mirrored_volumes(&mirror).remove(0);
    assert!(write(&*volume, "f", 0, b"abc").is_err());
    assert!(content(&*own[0]).is_empty());
    link.mishaps.lock().clear();
    while mirror.serve_state() != ServeState::Superseded {
        mirror.tend();
    }
}

/// S851: what a former backup has is removed, but not as long as its primary may take it for the backup.
#[test]
fn a_replica_that_was_replaced_goes_once_its_lease_is_over() {
    let (link, own) = (TestLink::to(memory), memory());
    let lease = Duration::from_millis(50);
    let mirror = mirror(&own, &link, MirrorOptions { lease, ..options(1) });
    let volume = mirrored_volumes(&mirror).remove(0);
    write(&*volume, "f", 0, b"one").unwrap();
    complete(&mirror);
    let former = link.replica(BACKUP);
    assert_eq!(former.discard(1).unwrap(), None, "of the epoch that it has it stays");
    assert!(former.epoch().is_complete);
    mirror.set_backup(2, Some(OTHER)).unwrap();
    complete(&mirror);
    while let Some(left) = former.discard(2).unwrap() {
        assert!(former.epoch().is_complete && left <= lease * 2);
        std::thread::park_timeout(left);
    }
    assert!(link.volumes(BACKUP)[0].open("f", crate::OpenMode::Existing).is_err());
    assert!(!former.epoch().is_complete);
    // It can be the backup again.
    mirror.set_backup(3, Some(BACKUP)).unwrap();
    complete(&mirror);
    assert_eq!(bytes(&*link.volumes(BACKUP)[0], "f"), b"one");
    assert!(former.seal(4).is_ok());
    assert_eq!(former.discard(9).unwrap(), None, "a daemon may run on it");
    assert_eq!(bytes(&*link.volumes(BACKUP)[0], "f"), b"one");
}

/// S804.
#[test]
fn a_primary_goes_on_alone_or_with_another_backup_only_when_told_to() {
    let (link, own) = (TestLink::to(memory), memory());
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    write(&*volume, "f", 0, b"one").unwrap();
    complete(&mirror);
    assert!(mirror.set_backup(1, None).is_err(), "not a higher epoch");
    mirror.set_backup(2, None).unwrap();
    mirror.set_backup(2, None).unwrap();
    link.mishaps.lock().extend([Mishap::RequestLost; 1000]);
    write(&*volume, "f", 0, b"two").unwrap();
    assert_eq!(
        (mirror.serve_state(), bytes(&*link.volumes(BACKUP)[0], "f")),
        (ServeState::Serves, b"one".to_vec())
    );
    link.mishaps.lock().clear();
    mirror.set_backup(3, Some(OTHER)).unwrap();
    assert_eq!(mirror.serve_state(), ServeState::Serves, "nobody can take over yet");
    complete(&mirror);
    write(&*volume, "f", 1, b"hree").unwrap();
    assert_eq!(bytes(&*link.volumes(OTHER)[0], "f"), b"three");
    // The first one again has missed something.
    mirror.set_backup(4, Some(BACKUP)).unwrap();
    complete(&mirror);
    assert_eq!(bytes(&*link.volumes(BACKUP)[0], "f"), b"three");
}

#[test]
fn a_change_that_has_no_space_at_the_backup_is_made_nowhere() {
    let (link, own) = (TestLink::to(memory), memory());
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    write(&*volume, "f", 0, b"abc").unwrap();
    complete(&mirror);
    let file = volume.open("f", OpenMode::Existing).unwrap();
    link.mishaps.lock().push_back(Mishap::Full);
    let error = file.write_vectored_at(&[IoSlice::new(b"xyz")], 2).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC.code()));
    assert_eq!(read(&*volume, "f"), b"abc");
    write(&*volume, "f", 3, b"d").unwrap();
    assert_eq!(
        (content(&*own[0]), bytes(&*own[0], "f")),
        (content(&*link.volumes(BACKUP)[0]), b"abcd".to_vec())
    );
}

/// S800.
#[test]
fn deferred_writes_go_together_and_are_on_both_sides_once_they_are_asked_for() {
    let (link, own) = (TestLink::to(memory), memory());
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    let log = volume.open("records", OpenMode::Create).unwrap();
    let table = volume.open("bivouac-subfiles", OpenMode::Create).unwrap();
    complete(&mirror);
    let defer = |bytes: &[u8]| with_deferred_writes(true, || log.write_deferred(bytes, 0)).unwrap();
    // Space is taken ahead of the first one.
    defer(b"a");
    mirror.make_deferred().unwrap();
    let before = link.applied();
    with_deferred_writes(true, || {
        log.write_deferred(b"bc", 1).unwrap();
        log.write_deferred(b"d", 3).unwrap();
    });
    assert_eq!((bytes(&*own[0], "records"), link.applied()), (b"a".to_vec(), before), "nowhere yet");
    mirror.make_deferred().unwrap();
    assert_eq!((bytes(&*own[0], "records"), link.applied()), (b"abcd".to_vec(), before + 1));
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
    // They go with another change, which takes something away, and so must not be made before them.
    defer(b"A");
    write(&*volume, "f", 0, b"content").unwrap();
    assert_eq!((bytes(&*link.volumes(BACKUP)[0], "records"), link.applied()), (b"Abcd".to_vec(), before + 3));
    defer(b"x");
    table.set_len(3).unwrap();
    assert_eq!((bytes(&*own[0], "records"), link.applied()), (b"xbcd".to_vec(), before + 4));
    // Outside of what may defer they are made at once, and whoever reads sees them.
    log.write_deferred(b"y", 0).unwrap();
    assert_eq!(bytes(&*link.volumes(BACKUP)[0], "records"), b"ybcd");
    defer(b"z");
    assert_eq!(read(&*volume, "records"), b"zbcd");
}

/// S800: what was deferred and not acknowledged is nowhere behind a kill, or where the backup is.
#[test]
fn a_primary_that_is_killed_with_deferred_writes_has_nothing_that_its_backup_has_not() {
    let (link, own) = (TestLink::to(memory), memory());
    let first = mirror(&own, &link, MirrorOptions { patience: Duration::ZERO, ..options(1) });
    let volume = mirrored_volumes(&first).remove(0);
    write(&*volume, "records", 0, b"abc").unwrap();
    complete(&first);
    let log = volume.open("records", OpenMode::Existing).unwrap();
    let defer = |bytes: &[u8], at| with_deferred_writes(true, || log.write_deferred(bytes, at)).unwrap();
    defer(b"d", 3);
    first.make_deferred().unwrap();
    // The backup makes it, and nobody hears.
    defer(b"ef", 4);
    link.mishaps.lock().push_back(Mishap::AnswerLost);
    assert!(first.make_deferred().is_err(), "nobody is told of what may be nowhere");
    assert_eq!(bytes(&*link.volumes(BACKUP)[0], "records"), b"abcdef");
    assert_eq!(bytes(&*own[0], "records"), b"abcd");
    let second = mirror(&own, &link, options(1));
    complete(&second);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
    // One that lives on makes it again.
    complete(&first);
    first.make_deferred().unwrap();
    assert_eq!(bytes(&*own[0], "records"), b"abcdef");
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

#[test]
fn deferred_writes_that_fail_here_are_made_the_next_time() {
    let link = TestLink::to(memory);
    let fails = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let armed = Arc::clone(&fails);
    let failing = move |op: &crate::Operation<'_>| match op.kind {
        OperationKind::Write if armed.swap(false, std::sync::atomic::Ordering::AcqRel) => {
            VolumeFault::Fail(Errno::EIO)
        }
        _ => VolumeFault::Pass,
    };
    let own: Vec<Arc<dyn Volume>> =
        vec![Arc::new(FailingVolume::new(Arc::new(MemVolume::default()), failing))];
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    complete(&mirror);
    let log = volume.open("records", OpenMode::Create).unwrap();
    with_deferred_writes(true, || log.write_deferred(b"abc", 0)).unwrap();
    fails.store(true, std::sync::atomic::Ordering::Release);
    assert_eq!(mirror.make_deferred().unwrap_err().raw_os_error(), Some(Errno::EIO.code()));
    mirror.make_deferred().unwrap();
    assert_eq!(bytes(&*own[0], "records"), b"abc");
    complete(&mirror);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

/// The backup makes the first of the changes of a message, and has no space for the second.
#[test]
fn deferred_writes_count_also_where_the_change_behind_them_has_no_space() {
    let (link, own) = (TestLink::to(memory), memory());
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    volume.make_dir("records").unwrap();
    write(&*volume, "f", 0, b"abc").unwrap();
    let log = volume.open("records/log", OpenMode::Create).unwrap();
    complete(&mirror);
    let defer = |bytes: &[u8], at| with_deferred_writes(true, || log.write_deferred(bytes, at)).unwrap();
    defer(b"x", 0);
    mirror.make_deferred().unwrap();
    defer(b"yz", 1);
    link.mishaps.lock().push_back(Mishap::Full);
    let file = volume.open("f", OpenMode::Existing).unwrap();
    let error = file.write_vectored_at(&[IoSlice::new(b"XYZ")], 2).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC.code()));
    assert_eq!((bytes(&*own[0], "records/log"), bytes(&*own[0], "f")), (b"xyz".to_vec(), b"abc".to_vec()));
    let before = link.applied();
    mirror.make_deferred().unwrap();
    assert_eq!(link.applied(), before, "they are made");
    complete(&mirror);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

/// Where there may be no space later, when nobody could be told, writes are made at once.
#[test]
fn a_write_without_space_ahead_is_not_deferred() {
    let link = TestLink::to(memory);
    let failing = |op: &crate::Operation<'_>| match op.kind {
        OperationKind::Allocate => VolumeFault::Fail(Errno::ENOSPC),
        _ => VolumeFault::Pass,
    };
    let own: Vec<Arc<dyn Volume>> =
        vec![Arc::new(FailingVolume::new(Arc::new(MemVolume::default()), failing))];
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    complete(&mirror);
    let log = volume.open("records", OpenMode::Create).unwrap();
    with_deferred_writes(true, || log.write_deferred(b"abc", 0)).unwrap();
    assert_eq!(bytes(&*own[0], "records"), b"abc");
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

/// S805.
#[test]
fn a_copy_waits_for_space_within_its_session() {
    let (link, own) = (TestLink::to(memory), memory());
    write(&*own[0], "f", 0, b"abc").unwrap();
    let mirror = mirror(&own, &link, options(1));
    mirror.tend();
    let session = link.replica(BACKUP).epoch().session;
    // Made, cut, as long as it is, and its content.
    link.mishaps.lock().extend([Mishap::None, Mishap::None, Mishap::None, Mishap::Full]);
    assert!(mirror.tend() > Duration::ZERO, "not again at once");
    assert!(link.mishaps.lock().is_empty());
    assert_eq!((mirror.serve_state(), mirror.status().is_complete), (ServeState::Serves, false));
    complete(&mirror);
    assert_eq!(link.replica(BACKUP).epoch().session, session);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

#[test]
fn what_is_there_already_can_be_overwritten_at_a_full_backup() {
    let (link, own) = (TestLink::to(memory), memory());
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    volume.make_dir("records").unwrap();
    write(&*volume, "f", 0, b"abcdef").unwrap();
    write(&*volume, "records/log", 0, b"a").unwrap();
    complete(&mirror);
    let session = link.replica(BACKUP).epoch().session;
    for (name, at) in [("f", 2), ("records/log", 1)] {
        let file = volume.open(name, OpenMode::Existing).unwrap();
        link.mishaps.lock().push_back(Mishap::Full);
        file.write_vectored_at(&[IoSlice::new(b"xyz")], at).unwrap();
    }
    assert_eq!(link.replica(BACKUP).epoch().session, session, "nothing was to be looked after");
    assert_eq!(bytes(&*own[0], "f"), b"abxyzf");
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

#[test]
fn a_change_that_fails_here_is_undone_at_the_backup() {
    let link = TestLink::to(memory);
    let failing = |op: &crate::Operation<'_>| match (op.kind, op.name) {
        (OperationKind::Write, "bad") => VolumeFault::Fail(Errno::EIO),
        _ => VolumeFault::Pass,
    };
    let own: Vec<Arc<dyn Volume>> =
        vec![Arc::new(FailingVolume::new(Arc::new(MemVolume::default()), failing))];
    let mirror = mirror(&own, &link, options(1));
    let volume = mirrored_volumes(&mirror).remove(0);
    complete(&mirror);
    assert!(write(&*volume, "bad", 0, b"abc").is_err());
    complete(&mirror);
    assert_eq!(content(&*link.volumes(BACKUP)[0]), content(&*own[0]));
}

#[test]
fn hostile_names_stay_within_the_replica() {
    let root = tempfile::tempdir().unwrap();
    let identity = VolumeIdentity { formation: FormationId([7; 16]), node: NodeId(3), index: 0 };
    let volume = DirVolume::open(&root.path().join("replica"), identity, true).unwrap();
    std::fs::write(root.path().join("secret"), "x").unwrap();
    let backup = TestBackup::new(vec![Arc::new(volume)]);
    let begun = backup.replica.begin(&BeginReplicaRequest {
        epoch: 1,
        volumes: 1,
        lease_ms: 1,
        continues: None,
        anew: false,
    });
    let mut sequence = 0;
    let mut apply = |change| {
        sequence += 1;
        let session = begun.session;
        let changes = vec![(0, change)];
        let request = ApplyChangesRequest { epoch: 1, session, channel: 0, sequence, changes };
        backup.replica.apply(&request, &[]).outcome
    };
    let refused = ReplicaOutcome::Failed { errno: Errno::EPROTO.code() };
    for name in [
        "../secret",
        "..",
        "/etc/passwd",
        "a/../../secret",
        "",
        "a/b/c",
        "bivouac-volume",
        "bivouac-mirror",
        "replica-00001-00000/f",
        "replica-x",
        "a\0b",
    ] {
        let name = || name.to_owned();
        assert_eq!(apply(VolumeChange::Create { name: name() }), refused, "{}", name());
        assert_eq!(apply(VolumeChange::Remove { name: name() }), refused);
        assert_eq!(apply(VolumeChange::Rename { from: "00/x".into(), to: name() }), refused);
        assert_eq!(apply(VolumeChange::Rename { from: name(), to: "00/x".into() }), refused);
        if !matches!(name().as_str(), "" | "bivouac-volume" | "bivouac-mirror") {
            assert_eq!(apply(VolumeChange::MakeDir { name: name() }), refused);
        }
    }
    let write = VolumeChange::Write { name: "00/x".into(), extents: vec![(0, 4)] };
    assert_eq!(apply(write), refused, "bytes that did not come");
    assert_eq!(apply(VolumeChange::Create { name: "00/x".into() }), ReplicaOutcome::Done);
    assert_eq!(std::fs::read_to_string(root.path().join("secret")).unwrap(), "x");
}

#[test]
fn a_copy_leaves_what_is_not_the_nodes() {
    let (link, own) = (TestLink::to(memory), memory());
    own[0].make_dir("replica-00001-00000").unwrap();
    for name in ["replica-00001-00000/f", "bivouac-mirror", "bivouac-volume", "bivouac-subfiles"] {
        write(&*own[0], name, 0, b"x").unwrap();
    }
    complete(&mirror(&own, &link, options(1)));
    assert_eq!(content(&*link.volumes(BACKUP)[0]).into_keys().collect::<Vec<_>>(), ["bivouac-subfiles"]);
}

/// S806.
#[test]
fn nobody_gets_a_descriptor_of_a_mirrored_file() {
    let root = tempfile::tempdir().unwrap();
    let identity = VolumeIdentity { formation: FormationId([7; 16]), node: NodeId(0), index: 0 };
    let own: Vec<Arc<dyn Volume>> = vec![Arc::new(DirVolume::open(root.path(), identity, true).unwrap())];
    let link = TestLink::to(memory);
    let mirror = mirror(&own, &link, options(1));
    complete(&mirror);
    let volume = mirrored_volumes(&mirror).remove(0);
    let file = volume.open("f", OpenMode::Create).unwrap();
    assert!(own[0].open("f", OpenMode::Existing).unwrap().as_fd().is_some());
    assert!(file.as_fd().is_none());
}
