//! `fourscore xattr-report`: users and contents of images that debugfs, the kernel and `build` have
//! made, and of forged ones.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fourscore_testkit::damage::Patient;
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Access, Image, KernelMount, MiB, oracle, require, scratch};
use rustix::fs::XattrFlags;
use serde_json::{Value, json};

use crate::common::{failing, fourscore, printed, text};

const BLOCK_BYTES: usize = 4096;

/// An image whose inodes have no space for attributes.
fn empty(features: &[&str]) -> Image {
    Image::builder(MiB(64))
        .kind("ext4")
        .block_size_bytes(4096)
        .inode_size_bytes(128)
        .arguments(["-N", "16384"])
        .features(features)
        .make()
        .expect("mke2fs runs")
}

/// An image with these attributes `user.a` of files `f0`, `f1`, ..., each in a block of its own, as
/// debugfs makes them. There are no checksums, so that it can be forged.
fn unshared(values: &[&str]) -> Image {
    let image = empty(&["^metadata_csum", "^has_journal"]);
    let mut commands = Vec::new();
    for (nr, value) in values.iter().enumerate() {
        commands.push(format!("write /dev/null f{nr}"));
        commands.push(format!("ea_set f{nr} user.a {value}"));
    }
    oracle::debugfs_write(image.path(), &commands).expect("debugfs sets attributes");
    image
}

/// The value of 200 bytes with a number.
fn value(nr: usize) -> Vec<u8> {
    let mut value = vec![b'v'; 200];
    value[..8].copy_from_slice(&(nr as u64).to_le_bytes());
    value
}

/// Creates files with these values, as the kernel does.
fn set_all(root: &Path, values: impl IntoIterator<Item = Vec<u8>>) {
    for (nr, value) in values.into_iter().enumerate() {
        let path = root.join(format!("f{nr:05}"));
        fs::write(&path, b"").expect("space");
        rustix::fs::setxattr(&path, "user.a", &value, XattrFlags::CREATE).expect("space");
    }
}

fn report(image: &Path) -> Value {
    let printed = printed(&mut fourscore(&["xattr-report", "--json", text(image)]));
    serde_json::from_str(&printed).expect("JSON")
}

/// The report of a faulty image, and the messages.
fn faulty(image: &Path) -> (Value, String) {
    let output = fourscore(&["xattr-report", "--json", "--blocks", text(image)])
        .output()
        .expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    let json = serde_json::from_slice(&output.stdout).expect("JSON");
    (json, message)
}

/// Members of `found` with the names of `expected` have the same values.
#[track_caller]
fn has(found: &Value, expected: &Value) {
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&found[name], value, "{name} of {found:#}");
    }
}

#[test]
fn blocks_of_debugfs_could_be_shared() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let values: Vec<String> = (0..40).map(|nr| format!("value-{}", nr % 4)).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let image = unshared(&values);
    oracle::assert_clean(image.path());
    let report = report(image.path());
    has(
        &report["blocks"],
        &json!({
            "count": 40, "with_several_users": 0, "unshareable": 0, "contents": 4, "users": 40,
            "saved_bytes": 0, "could_save_bytes": 36 * BLOCK_BYTES, "could_save_copies": 36,
            "by_users": [{ "min_users": 8, "contents": 4, "copies": 40, "users": 40 }],
        }),
    );
    has(
        &report["inodes"],
        &json!({ "with_attribute_block": 40, "with_attributes_inside": 0, "with_both": 0 }),
    );
    assert_eq!(report["faults"], json!({}));
    assert_eq!(report["advice"]["sharing"], "on");
    let popular = &report["most_used"][0];
    has(
        popular,
        &json!({ "users": 10, "copies": 10, "in": "block" }),
    );
    assert_eq!(
        popular["attributes"],
        json!([{ "name": "user.a", "bytes": 7 }])
    );
    // Each content misses once; the caches have space for all.
    let caches = report["caches"].as_array().expect("caches");
    assert_eq!(caches.len(), 5);
    for cache in caches {
        has(cache, &json!({ "lookups": 40, "hits": 36, "evictions": 0 }));
    }
    let two = (2 * fourscore::XATTR_SHARING_ENTRY_BYTES).to_string();
    let small = [
        "xattr-report",
        "--json",
        "--cache",
        &two,
        text(image.path()),
    ];
    let small: Value = serde_json::from_str(&printed(&mut fourscore(&small))).expect("JSON");
    has(
        &small["caches"][0],
        &json!({ "entries": 2, "lookups": 40, "hits": 0, "evictions": 38 }),
    );
    assert_eq!(small["advice"]["sharing"], "off");
}

