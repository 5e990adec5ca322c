//! Histories made by hand: possible ones pass, impossible ones are rejected.

use super::super::call::{Call, Event, Failure, Kind, Listed, Name, Outcome, Place, Range, Space};
use super::super::stamp::{FileId, Run, Value, Version};
use super::{Context, Size, judge};

const DIR: u64 = 12;
const A: FileId = FileId(1);
const B: FileId = FileId(2);

fn at(name: usize) -> Place {
    Place {
        dir: DIR,
        name: Name::any(name),
    }
}

fn event(when: (u64, u64), call: Call, outcome: Outcome) -> Event {
    let (begin, end) = when;
    // The rules use the thread only for calls that follow each other.
    let thread = usize::from(begin >= 1000);
    Event {
        begin,
        end,
        thread,
        call,
        outcome,
    }
}

fn failed(errno: i32) -> Outcome {
    let text = String::new();
    Outcome::Failed(Failure { errno, text })
}

/// The violation that the judge finds, if any.
fn refused(events: &[Event]) -> Option<String> {
    let context = Context {
        free_inodes: 1000,
        ..Context::default()
    };
    judge(&context, events).err().map(|wrong| wrong.to_string())
}

#[track_caller]
fn passes(events: &[Event]) {
    assert_eq!(refused(events), None);
}

#[track_caller]
fn fails(events: &[Event], why: &str) {
    let said = refused(events).expect("the history is impossible");
    assert!(said.contains(why), "{said}");
}

fn make(when: (u64, u64), name: usize, number: u64) -> Event {
    event(
        when,
        Call::Make(Kind::File, at(name)),
        Outcome::Number(number),
    )
}

fn lookup(when: (u64, u64), name: usize, found: Option<u64>) -> Event {
    let outcome = found.map_or(failed(2), Outcome::Number);
    event(when, Call::Lookup(at(name)), outcome)
}

fn rename(when: (u64, u64), from: usize, to: usize) -> Event {
    let (from, to) = (at(from), at(to));
    event(
        when,
        Call::Rename {
            from,
            to,
            replaces: true,
        },
        Outcome::Done,
    )
}

fn list(when: (u64, u64), names: &[(usize, u64)]) -> Event {
    let dots = [(Name::DOT, DIR), (Name::DOT_DOT, 2)];
    let names = names
        .iter()
        .map(|&(name, number)| (Name::any(name), number));
    let entries = dots.into_iter().chain(names).collect();
    event(
        when,
        Call::List(DIR),
        Outcome::Entries(entries, Listed::Whole),
    )
}

#[test]
fn a_name_is_found_from_its_creation_until_its_removal() {
    passes(&[
        make((1, 4), 0, 20),
        lookup((2, 3), 0, None),
        lookup((5, 6), 0, Some(20)),
    ]);
    passes(&[make((1, 4), 0, 20), lookup((2, 3), 0, Some(20))]);
    fails(
        &[make((1, 2), 0, 20), lookup((3, 4), 0, None)],
        "SeesMissing",
    );
    fails(
        &[make((1, 2), 0, 20), lookup((3, 4), 0, Some(21))],
        "Sees(Some(21))",
    );
    let gone = |when| event(when, Call::Unlink(at(0)), Outcome::Done);
    fails(
        &[
            make((1, 2), 0, 20),
            gone((3, 4)),
            lookup((5, 6), 0, Some(20)),
        ],
        "Sees",
    );
    passes(&[
        make((1, 2), 0, 20),
        gone((3, 6)),
        lookup((4, 5), 0, Some(20)),
    ]);
    fails(
        &[make((1, 2), 0, 20), gone((3, 4)), gone((5, 6))],
        "Removes",
    );
}

