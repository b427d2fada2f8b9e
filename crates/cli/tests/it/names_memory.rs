//! Memory of names and attributes: bounded, shown, and given back.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::{XattrFlags, removexattr, setxattr, statvfs};

use crate::harness::{Camp, Place, rss_kib, wait_until};

const MIB: u64 = 1 << 20;

fn start(bound: &str) -> Option<(Camp, tempfile::TempDir)> {
    let dir = tempfile::Builder::new().prefix("bvk").tempdir().unwrap();
    let volume = format!("{}:1g", dir.path().display());
    Camp::start(&["--volume", &volume, "--names-memory", bound]).map(|camp| (camp, dir))
}

/// 0 while the daemon does not answer.
fn names_bytes(camp: &Camp) -> u64 {
    camp.status()["nodes"][0]["names_bytes"].as_u64().unwrap_or(0)
}

/// S440, S443, S445: attributes up to the bound and no further; what they took the daemon has not any more once they
/// are gone.
#[test]
fn attributes_take_so_much_memory_and_give_it_back() {
    let Some((camp, _dir)) = start("96m") else { return };
    let pid = || camp.status()["nodes"][0]["pid"].as_u64().unwrap();
    let name = |count: usize| camp.mount().join(format!("f{}", count / 100));
    let set = |count: usize| {
        let file = name(count);
        if count.is_multiple_of(100) {
            fs::write(&file, "").unwrap();
        }
        setxattr(&file, format!("user.{count}"), &[7; 64 << 10], XattrFlags::empty())
    };
    set(0).unwrap();
    let (before, space) = (rss_kib(pid()), statvfs(camp.mount()).unwrap());
    let refused = (1..4000).find(|count| set(*count).is_err()).unwrap();
    assert_eq!(set(refused).unwrap_err(), rustix::io::Errno::NOSPC);
    assert!((1300..1600).contains(&refused), "{refused} attributes in 96 MiB");
    let mut taken = 0;
    wait_until("the daemon says what it takes", || {
        taken = names_bytes(&camp);
        taken > 0
    });
    let full = statvfs(camp.mount()).unwrap();
    assert!(taken > 80 * MIB && taken <= 96 * MIB, "{taken}");
    assert!(full.f_ffree < space.f_ffree && full.f_ffree <= full.f_files);
    let shown = camp.run("status", &[]).out;
    assert!(shown.contains("of 96 MiB"), "{shown}");
    assert!(rss_kib(pid()) > before + (70 << 10), "they are in memory");
    // As after a kill, which reads back what there is whatever it takes.
    camp.kill_node(0);
    wait_until("it has them again", || names_bytes(&camp) > 80 * MIB);
    (0..refused).for_each(|count| removexattr(name(count), format!("user.{count}")).unwrap());
    wait_until("it has them no more", || (1..MIB).contains(&names_bytes(&camp)));
    wait_until("the system has its memory again", || rss_kib(pid()) < before + (24 << 10));
    (0..100).for_each(|count| set(count).unwrap());
    camp.down();
}

/// S440, S441: files, directories and links, up to where `df` says that there are no more.
#[test]
fn names_end_where_df_says_so() {
    let Some((camp, _dir)) = start("1m") else { return };
    let before = statvfs(camp.mount()).unwrap();
    assert!((1000..4096).contains(&before.f_ffree), "{}", before.f_ffree);
    let at = |count: usize| camp.mount().join(format!("a name of {count:0100}"));
    // How much room is left when the first is refused depends on which threads serve: some more of another kind may
    // fit.
    let mut count = 0;
    let mut fill = |make: &dyn Fn(&Path) -> std::io::Result<()>| {
        let refused = (0..20_000).find_map(|_| {
            count += 1;
            make(&at(count - 1)).err()
        });
        let error = refused.unwrap();
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        count -= 1;
        count
    };
    let made = fill(&|path| fs::File::create(path).map(drop));
    let after = statvfs(camp.mount()).unwrap();
    assert_eq!(after.f_files - after.f_ffree, before.f_files - before.f_ffree + made as u64);
    assert!(after.f_ffree < before.f_ffree / 20, "{}", after.f_ffree);
    let more = [
        fill(&|path| fs::create_dir(path)),
        fill(&|path| std::os::unix::fs::symlink("x".repeat(300), path)),
        fill(&|path| fs::hard_link(at(0), path)),
    ];
    assert!(more[2] < made + 20, "{made} and {more:?}");
    fs::write(at(0), "content").unwrap();
    fs::remove_file(at(1)).unwrap();
    fs::remove_file(at(2)).unwrap();
    wait_until("there is room for one", || fs::write(at(1), "more").is_ok());
    Place::new().run(&["up", "--names-memory", "5k"]).fails(2, &["at least 1 MiB"]);
    camp.down();
}
