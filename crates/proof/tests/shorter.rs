//! **Purpose.** A failing workload is made shorter.
//!
//! A binary of its own, because only the build with the feature `sabotage` has it.

use fourscore_proof::crash::InjectedFault;
use fourscore_proof::crash::session::shorten;
use fourscore_proof::crash::workload::{Mode, Step, Workload};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

/// An injected fault is found, and steps that do not matter are removed from the workload.
#[test]
fn a_failing_workload_is_made_shorter() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let workload = Workload {
        mode: Mode::Ordered,
        threads: vec![vec![
            Step::named("chmod"),
            Step::Sync,
            Step::named("mkdir"),
            Step::named("rename-across"),
            Step::named("touch"),
            Step::Sync,
        ]],
        ..Workload::of(0)
    };
    let (_, injected) = InjectedFault::ALL
        .iter()
        .find(|(name, _)| *name == "half-rename")
        .unwrap();
    let (shorter, failure) = shorten(&workload, 4, *injected).unwrap();
    assert_eq!(shorter.workload().threads, [[Step::named("rename-across")]]);
    assert!(failure.to_string().contains("no version from"), "{failure}");
}