#[test]
fn a_name_that_is_replaced_is_never_missing() {
    let resolve = |when, outcome| event(when, Call::Resolve(at(1)), outcome);
    let before = [make((1, 2), 0, 20), make((3, 4), 1, 21)];
    let after = |last: Event| [&before[..], &[rename((5, 8), 0, 1), last]].concat();
    fails(&after(resolve((6, 7), failed(2))), "SeesMissing");
    passes(&after(resolve((6, 7), Outcome::Number(21))));
    passes(&after(resolve((6, 7), Outcome::Number(20))));
    passes(&after(lookup((6, 7), 0, None)));
    fails(&after(lookup((9, 10), 0, Some(20))), "Sees");
}

#[test]
fn one_name_cannot_be_renamed_twice() {
    let before = make((1, 2), 0, 20);
    passes(&[before.clone(), rename((3, 5), 0, 1)]);
    fails(
        &[before, rename((3, 5), 0, 1), rename((4, 6), 0, 1)],
        "Removes",
    );
}

#[test]
fn a_listing_has_names_that_always_exist_once() {
    let before = [make((1, 2), 0, 20), make((3, 4), 1, 21)];
    let after = |last: &[Event]| [&before[..], last].concat();
    passes(&after(&[list((5, 6), &[(0, 20), (1, 21)])]));
    fails(&after(&[list((5, 6), &[(0, 20)])]), "SeesMissing");
    fails(
        &after(&[list((5, 6), &[(0, 20), (1, 21), (1, 21)])]),
        "SeesMissing",
    );
    fails(
        &after(&[list((5, 6), &[(0, 20), (1, 20)])]),
        "Sees(Some(20))",
    );
    fails(
        &after(&[list((5, 6), &[(0, 20), (1, 21), (2, 22)])]),
        "Sees(Some(22))",
    );
    // A name that is created or removed meanwhile may be listed or not; a renamed inode even twice.
    let third = make((5, 10), 2, 22);
    passes(&after(&[
        third.clone(),
        list((6, 9), &[(0, 20), (1, 21), (2, 22)]),
    ]));
    passes(&after(&[third, list((6, 9), &[(0, 20), (1, 21)])]));
    passes(&after(&[
        rename((5, 10), 0, 2),
        list((6, 9), &[(0, 20), (1, 21), (2, 20)]),
    ]));
    passes(&after(&[rename((5, 10), 0, 2), list((6, 9), &[(1, 21)])]));
}

#[test]
fn the_inode_of_a_name_exists() {
    let stat = |when| event(when, Call::StatNumber(20), failed(2));
    let before = [make((1, 2), 0, 20), lookup((3, 4), 0, Some(20))];
    fails(&[&before[..], &[stat((5, 6))]].concat(), "all the time");
    let gone = event((3, 6), Call::Unlink(at(0)), Outcome::Done);
    let gone = Event { thread: 7, ..gone };
    passes(&[&before[..], &[gone, stat((7, 8))]].concat());
}

#[test]
fn errors_of_corrupted_file_systems_are_rejected() {
    for errno in [5, 117, 30, 12, 28] {
        let read = Call::Read {
            file: A,
            offset: 0,
            len: 16,
        };
        fails(&[event((1, 2), read, failed(errno))], "healthy");
    }
    fails(
        &[event((1, 2), Call::Make(Kind::File, at(0)), failed(28))],
        "healthy",
    );
}

fn write(when: (u64, u64), file: FileId, version: u32, range: std::ops::Range<u64>) -> Event {
    let (offset, len) = (range.start, range.end - range.start);
    let version = Version(version);
    event(
        when,
        Call::Write {
            file,
            version,
            offset,
            len,
        },
        Outcome::Done,
    )
}

fn change(when: (u64, u64), what: Range, range: std::ops::Range<u64>) -> Event {
    let (offset, len) = (range.start, range.end - range.start);
    event(
        when,
        Call::Change {
            file: A,
            what,
            offset,
            len,
        },
        Outcome::Done,
    )
}

