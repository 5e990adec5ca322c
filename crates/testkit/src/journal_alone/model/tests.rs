//! What the model accepts, and what it refuses.

use super::*;

const BLOCK: usize = 1024;
const FIRST: Tid = Tid(u32::MAX);

/// Block 0 is metadata all the time, block 1 metadata until it is freed and gets data, block 2
/// free from the start.
fn model() -> Model {
    Model::new(FIRST, BLOCK, 2, 3)
}

fn tid(place: u32) -> Tid {
    Tid(FIRST.0.wrapping_add(place - 1))
}

fn known(acknowledged: u32) -> Known {
    Known {
        acknowledged,
        durable: vec![None; 3],
    }
}

/// The blocks with these versions in them; zeroes for none.
fn blocks(model: &Model, versions: [Option<Version>; 3]) -> Vec<u8> {
    let zeroes = [0; BLOCK];
    let content = |version: Option<Version>| version.map_or(&zeroes[..], |v| model.content(v));
    versions.map(content).concat()
}

fn refused(model: &Model, known: &Known, versions: [Option<Version>; 3]) -> String {
    let result = model.check(known, &blocks(model, versions));
    result.expect_err("must be refused").to_string()
}

#[test]
fn a_prefix_is_accepted_unless_an_acknowledged_commit_is_missing() {
    let mut model = model();
    let (one, two) = (model.new_version(Slot(0)), model.new_version(Slot(1)));
    model.wrote(Slot(0), tid(1), one);
    model.wrote(Slot(1), tid(2), two);
    let before = [Some(Version(0)), Some(Version(1)), None];
    let after_one = [Some(one), Some(Version(1)), None];
    let after_two = [Some(one), Some(two), None];
    for (acknowledged, state) in [(0, before), (0, after_one), (1, after_one), (2, after_two)] {
        let bytes = blocks(&model, state);
        assert!(model.check(&known(acknowledged), &bytes).is_ok());
    }
    let text = refused(&model, &known(1), before);
    assert!(text.contains("block 0 holds version 0: after 0"), "{text}");
    refused(&model, &known(2), after_one);
    let text = refused(&model, &known(0), [Some(Version(0)), Some(two), None]);
    assert!(text.contains("block 1 holds version 3: after 2"), "{text}");
    let mut torn = blocks(&model, after_one);
    torn[SECTOR_BYTES] ^= 1;
    assert!(model.check(&known(0), &torn).is_err());
}

#[test]
fn the_last_change_of_a_transaction_counts() {
    let mut model = model();
    let (one, two) = (model.new_version(Slot(0)), model.new_version(Slot(0)));
    model.wrote(Slot(0), tid(1), one);
    model.wrote(Slot(0), tid(1), two);
    let rest = Some(Version(1));
    assert!(
        model
            .check(&known(1), &blocks(&model, [Some(two), rest, None]))
            .is_ok()
    );
    refused(&model, &known(0), [Some(one), rest, None]);
}

#[test]
fn durable_data_in_a_freed_block_must_not_be_replayed_over() {
    let mut model = model();
    let meta = model.new_version(Slot(1));
    model.wrote(Slot(1), tid(1), meta);
    model.freed(Slot(1), tid(2));
    let (old, new) = (model.new_version(Slot(1)), model.new_version(Slot(1)));
    model.writes_data(Slot(1), old);
    model.writes_data(Slot(1), new);
    let zero = Some(Version(0));
    let mut known = known(2);
    assert!(
        model
            .check(&known, &blocks(&model, [zero, Some(meta), None]))
            .is_ok()
    );
    known.durable[1] = Some(old);
    refused(&model, &known, [zero, Some(meta), None]);
    for data in [old, new] {
        assert!(
            model
                .check(&known, &blocks(&model, [zero, Some(data), None]))
                .is_ok()
        );
    }
    let mut mixed = blocks(&model, [zero, Some(old), None]);
    let second = BLOCK + SECTOR_BYTES..2 * BLOCK;
    mixed[second.clone()].copy_from_slice(&model.content(new)[SECTOR_BYTES..]);
    assert!(model.check(&known, &mixed).is_ok());
    mixed[second].copy_from_slice(&model.content(meta)[SECTOR_BYTES..]);
    assert!(model.check(&known, &mixed).is_err());
}

#[test]
fn data_that_is_named_must_be_there() {
    let mut model = model();
    let data = model.new_version(Slot(2));
    model.writes_data(Slot(2), data);
    let pointer = model.new_version(Slot(0));
    model.wrote(Slot(0), tid(1), pointer);
    model.named(Slot(2), data, tid(1));
    let rest = Some(Version(1));
    assert!(
        model
            .check(&known(0), &blocks(&model, [Some(Version(0)), rest, None]))
            .is_ok()
    );
    assert!(
        model
            .check(
                &known(0),
                &blocks(&model, [Some(pointer), rest, Some(data)])
            )
            .is_ok()
    );
    let text = refused(&model, &known(0), [Some(pointer), rest, None]);
    assert!(
        text.contains("block 2 lacks data version 2, named after 1"),
        "{text}"
    );
    let without = model.new_version(Slot(0));
    model.wrote(Slot(0), tid(3), without);
    model.unnamed(Slot(2), tid(3));
    assert!(
        model
            .check(&known(0), &blocks(&model, [Some(without), rest, None]))
            .is_ok()
    );
}

#[test]
fn what_is_certain_follows_from_notes_and_flushes() {
    let model = model();
    let data = |slot, version| Note::Data {
        slot: Slot(slot),
        version: Version(version),
    };
    let notes = [
        data(2, 5),
        Note::Acknowledged { after: 3 },
        data(2, 6),
        data(1, 900),
    ];
    for note in notes {
        assert_eq!(Note::from_number(note.to_number()), note);
    }
    let mut events: Vec<_> = notes
        .iter()
        .map(|note| Event::Note(note.to_number()))
        .collect();
    events.push(Event::Flush { covers: 3 });
    let known = model.known(&events, 4);
    assert_eq!((known.acknowledged, known.durable[2]), (3, None));
    assert_eq!(model.known(&events, 1).acknowledged, 0);
    let known = model.known(&events, 5);
    assert_eq!(known.durable, [None, None, Some(Version(6))]);
}

#[test]
fn sets_of_moments_are_printed_concisely() {
    assert_eq!(list(moments(2, 5) | moments(9, 10)), "2..=4, 9");
    assert_eq!(list(0), "none");
    assert_eq!(moments(0, u32::MAX), u128::MAX);
}
