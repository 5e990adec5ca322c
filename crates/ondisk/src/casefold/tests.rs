//! **Purpose.** Tests of casefolding, with debugfs as the oracle.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::dirhash::{CharSign, NameHash, NameHasher, SeededAlgorithm};
use crate::oracle;

fn folded(name: &str) -> String {
    let folded = FoldedName::new(name.as_bytes(), Encoding::Strict).unwrap();
    String::from_utf8(folded.hash_input().to_vec()).unwrap()
}

fn equal(left: &str, right: &str) -> bool {
    FoldedName::new(left.as_bytes(), Encoding::Strict)
        .unwrap()
        .matches(right.as_bytes())
}

#[test]
fn equal_names() {
    assert!(equal("README", "readme") && equal("readme", "ReadMe"));
    assert!(equal("stra\u{df}e", "STRASSE"));
    assert!(equal("\u{c5}", "a\u{30a}") && equal("\u{212b}", "\u{e5}"));
    assert!(equal("a\u{200d}b", "AB"), "a joiner is ignored");
    assert!(
        equal("q\u{323}\u{307}", "Q\u{307}\u{323}"),
        "marks are sorted"
    );
    assert!(
        equal("\u{d55c}", "\u{1112}\u{1161}\u{11ab}"),
        "hangul is decomposed"
    );
    assert!(!equal("a", "b") && !equal("a", "aa") && !equal("i", "\u{131}"));
}

#[test]
fn marks_are_not_sorted_across_an_ignorable() {
    assert_eq!(folded("q\u{323}\u{200d}\u{307}"), "q\u{323}\u{307}");
    assert_eq!(folded("q\u{307}\u{200d}\u{323}"), "q\u{307}\u{323}");
    assert_eq!(folded("q\u{307}\u{323}"), "q\u{323}\u{307}");
}

#[test]
fn characters_after_12_1_stay_as_they_are() {
    // A capital letter of Unicode 14 and a mark of Unicode 13.
    assert_eq!(folded("\u{2c2f}"), "\u{2c2f}");
    assert_eq!(folded("q\u{1abf}\u{323}"), "q\u{1abf}\u{323}");
}

#[test]
fn bytes_that_are_not_utf8() {
    let name = b"ab\xff";
    let lenient = FoldedName::new(name, Encoding::Lenient).unwrap();
    assert!(lenient.matches(name) && !lenient.matches(b"AB\xff"));
    assert_eq!(lenient.hash_input(), name);
    assert_eq!(
        FoldedName::new(name, Encoding::Strict).unwrap_err(),
        NotUtf8 { at: 2 }
    );
    let text = FoldedName::new(b"ab", Encoding::Strict).unwrap();
    assert!(!text.matches(name));
}

/// Compares with the hashes of debugfs: of all characters that change or are new, and of a sample
/// of the others.
#[test]
fn agrees_with_debugfs() {
    let changes = |c: &char| folded(c.encode_utf8(&mut [0; 4])) != c.to_string();
    let all = || ('\u{80}'..=char::MAX).filter(|c| !c.is_whitespace());
    let sample = all()
        .filter(|c| changes(c) || is_newer(*c))
        .chain(all().step_by(499));
    let names: Vec<String> = sample.map(|c| format!("a{c}\u{301}\u{323}B")).collect();
    let mut requests = String::new();
    for name in &names {
        writeln!(requests, "dx_hash -h half_md4 -c -e utf8 {name}").unwrap();
    }
    let Some(output) = oracle::debugfs(requests.as_bytes()) else {
        return;
    };
    let output = String::from_utf8(output).unwrap();
    let lines: Vec<_> = output
        .lines()
        .filter(|line| line.starts_with("Hash of "))
        .collect();
    assert_eq!(lines.len(), names.len());
    let hasher = NameHasher::Seeded {
        algorithm: SeededAlgorithm::HalfMd4,
        chars: CharSign::Signed,
        seed: [0; 4],
    };
    for (name, line) in names.iter().zip(lines) {
        let NameHash { hash, minor_hash } = hasher.hash(folded(name).as_bytes());
        let expected = format!(" is {hash:#x} (minor {minor_hash:#x})");
        assert!(
            line.ends_with(&expected),
            "{}: {line}, not{expected}",
            name.escape_unicode()
        );
    }
}

proptest! {
    #[test]
    fn folding_twice_is_folding_once(name: String) {
        let once = folded(&name);
        prop_assert_eq!(&folded(&once), &once);
        prop_assert!(equal(&name, &once));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        left in proptest::collection::vec(any::<u8>(), 0..40),
        right in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let name = FoldedName::new(&left, Encoding::Lenient).unwrap();
        prop_assert!(name.matches(&left));
        let other = FoldedName::new(&right, Encoding::Lenient).unwrap();
        prop_assert_eq!(name.matches(&right), other.matches(&left));
    }
}
