//! `fourscore lab`: every experiment runs at its smallest size, and its sides differ in what they
//! are about.

use serde_json::Value;

use crate::common::{failing, fourscore, printed};

const ALL: [&str; 5] = [
    "s1-prefetch",
    "s2-fastcommit",
    "s3-xattrcache",
    "s4-goals",
    "s5-bestavail",
];

/// The report of the smallest run of an experiment.
fn smallest(experiment: &str) -> Value {
    let arguments = ["lab", "run", experiment, "--smallest", "--json"];
    let text = printed(&mut fourscore(&arguments));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    assert_eq!(report["experiment"], experiment);
    assert!(
        report["published"]
            .as_array()
            .is_some_and(|rows| !rows.is_empty())
    );
    assert!(report["machine"]["cores"].as_u64() > Some(0));
    for run in report["runs"].as_array().expect("runs") {
        assert_eq!(run["threads"], 2);
        for side in run["sides"].as_array().expect("sides") {
            assert!(side["operations_per_second"].as_f64() > Some(0.0), "{side}");
        }
    }
    report
}

/// The sides of the smallest run of an experiment on the block allocator, by name.
fn sides(experiment: &str) -> Vec<(String, Value)> {
    let report = smallest(experiment);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 1);
    let sides = runs[0]["sides"].as_array().expect("sides");
    let named = |side: &Value| {
        let outcome = &side["outcome"];
        // Each request that was answered counts in one way.
        assert_eq!(
            count(side, &["reqs"]),
            outcome["allocations"].as_u64().unwrap()
        );
        (
            side["side"].as_str().expect("a name").to_owned(),
            side.clone(),
        )
    };
    sides.iter().map(named).collect()
}

fn count(side: &Value, path: &[&str]) -> u64 {
    let found = path
        .iter()
        .fold(&side["mb_stats"], |value, name| &value[name]);
    found
        .as_u64()
        .unwrap_or_else(|| panic!("{path:?} in {side}"))
}

#[test]
fn experiments_are_listed_and_unknown_names_are_answered_with_those_that_exist() {
    let list = printed(&mut fourscore(&["lab", "list"]));
    let (status, message) = failing(&["lab", "run", "s9"]);
    assert_eq!(status, Some(2));
    for name in ALL {
        assert!(list.contains(&format!("{name} ")), "{list}");
        assert!(message.contains(name), "{message}");
    }
    let (status, message) = failing(&["lab", "run", "s4-goals", "--scenario", "tiny"]);
    assert_eq!(status, Some(2));
    assert!(message.contains("16g-aged-4k"), "{message}");
    let (status, message) = failing(&["lab", "run", "s3-xattrcache", "--cases", "mix"]);
    assert_eq!(status, Some(2));
    assert!(message.contains("mix-1000"), "{message}");
    for wrong in [
        ["s4-goals", "--smallest", "--rounds", "2"],
        ["s4-goals", "--smallest", "--cases", "64x64"],
        ["s2-fastcommit", "--smallest", "--scenario", "133g-50"],
        ["s3-xattrcache", "--rounds=1", "--seconds", "1"],
    ] {
        let (status, message) = failing(&[&["lab", "run"][..], &wrong].concat());
        assert_eq!(status, Some(2), "{message}");
    }
}

