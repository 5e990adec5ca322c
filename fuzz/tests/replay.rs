//! **Purpose.** Runs every seed and every regression through its target, without libFuzzer.

use std::fs;
use std::path::{Path, PathBuf};

use fourscore_fuzz::{seeds, targets};
use fourscore_ondisk::RawSuperblock;
use fourscore_ondisk::superblock::{Superblock, SuperblockError, SuperblockRejected};

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

fn regressions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// Inputs that once made a target fail, in `regressions/TARGET/`.
#[test]
fn every_regression_passes() {
    for folder in fs::read_dir(regressions()).unwrap() {
        let folder = folder.unwrap().path();
        let target = targets::ALL.iter().find(|(name, _)| folder.ends_with(name));
        let (_, target) = target.unwrap_or_else(|| panic!("{} is of no target", folder.display()));
        let files = fs::read_dir(folder).unwrap();
        for file in files {
            let path = file.unwrap().path();
            let outcome = std::panic::catch_unwind(|| target(&fs::read(&path).unwrap()));
            assert!(outcome.is_ok(), "{}", path.display());
        }
    }
}

/// A regression that is refused for another reason than its fault would prove nothing.
#[test]
fn the_file_system_without_room_for_its_descriptors_is_refused_for_that() {
    let input = fs::read(regressions().join("superblock/descriptors-past-the-end")).unwrap();
    let (switches, superblock) = input.split_first().unwrap();
    assert_eq!(*switches, targets::SEAL);
    let mut raw = *RawSuperblock::from_bytes(superblock).unwrap();
    raw.seal();
    let found = Superblock::try_from(&raw).unwrap_err();
    let expected = SuperblockError::Descriptors {
        found: 2,
        blocks: 2,
    };
    assert_eq!(found, SuperblockRejected::Corrupt(expected));
}