#[test]
fn blocks_of_the_kernel_are_shared_up_to_the_limit() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let image = empty(&[]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
    let same = (0..2500).map(|_| value(0));
    set_all(mount.path(), same.chain((1..101).map(value)));
    mount.sync().expect("a sync");
    let crashed = image.copy().expect("a copy");
    mount.unmount().expect("an unmount");
    let clean = report(image.path());
    // 1024, 1024 and 452 users; the other 100 blocks have one.
    has(
        &clean["blocks"],
        &json!({
            "count": 103, "with_several_users": 3, "contents": 101, "users": 2600,
            "saved_bytes": 2497 * BLOCK_BYTES, "could_save_bytes": 0,
        }),
    );
    let by_users = json!([
        { "min_users": 1, "contents": 100, "copies": 100, "users": 100 },
        { "min_users": 2048, "contents": 1, "copies": 3, "users": 2500 },
    ]);
    assert_eq!(clean["blocks"]["by_users"], by_users);
    has(
        &clean["caches"][0],
        &json!({ "lookups": 2600, "hits": 2497, "full": 2 }),
    );
    // The same attributes, but some of them only in the journal.
    let info = printed(&mut fourscore(&["info", text(crashed.path())]));
    assert!(info.contains("needs_recovery"), "{info}");
    assert_eq!(report(crashed.path()), clean);
}

#[test]
fn unique_attributes_of_the_kernel_make_it_advise_off() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let image = empty(&[]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "no_mbcache").expect("a mount");
    // One in a hundred is not unique; without its cache the kernel does not share it either.
    set_all(mount.path(), (0..600).map(|nr| value(nr - nr / 100)));
    mount.unmount().expect("an unmount");
    let found = report(image.path());
    has(
        &found["blocks"],
        &json!({ "count": 600, "contents": 595, "saved_bytes": 0, "could_save_copies": 5 }),
    );
    has(&found["caches"][0], &json!({ "lookups": 600 }));
    assert_eq!(found["advice"]["sharing"], "off");
    let shown = printed(&mut fourscore(&["xattr-report", text(image.path())]));
    assert!(shown.contains("Advice: switch sharing off"), "{shown}");
    assert!(shown.contains("Rule: "), "{shown}");
}

#[test]
fn build_shares_what_debugfs_does_not() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let values: Vec<String> = (0..30).map(|nr| format!("value-{}", nr % 3)).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    let source = unshared(&values);
    let folder = scratch::folder().expect("a folder");
    let built = folder.path().join("built");
    let options = [
        "build",
        text(source.path()),
        "-o",
        text(&built),
        "-I",
        "128",
    ];
    fourscore(&options).output().expect("it runs");
    let found = report(&built);
    has(
        &found["blocks"],
        &json!({
            "count": 3, "with_several_users": 3, "contents": 3, "users": 30,
            "saved_bytes": 27 * BLOCK_BYTES, "could_save_bytes": 0,
        }),
    );
    let before = &report(source.path())["blocks"]["could_save_bytes"];
    assert_eq!(&found["blocks"]["saved_bytes"], before);
}

