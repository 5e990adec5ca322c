//! Every kind of journal, every death: dirty, and recovered by the kernel to something that is not
//! empty; that it is clean, too, [`Journal::crashed`] has seen to.

use anyhow::ensure;

use super::*;
use crate::require;
use crate::tools::Need;

/// Each journal with one of the deaths: the tests of the library use each with all of them.
#[test]
fn every_journal_is_dirty_after_a_death_and_the_kernel_recovers_it() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("xfs_io"),
        Need::KernelMount
    );
    let mut faults = String::new();
    let deaths = Death::ALL.into_iter().cycle();
    for ((journal, death), nr) in JOURNALS.iter().zip(deaths).zip(0..) {
        if let Err(error) = check(journal, death, Seed(0x8080 + nr)) {
            faults.push_str(&format!("{}, {death:?}: {error:#}\n", journal.name));
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

fn check(journal: &Journal, death: Death, seed: Seed) -> Result<()> {
    let crashed = journal.crashed(death, seed)?;
    let log = oracle::debugfs_without_bitmaps(crashed.image.path(), &["logdump -a"])?;
    let commits = log
        .lines()
        .filter(|line| line.contains("type 2 (commit block)"))
        .count();
    eprintln!(
        "{}, {death:?}: {} calls, {commits} commits, {} fast",
        journal.name, crashed.operations, crashed.fast_commits
    );
    ensure!(commits > 0, "the log is empty");
    ensure!(
        !journal.has_fast_commits() || crashed.fast_commits > 0,
        "no fast commits"
    );
    let recovered = crashed.recovered()?;
    let mount = KernelMount::new(recovered.path(), Access::ReadOnly, "")?;
    ensure!(fs::read_dir(mount.path())?.count() > 1, "nothing survived");
    mount.unmount()
}