fn read(when: (u64, u64), file: FileId, offset: u64, runs: &[(u64, Value)]) -> Event {
    let mut at = offset;
    let mut found = Vec::new();
    for &(len, value) in runs {
        found.push(Run {
            offset: at,
            len,
            value,
        });
        at += len;
    }
    let len = at - offset;
    event(
        when,
        Call::Read { file, offset, len },
        Outcome::Bytes(len, found),
    )
}

fn value(file: FileId, version: u32, offset: u64) -> Value {
    let version = Version(version);
    Value::Written {
        file,
        version,
        offset,
    }
}

#[test]
fn a_cell_holds_the_last_write_or_one_that_overlaps_the_read() {
    let old = write((1, 2), A, 1, 0..1024);
    let new = write((3, 6), A, 2, 512..1024);
    let both = |when, seen| [old.clone(), new.clone(), read(when, A, 512, &[(512, seen)])];
    passes(&both((4, 5), value(A, 1, 512)));
    passes(&both((4, 5), value(A, 2, 512)));
    passes(&both((7, 8), value(A, 2, 512)));
    fails(&both((7, 8), value(A, 1, 512)), "cannot be there");
    fails(&both((4, 5), Value::Zero), "cannot be there");
    fails(&both((7, 8), value(A, 2, 0)), "cannot be there");
    fails(&both((7, 8), value(B, 2, 512)), "another file's");
    fails(&both((7, 8), Value::Poison), "before the file system");
    fails(&both((7, 8), Value::Foreign([1; 16])), "no file holds");
    // Not before it was written.
    fails(
        &[
            old.clone(),
            read((3, 4), A, 512, &[(512, value(A, 2, 512))]),
            write((5, 6), A, 2, 512..1024),
        ],
        "cannot be there",
    );
}

#[test]
fn punched_ranges_are_zero_and_a_failed_write_may_have_happened() {
    let old = write((1, 2), A, 1, 0..1024);
    let punch = change((3, 4), Range::Punch, 0..512);
    let seen = |value| read((5, 6), A, 0, &[(512, value)]);
    passes(&[old.clone(), punch.clone(), seen(Value::Zero)]);
    fails(
        &[old.clone(), punch, seen(value(A, 1, 0))],
        "cannot be there",
    );
    fails(&[old.clone(), seen(Value::Zero)], "cannot be there");
    let mut logs = [old, write((3, 4), A, 2, 0..512)];
    logs[1].outcome = failed(28);
    for value in [value(A, 1, 0), value(A, 2, 0)] {
        let context = Context::default();
        let said = super::content::judge(&context, &[&logs[..], &[seen(value)]].concat());
        assert!(said.is_ok(), "{said:?}");
    }
}

#[test]
fn a_cell_is_torn_between_possible_values_and_only_by_a_page_cache() {
    let torn = |first: Value, at: usize, second: Value| {
        let mut bytes = second.bytes();
        bytes[..at].copy_from_slice(&first.bytes()[..at]);
        Value::Foreign(bytes)
    };
    let history = |seen| {
        [
            write((1, 2), A, 1, 0..512),
            write((3, 4), A, 2, 0..512),
            write((5, 8), A, 3, 0..512),
            read((6, 7), A, 0, &[(16, seen)]),
        ]
    };
    let (before, old, new) = (value(A, 1, 0), value(A, 2, 0), value(A, 3, 0));
    let mounted = Context {
        has_page_cache: true,
        ..Context::default()
    };
    let is_possible = |seen| super::content::judge(&mounted, &history(seen)).is_ok();
    assert!(is_possible(torn(old, 5, new)));
    assert!(is_possible(torn(new, 5, old)));
    assert!(
        !is_possible(torn(before, 5, new)),
        "the value before is gone"
    );
    assert!(!is_possible(torn(new, 5, Value::Poison)));
    fails(&history(torn(old, 5, new)), "no file holds");
}

