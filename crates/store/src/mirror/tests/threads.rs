//! Several threads change files while the backup changes, copies are made and daemons of backups are restarted.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

const ROUNDS: u32 = 12;

/// S805.
#[test]
fn copies_are_right_while_files_are_changed() {
    let (link, own) = (TestLink::to(memory), memory());
    ["00", "01", "records"].iter().for_each(|dir| own[0].make_dir(dir).unwrap());
    let mirror = MirroredVolumes::new(own.clone(), Arc::clone(&link) as _, options(1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let (turn, pause) = (mirror.turn(), mirror.tend());
                if !pause.is_zero() {
                    mirror.wait_for_change(turn, Duration::from_millis(1), &stop);
                }
            }
        });
        let volume = mirrored_volumes(&mirror).remove(0);
        write(&*volume, "00/large", 0, &[7; 3 << 20]).unwrap();
        let writers: Vec<_> = (0..3u8)
            .map(|writer| {
                let volume = Arc::clone(&volume);
                let stop = &stop;
                scope.spawn(move || {
                    let mut round = 0u32;
                    while !stop.load(Ordering::Acquire) {
                        round += 1;
                        // One writer a file at a time, as a subfile's lock has it: else the order would be any.
                        let name = format!("0{}/f{writer}-{}", writer % 2, round % 9);
                        let other = format!("records/w{writer}-{}", round % 4);
                        let bytes = round.to_le_bytes().repeat(1 + round as usize % 2000);
                        write(&*volume, &name, u64::from(round % 5) * 1000, &bytes).unwrap();
                        write(&*volume, &other, 0, &bytes).unwrap();
                        match round % 7 {
                            0 => volume.rename(&other, &format!("records/w{writer}-x")).unwrap(),
                            1 => volume.remove(&other).unwrap(),
                            2 => volume.open(&other, OpenMode::Existing).unwrap().set_len(5).unwrap(),
                            3 => volume.open(&other, OpenMode::Existing).unwrap().punch(0..4096).unwrap(),
                            _ => write(&*volume, "00/large", u64::from(writer) << 20, &bytes).unwrap(),
                        }
                    }
                })
            })
            .collect();
        for round in 0..ROUNDS {
            let backup = if round % 2 == 0 { BACKUP } else { OTHER };
            if round % 3 == 2 {
                link.restart(backup);
            }
            mirror.set_backup(round + 2, Some(backup)).unwrap();
            while !mirror.status().is_complete {
                mirror.wait_for_change(mirror.turn(), Duration::from_millis(1), &stop);
            }
        }
        stop.store(true, Ordering::Release);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    complete(&mirror);
    let backup = mirror.status().backup.unwrap();
    let (there, here) = (content(&*link.volumes(backup)[0]), content(&*own[0]));
    assert_eq!(there.keys().collect::<Vec<_>>(), here.keys().collect::<Vec<_>>());
    for (name, bytes) in here {
        assert!(there[&name] == bytes, "{name} differs");
    }
}