#[test]
fn values_in_inodes_are_counted_and_compared() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let image = empty(&["ea_inode"]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "no_mbcache").expect("a mount");
    set_all(mount.path(), (0..20).map(|nr| vec![b'a' + nr % 2; 9000]));
    mount.unmount().expect("an unmount");
    let apart = report(image.path());
    has(
        &apart["values"],
        &json!({
            "count": 20, "with_several_users": 0, "contents": 2, "users": 20,
            "saved_bytes": 0, "could_save_bytes": 18 * 3 * BLOCK_BYTES,
        }),
    );
    // Blocks that refer to equal values are equal.
    has(
        &apart["blocks"],
        &json!({ "count": 20, "contents": 2, "could_save_copies": 18 }),
    );
    has(&apart["caches"][0], &json!({ "lookups": 40, "hits": 36 }));

    // The kernel shares the values. Different attributes beside them keep it from sharing blocks.
    let image = empty(&["ea_inode"]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
    for nr in 0..20_u8 {
        let path = mount.path().join(nr.to_string());
        fs::write(&path, b"").expect("space");
        let set = |name, value: &[u8]| rustix::fs::setxattr(&path, name, value, XattrFlags::CREATE);
        set("user.own", &[nr]).expect("space");
        set("user.a", &[b'a' + nr % 2; 9000]).expect("space");
    }
    mount.unmount().expect("an unmount");
    oracle::assert_clean(image.path());
    let together = report(image.path());
    has(
        &together["values"],
        &json!({
            "count": 2, "with_several_users": 2, "contents": 2, "users": 20,
            "saved_bytes": 18 * 3 * BLOCK_BYTES, "could_save_bytes": 0,
        }),
    );
    has(&together["blocks"], &json!({ "count": 20, "contents": 20 }));
    let shown = printed(&mut fourscore(&["xattr-report", text(image.path())]));
    assert!(shown.contains("Values in inodes"), "{shown}");
    let popular = &together["most_used"][0];
    has(popular, &json!({ "in": "inode", "users": 10 }));
    let attributes = json!([{ "name": "user.a", "bytes": 9000 }]);
    assert_eq!(popular["attributes"], attributes);
}

#[test]
fn e2fsck_finds_the_same_wrong_counts_of_values() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let image = empty(&["ea_inode"]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
    // Linux counts each inode of a shared block, and e2fsck the block once.
    set_all(mount.path(), (0..20).map(|nr| vec![b'a' + nr % 2; 9000]));
    mount.unmount().expect("an unmount");
    let judged = oracle::e2fsck(image.path()).expect("e2fsck runs").output;
    let theirs = judged.matches(" ref count is ").count();
    let arguments = ["xattr-report", "--json", text(image.path())];
    let output = fourscore(&arguments).output().expect("it runs");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let ours = found["faults"]["value-users"].as_u64().unwrap_or(0);
    assert_eq!(ours, theirs as u64, "{judged}");
}

/// The blocks of attributes in an image, by position.
fn blocks_of(bytes: &[u8]) -> Vec<usize> {
    let starts = (0..bytes.len()).step_by(BLOCK_BYTES);
    let is_attributes = |&at: &usize| bytes[at..].starts_with(&[0, 0, 0x02, 0xea]);
    starts.filter(is_attributes).collect()
}

/// Writes `bytes` at an offset of the block of attributes with this number in order.
fn forge(image: &Image, nr: usize, offset: usize, bytes: &[u8]) {
    let at = blocks_of(&fs::read(image.path()).expect("the image"))[nr] + offset;
    let file = fs::OpenOptions::new().write(true).open(image.path());
    file.and_then(|file| file.write_all_at(bytes, at as u64))
        .expect("space");
}

