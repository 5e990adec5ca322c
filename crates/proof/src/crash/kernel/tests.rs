//! The kernel's histories: what is recorded, and that good and bad are told from each other.

use std::collections::BTreeSet;

use fourscore::block::Event;
use fourscore_testkit::tools::are_met;

use super::NEEDS;
use super::session::{KernelSeen, KernelSession};
use super::workload::of_seed;
use crate::crash::notes::Note;
use crate::crash::tests::forget_writes;
use crate::crash::told::Told;
use crate::crash::workload::{LogWish, Mode, Step, Workload};
use crate::model::bytes_to_write;

/// The operations of these names, on a file system without fast commits.
fn workload(steps: &[Step]) -> Workload {
    let mut workload = of_seed(0);
    workload.shape.log = LogWish::Journal;
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
    // What was written is a file's content, in order, and a flush covers it.
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
fn the_first_seeds_of_the_kernel_are_good_and_a_saved_history_has_the_same_states() {
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
    assert!(fast_commits > 0, "the log is never made in the other way");
}

/// What was replaced and not synced may be as it was; what was synced may not.
#[test]
fn content_that_was_synced_and_is_not_there_is_found() {
    if !are_met(&NEEDS) {
        return;
    }
    let steps = [Step::named("overwrite"), Step::Fsync];
    let mut session = KernelSession::record(workload(&steps)).unwrap();
    session.explore(4, None).unwrap();
    forget_writes(session.history_mut(), &bytes_to_write(11, 1024, 512));
    let failure = session.explore(4, None).unwrap_err().to_string();
    assert!(failure.contains("is something else"), "{failure}");
}

/// An inode without a name is in the log until a commit of the usual kind has followed.
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
    workload.shape.log = LogWish::FastCommit;
    let session = KernelSession::record(workload).unwrap();
    let may_be_refused = |session: &KernelSession, step: usize| {
        let ends = Event::Note(Note::Ends { thread: 0, step }.number());
        let cut = session.events().iter().position(|event| *event == ends);
        let refused = BTreeSet::from([Told::NotMounted]);
        session
            .lately_at(cut.unwrap())
            .may_lead_to(&refused, |_| None)
    };
    // Opened in the third step, closed in the fifth, and all is committed in the last.
    let expected = [false, false, true, true, true, true, true, false];
    assert_eq!(expected.len(), session.calls().len());
    for (step, expected) in expected.into_iter().enumerate() {
        assert_eq!(may_be_refused(&session, step), expected, "step {step}");
        assert!(!may_be_refused(&without, step), "there are no fast commits");
    }
}

#[test]
fn no_more_is_forgiven_than_a_third_of_many_opinions() {
    let is_fine = |opinions: u64, told_of: u64| {
        let seen = KernelSeen {
            by_kernel: opinions / 2,
            by_e2fsck: opinions - opinions / 2,
            told_of,
            ..KernelSeen::default()
        };
        seen.ensure_little_is_forgiven().is_ok()
    };
    assert!(is_fine(99, 99) && is_fine(100, 33) && is_fine(300, 100));
    assert!(!is_fine(100, 34) && !is_fine(301, 101) && !is_fine(1_000, 1_000));
    let is_fine = |states: u64, unset: u64| {
        let seen = KernelSeen {
            states,
            unset,
            ..KernelSeen::default()
        };
        seen.ensure_little_is_forgiven().is_ok()
    };
    assert!(is_fine(4_999, 4_999) && is_fine(6_000, 2_000) && !is_fine(6_000, 2_001));
}
