//! Tests of visiting free runs, and of concurrent allocations.

use fourscore_ondisk::{InodeNr, PhysBlock, Tid};
use fourscore_sync::Arc;

use super::*;
use crate::allocator::Options;
use crate::pending::Stamp;
use crate::request::Request;
use crate::testdisk::{Disk, geometry, run};

const GROUP: GroupNr = GroupNr(0);

/// Two groups of 2048 clusters; of the first, 100 to 149 and 160 to 199 are in use.
fn disk() -> (Arc<Disk>, Allocator) {
    let geometry = geometry(2, 2048);
    let disk = Disk::new(geometry);
    disk.preset(&run(0, 100, 50));
    disk.preset(&run(0, 160, 40));
    let disk = Arc::new(disk);
    let options = Options {
        durable: Tid(0),
        root_clusters: 0,
        reserved_clusters: 0,
        fast_commits: false,
    };
    let source = Box::new(Arc::clone(&disk));
    (disk, Allocator::new(geometry, source, options))
}

fn visit_group(allocator: &Allocator, within: Range<u32>, least: u32) -> Vec<(u32, u32)> {
    let mut seen: Vec<(u32, u32)> = Vec::new();
    let visited = allocator.visit_free(GROUP, within, ClusterCount(least), |run| {
        match seen.last_mut() {
            Some(last) if last.1 == run.start.0 => last.1 = run.end(),
            _ => seen.push((run.start.0, run.end())),
        }
        Ok::<(), Error>(())
    });
    let sum: u32 = seen.iter().map(|(start, end)| end - start).sum();
    assert_eq!(visited.unwrap(), u64::from(sum));
    allocator.check().unwrap();
    seen
}

fn free(disk: &Disk, allocator: &Allocator, freed: Run, tid: Tid) {
    let freeing = allocator.begin_free(freed).unwrap();
    disk.apply(freeing.change());
    allocator.finish_free(freeing, tid, Stamp(0));
}

#[test]
fn free_runs_are_visited_once_until_a_cluster_is_freed() {
    let (disk, allocator) = disk();
    let before = allocator.free_clusters();
    assert_eq!(visit_group(&allocator, 40..180, 1), [(40, 100), (150, 160)]);
    assert_eq!(
        visit_group(&allocator, 0..2048, 20),
        [(0, 100), (200, 2048)]
    );
    // Only the long runs are noted as trimmed.
    assert!(visit_group(&allocator, 0..2048, 20).is_empty());
    assert!(visit_group(&allocator, 0..2048, 30).is_empty());
    let all = [(0, 100), (150, 160), (200, 2048)];
    assert_eq!(visit_group(&allocator, 0..2048, 1), all);
    assert!(visit_group(&allocator, 0..2048, 1).is_empty());
    // Pending clusters are not visited.
    free(&disk, &allocator, run(0, 100, 50), Tid(1));
    assert!(visit_group(&allocator, 0..2048, 1).is_empty());
    allocator.set_durable(Tid(1));
    assert_eq!(visit_group(&allocator, 0..2048, 1), [(0, 160), (200, 2048)]);
    assert_eq!(allocator.free_clusters(), before + 50);
    disk.assert_same(&allocator);
}

#[test]
fn a_visited_run_is_not_allocated_meanwhile_and_an_error_ends_the_visit() {
    let (disk, allocator) = disk();
    let request = Request::data(
        InodeNr(12),
        crate::LogicalCluster(0),
        ClusterCount(1),
        PhysBlock(1),
    );
    let visited = allocator.visit_free(GROUP, 0..2048, ClusterCount(1), |seen| {
        let mut reservation = allocator.reserve(1, Privilege::User)?;
        let claim = allocator.allocate(&request, None, &mut reservation)?;
        allocator.unreserve(reservation);
        let found = claim.run();
        assert!(found.group != GROUP || found.start.0 >= seen.end() || found.end() <= seen.start.0);
        allocator.give_back(claim);
        Ok::<(), Error>(())
    });
    assert!(visited.unwrap() > 1000);
    allocator.discard_preallocations();
    let failed = allocator.visit_free(GROUP, 0..2048, ClusterCount(1), |_| Ok::<(), Error>(()));
    assert_eq!(failed.unwrap(), 0);
    free(&disk, &allocator, run(0, 160, 40), Tid(1));
    allocator.set_durable(Tid(1));
    let failed = allocator.visit_free(GROUP, 0..2048, ClusterCount(1), |_| {
        Err(Error::NotContiguous {
            min_len: ClusterCount(1),
        })
    });
    assert!(failed.is_err());
    // The visit was incomplete, so the group is visited again.
    assert!(!visit_group(&allocator, 0..2048, 1).is_empty());
    disk.assert_same(&allocator);
}

#[test]
fn freed_clusters_are_held_until_visited_unless_space_runs_short() {
    let (disk, allocator) = disk();
    allocator.hold_due();
    let before = allocator.free_clusters();
    free(&disk, &allocator, run(0, 100, 50), Tid(1));
    let mut seen = Vec::new();
    let mut visit = |run: &Run| {
        seen.push(*run);
        Ok::<(), Error>(())
    };
    allocator.release_visited(&mut visit).unwrap();
    allocator.set_durable(Tid(1));
    allocator.load(GROUP).unwrap();
    assert_eq!(allocator.free_clusters(), before);
    allocator.release_visited(&mut visit).unwrap();
    assert_eq!(seen, [run(0, 100, 50)]);
    assert_eq!(allocator.free_clusters(), before + 50);
    free(&disk, &allocator, run(0, 160, 40), Tid(2));
    allocator.set_durable(Tid(2));
    let all = allocator.reserve(before + 90, Privilege::User).unwrap();
    allocator.unreserve(all);
    allocator.check().unwrap();
    disk.assert_same(&allocator);
}
