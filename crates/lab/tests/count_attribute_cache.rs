//! Cache line transfers between virtual cores in caches of attribute blocks: the base with one lock
//! moves its lock's line with each operation, however different the attributes are. Ours moves few
//! (`cargo test -p fourscore-lab --features fs,count --test count_attribute_cache -- --nocapture`).

use fourscore_lab::attribute_cache::{AttributeCache, by_name};
use fourscore_sync::count::{Report, with_cores};

/// Each core takes a block for a value of its own, and gives it back.
fn distinct_values(name: &str, cores: usize) -> Report {
    with_cores(cores, |machine| {
        let cache = by_name(name).expect("the cache exists");
        let cache: &dyn AttributeCache = &*cache;
        let step = |core: usize, round: usize| {
            let mut value = [7; 200];
            value[..8].copy_from_slice(&(core as u64).to_le_bytes());
            value[8..16].copy_from_slice(&(round as u64).to_le_bytes());
            cache.give_back(cache.take(&value).block);
        };
        machine.run(4, |core, round| step(core.index(), round));
        machine.run(16, |core, round| step(core.index(), round))
    })
}

#[test]
fn one_lock_moves_on_every_operation_and_no_cache_moves_nothing() {
    for cores in [2, 80, 192] {
        let (base, without) = (
            distinct_values("one-lock", cores),
            distinct_values("unshared", cores),
        );
        println!("one-lock, {cores} cores: {base}\nunshared, {cores} cores: {without}");
        assert!(base.transfers_per_op() >= 0.9, "{base}");
        assert!(without.transfers_per_op() <= 0.0, "{without}");
    }
}

/// Each content enters and leaves a table that all cores share.
#[test]
fn our_cache_moves_few_lines_on_any_number_of_cores() {
    for cores in [2, 80, 192] {
        let ours = distinct_values("fourscore", cores);
        println!("fourscore, {cores} cores: {ours}");
        assert!(ours.transfers_per_op() <= 2.0, "{ours}");
    }
}
