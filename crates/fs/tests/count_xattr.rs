//! Cache lines moved by cores that set, change and remove attributes of their own files, with
//! values that are distinct and do not fit into inodes: few, on 192 cores as on two.
//!
//! As in `count_apart`, every allocation has cache lines of its own.
//!
//! A binary of its own, because of that heap and of the feature `count`.

mod apart;

use fourscore::{BypassLimits, InodeNr, SetXattr, XattrSharing};
use fourscore_sync::CoreNr;
use fourscore_sync::count::{Cores, LineHeap, Report, with_cores};
use fourscore_testkit::image::MiB;
use std::path::Path;

use apart::{Groups, OWNER, image_with_log, mount_with};

#[global_allocator]
static HEAP: LineHeap = LineHeap;

/// Operations of a core on many cores; there are more on two, where it depends on chance whether a
/// line was last at the other core.
const ROUNDS: usize = 12;
const OPERATIONS: usize = 384;

/// The value of 200 bytes of a file of a core.
fn value(core: CoreNr, round: usize, change: u8) -> [u8; 200] {
    let mut value = [change; 200];
    value[..8].copy_from_slice(&(core.index() as u64).to_le_bytes());
    value[8..16].copy_from_slice(&(round as u64).to_le_bytes());
    value
}

/// The reports of setting attributes for the first time, of changing them, and of removing them.
fn attributes_apart(
    cores: &Cores,
    image: &Path,
    sharing: XattrSharing,
    rounds: usize,
) -> [(&'static str, Report); 3] {
    let fs = mount_with(image, sharing);
    let files: Vec<Vec<InodeNr>> = CoreNr::all()
        .map(|core| {
            let name = format!("dir {}", core.index()).into_bytes();
            cores.on(core, || {
                let dir = fs.mkdir(InodeNr::ROOT, &name, &OWNER).unwrap();
                let file = |round: usize| {
                    let name = format!("file {round}").into_bytes();
                    fs.create(dir, &name, &OWNER).unwrap()
                };
                (0..2 + rounds).map(file).collect()
            })
        })
        .collect();
    let file = |core: CoreNr, round: usize| files[core.index()][round];
    let set = |core: CoreNr, round: usize, change: u8| {
        let (inode, value) = (file(core, round), value(core, round, change));
        fs.set_xattr(inode, b"user.a", &value, SetXattr::Any)
            .unwrap();
    };
    fs.trim(&fourscore::Trim::default()).unwrap();
    // Groups are loaded, and blocks join the transaction.
    cores.run(2, |core, round| {
        set(core, round, 1);
        set(core, round, 2);
        fs.remove_xattr(file(core, round), b"user.a").unwrap();
    });
    // Inodes are in the cache.
    cores.run(rounds, |core, round| {
        fs.stat(file(core, 2 + round)).unwrap();
    });
    let first = cores.run(rounds, |core, round| set(core, 2 + round, 1));
    let changed = cores.run(rounds, |core, round| set(core, 2 + round, 2));
    let removed = cores.run(rounds, |core, round| {
        fs.remove_xattr(file(core, 2 + round), b"user.a").unwrap();
    });
    fs.unmount().unwrap();
    [("set", first), ("change", changed), ("remove", removed)]
}

/// How equal attributes are looked for, and the most lines that setting, changing and removing move
/// on any number of cores.
///
/// A block that comes or goes moves one line of its load lock, which are sharded by block, and now
/// and then one of the shard of the buffer cache. While a core looks for equal attributes, a
/// content that it has not found moves one line of the shard of the sharing cache that it enters.
fn cases() -> [(&'static str, XattrSharing, [f64; 3]); 2] {
    // The first content that is not found begins the pause.
    let paused = BypassLimits {
        window: 1,
        pause: u32::MAX,
        ..BypassLimits::default()
    };
    let paused = XattrSharing::Automatic(paused);
    [
        ("bypassed", paused, [2.0, 0.25, 1.5]),
        ("looking", XattrSharing::On, [3.0, 1.25, 1.5]),
    ]
}

#[test]
fn distinct_attributes_move_few_lines_on_any_number_of_cores() {
    // A log so large that no transaction is sealed meanwhile.
    let image = image_with_log(&Groups::Plenty, "^fast_commit", MiB(1024));
    for (how, sharing, most) in cases() {
        let counted = [2, 80, 192].map(|size| {
            let image = image.copy().unwrap();
            let rounds = ROUNDS.max(OPERATIONS / size);
            let path = image.path();
            let reports = with_cores(size, |cores| attributes_apart(cores, path, sharing, rounds));
            fourscore_testkit::oracle::assert_clean(image.path());
            for ((what, report), most) in reports.iter().zip(most) {
                assert!(report.operations() > 0, "{what}");
                let moved = report.transfers_per_op();
                // `cargo xtask bench xattr` reads this line.
                println!("transfers: {what}, {how}, {size} cores: {moved:.3}\n{report}");
                assert!(moved <= most, "{what}, {how}, {size} cores: {report}");
            }
            reports.map(|(_, report)| report.transfers_per_op())
        });
        // On two cores half of the lines are still where they are needed.
        let [two, _, many] = counted;
        for (two, many) in two.into_iter().zip(many) {
            assert!(many <= 2.2 * two + 0.15, "{how}: {counted:?}");
        }
    }
}