#[test]
fn forged_counts_and_hashes_are_reported_and_not_believed() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    // Offset in the first block, new bytes, kind of the fault, blocks that cannot be shared, words.
    let cases: [(usize, &[u8], &str, u64, &str); 8] = [
        (
            4,
            &[0; 4],
            "refcount",
            0,
            "h_refcount is 0, expected 1 to 1024",
        ),
        (
            4,
            &[1, 4, 0, 0],
            "refcount",
            0,
            "h_refcount is 1025, expected",
        ),
        (
            4,
            &[9, 0, 0, 0],
            "refcount",
            0,
            "h_refcount is 9, and 1 inodes use it",
        ),
        (8, &[2, 0, 0, 0], "block", 1, "h_blocks is 2, expected 1"),
        (
            12,
            &[1, 2, 3, 4],
            "block-hash",
            1,
            "h_hash is 0x04030201, expected",
        ),
        (
            32 + 12,
            &[1, 2, 3, 4],
            "entry-hash",
            1,
            "e_hash 0x04030201 at byte 32 is wrong",
        ),
        (32 + 2, &[0xff, 0xff], "block", 1, "e_value_offs is 65535"),
        (32 + 4, &[1, 0, 0, 0], "block", 1, "e_value_inum"),
    ];
    for (offset, bytes, kind, unshareable, words) in cases {
        let image = unshared(&["same", "same"]);
        forge(&image, 0, offset, bytes);
        let (found, message) = faulty(image.path());
        assert!(
            found["faults"][kind].as_u64() >= Some(1),
            "{kind}: {found:#}"
        );
        assert!(message.contains(words), "{words}: {message}");
        assert!(message.starts_with("fourscore: "), "{message}");
        has(
            &found["blocks"],
            &json!({
                "count": 2, "unshareable": unshareable, "contents": 1, "saved_bytes": 0,
                "could_save_copies": 1 - unshareable,
            }),
        );
        assert_eq!(found["list"].as_array().map(Vec::len), Some(2));
    }
}

#[test]
fn values_that_overlap_cannot_be_shared() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = unshared(&["same", "same"]);
    let second = ["ea_set f0 user.b same", "ea_set f1 user.b same"];
    oracle::debugfs_write(image.path(), &second).expect("debugfs");
    assert_eq!(report(image.path())["blocks"]["contents"], 1);
    let bytes = fs::read(image.path()).expect("the image");
    let block = blocks_of(&bytes)[0];
    // Entries of a name of one byte take 20 bytes. Equal values have equal hashes with equal names.
    let first = [bytes[block + 34], bytes[block + 35]];
    forge(&image, 0, 32 + 20 + 2, &first);
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"]["overlap"], 1, "{message}");
    has(
        &found["blocks"],
        &json!({ "count": 2, "unshareable": 1, "could_save_copies": 0 }),
    );
}

#[test]
fn inodes_that_refer_to_wrong_blocks_are_named() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = unshared(&["one", "two", "three"]);
    let before = report(image.path());
    let commands = [
        "sif f0 file_acl 4000000",
        // The first block of the file system is the superblock's.
        "sif f1 file_acl 0x1",
    ];
    oracle::debugfs_write(image.path(), &commands).expect("debugfs");
    let (found, message) = faulty(image.path());
    assert_eq!(before["blocks"]["count"], 3);
    assert_eq!(found["faults"]["block-place"], 1, "{message}");
    assert_eq!(found["faults"]["block"], 1, "{message}");
    assert!(
        message.contains("attribute block 4000000 of inode"),
        "{message}"
    );
    has(
        &found["blocks"],
        &json!({ "count": 3, "unshareable": 2, "contents": 1 }),
    );
    // Two inodes with a block that counts one user.
    let image = unshared(&["one", "two"]);
    let listed = ["xattr-report", "--json", "--blocks", text(image.path())];
    let listed: Value = serde_json::from_str(&printed(&mut fourscore(&listed))).expect("JSON");
    let block = &listed["list"][0]["block"];
    let command = format!("sif f1 file_acl {block}");
    oracle::debugfs_write(image.path(), &[command]).expect("debugfs");
    let (found, message) = faulty(image.path());
    assert!(
        message.contains("h_refcount is 1, and 2 inodes use it"),
        "{message}"
    );
    assert_eq!(found["list"][0]["users"], 2);
    assert_eq!(found["blocks"]["saved_bytes"], BLOCK_BYTES);
}

