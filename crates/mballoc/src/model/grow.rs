//! **Purpose.** Model-checked tests of an allocator that becomes larger ([`crate::grow`]): a group
//! appears beside an allocation, and beside a reader of the free space.

use std::panic;

use fourscore_ondisk::{GroupNr, GroupOffset, Tid};
use fourscore_sync::atomic::AtomicU64;
use fourscore_sync::model::check;
use fourscore_sync::{Arc, Mutex};

use super::{SCHEDULES, Small, on_threads};
use crate::allocator::{Allocator, Options};
use crate::claim::{Change, ChangeKind};
use crate::geometry::{ClusterCount, Geometry, Layout, Run};
use crate::grow::{Growth, Order};
use crate::prealloc::FilePrealloc;
use crate::request::Sizing;
use crate::testdisk::{Disk, geometry};
use crate::tunables::Tunable;

/// The clusters that the second of three groups is short of.
const MISSING: Run = Run {
    group: GroupNr(1),
    start: GroupOffset(10),
    len: ClusterCount(14),
};

/// An allocator of one group and a part of another, on a disk of three.
fn short() -> Arc<Small> {
    let whole = geometry(3, 24);
    let disk = Arc::new(Disk::new(whole));
    disk.apply(Change {
        run: MISSING,
        kind: ChangeKind::Set,
    });
    let options = Options {
        durable: Tid(0),
        root_clusters: 0,
        reserved_clusters: 0,
        fast_commits: false,
    };
    let short = Geometry::new(Layout {
        s_blocks_count: 35,
        ..*whole.layout()
    });
    let source = Box::new(Arc::clone(&disk));
    let allocator = Allocator::with_room(short.unwrap(), source, options, 3);
    allocator.tunables().set(Tunable::MbStreamReq, 0).unwrap();
    Arc::new(Small {
        disk,
        allocator,
        file: Arc::new(FilePrealloc::default()),
        whole: AtomicU64::new(0),
    })
}

fn grow(small: &Small, order: Order) {
    small.allocator.pin(GroupNr(1)).unwrap();
    small.disk.apply(Change {
        run: MISSING,
        kind: ChangeKind::Clear,
    });
    let growth = Growth {
        geometry: geometry(3, 24),
        freed: &[MISSING],
        root_clusters: 0,
    };
    small.allocator.grow_in(&growth, order);
    small.allocator.unpin(GroupNr(1));
}

/// Two threads want all that there is before and after the growth; a third one looks.
fn beside_a_growth(order: Order) {
    let shared = Arc::new((short(), order, Mutex::new(0_u32)));
    on_threads(&shared, 3, |(small, order, got), t| match t {
        0 => grow(small, *order),
        1 => {
            let mut left = 60;
            for _ in 0..4 {
                if let Some(run) = small.get(100 - left, left.min(30), Sizing::Exact, Tid(1)) {
                    *got.lock() += run.len.0;
                    left -= run.len.0.min(left - 1);
                }
            }
        }
        _ => {
            let free = small.allocator.free_clusters();
            let geometry = small.allocator.geometry();
            let groups = (0..geometry.groups()).map(GroupNr);
            let all: u64 = groups
                .map(|group| u64::from(geometry.clusters_in(group)))
                .sum();
            assert!(free <= all, "{free} of {all} clusters are free");
        }
    });
    let (small, _, got) = &*shared;
    assert_eq!(small.disk.free(), 72 - u64::from(*got.lock()));
    small.settle();
}

#[test]
fn a_group_appears_beside_an_allocation_and_a_reader_of_the_free_space() {
    check(SCHEDULES, || beside_a_growth(Order::FindableFirst));
}

#[test]
fn tokens_before_their_clusters_are_found_out() {
    // One attempt in seven finds nothing.
    let attempt = || check(SCHEDULES, || beside_a_growth(Order::TokensFirst));
    let is_found = (0..20).any(|_| panic::catch_unwind(attempt).is_err());
    assert!(is_found, "the model does not find the fault");
}
