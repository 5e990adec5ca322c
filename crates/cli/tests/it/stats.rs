//! `fourscore stats` prints the same as the kernel for the same image.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Access, Image, KernelMount, MiB, matrix, require};

use crate::common::{failing, fourscore, printed, text};

const FILES: [&str; 2] = ["mb_groups", "mb_structs_summary"];

/// The files of the kernel for a read-only mount; reading `mb_groups` loads every group.
fn of_kernel(image: &Path) -> Result<[String; 2]> {
    let mount = KernelMount::new(image, Access::ReadOnly, "")?;
    let folder = Path::new("/proc/fs/ext4").join(mount.device_name()?);
    let show = |file: &str| fs::read_to_string(folder.join(file)).with_context(|| file.to_owned());
    let shown = [show(FILES[0])?, show(FILES[1])?];
    mount.unmount()?;
    Ok(shown)
}

fn of_ours(image: &Path) -> [String; 2] {
    FILES.map(|file| printed(&mut fourscore(&["stats", text(image), file])))
}

fn same(ours: &[String; 2], theirs: &[String; 2]) -> Result<()> {
    let (left, right) = (ours.concat(), theirs.concat());
    ensure!(ours == theirs, "ours:\n{left}\ntheirs:\n{right}");
    Ok(())
}

#[test]
fn every_configuration_equals_the_kernel() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    matrix::assert_all(|config| {
        // The project configuration differs only by its tree.
        if config.kernel() == matrix::Kernel::Refuses || config.name == "project" {
            return Ok(());
        }
        let image = config.empty()?;
        same(&of_ours(image.path()), &of_kernel(image.path())?)
    });
}

/// An ext4 of 48 groups with data, and a copy of it with the last changes only in the journal.
fn used_and_crashed() -> Result<(Image, Image)> {
    let image = Image::builder(MiB(384))
        .kind("ext4")
        .block_size_bytes(1024)
        .make()?;
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "")?;
    let write = |nr: usize| fs::write(mount.path().join(nr.to_string()), vec![1; nr * 700]);
    (0..400).try_for_each(write)?;
    mount.sync()?;
    for nr in (0..400).step_by(3) {
        fs::remove_file(mount.path().join(nr.to_string()))?;
    }
    mount.sync()?;
    let crashed = image.copy()?;
    mount.unmount()?;
    Ok((image, crashed))
}

#[test]
fn a_clean_and_a_dirty_file_system_are_shown_alike() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let (image, crashed) = used_and_crashed().expect("images");
    let info = printed(&mut fourscore(&["info", text(crashed.path())]));
    assert!(
        info.contains("needs_recovery"),
        "the journal is clean:\n{info}"
    );
    let theirs = of_kernel(image.path()).expect("a mount");
    assert!(theirs[1].contains("optimize_scan: 1"), "{}", theirs[1]);
    same(&of_ours(image.path()), &theirs).expect("clean");
    let ours = of_ours(crashed.path());
    let recovered = KernelMount::new(crashed.path(), Access::ReadWrite, "").expect("a mount");
    recovered.unmount().expect("unmounts");
    same(&ours, &of_kernel(crashed.path()).expect("a mount")).expect("dirty");
}

#[test]
fn both_files_are_printed_with_headings_and_as_json() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(32))
        .kind("ext4")
        .make()
        .expect("mke2fs runs");
    let path = text(image.path());
    let [groups, summary] = of_ours(image.path());
    assert_eq!(
        printed(&mut fourscore(&["stats", path])),
        format!("==> mb_groups <==\n{groups}==> mb_structs_summary <==\n{summary}")
    );
    let json = printed(&mut fourscore(&["stats", "--json", path]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let first = &json["mb_groups"][0];
    let line = groups.lines().nth(1).expect("a group").split_whitespace();
    let numbers: Vec<u64> = line.filter_map(|word| word.parse().ok()).collect();
    assert_eq!(first["free"], numbers[0]);
    assert_eq!(first["buddies"][0], numbers[3]);
    assert_eq!(json["mb_structs_summary"]["optimize_scan"], 0);
}

#[test]
fn a_group_with_a_corrupt_bitmap_is_named_and_the_others_are_shown() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(32))
        .kind("ext4")
        .block_size_bytes(1024)
        .make()
        .expect("mke2fs runs");
    let info = printed(&mut fourscore(&[
        "info",
        "--groups",
        "--json",
        text(image.path()),
    ]));
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    let bitmap = info["groups"][0]["block_bitmap"].as_u64().expect("a block");
    let file = fs::OpenOptions::new().write(true).open(image.path());
    let damage = [0x55; 4];
    file.and_then(|file| file.write_all_at(&damage, bitmap * 1024 + 900))
        .expect("space");
    let output = fourscore(&["stats", text(image.path()), "mb_groups"])
        .output()
        .expect("it runs");
    let shown = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.get(1), Some(&"#0    : Corrupt filesystem"), "{shown}");
    assert!(
        lines
            .get(2)
            .is_some_and(|line| line.starts_with("#1    : ")),
        "{shown}"
    );
    let (status, message) = failing(&["stats", text(image.path())]);
    assert_eq!(status, Some(1));
    assert!(message.contains("group 0"), "{message}");
}