#[test]
fn many_faults_of_a_kind_are_counted_and_few_are_printed() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = unshared(&["same"; 30]);
    for nr in 0..30 {
        forge(&image, nr, 4, &[0; 4]);
    }
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"]["refcount"], 30);
    assert_eq!(message.lines().count(), 11, "{message}");
    assert!(message.contains("... and 20 more [refcount]"), "{message}");
}

#[test]
fn value_inodes_that_are_none_or_refer_to_each_other_are_reported() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let make = || {
        let image = empty(&["ea_inode", "^metadata_csum", "^has_journal"]);
        let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
        set_all(mount.path(), (0..3).map(|nr| vec![nr; 9000]));
        mount.unmount().expect("an unmount");
        image
    };
    let good = make();
    let found = report(good.path());
    has(&found["values"], &json!({ "count": 3, "contents": 3 }));
    // The number of a value's inode is in the entry, after name length, index and offset.
    let bytes = fs::read(good.path()).expect("the image");
    let value_of = |nr: usize| {
        let at = blocks_of(&bytes)[nr] + 36;
        u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    };
    let block = blocks_of(&bytes)[0] / BLOCK_BYTES;
    let first = value_of(0);

    let image = make();
    let command = format!("sif <{first}> flags 0x80000");
    oracle::debugfs_write(image.path(), &[command]).expect("debugfs");
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"]["value-inode"], 1, "{message}");
    has(&found["blocks"], &json!({ "count": 3, "unshareable": 1 }));

    // A value whose own attributes are in the block that refers to it.
    let image = make();
    let command = format!("sif <{first}> file_acl {block}");
    oracle::debugfs_write(image.path(), &[command]).expect("debugfs");
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"]["value-inode"], 1, "{message}");
    assert!(message.contains("which a value cannot have"), "{message}");

    // A byte of a value is another one.
    let image = make();
    let mut changed = fs::read(image.path()).expect("the image");
    let at = changed.windows(4096).position(|bytes| bytes == [2; 4096]);
    changed[at.expect("the third value")] = 9;
    fs::write(image.path(), changed).expect("space");
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"], json!({ "value-hash": 1 }), "{message}");
    has(&found["blocks"], &json!({ "count": 3, "unshareable": 1 }));

    // Two entries refer to it: it is read once.
    let image = make();
    let mut changed = fs::read(image.path()).expect("the image");
    let from = blocks_of(&changed)[2];
    let block = changed[from..from + BLOCK_BYTES].to_vec();
    let at = changed.windows(4096).position(|bytes| bytes == [2; 4096]);
    changed[at.expect("the third value")] = 9;
    fs::write(image.path(), changed).expect("space");
    forge(&image, 1, 0, &block);
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"]["value-hash"], 1, "{message}");
    has(&found["blocks"], &json!({ "count": 3, "unshareable": 2 }));

    // Two entries refer to one value, whose count says one; the other value has no user left.
    let image = make();
    forge(&image, 1, 36, &first.to_le_bytes());
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"]["value-users"], 2, "{message}");
    assert!(
        message.contains("its reference count is 1, and 0 entries refer to it"),
        "{message}"
    );
    // The hash of the entry is that of another value.
    assert_eq!(found["faults"]["entry-hash"], 1, "{message}");
}

#[test]
fn images_without_attributes_and_wrong_options() {
    require!(Need::Program("mke2fs"));
    let image = empty(&[]);
    let found = report(image.path());
    has(&found["blocks"], &json!({ "count": 0, "users": 0 }));
    assert_eq!(found["advice"]["sharing"], "no-difference");
    let shown = printed(&mut fourscore(&["xattr-report", text(image.path())]));
    assert!(shown.contains("Advice: none."), "{shown}");
    for size in ["0", "63", "1X", "17G", ""] {
        let arguments = ["xattr-report", "--cache", size, text(image.path())];
        let (status, message) = failing(&arguments);
        assert_eq!(status, Some(2), "{size}: {message}");
    }
    let (status, message) = failing(&["xattr-report", "/dev/null"]);
    assert_eq!((status, message.lines().count()), (Some(1), 1), "{message}");
}