#[test]
fn collapse_and_insert_move_data() {
    let old = write((1, 2), A, 1, 0..4096);
    let collapse = change((3, 6), Range::Collapse, 1024..2048);
    let insert = change((7, 8), Range::Insert, 0..1024);
    let seen = |when, offset, value| read(when, A, offset, &[(512, value)]);
    let after = |last| [old.clone(), collapse.clone(), insert.clone(), last];
    passes(&after(seen((4, 5), 1024, value(A, 1, 1024))));
    passes(&after(seen((4, 5), 1024, value(A, 1, 2048))));
    fails(
        &after(seen((4, 5), 1024, value(A, 1, 3072))),
        "cannot be there",
    );
    passes(&after(seen((9, 10), 0, Value::Zero)));
    passes(&after(seen((9, 10), 1024, value(A, 1, 0))));
    passes(&after(seen((9, 10), 2048, value(A, 1, 2048))));
    fails(
        &after(seen((9, 10), 2048, value(A, 1, 1024))),
        "cannot be there",
    );
}

#[test]
fn copied_data_is_data_of_the_source_during_the_copy() {
    let (from, to) = ((A, 0), (B, 512));
    let history = |seen, of| {
        [
            write((1, 2), A, 1, 0..512),
            write((3, 4), A, 2, 0..512),
            event(
                (5, 8),
                Call::Copy { from, to, len: 512 },
                Outcome::Number(512),
            ),
            write((6, 7), A, 3, 0..512),
            write((9, 10), A, 4, 0..512),
            read((11, 12), B, 512, &[(512, value(of, seen, 0))]),
        ]
    };
    passes(&history(2, A));
    passes(&history(3, A));
    fails(&history(1, A), "another file's");
    fails(&history(4, A), "another file's");
    fails(&history(2, B), "cannot be there");
}

#[test]
fn sizes_are_those_of_some_order() {
    let size = |when, size| event(when, Call::Size(A), Outcome::Number(size));
    let cut = event((3, 4), Call::Truncate { file: A, size: 0 }, Outcome::Done);
    let before = [write((1, 2), A, 1, 0..4096), cut];
    let after = |last: &[Event]| [&before[..], last].concat();
    passes(&after(&[size((5, 6), 0)]));
    fails(&after(&[size((5, 6), 4096)]), "the size");
    // While a file grows, sizes in between may be seen, but no decrease.
    let grows = write((5, 12), A, 2, 0..4096);
    passes(&after(&[
        grows.clone(),
        size((6, 7), 1024),
        size((8, 9), 2048),
    ]));
    fails(
        &after(&[grows.clone(), size((6, 7), 2048), size((8, 9), 1024)]),
        "the size",
    );
    fails(&after(&[grows, size((6, 7), 8192)]), "the size");
}

#[test]
fn an_attribute_has_the_value_that_was_set() {
    let set = |when, value| event(when, Call::SetXattr(A, 0, value), Outcome::Done);
    let get = |when, outcome| event(when, Call::GetXattr(A, 0), outcome);
    passes(&[
        set((1, 4), 7),
        get((2, 3), failed(61)),
        get((5, 6), Outcome::Number(7)),
    ]);
    fails(&[set((1, 2), 7), get((3, 4), failed(61))], "attribute");
    fails(
        &[
            set((1, 2), 7),
            set((3, 4), 8),
            get((5, 6), Outcome::Number(7)),
        ],
        "attribute",
    );
}

/// What statfs returns: blocks and free ones, and half as many inodes.
fn space(when: (u64, u64), blocks: u64, free_blocks: u64) -> Event {
    let space = Space {
        block_bytes: 1024,
        blocks,
        free_blocks,
        available_blocks: free_blocks,
        inodes: blocks / 2,
        free_inodes: free_blocks / 2,
    };
    event(when, Call::StatFs, Outcome::Space(space))
}

fn grow(when: (u64, u64), wish: u64, outcome: Outcome) -> Event {
    event(when, Call::GrowFs(wish), outcome)
}

fn sized(when: (u64, u64), wish: u64, size: u64) -> Event {
    grow(when, wish, Outcome::Number(size))
}

