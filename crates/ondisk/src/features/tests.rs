//! **Purpose.** Tests that the feature table is consistent, and that docs/COMPAT.md contains it.

use std::fmt::Write as _;
use std::path::Path;

use super::*;

const BEGIN: &str = "<!-- feature table: begin (written by a test, do not edit) -->\n";
const END: &str = "<!-- feature table: end -->\n";

fn markdown() -> String {
    let mut text =
        String::from("| class | bit | name | fourscore | what it is |\n|---|---|---|---|---|\n");
    for row in table::rows() {
        let FeatureRow {
            class,
            bit,
            name,
            support,
            note,
        } = row;
        writeln!(
            text,
            "| {class} | {bit:#x} | `{name}` | {support} | {note} |"
        )
        .unwrap();
    }
    text
}

/// Set `FOURSCORE_WRITE_DOCS=1` to bring the document up to date.
#[test]
fn compat_document_has_this_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/COMPAT.md");
    let document = std::fs::read_to_string(&path).expect("docs/COMPAT.md exists");
    let (before, rest) = document
        .split_once(BEGIN)
        .expect("the marker of the table's begin");
    let (found, after) = rest.split_once(END).expect("the marker of the table's end");
    if std::env::var_os("FOURSCORE_WRITE_DOCS").is_some() {
        let updated = format!("{before}{BEGIN}{}{END}{after}", markdown());
        std::fs::write(&path, updated).unwrap();
    } else {
        assert_eq!(
            found,
            markdown(),
            "docs/COMPAT.md differs: run `FOURSCORE_WRITE_DOCS=1 cargo test -p fourscore-ondisk`"
        );
    }
}

#[test]
fn rows_are_single_bits_in_order_with_unique_names() {
    let rows: Vec<_> = table::rows().collect();
    for pair in rows.windows(2) {
        assert!(
            pair[0].class != pair[1].class || pair[0].bit < pair[1].bit,
            "{pair:?}"
        );
    }
    for row in &rows {
        assert_eq!(row.bit.count_ones(), 1, "{row:?}");
        assert_eq!(
            rows.iter().filter(|other| other.name == row.name).count(),
            1,
            "{row:?}"
        );
    }
}

fn set(compat: u32, incompat: u32, ro_compat: u32) -> FeatureSet {
    FeatureSet {
        compat: Compat::from_bits_retain(compat),
        incompat: Incompat::from_bits_retain(incompat),
        ro_compat: RoCompat::from_bits_retain(ro_compat),
    }
}

#[test]
fn unknown_bits_are_handled_by_their_class() {
    let unknown = 1 << 20;
    assert_eq!(set(unknown, 0, 0).check_writing(), Ok(()));
    assert_eq!(set(0, 0, unknown).check_reading(), Ok(()));
    assert!(set(0, 0, unknown).check_writing().is_err());
    let error = set(0, unknown | 0x1 | 0x2, 0).check_reading().unwrap_err();
    assert_eq!(
        error.to_string(),
        "features that fourscore cannot read: compression (INCOMPAT 0x1), \
         FEATURE_I20 (INCOMPAT 0x100000)"
    );
}

#[test]
fn writing_refuses_read_only_features() {
    let hints = set(
        Compat::DIR_PREALLOC.bits() | Compat::STABLE_INODES.bits(),
        0,
        0,
    );
    assert_eq!(hints.check_writing(), Ok(()));
    let sealed = set(0, 0, RoCompat::READONLY.bits());
    assert_eq!(sealed.check_reading(), Ok(()));
    let error = sealed.check_writing().unwrap_err();
    assert_eq!(error.access(), Access::Write);
    assert_eq!(error.features()[0].to_string(), "read-only");
}

#[test]
fn unknown_bits_survive_a_round_trip() {
    let all = set(!0, !0, !0);
    assert_eq!(all.compat.bits(), !0);
    assert_eq!(all.iter().count(), 96);
}
