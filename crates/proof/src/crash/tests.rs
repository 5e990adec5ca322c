//! Tests of the harness itself: sound seeds pass, and histories are saved.

use clap::ValueEnum;
use fourscore_block::Event;
use fourscore_testkit::explore::History;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::injected::InjectedFault;
use super::notes::Note;
use super::session::Session;
#[cfg(feature = "sabotage")]
use super::session::shorten;
use super::workload::{Format, LogKind, Mode, Shape, Step, Workload};
use crate::model::bytes_to_write;

/// One of each kind: an operation alone, two pairs, a random history, one that churns.
#[test]
fn the_first_seeds_pass_and_a_saved_history_has_the_same_states() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..5 {
        let workload = Workload::of(seed);
        let session = Session::record(workload.clone(), InjectedFault::default()).unwrap();
        let seen = session.explore(2, None).unwrap();
        assert!(seen.states > 10, "{seen:?}");
        assert!(seen.older > 0, "no crash lost anything: {seen:?}");
        let path = folder.path().join("history");
        session.save(&path).unwrap();
        let again = Session::load(&path).unwrap();
        assert_eq!(*again.workload(), workload);
        assert_eq!(again.explore(2, None).unwrap(), seen);
    }
}

#[test]
fn seeds_pass_on_every_format() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    for format in Format::value_variants() {
        // A random history, and one on a file system that is nearly full.
        for seed in [3, 4] {
            let workload = Workload::on(*format, seed);
            let session = Session::record(workload, InjectedFault::default()).unwrap();
            let seen = session.explore(1, None).unwrap();
            assert!(seen.states > 0 && seen.older > 0, "{format:?}: {seen:?}");
        }
    }
}

/// Without the step that writes usage, the checker finds quota files that differ from the inodes.
#[cfg(feature = "sabotage")]
#[test]
fn usage_that_is_not_sealed_is_found() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (_, injected) = InjectedFault::OF_QUOTA;
    let workload = Workload::on(Format::Quota, 3);
    let error = match Session::record(workload, injected) {
        Ok(session) => session.explore(1, None).unwrap_err().to_string(),
        Err(error) => format!("{error:#}"),
    };
    assert!(error.contains("quota"), "{error}");
}

/// What is left of a history with a failure still shows it.
#[cfg(feature = "sabotage")]
#[test]
fn a_history_that_shows_a_failure_is_shortened() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let named = |(name, _): &(&str, InjectedFault)| *name == "no-seal";
    let (_, injected) = *InjectedFault::ALL
        .iter()
        .find(|&fault| named(fault))
        .unwrap();
    // Histories of one thread with many steps; those without a journal do not show the fault.
    let shortened = [4, 9, 14, 19]
        .into_iter()
        .map(Workload::of)
        .find_map(|whole| {
            let (shorter, _) = shorten(&whole, 1, injected).ok()?;
            Some((whole, shorter))
        });
    let (whole, shorter) = shortened.expect("a history that shows the fault");
    let steps = |workload: &Workload| workload.threads[0].len();
    assert!(steps(shorter.workload()) < steps(&whole), "{whole:?}");
    shorter.explore(1, None).unwrap_err();
}

/// Of each kind with fast commits: calls on a few files, and the usual workloads.
#[test]
fn seeds_pass_with_fast_commits_and_a_saved_history_has_the_same_states() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    for seed in [0, 1, 2, 3, 7, 9] {
        let workload = Workload::with_fast_commits(seed);
        let session = Session::record(workload, InjectedFault::default()).unwrap();
        let seen = session.explore(1, None).unwrap();
        assert!(seen.states > 0 && seen.older > 0, "{seed}: {seen:?}");
        let path = folder.path().join("history");
        session.save(&path).unwrap();
        assert_eq!(
            Session::load(&path).unwrap().explore(1, None).unwrap(),
            seen
        );
    }
}

