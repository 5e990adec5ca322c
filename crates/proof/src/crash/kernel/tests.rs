//! The kernel's histories: what is recorded, and that good and bad are told from each other.

use fourscore::block::Event;
use fourscore_testkit::tools::are_met;

use super::NEEDS;
use super::session::KernelSession;
use super::workload::of_seed;
use crate::crash::notes::Note;
use crate::crash::workload::{LogWish, Mode, Step, Workload};

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
    session.forget_writes_of(&crate::model::bytes_to_write(11, 1024, 512));
    let failure = session.explore(4, None).unwrap_err().to_string();
    assert!(failure.contains("is something else"), "{failure}");
}