/// The violation in a round of a file system of 8 192 blocks on a device of 65 536.
fn refused_while_growing(events: &[Event]) -> Option<String> {
    let context = Context {
        first_size: Size {
            blocks: 8192,
            group_blocks: 1024,
        },
        device_blocks: 65_536,
        spacious_blocks: 30_000,
        ..Context::default()
    };
    judge(&context, events).err().map(|wrong| wrong.to_string())
}

#[track_caller]
fn grows(events: &[Event]) {
    assert_eq!(refused_while_growing(events), None);
}

#[track_caller]
fn does_not_grow_so(events: &[Event], why: &str) {
    let said = refused_while_growing(events).expect("the history is impossible");
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_growth_is_seen_at_once_and_with_its_free_space() {
    let grown = sized((3, 8), 20_000, 20_000);
    let before = space((1, 2), 8000, 5000);
    let after = |last: &[Event]| [&[before.clone(), grown.clone()], last].concat();
    grows(&after(&[space((9, 10), 19_800, 16_700)]));
    // While it grows the one or the other, and then the other.
    grows(&after(&[
        space((4, 5), 8000, 5000),
        space((6, 7), 19_800, 16_700),
    ]));
    does_not_grow_so(
        &after(&[space((4, 5), 19_800, 16_700), space((6, 7), 8000, 5000)]),
        "at least, before",
    );
    does_not_grow_so(&after(&[space((9, 10), 8000, 5000)]), "at least, before");
    does_not_grow_so(
        &after(&[space((9, 10), 19_800, 19_801)]),
        "are free than exist",
    );
    does_not_grow_so(&after(&[space((4, 5), 19_800, 5000)]), "more are in use");
    // A write may have taken that.
    let all = 12 << 20;
    let taken = write((3, 6), A, 1, 0..all);
    grows(&[before.clone(), taken, space((4, 5), 19_800, 5000)]);
}

#[test]
fn a_growth_has_the_size_that_was_wished() {
    grows(&[sized((1, 2), 20_000, 19_500), sized((3, 4), 20_000, 19_500)]);
    does_not_grow_so(&[sized((1, 2), 20_000, 18_900)], "lacks a group");
    does_not_grow_so(&[sized((1, 2), 20_000, 20_001)], "more blocks than");
    let two = [sized((1, 2), 20_000, 20_000), sized((3, 4), 19_900, 19_500)];
    does_not_grow_so(&two, "blocks before");
    // Two at the same time.
    grows(&[sized((1, 4), 20_000, 20_000), sized((2, 3), 10_000, 20_000)]);
    grows(&[
        sized((1, 4), 20_000, 20_000),
        grow((2, 3), 30_000, failed(16)),
    ]);
    let busy = [
        sized((1, 2), 20_000, 20_000),
        grow((3, 4), 30_000, failed(16)),
    ];
    does_not_grow_so(&busy, "error 16");
    grows(&[
        grow((1, 2), 70_000, failed(22)),
        grow((3, 4), 8000, failed(22)),
    ]);
    does_not_grow_so(&[grow((1, 2), 60_000, failed(22))], "error 22");
    does_not_grow_so(&[grow((1, 2), 60_000, failed(117))], "error 117");
}

#[test]
fn space_is_short_until_the_file_system_has_grown() {
    let full = |when| event(when, Call::Truncate { file: A, size: 0 }, failed(28));
    grows(&[full((1, 2)), sized((3, 4), 30_000, 30_000)]);
    grows(&[sized((1, 4), 30_000, 30_000), full((2, 6))]);
    grows(&[sized((1, 2), 29_000, 29_000), full((3, 4))]);
    does_not_grow_so(&[sized((1, 2), 30_000, 30_000), full((3, 4))], "error 28");
    let read = Call::GetXattr(A, 0);
    does_not_grow_so(&[event((1, 2), read, failed(28))], "error 28");
}
