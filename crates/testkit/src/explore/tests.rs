//! The states of small histories.

use std::collections::BTreeSet;
use std::io::IoSlice;

use anyhow::ensure;
use fourscore_block::{BlockDevice, RamDevice, RecordingDevice};

use super::*;

const SECTOR: usize = 512;

fn effort(samples: usize) -> Effort {
    Effort {
        seed: 1,
        samples,
        block_bytes: 1024,
        only: None,
        whole: None,
    }
}

/// A device of eight sectors of zeroes, after some work.
fn history(work: impl FnOnce(&RecordingDevice)) -> History {
    let base = Arc::new(RamDevice::new(8 * SECTOR as u64));
    let device = RecordingDevice::new(base.clone());
    work(&device);
    History::of(&device, &*base).unwrap()
}

/// Fills whole sectors with a letter.
fn sectors(letter: u8, count: usize) -> Vec<u8> {
    vec![letter; count * SECTOR]
}

fn at(sector: usize) -> u64 {
    (sector * SECTOR) as u64
}

/// The first letter of each sector; every sector must be whole.
fn letters(disk: &CrashDisk) -> String {
    let bytes = disk.bytes();
    let whole = |sector: &[u8]| sector.iter().all(|&byte| byte == sector[0]);
    assert!(bytes.chunks(SECTOR).all(whole), "half a sector");
    let letter = |sector: &[u8]| match sector[0] {
        0 => '.',
        byte => char::from(byte),
    };
    bytes.chunks(SECTOR).map(letter).collect()
}

/// All states that were shown.
fn states(history: &History, effort: Effort) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let shown = explore(history, effort, |_, disk| {
        seen.insert(letters(disk));
        Ok(())
    });
    assert!(shown.unwrap() >= seen.len() as u64);
    seen
}

#[test]
fn every_subset_before_a_flush_and_none_after() {
    let history = history(|device| {
        device.write_at(&sectors(b'a', 2), at(0)).unwrap();
        device.write_at(&sectors(b'b', 2), at(2)).unwrap();
        device.flush().unwrap();
        device.write_at(&sectors(b'c', 2), at(0)).unwrap();
    });
    let expected = ["........", "aa......", "..bb....", "aabb....", "ccbb...."];
    assert_eq!(
        states(&history, effort(0)),
        expected.map(str::to_owned).into()
    );
    let torn = states(&history, effort(200));
    assert!(
        torn.contains(".ab.....") && torn.contains("acbb...."),
        "{torn:?}"
    );
    assert!(torn.len() > expected.len() && torn.iter().all(|state| !state.contains("c.")));
}

#[test]
fn a_write_with_fua_is_open_only_in_flight() {
    let history = history(|device| {
        device.write_at(&sectors(b'a', 2), at(0)).unwrap();
        let bytes = sectors(b'f', 2);
        device.write_fua(&[IoSlice::new(&bytes)], at(4)).unwrap();
        device.write_at(&sectors(b'z', 2), at(6)).unwrap();
    });
    let states = states(&history, effort(300));
    // Before it: without `z`. After it: `f` as a whole, with `a` still open.
    for expected in ["....f...", "aa......", "....ffzz", "aa..ff..", ".a..ff.z"] {
        assert!(states.contains(expected), "{expected}: {states:?}");
    }
    let early = |state: &String| state.contains('z') && !state.contains("ff");
    assert!(!states.iter().any(early), "{states:?}");
}

#[test]
fn the_newer_of_two_writes_to_a_sector_is_never_under_the_older() {
    let history = history(|device| {
        device.write_at(&sectors(b'1', 1), at(0)).unwrap();
        device.write_at(&sectors(b'2', 1), at(0)).unwrap();
        device.discard(at(1)..at(2)).unwrap();
        device.write_zeroes(at(0)..at(1)).unwrap();
    });
    let expected = ["........", "1.......", "2......."];
    assert_eq!(
        states(&history, effort(50)),
        expected.map(str::to_owned).into()
    );
}

