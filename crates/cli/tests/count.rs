//! In the counting build `bench alloc` reports transfers between virtual cores.
//!
//! A binary of its own, because only the build with the feature `count` has it.

#[allow(dead_code, reason = "it needs a part of it")]
#[path = "it/common/mod.rs"]
mod common;

use common::{fourscore, printed};

#[test]
fn shared_writes_and_transfers_are_reported_by_location() {
    let mut arguments = vec!["bench", "alloc", "--scenario", "16g-aged-64k"];
    arguments.extend(["--workload", "pair", "--cores", "2,8", "--steps", "50"]);
    let text = printed(&mut fourscore(&arguments));
    assert!(text.contains("8 virtual cores, 400 operations"), "{text}");
    assert!(text.contains("crates/mballoc/src/"), "{text}");
    arguments.push("--json");
    let text = printed(&mut fourscore(&arguments));
    let runs: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        (&runs[0]["cores"], &runs[1]["cores"]),
        (&2.into(), &8.into())
    );
    let writes = runs[1]["shared_writes_per_operation"].as_f64();
    assert!(
        writes > Some(0.0),
        "an allocation writes at least its group: {text}"
    );
}