#[test]
fn a_text_report_has_the_sides_and_the_published_figures() {
    let arguments = [
        "lab",
        "run",
        "s1-prefetch",
        "--threads",
        "1",
        "--steps",
        "5",
        "--rounds",
        "2",
    ];
    let text = printed(&mut fourscore(&arguments));
    for part in [
        "s1-prefetch: ",
        "again: fourscore lab run s1-prefetch --scenario 133g-50 --threads 1 --steps 5 --rounds 2\n",
        "\nthreads 1\n  base ",
        "  ours ",
        "hits of the criteria ",
        "published (other machines)\n",
        "4093 -> 7380 operations/s, 1.80 of the first",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

/// The tests of states: what the two patches and the count take away, one after the other.
#[test]
fn s1_sides_test_states_as_their_names_say() {
    let sides = sides("s1-prefetch");
    let tests = |name: &str| {
        let (_, side) = sides.iter().find(|(known, _)| known == name).expect(name);
        let count = |name| count(side, &[name]);
        [
            count("prefetch_tests") > 0,
            count("prefetch_locked_tests") > 0,
            count("prefetch_descriptors") > 0,
        ]
    };
    assert_eq!(tests("base"), [false, true, true]);
    assert_eq!(tests("patch 1"), [true, false, true]);
    assert_eq!(tests("patched"), [true, false, false]);
    assert_eq!(tests("counted"), [false, false, false]);
    assert_eq!(tests("ours"), [false, false, false]);
}

/// Only the first side waits for busy groups; with the others chance decides whether there are any.
#[test]
fn s4_sides_share_goals_as_their_names_say() {
    let sides = sides("s4-goals");
    let names: Vec<_> = sides.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "before",
        "base",
        "patched",
        "base, sets",
        "patched, sets",
        "ours",
    ];
    assert_eq!(names, expected);
    let skipped = |name: &str| {
        let (_, side) = sides.iter().find(|(known, _)| known == name).expect(name);
        count(side, &["busy_groups"])
    };
    assert_eq!(skipped("before"), 0, "it waits");
}

#[test]
fn s5_sides_scan_and_trim_as_their_names_say() {
    let sides = sides("s5-bestavail");
    let (base, patched, ours) = (&sides[0].1, &sides[1].1, &sides[2].1);
    let best = |side| count(side, &["cr_best_avail_stats", "hits"]);
    let slow = |side| count(side, &["cr_goal_slow_stats", "hits"]);
    let any = |side| count(side, &["cr_any_free_stats", "hits"]);
    let files = |side: &Value| side["outcome"]["operations"].as_u64().expect("a count");
    // Each file has a search, and no free extent is as long as its goal.
    for (name, side) in &sides {
        assert_eq!(count(side, &["reqs"]), files(side), "{name}: {side}");
        assert_eq!(count(side, &["len_goal_hits"]), 0, "{name}: {side}");
    }
    assert_eq!(best(base), 0);
    assert!((slow(base) + any(base)) * 10 > files(base) * 9, "{base}");
    assert!(best(patched) * 10 > files(patched) * 9, "{patched}");
    assert!(best(ours) * 10 > files(ours) * 9, "{ours}");
    let scanned = |side| count(side, &["extents_scanned"]);
    assert!(scanned(base) > scanned(patched), "{base} {patched}");
    assert!(scanned(patched) >= scanned(ours), "{patched} {ours}");
    for (name, side) in &sides {
        let free = side["mean_free_kib"].as_array().expect("loaded bitmaps");
        assert!(
            free.iter().all(|kib| kib.as_u64() > Some(0)),
            "{name}: {side}"
        );
    }
}

/// Each side makes the same records; how a name finds its inode decides the speed only.
#[test]
fn s2_sides_make_a_record_for_each_inode_and_name() {
    let report = smallest("s2-fastcommit");
    let runs = report["runs"].as_array().expect("runs");
    let cases: Vec<_> = runs.iter().filter_map(|run| run["case"].as_str()).collect();
    assert_eq!(cases, ["2x2", "4x4", "8x8", "16x16", "32x32", "64x64"]);
    assert_eq!(report["published"].as_array().map(Vec::len), Some(8));
    for (run, files) in runs.iter().zip([4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0]) {
        let names = ["quadratic", "linear", "ours"];
        for (side, name) in run["sides"].as_array().expect("sides").iter().zip(names) {
            assert_eq!(side["side"], name);
            let fact = |name: &str| side["facts"][name].as_f64().expect(name);
            // A file that is created after the first fsync is in another commit, and the first
            // record of ours is there twice.
            let records = fact("records");
            assert!(
                (2.0 * files..=2.0 * files + 1.0).contains(&records),
                "{side}"
            );
            assert!(
                fact("fast commits") >= 1.0 && fact("full commits") <= 0.0,
                "{side}"
            );
        }
    }
}

/// A cache shares what is equal, and nothing else; without one nothing is shared.
#[test]
fn s3_sides_share_blocks_as_their_names_say() {
    let report = smallest("s3-xattrcache");
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 6);
    for run in runs {
        let case = run["case"].as_str().expect("a case");
        // Of 1000 values in the mix, whether two threads have equal ones at a time is chance.
        if case == "mix-1000" {
            continue;
        }
        let is_distinct = case.ends_with("distinct");
        for side in run["sides"].as_array().expect("sides") {
            let shared = side["facts"]["of another file, %"]
                .as_f64()
                .expect("a share");
            let is_cache = side["side"] != "bypass";
            assert_eq!(shared > 0.0, is_cache && !is_distinct, "{run}");
        }
    }
}