#[test]
fn a_flush_leaves_later_writes_open() {
    let mut history = history(|device| {
        device.write_at(&sectors(b'a', 1), at(0)).unwrap();
        device.write_at(&sectors(b'b', 1), at(1)).unwrap();
        device.flush().unwrap();
    });
    history.events[2] = Event::Flush { covers: 1 };
    let mut after = BTreeSet::new();
    explore(&history, effort(50), |crash, disk| {
        if crash.cut == 3 {
            after.insert(letters(disk));
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(after, ["a.......", "ab......"].map(str::to_owned).into());
}

#[test]
fn a_seed_reproduces_its_states_and_one_can_be_selected() {
    let history = history(|device| {
        for sector in 0..8 {
            device.write_at(&sectors(b'a', 1), at(sector)).unwrap();
        }
    });
    let list = |effort| {
        let mut list = Vec::new();
        explore(&history, effort, |crash, disk| {
            list.push((crash.number, letters(disk)));
            Ok(())
        })
        .unwrap();
        list
    };
    let all = list(effort(40));
    assert_eq!(all, list(effort(40)));
    let other = Effort {
        seed: 2,
        ..effort(40)
    };
    assert_ne!(all, list(other));
    let one = Effort {
        only: Some(17),
        ..effort(40)
    };
    assert_eq!(list(one), all[17..18]);
}

#[test]
fn a_failure_is_minimised() {
    let history = history(|device| {
        device.write_at(&sectors(b'a', 2), at(0)).unwrap();
        device.write_at(&sectors(b'b', 2), at(2)).unwrap();
        device.write_at(&sectors(b'c', 3), at(5)).unwrap();
    });
    let failure = explore(&history, effort(0), |_, disk| {
        let letters = letters(disk);
        let orphan = letters.contains('c') && !letters.contains('b');
        ensure!(!orphan, "c without b: {letters}");
        Ok(())
    })
    .unwrap_err();
    let text = failure.to_string();
    assert!(text.contains("c without b"), "{text}");
    assert!(
        text.contains("event 0: 1024 bytes at byte 0: kept"),
        "{text}"
    );
    assert!(
        text.contains("event 1: 1024 bytes at byte 1024: LOST"),
        "{text}"
    );
    assert!(
        text.contains("event 2: 1536 bytes at byte 2560: kept"),
        "{text}"
    );
}

/// What the sectors hold at each moment, each with its number, after the events before `from`.
fn moments(history: &History, from: usize) -> BTreeSet<(usize, Vec<u8>)> {
    let mut bytes = history.base.clone();
    let mut moments = BTreeSet::new();
    for done in 0..=history.events.len() {
        if done >= from {
            moments.extend(numbered(&bytes));
        }
        match history.events.get(done) {
            Some(Event::Write {
                offset, bytes: new, ..
            }) => {
                let start = usize::try_from(*offset).unwrap();
                bytes[start..start + new.len()].copy_from_slice(new);
            }
            Some(Event::WriteZeroes(range) | Event::Discard(range)) => {
                let end = usize::try_from(range.end).unwrap();
                bytes[usize::try_from(range.start).unwrap()..end].fill(0);
            }
            _ => {}
        }
    }
    moments
}

fn numbered(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    bytes.chunks(SECTOR).map(<[u8]>::to_vec).enumerate()
}

/// What the sectors hold in any state.
fn sectors_seen(history: &History, effort: Effort) -> BTreeSet<(usize, Vec<u8>)> {
    let mut seen = BTreeSet::new();
    explore(history, effort, |_, disk| {
        seen.extend(numbered(&disk.bytes()));
        Ok(())
    })
    .unwrap();
    seen
}

#[test]
fn a_partial_write_of_a_sector_arrives_with_earlier_writes() {
    let history = history(|device| {
        device.write_at(&[b'a'; 300], 100).unwrap();
        device.discard(0..200).unwrap();
        device.write_at(&[b'b'; 112], 400).unwrap();
        // As a hole up to here, and the end of a file.
        device.write_at(&[b'c'; 700], 700).unwrap();
        device.write_zeroes(699..1024).unwrap();
    });
    assert_eq!(
        sectors_seen(&history, effort(300)),
        moments(&history, 0),
        "each sector as it was at each moment, and no other"
    );
    let failure = explore(&history, effort(0), |_, disk| {
        let bytes = disk.bytes();
        ensure!(bytes[400] != b'b' || bytes[1024] == b'c', "c is missing");
        Ok(())
    });
    let text = failure.unwrap_err().to_string();
    for fate in [
        "event 0: 300 bytes at byte 100: kept",
        "event 1: 200 bytes at byte 0: kept",
        "event 3: 700 bytes at byte 700: TORN, sectors 10",
        "event 4: 325 bytes at byte 699: kept",
    ] {
        assert!(text.contains(fate), "{fate}: {text}");
    }
}

#[test]
fn a_durable_partial_write_makes_the_sector_durable() {
    let history = history(|device| {
        device.write_at(&[b'a'; 1024], 0).unwrap();
        let bytes = [b'f'; 600];
        device.write_fua(&[IoSlice::new(&bytes)], 500).unwrap();
        device.write_at(&[b'z'; 10], 1000).unwrap();
        device.note(1);
    });
    let mut after = BTreeSet::new();
    explore(&history, effort(50), |crash, disk| {
        if crash.cut == history.events.len() {
            after.extend(numbered(&disk.bytes()));
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(after, moments(&history, 2));
}

/// Writes of all kinds that begin and end anywhere.
fn random_history(seed: u64) -> History {
    let mut rng = Rng::new(seed);
    history(|device| {
        for letter in b'a'..b'p' {
            let start = rng.below(8 * SECTOR);
            let len = 1 + rng.below(2 * SECTOR.min(8 * SECTOR - start));
            let end = (start + len).min(8 * SECTOR);
            let range = start as u64..end as u64;
            let bytes = vec![letter; end - start];
            let done = match rng.below(12) {
                0 => device.discard(range),
                1 => device.write_zeroes(range),
                2 => device.flush(),
                3 | 4 => device.write_fua(&[IoSlice::new(&bytes)], range.start),
                _ => device.write_at(&bytes, range.start),
            };
            done.unwrap();
        }
    })
}

#[test]
fn every_sector_of_every_state_existed_at_some_moment() {
    let (mut shown, mut there) = (0, 0);
    for seed in 0..200 {
        let history = random_history(seed);
        let moments = moments(&history, 0);
        let seen = sectors_seen(&history, effort(40));
        let odd: Vec<_> = seen.difference(&moments).collect();
        assert!(odd.is_empty(), "seed {seed}, these never were: {odd:?}");
        shown += seen.len();
        there += moments.len();
    }
    // Each of them may be found after some crash, and most are.
    assert!(shown * 10 > there * 9, "{shown} of {there}");
}
