//! The harness itself: generated histories cover every case, and saved ones can be loaded.

use std::time::Duration;

use fourscore_block::Event;

use super::*;

/// The offset and the length of each event: everything but the time in a commit block.
fn shape(session: &Session) -> Vec<(u64, usize)> {
    let shape = |event: &Event| match event {
        Event::Write { offset, bytes, .. } => (*offset, bytes.len()),
        Event::Flush { covers } => (0, *covers),
        Event::Note(note) => (*note, 1),
        Event::WriteZeroes(_) | Event::Discard(_) => panic!("the journal does not"),
    };
    session.history().events.iter().map(shape).collect()
}

#[test]
fn a_few_seeds_cover_every_case_without_bad_states() {
    let folder = tempfile::tempdir().unwrap();
    let campaign = Campaign {
        first_seed: 1000,
        states: 8_000,
        samples: 6,
        threads: 2,
        patience: Duration::from_secs(180),
        breaking: None,
        findings: folder.path().to_path_buf(),
    };
    let (next_seed, done) = campaign.run().unwrap_or_else(|finding| panic!("{finding}"));
    let Tally {
        histories, seen, ..
    } = done;
    assert!(next_seed > 1000);
    assert!(histories >= 3 && seen.states >= 8_000, "{seen:?}");
    let least = seen.replayed.min(seen.revoked).min(seen.escaped);
    let least = least.min(seen.wrapped).min(seen.damaged);
    assert!(least > 0 && seen.recovery_states > 100, "{seen:?}");
}

#[test]
fn a_failing_device_aborts_the_journal_and_loses_nothing_acknowledged() {
    let mut aborted = 0;
    for seed in 0..24 {
        let session = Session::record(seed, None).unwrap();
        if session.is_aborted() {
            aborted += 1;
            let seen = session.explore(session.effort(2, None), |_, _| {});
            assert!(seen.unwrap().states > 0, "seed {seed}");
        }
    }
    assert!(aborted > 2, "{aborted}");
}

#[test]
fn one_thread_repeats_its_history() {
    let mut repeated = 0;
    for seed in 0..8 {
        let session = Session::record(seed, None).unwrap();
        if session.is_repeatable() {
            let again = Session::record(seed, None).unwrap();
            assert_eq!(shape(&session), shape(&again), "seed {seed}");
            repeated += 1;
        }
    }
    assert!(repeated > 0);
}

#[test]
fn a_saved_history_shows_the_same_states() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("history");
    let session = Session::record(3, None).unwrap();
    session.save(&file).unwrap();
    let loaded = Session::load(&file).unwrap();
    let states = |session: &Session| {
        let mut states = Vec::new();
        let effort = session.effort(2, None);
        let seen = session.explore(effort, |crash, disk| {
            if crash.number.is_multiple_of(50) {
                states.push(disk.bytes());
            }
        });
        (seen.unwrap(), states)
    };
    assert_eq!(states(&session), states(&loaded));
    assert_eq!(session.name(), loaded.name());
}
