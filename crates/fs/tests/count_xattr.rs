//! Cache lines moved by cores that set, change and remove attributes of their own files, with
//! values that are distinct and do not fit into inodes: few, on 192 cores as on two.
//!
//! As in `count_apart`, every allocation has cache lines of its own.
#![cfg(feature = "count")]

mod apart;

use fourscore::{InodeNr, SetXattr};
use fourscore_sync::CoreNr;
use fourscore_sync::count::{Cores, LineHeap, Report, with_cores};
use fourscore_testkit::image::MiB;
use std::path::Path;

use apart::{Groups, OWNER, image_with_log, mount};

#[global_allocator]
static HEAP: LineHeap = LineHeap;

/// Operations of each core that are counted.
const ROUNDS: usize = 12;

/// The value of 200 bytes of a file of a core.
fn value(core: CoreNr, round: usize, change: u8) -> [u8; 200] {
    let mut value = [change; 200];
    value[..8].copy_from_slice(&(core.index() as u64).to_le_bytes());
    value[8..16].copy_from_slice(&(round as u64).to_le_bytes());
    value
}

/// The reports of setting attributes for the first time, of changing them, and of removing them.
fn attributes_apart(cores: &Cores, image: &Path) -> [(&'static str, Report); 3] {
    let fs = mount(image);
    let files: Vec<Vec<InodeNr>> = CoreNr::all()
        .map(|core| {
            let name = format!("dir {}", core.index()).into_bytes();
            cores.on(core, || {
                let dir = fs.mkdir(InodeNr::ROOT, &name, &OWNER).unwrap();
                let file = |round: usize| {
                    let name = format!("file {round}").into_bytes();
                    fs.create(dir, &name, &OWNER).unwrap()
                };
                (0..2 + ROUNDS).map(file).collect()
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
    cores.run(ROUNDS, |core, round| {
        fs.stat(file(core, 2 + round)).unwrap();
    });
    let first = cores.run(ROUNDS, |core, round| set(core, 2 + round, 1));
    let changed = cores.run(ROUNDS, |core, round| set(core, 2 + round, 2));
    let removed = cores.run(ROUNDS, |core, round| {
        fs.remove_xattr(file(core, 2 + round), b"user.a").unwrap();
    });
    fs.unmount().unwrap();
    [("set", first), ("change", changed), ("remove", removed)]
}

/// The most lines that an operation moves, on any number of cores. A block that comes or goes moves
/// one line of its load lock, which are sharded by block, and now and then one of the shard of the
/// buffer cache; on two cores that is half as often.
const MOST_MOVED: [(&str, f64); 3] = [("set", 2.0), ("change", 0.25), ("remove", 1.5)];

#[test]
fn distinct_attributes_move_few_lines_on_any_number_of_cores() {
    // A log so large that no transaction is sealed meanwhile.
    let image = image_with_log(&Groups::Plenty, "^fast_commit", MiB(1024));
    for size in [2, 80, 192] {
        let image = image.copy().unwrap();
        let reports = with_cores(size, |cores| attributes_apart(cores, image.path()));
        fourscore_testkit::oracle::assert_clean(image.path());
        for ((what, report), (named, most)) in reports.iter().zip(MOST_MOVED) {
            println!("{what}, {size} cores: {report}");
            assert_eq!(*what, named);
            assert!(report.operations() > 0, "{what}");
            assert!(
                report.transfers_per_op() <= most,
                "{what}, {size} cores: {report}"
            );
        }
    }
}
