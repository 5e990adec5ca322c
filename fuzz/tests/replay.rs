//! **Purpose.** Runs every seed and every regression through its target, without libFuzzer.

use std::fs;
use std::path::Path;

use fourscore_fuzz::{seeds, targets};

#[test]
fn every_seed_passes() {
    for (name, target) in targets::ALL {
        let inputs = seeds::of(name);
        assert!(!inputs.is_empty(), "{name} has no seeds");
        for input in &inputs {
            target(input);
        }
    }
}

/// Inputs that once made a target fail, in `regressions/TARGET/`.
#[test]
fn every_regression_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for (name, target) in targets::ALL {
        let Ok(files) = fs::read_dir(folder.join(name)) else {
            continue;
        };
        for file in files {
            let path = file.unwrap().path();
            let outcome = std::panic::catch_unwind(|| target(&fs::read(&path).unwrap()));
            assert!(outcome.is_ok(), "{}", path.display());
        }
    }
}
