//! Tests of the kernel's histories: what is recorded, and that wrong states are found.

use std::collections::BTreeSet;

use fourscore_block::Event;
use fourscore_testkit::tools::are_met;

use super::NEEDS;
use super::session::{KernelSeen, KernelSession};
use super::workload::of_seed;
use crate::crash::known_bugs::KnownBug;
use crate::crash::notes::Note;
use crate::crash::tests::forget_writes;
use crate::crash::workload::{LogKind, Mode, Step, Workload};
use crate::model::bytes_to_write;

/// A workload of these steps, on a file system without fast commits.
fn workload(steps: &[Step]) -> Workload {
    let mut workload = of_seed(0);
    workload.shape.log = LogKind::Journal;
    workload.mode = Mode::Ordered;
    workload.threads = vec![steps.to_vec()];
    workload
}

#[test]
fn what_the_kernel_does_is_recorded_in_order() {
    if !are_met(&NEEDS) {
        return;
    }
    let steps = [Step::named("overwrite"), Step::Fsync];
    let session = KernelSession::record(workload(&steps)).unwrap();
    let events = session.events();
    let at = |note: Note| {
        let number = note.number();
        let mut places = events.iter();
        places
            .position(|event| *event == Event::Note(number))
            .unwrap()
    };
    let (thread, step) = (0, 1);
    let synced = at(Note::Begins { thread, step })..at(Note::Ends { thread, step });
    let synced = &events[synced];
    // The data of the file was written, and a flush covers it.
    let content = crate::model::bytes_to_write(11, 1024, 2048);
    let write = synced.iter().position(|event| {
        matches!(event, Event::Write { bytes, .. }
            if bytes.windows(content.len()).any(|window| window == content))
    });
    let flush = synced.iter().rposition(Event::is_flush);
    assert!(write.is_some() && write < flush, "{write:?}, {flush:?}");
    assert_eq!(events.last(), Some(&Event::Note(Note::Unmounted.number())));
}

#[test]
fn the_first_seeds_of_the_kernel_pass_and_a_saved_history_has_the_same_states() {
    if !are_met(&NEEDS) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut fast_commits = 0;
    for seed in 0..5 {
        let session = KernelSession::record(of_seed(seed)).unwrap();
        let seen = session.explore(2, None).unwrap();
        assert!(seen.states > 10, "{seen:?}");
        assert!(seen.older > 0, "no crash lost anything: {seen:?}");
        fast_commits += seen.fast_commits;
        let path = folder.path().join("history");
        session.save(&path).unwrap();
        let again = KernelSession::load(&path).unwrap();
        assert_eq!(again.workload(), session.workload());
        assert_eq!(again.explore(2, None).unwrap(), seen);
    }
    assert!(fast_commits > 0, "there are no fast commits");
}

/// Replaced data may be lost until it is synced.
#[test]
fn synced_data_that_is_lost_is_found() {
    if !are_met(&NEEDS) {
        return;
    }
    let steps = [Step::named("overwrite"), Step::Fsync];
    let mut session = KernelSession::record(workload(&steps)).unwrap();
    session.explore(4, None).unwrap();
    forget_writes(session.history_mut(), &bytes_to_write(11, 1024, 512));
    let failure = session.explore(4, None).unwrap_err().to_string();
    assert!(failure.contains("is wrong"), "{failure}");
}

/// An inode without a name is in the log until the next full commit.
#[test]
fn the_kernel_may_refuse_a_log_only_for_an_inode_without_a_name_that_is_in_it() {
    if !are_met(&NEEDS) {
        return;
    }
    let [unnamed, close, overwrite] = ["unnamed", "close", "overwrite"].map(Step::named);
    let synced = [overwrite, Step::Fsync];
    let steps = [
        synced,
        [unnamed, Step::Fsync],
        [close, overwrite],
        [Step::Fsync, Step::Sync],
    ];
    let mut workload = workload(&steps.concat());
    let without = KernelSession::record(workload.clone()).unwrap();
    workload.shape.log = LogKind::FastCommit;
    let session = KernelSession::record(workload).unwrap();
    let may_be_refused = |session: &KernelSession, step: usize| {
        let ends = Event::Note(Note::Ends { thread: 0, step }.number());
        let cut = session.events().iter().position(|event| *event == ends);
        let refused = BTreeSet::from([KnownBug::NotMounted]);
        session
            .since_commit_at(cut.unwrap())
            .may_show(&refused, |_| None)
    };
    // It is opened in the third step and closed in the fifth; the last step is a full commit.
    let expected = [false, false, true, true, true, true, true, false];
    assert_eq!(expected.len(), session.calls().len());
    for (step, expected) in expected.into_iter().enumerate() {
        assert_eq!(may_be_refused(&session, step), expected, "step {step}");
        assert!(!may_be_refused(&without, step), "there are no fast commits");
    }
}

#[test]
fn known_bugs_may_explain_at_most_a_third_of_many_results() {
    let is_fine = |recoveries: u64, known_bugs: u64| {
        let seen = KernelSeen {
            by_kernel: recoveries / 2,
            by_e2fsck: recoveries - recoveries / 2,
            known_bugs,
            ..KernelSeen::default()
        };
        seen.ensure_few_known_bugs().is_ok()
    };
    assert!(is_fine(99, 99) && is_fine(100, 33) && is_fine(300, 100));
    assert!(!is_fine(100, 34) && !is_fine(301, 101) && !is_fine(1_000, 1_000));
    let is_fine = |states: u64, unset: u64| {
        let seen = KernelSeen {
            states,
            unset,
            ..KernelSeen::default()
        };
        seen.ensure_few_known_bugs().is_ok()
    };
    assert!(is_fine(4_999, 4_999) && is_fine(6_000, 2_000) && !is_fine(6_000, 2_001));
}
