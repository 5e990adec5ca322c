//! **Purpose.** Rules about manifests: which crate may depend on which, and the licence.

use super::finding::Finding;
use crate::workspace::Manifest;

/// The layers: a crate may depend on crates of smaller numbers only. `mballoc` and `journal` have
/// the same number because each must run without the other; `ondisk` has the lowest because it has
/// neither locks nor I/O.
const LAYERS: &[(&str, u32)] = &[
    ("fourscore-sync", 0),
    ("fourscore-ondisk", 0),
    ("fourscore-cache", 1),
    ("fourscore-block", 2),
    ("fourscore-journal", 3),
    ("fourscore-mballoc", 3),
    ("fourscore", 4),
    ("fourscore-mkfs", 4),
    ("fourscore-check", 5),
    ("fourscore-build", 5),
    ("fourscore-resize", 5),
    ("fourscore-lab", 6),
    ("fourscore-fuse", 6),
    ("fourscore-cli", 7),
];

/// Crates that only tests may depend on, with their layers.
const FOR_TESTS_ONLY: &[(&str, u32)] = &[
    ("fourscore-testkit", 4),
    ("fourscore-proof", 7),
    ("xtask", 8),
];

/// External crates that only `sync` may depend on: other crates use its wrappers of them. (shuttle
/// and loom are not in this list: tests start their schedules with them.)
const BEHIND_THE_SYNC_DOOR: &[&str] = &[
    "parking_lot",
    "crossbeam",
    "crossbeam-utils",
    "crossbeam-epoch",
    "crossbeam-channel",
    "arc-swap",
    "seize",
];

fn layer(name: &str) -> Option<u32> {
    let of = |table: &[(&str, u32)]| table.iter().find(|row| row.0 == name).map(|row| row.1);
    of(LAYERS).or_else(|| of(FOR_TESTS_ONLY))
}

/// `downward-deps`: dependencies point down. Dependencies of tests may point anywhere.
pub(super) fn downward_deps(manifest: &Manifest, found: &mut Vec<Finding>) {
    let name = manifest.name();
    let Some(own) = layer(name) else {
        found.push(Finding::new(
            "downward-deps",
            1,
            format_args!("{name} has no layer (add it to LAYERS in tidy/manifests.rs)"),
        ));
        return;
    };
    let is_for_tests = |name: &str| FOR_TESTS_ONLY.iter().any(|row| row.0 == name);
    for entry in manifest.dependencies() {
        let for_tests = is_for_tests(&entry.key) && !is_for_tests(name);
        if for_tests || layer(&entry.key).is_some_and(|other| other >= own) {
            found.push(Finding::new(
                "downward-deps",
                entry.line,
                format_args!("{name} must not depend on {}", entry.key),
            ));
        }
    }
}

/// `sync-door` for manifests: the crates of locks, atomics and schedulers belong to `sync`.
pub(super) fn sync_door(manifest: &Manifest, found: &mut Vec<Finding>) {
    if manifest.name() == "fourscore-sync" {
        return;
    }
    for entry in manifest.all_dependencies() {
        if BEHIND_THE_SYNC_DOOR.contains(&entry.key.as_str()) {
            found.push(Finding::new(
                "sync-door",
                entry.line,
                format_args!("{} is for the crate sync (use fourscore-sync)", entry.key),
            ));
        }
    }
}

/// `licence-fields`: each crate states the licence, the compiler and the lints of the workspace.
pub(super) fn licence_fields(manifest: &Manifest, found: &mut Vec<Finding>) {
    for (section, key) in [
        ("package", "license"),
        ("package", "rust-version"),
        ("lints", "workspace"),
    ] {
        let stated = manifest
            .find(section, key)
            .is_some_and(|entry| entry.value.ends_with("true"));
        if !stated {
            found.push(Finding::new(
                "licence-fields",
                1,
                format_args!("[{section}] {key} is not taken from the workspace"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn lines(rule: fn(&Manifest, &mut Vec<Finding>), text: &str) -> Vec<usize> {
        let mut found = Vec::new();
        rule(
            &Manifest::parse(PathBuf::from("Cargo.toml"), text),
            &mut found,
        );
        found.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn downward_deps_sees_arrows_up_and_sideways() {
        let with = |name: &str, section: &str, dependency: &str| {
            let text = format!(
                "[package]\nname = \"{name}\"\n[{section}]\n{dependency}.workspace = true\n"
            );
            lines(downward_deps, &text)
        };
        assert!(with("fourscore-block", "dependencies", "fourscore-ondisk").is_empty());
        assert_eq!(with("fourscore-block", "dependencies", "fourscore"), [4]);
        assert_eq!(
            with("fourscore-mballoc", "dependencies", "fourscore-journal"),
            [4]
        );
        assert_eq!(with("fourscore", "dependencies", "fourscore-testkit"), [4]);
        assert!(with("fourscore", "dev-dependencies", "fourscore-testkit").is_empty());
        assert!(with("fourscore-proof", "dependencies", "fourscore-testkit").is_empty());
        assert_eq!(
            with("fourscore-testkit", "dependencies", "fourscore-proof"),
            [4]
        );
        assert_eq!(with("fourscore-new", "dependencies", "fourscore"), [1]);
    }

    #[test]
    fn sync_door_sees_foreign_locks_in_manifests() {
        let text = "[package]\nname = \"fourscore\"\n[dev-dependencies]\nparking_lot = \"0.12\"\n";
        assert_eq!(lines(sync_door, text), [4]);
        assert!(lines(sync_door, &text.replace("fourscore", "fourscore-sync")).is_empty());
    }

    #[test]
    fn licence_fields_must_all_be_there() {
        let whole = "[package]\nlicense.workspace = true\nrust-version.workspace = true\n\
                     [lints]\nworkspace = true\n";
        assert!(lines(licence_fields, whole).is_empty());
        assert_eq!(
            lines(licence_fields, "[package]\nlicense = \"MIT\"\n").len(),
            3
        );
    }
}
