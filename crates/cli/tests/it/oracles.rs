//! The output equals that of dumpe2fs, e2freefrag, filefrag and debugfs.

use std::path::Path;

use anyhow::{Result, ensure};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Access, Image, KernelMount, MiB, matrix, oracle, require, tools};

use crate::common::{fourscore, printed, text};

/// The lines in which two outputs differ.
fn difference(ours: &str, theirs: &str) -> String {
    let different = |(ours, theirs): (&str, &str)| {
        (ours != theirs).then(|| format!("ours:   {ours}\ntheirs: {theirs}\n"))
    };
    let lines: String = ours
        .lines()
        .zip(theirs.lines())
        .filter_map(different)
        .take(5)
        .collect();
    format!(
        "{lines}({} and {} lines)",
        ours.lines().count(),
        theirs.lines().count()
    )
}

/// An image of a configuration; `None` for those that differ only by their tree.
fn image_of(config: &matrix::Config) -> Result<Option<Image>> {
    let needs_a_tree = ["verity", "project", "casefold", "casefold-strict"];
    if needs_a_tree.contains(&config.name) {
        Ok(None)
    } else {
        config.empty().map(Some)
    }
}

fn theirs(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = tools::command(program)?;
    tools::stdout_of(command.args(arguments).env("TZ", "UTC"))
}

fn same(ours: &str, theirs: &str) -> Result<()> {
    ensure!(ours == theirs, "{}", difference(ours, theirs));
    Ok(())
}

#[test]
fn info_equals_dumpe2fs_on_every_configuration() {
    require!(Need::Program("mke2fs"), Need::Program("dumpe2fs"));
    matrix::assert_all(|config| {
        let Some(image) = image_of(config)? else {
            return Ok(());
        };
        let path = text(image.path());
        same(
            &printed(&mut fourscore(&["info", path])),
            &theirs("dumpe2fs", &["-h", path])?,
        )?;
        let ours = printed(&mut fourscore(&["info", "--groups", path]));
        same(&ours, &theirs("dumpe2fs", &[path])?)?;
        let json = printed(&mut fourscore(&["info", "--groups", "--json", path]));
        let json: serde_json::Value = serde_json::from_str(&json)?;
        let blocks = json["block_size"].as_u64();
        ensure!(blocks == Some(config.block_size_bytes.into()), "{blocks:?}");
        Ok(())
    });
}

#[test]
fn freefrag_equals_e2freefrag_on_every_configuration() {
    require!(Need::Program("mke2fs"), Need::Program("e2freefrag"));
    matrix::assert_all(|config| {
        // With bigalloc, e2freefrag 1.47 counts only some of the free clusters.
        if config.has("bigalloc") {
            return Ok(());
        }
        let Some(image) = image_of(config)? else {
            return Ok(());
        };
        let path = text(image.path());
        same(
            &printed(&mut fourscore(&["freefrag", path])),
            &theirs("e2freefrag", &[path])?,
        )?;
        let ours = printed(&mut fourscore(&["freefrag", "-c", "1024", path]));
        same(&ours, &theirs("e2freefrag", &["-c", "1024", path])?)
    });
}

/// Files whose extents have holes, gaps and, if the file system supports them, unwritten parts.
fn make_fragments(root: &Path, kind: &str) {
    let mut shell = String::from(
        "dd if=/dev/urandom of=plain bs=1k count=300 && \
         dd if=/dev/urandom of=holes bs=1k count=8 && \
         dd if=/dev/urandom of=holes bs=1k seek=100 count=5 conv=notrunc && \
         truncate -s 1M empty && printf abc > inline && sync",
    );
    if kind == "ext4" {
        shell.push_str(
            " && fallocate -l 50k -o 200k holes && sync && \
             for i in 0 2 4 6; do fallocate -p -o ${i}k -l 1k holes; done && \
             fallocate -l 10k beyond && fallocate -n -o 10k -l 30k beyond && sync",
        );
    } else {
        shell.push_str(" && cp plain beyond && sync");
    }
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &shell]).current_dir(root);
    let output = tools::output_of(&mut command).expect("sh runs");
    assert!(
        output.status.success(),
        "{}",
        tools::describe(&command, &output)
    );
}

#[test]
fn filefrag_equals_the_kernel() {
    require!(Need::Program("filefrag"), Need::KernelMount);
    let images = [
        ("ext4", &[][..], 1024),
        ("ext4", &["inline_data"], 4096),
        ("ext2", &[], 1024),
    ];
    for (kind, features, block_size) in images {
        let image = Image::builder(MiB(64))
            .kind(kind)
            .features(features)
            .block_size_bytes(block_size)
            .make()
            .expect("mke2fs runs");
        let mount = KernelMount::new(image.path(), Access::ReadWrite, "").expect("a mount");
        make_fragments(mount.path(), kind);
        mount.unmount().expect("unmounts");
        let mount = KernelMount::new(image.path(), Access::ReadOnly, "").expect("a mount");
        for name in ["plain", "holes", "beyond", "empty", "inline"] {
            let mut filefrag = tools::command("filefrag").expect("found before");
            filefrag.args(["-v", name]).current_dir(mount.path());
            let theirs = tools::stdout_of(&mut filefrag).expect("filefrag runs");
            let ours = printed(&mut fourscore(&["filefrag", text(image.path()), name]));
            assert!(
                ours == theirs,
                "{kind} {name}: {}",
                difference(&ours, &theirs)
            );
        }
    }
}

#[test]
fn ls_stat_and_cat_agree_with_debugfs() {
    require!(Need::Program("mke2fs"), Need::Program("debugfs"));
    let source = fourscore_testkit::scratch::folder().expect("a folder");
    std::fs::create_dir(source.path().join("etc")).expect("space");
    std::fs::write(source.path().join("etc/file"), "content\n").expect("space");
    std::os::unix::fs::symlink("etc/file", source.path().join("link")).expect("space");
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .source(source.path())
        .make();
    let image = image.expect("mke2fs runs");
    let path = text(image.path());
    assert_eq!(
        printed(&mut fourscore(&["cat", path, "/link"])),
        "content\n"
    );
    assert_eq!(
        printed(&mut fourscore(&["readlink", path, "link"])),
        "etc/file\n"
    );
    assert_eq!(
        printed(&mut fourscore(&["ls", path])),
        "etc\nlink\nlost+found\n"
    );
    let long = printed(&mut fourscore(&["ls", "-lR", path, "/etc"]));
    assert!(long.starts_with("/etc:\n-rw-r--r--   1 "), "{long}");
    let debugfs = oracle::debugfs(image.path(), &["stat /etc/file"]).expect("debugfs runs");
    let stat = printed(&mut fourscore(&["stat", "--json", path, "/etc/file"]));
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    let inode = debugfs
        .split_whitespace()
        .nth(1)
        .and_then(|nr| nr.parse::<u64>().ok());
    assert_eq!(stat["inode"].as_u64(), inode, "{debugfs}");
    assert_eq!(stat["flags"][0], "EXTENTS_FL");
    assert_eq!(stat["size_bytes"], 8);
    let ls = printed(&mut fourscore(&["ls", "--json", path]));
    assert_eq!(ls.lines().count(), 3);
    assert!(
        ls.lines()
            .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
    );
}