/// A history with fast commits of which the fsync at the end returns before it writes anything.
fn with_early_fsync(steps: &[Step]) -> Session {
    let workload = Workload {
        threads: vec![steps.to_vec()],
        mode: Mode::Ordered,
        ..Workload::with_fast_commits(1)
    };
    let mut session = Session::record(workload, InjectedFault::default()).unwrap();
    let step = steps.len() - 1;
    let [begins, ends] = [
        Note::Begins { thread: 0, step },
        Note::Ends { thread: 0, step },
    ]
    .map(|note| Event::Note(note.number()));
    let events = &mut session.history_mut().events;
    let unmounted = Event::Note(Note::Unmounted.number());
    events.retain(|event| *event != ends && *event != unmounted);
    let at = events.iter().position(|event| *event == begins).unwrap();
    events.insert(at + 1, ends);
    session
}

#[test]
fn what_fsync_vouched_for_is_missed_in_a_file_system_with_fast_commits() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let error = |steps: &[Step]| {
        let failure = with_early_fsync(steps).explore(4, None).err();
        failure.map(|failure| failure.to_string())
    };
    for name in ["create", "chmod", "append", "rename-across", "unlink"] {
        let error = error(&[Step::named(name), Step::Fsync]).unwrap();
        assert!(error.contains("no closed set"), "{name}: {error}");
    }
    assert!(error(&[Step::named("append"), Step::Fdatasync]).is_some());
    // The permissions are not data.
    assert_eq!(error(&[Step::named("chmod"), Step::Fdatasync]), None);
}

/// Replaces writes that contain some bytes by writes of the previous data, as if they were lost.
pub(super) fn forget_writes(history: &mut History, part: &[u8]) {
    let mut disk = history.base.clone();
    let mut forgotten = 0;
    for event in &mut history.events {
        let Event::Write { offset, bytes, .. } = event else {
            continue;
        };
        let at = usize::try_from(*offset).unwrap();
        let there = &mut disk[at..at + bytes.len()];
        if bytes.windows(part.len()).any(|window| window == part) {
            *bytes = (&*there).into();
            forgotten += 1;
        }
        there.copy_from_slice(bytes);
    }
    assert!(forgotten > 0, "no write contains it");
}

/// Replaced data may be lost until fdatasync makes it durable.
#[test]
fn data_that_is_lost_after_fdatasync_is_found() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let logs = [LogKind::Journal, LogKind::FastCommit];
    let ends = [(Some(Step::Fdatasync), false), (None, true)];
    let both = logs.into_iter().flat_map(|log| ends.map(|end| (log, end)));
    for (log, (end, expected)) in both {
        let [first, second] = ["overwrite", "overwrite-odd"].map(Step::named);
        let mut steps = vec![first, Step::Sync, second];
        steps.extend(end);
        let workload = Workload {
            threads: vec![steps],
            mode: Mode::Ordered,
            shape: Shape {
                log,
                ..Workload::of(0).shape
            },
            ..Workload::of(0)
        };
        let mut session = Session::record(workload, InjectedFault::default()).unwrap();
        let cut = |session: &Session| session.explore(4, None);
        cut(&session).unwrap();
        // Unmounting makes everything durable, so it is removed from the recording.
        let events = &mut session.history_mut().events;
        let unmounted = Note::Unmounted.number();
        events.retain(|event| *event != Event::Note(unmounted));
        forget_writes(session.history_mut(), &bytes_to_write(12, 700, 512));
        assert_eq!(cut(&session).is_ok(), expected, "{end:?}");
    }
}

/// Data of a file that has lost its name reaches its home location like all data; a crash may show
/// it under the name that the file still has on disk.
#[test]
fn data_of_an_unlinked_open_file_may_be_newer_than_the_name_that_is_found() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    // The third step zeroes the block behind the new end at once; the second needs a commit.
    let steps = [
        0x456d_1c19_defe_4a18,
        0x21a1_660a_2689_0dca,
        0x39fa_9b3a_fa90_04d0,
    ];
    let workload = Workload {
        threads: vec![steps.map(Step::Drawn).to_vec()],
        ..Workload::of(743)
    };
    assert_eq!(workload.mode, Mode::Ordered);
    let session = Session::record(workload, InjectedFault::default()).unwrap();
    let calls = session.calls(0).join(", ");
    for call in ["Open(Id(5))", "Unlink", "Truncate(Id(5)"] {
        assert!(calls.contains(call), "{calls}");
    }
    let seen = session.explore(12, None).unwrap();
    assert!(seen.older > 0, "{seen:?}");
}
