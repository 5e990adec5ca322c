//! Cache lines moved by cores that work in directories of their own: almost none, on 192 cores as
//! on two.
//!
//! All virtual cores run on one thread, whose heap mixes their allocations as the heaps of many
//! threads would not. So here every allocation has cache lines of its own, and the lines that move
//! are those that cores share by design.
//!
//! A binary of its own, because of that heap and of the feature `count`.

mod apart;

use fourscore_sync::count::{LineHeap, Report, with_cores};

use apart::{Groups, image_of_many_groups, writing_apart};

#[global_allocator]
static HEAP: LineHeap = LineHeap;

/// The reports of all operations on 2, 80 and 192 cores.
fn reports(groups: &Groups, feature: &str) -> [Vec<(&'static str, Report)>; 3] {
    let image = image_of_many_groups(groups, feature);
    [2, 80, 192].map(|size| {
        let image = image.copy().unwrap();
        let reports = with_cores(size, |cores| writing_apart(cores, image.path()));
        fourscore_testkit::oracle::assert_clean(image.path());
        for (what, report) in &reports {
            println!("{what}: {report}");
        }
        reports
    })
}

/// Where every core can have several groups, an operation moves as many lines on 192 cores as on
/// two, and few where there is little more than one group for each core. This is one test, since
/// memory that one thread retires may be dropped by another thread, whose virtual machine has never
/// seen it.
#[test]
fn writing_apart_moves_next_to_nothing_on_any_number_of_cores() {
    let [two, more @ ..] = reports(&Groups::Plenty, "^fast_commit");
    for many in &more {
        for ((what, few), (_, many)) in two.iter().zip(many) {
            let most = few.transfers_per_op() * 1.05 + 0.02;
            assert!(many.transfers_per_op() <= most, "{what}: {few}{many}");
        }
    }
    assert_few(&two, 0.0);
    // With fast commits each core reads the ceiling of the clocks again when one has raised it,
    // once in some thousand operations. Each core does 12 of each kind here.
    for (groups, feature, more) in [
        (Groups::Tight, "^fast_commit", 0.0),
        (Groups::Plenty, "fast_commit", 1.0 / 12.0),
    ] {
        let reports = reports(&groups, feature);
        reports.iter().for_each(|reports| assert_few(reports, more));
    }
}

/// The most lines that an operation moves. The device of the test, which is in memory, moves one
/// line when it is written.
const MOST_MOVED: [(&str, f64); 5] = [
    ("create", 0.02),
    ("stat", 0.02),
    ("append", 1.02),
    ("truncate", 0.02),
    ("unlink", 0.02),
];

fn assert_few(reports: &[(&str, Report)], more: f64) {
    for ((what, report), (named, most)) in reports.iter().zip(MOST_MOVED) {
        assert_eq!(*what, named);
        let most = most + more;
        assert!(report.transfers_per_op() <= most, "{what}: {report}");
    }
}