#[test]
fn a_group_that_cannot_be_read_is_named_and_the_others_are_counted() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let image = Image::builder(MiB(32))
        .kind("ext4")
        .block_size_bytes(1024)
        .inode_size_bytes(128)
        .make()
        .expect("mke2fs runs");
    let commands = ["write /dev/null f", "ea_set f user.a value"];
    oracle::debugfs_write(image.path(), &commands).expect("debugfs");
    let info = ["info", "--groups", "--json", text(image.path())];
    let info: Value = serde_json::from_str(&printed(&mut fourscore(&info))).expect("JSON");
    let bitmap = info["groups"][0]["inode_bitmap"].as_u64().expect("a block");
    let file = fs::OpenOptions::new().write(true).open(image.path());
    file.and_then(|file| file.write_all_at(&[0x55; 4], bitmap * 1024 + 40))
        .expect("space");
    let (found, message) = faulty(image.path());
    assert_eq!(found["faults"], json!({ "group": 1 }), "{message}");
    assert!(message.contains("group 0: "), "{message}");
    assert_eq!(found["blocks"]["count"], 0);
}

#[test]
fn an_access_control_list_in_an_inode_has_the_right_hash() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("setfacl"),
        Need::KernelMount
    );
    let image = empty(&["ea_inode"]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
    let file = mount.path().join("f");
    fs::write(&file, b"").expect("space");
    // Some five hundred users do not fit into a block.
    let users: Vec<String> = (1000..1600).map(|user| format!("u:{user}:r")).collect();
    let list = users.join(",");
    let arguments = ["-m".as_ref(), list.as_ref(), file.as_os_str()];
    fourscore_testkit::tools::run("setfacl", &arguments).expect("setfacl");
    mount.unmount().expect("an unmount");
    let found = report(image.path());
    has(
        &found["values"],
        &json!({ "count": 1, "unshareable": 0, "contents": 1 }),
    );
    let name = &found["most_used"];
    assert_eq!(name, &json!([]), "nothing is shared");
}

#[test]
fn damaged_images_end_with_a_report_or_an_error_and_are_not_changed() {
    require!(Need::Program("mke2fs"), Need::KernelMount);
    let image = empty(&["ea_inode"]);
    let mount = KernelMount::new(image.path(), Access::ReadWrite, "no_mbcache").expect("a mount");
    let large = (0..20).map(|nr| vec![b'a' + nr % 5; 6000]);
    set_all(mount.path(), (0..40).map(|nr| value(nr % 7)).chain(large));
    mount.unmount().expect("an unmount");
    let patient = Patient::new(image.path()).expect("a sound image");
    assert_eq!(report(image.path())["faults"], json!({}));
    let (mut faulty, mut refused) = (0, 0);
    for seed in 0..80 {
        let damage = patient.damage(seed).expect("damage fits");
        let written = || fs::metadata(image.path()).and_then(|file| file.modified());
        let before = written().expect("a time");
        let output = fourscore(&["xattr-report", "--json", "--blocks", text(image.path())])
            .output()
            .expect("it runs");
        let message = String::from_utf8_lossy(&output.stderr);
        let status = output.status.code();
        assert!(matches!(status, Some(0 | 1)), "{damage}: {message}");
        assert!(!message.contains("panicked"), "{damage}: {message}");
        if output.stdout.is_empty() {
            assert_eq!(
                (status, message.lines().count()),
                (Some(1), 1),
                "{damage}: {message}"
            );
            refused += 1;
        } else {
            let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let has_faults = found["faults"] != json!({});
            assert_eq!(status == Some(1), has_faults, "{damage}: {found:#}");
            faulty += u32::from(has_faults);
        }
        assert_eq!(written().expect("a time"), before, "{damage}: written to");
        patient.undo(damage).expect("it was written before");
    }
    assert!(
        faulty > 20 && refused > 0,
        "{faulty} faulty, {refused} refused"
    );
}
