//! The README and the task pages: what they show runs, and their Rust compiles.
//!
//! A page is one shell session: the lines of its `console` blocks that begin with `$ ` run one
//! after the other, and each must end with status 0. Each block begins in the same scratch
//! directory. The comment `<!-- setup: NAME -->` at the page's head says what is in it; without
//! one, everything is that [`prepare`] knows. Blocks with the info string `console,no-run` are left
//! out, and those that use a program that is not installed. A page that does not exist has no
//! session.

#[allow(dead_code, reason = "its main is for people")]
#[path = "../../examples/embed.rs"]
mod embed;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fourscore_testkit::tools::{self, Need};
use fourscore_testkit::{require, scratch};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::common::{fourscore, printed, text};

#[test]
fn commands_of_the_readme_run() {
    can_run("README.md");
}

#[test]
fn commands_of_the_page_about_mounting_run() {
    can_run("docs/MOUNT.md");
}

#[test]
fn commands_of_the_page_about_editing_run() {
    can_run("docs/EDIT.md");
}

#[test]
fn commands_of_the_page_about_building_run() {
    can_run("docs/BUILD.md");
}

#[test]
fn commands_of_the_page_about_the_library_run() {
    can_run("docs/EMBED.md");
}

#[test]
fn commands_of_the_page_about_trouble_run() {
    can_run("docs/TROUBLESHOOTING.md");
}

#[test]
fn commands_of_the_page_about_attributes_run() {
    can_run("docs/XATTRS.md");
}

#[test]
fn rust_of_the_documents_is_the_example_and_runs() {
    let example = include_str!("../../examples/embed.rs");
    let lines: Vec<&str> = example.lines().map(str::trim).collect();
    let mut blocks_seen = 0;
    for page in ["README.md", "docs/EMBED.md"] {
        let content = fs::read_to_string(root().join(page)).expect("the page exists");
        for block in blocks(&content)
            .into_iter()
            .filter(|block| block.info == "rust")
        {
            let wanted: Vec<&str> = block.lines.iter().map(|line| line.trim()).collect();
            let is_there = lines.windows(wanted.len()).any(|window| window == wanted);
            assert!(is_there, "{page}:{}: not in examples/embed.rs", block.line);
            blocks_seen += 1;
        }
    }
    assert!(blocks_seen > 5, "{blocks_seen} blocks");
    let folder = scratch::folder().expect("a folder");
    prepare("image", folder.path());
    embed::run(&folder.path().join("disk.ext4")).expect("it runs");
}

#[test]
fn blocks_and_commands_are_found() {
    let page =
        "<!-- setup: x -->\n```console\n$ a \\\n  b\nsaid\n$ c\n```\n```console,no-run\n$ d\n```\n";
    let found = blocks(page);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].info, found[0].line), ("console", 2));
    assert_eq!(
        commands(&found[0]),
        [(3, "a \\\n  b".into()), (6, "c".into())]
    );
    assert_eq!(setup(page), Some("x"));
    let page = "```console\n$ cat > a <<'EOF'\n$ b\nEOF\n$ c\n```\n";
    let found = commands(&blocks(page)[0]);
    assert_eq!(
        found,
        [(2, "cat > a <<'EOF'\n$ b\nEOF".into()), (5, "c".into())]
    );
}

#[test]
fn a_command_that_fails_is_named_by_its_line() {
    require!(Need::Program("bash"));
    let folder = scratch::folder().expect("a folder");
    let fails = [
        vec![(3, "true | cat # fine".into())],
        vec![(7, "false | cat".into())],
    ];
    let complaint = session(folder.path(), folder.path(), &fails).expect_err("it fails");
    assert!(complaint.starts_with("7 failed"), "{complaint}");
}

/// Runs the session of a page.
#[track_caller]
fn can_run(page: &str) {
    let path = root().join(page);
    if !path.exists() {
        return;
    }
    let content = fs::read_to_string(&path).expect("a page");
    let shown = blocks(&content);
    let is_run = |block: &&Block<'_>| block.info == "console" && has_programs_of(block);
    let commands: Vec<Vec<(usize, String)>> = shown.iter().filter(is_run).map(commands).collect();
    let mut all = commands.iter().flatten();
    let mounts = all.any(|(_, command)| command.contains("fourscore mount"));
    let is_root_with_fuse = Need::Root.is_met() && Path::new("/dev/fuse").exists();
    if mounts && !is_root_with_fuse {
        require!(Need::Fuse);
    }
    require!(Need::Program("bash"), Need::Program("tar"));
    let folder = scratch::folder().expect("a folder");
    let place = folder.path().join("page");
    fs::create_dir(&place).expect("room");
    prepare(setup(&content).unwrap_or("sources"), &place);
    let outcome = session(folder.path(), &place, &commands);
    unmount_all_below(folder.path());
    if let Err(complaint) = outcome {
        panic!("{page}:{complaint}");
    }
}

/// Whether the programs that a block uses and that not every machine has are installed.
fn has_programs_of(block: &Block<'_>) -> bool {
    ["debugfs", "e2fsck", "fakeroot", "zstd"]
        .into_iter()
        .filter(|program| {
            let begins = |line: &&str| line.split([' ', '|']).any(|word| word == *program);
            block.lines.iter().any(begins)
        })
        .all(|program| tools::are_met(&[Need::Program(program)]))
}

/// Runs blocks of commands in one shell; an error names the line of the page and what was printed.
fn session(folder: &Path, place: &Path, blocks: &[Vec<(usize, String)>]) -> Result<(), String> {
    let bin = folder.join("bin");
    fs::create_dir(&bin).expect("room");
    symlink(fourscore::<&str>(&[]).get_program(), bin.join("fourscore")).expect("room");
    let failed = folder.join("failed");
    let mut script = String::from("set -o pipefail\n");
    for block in blocks {
        script.push_str(&format!("cd '{}'\n", text(place)));
        for (line, command) in block {
            let note = format!("echo {line} > '{}'", text(&failed));
            script.push_str(&format!("{{ {command}\n}} || {{ {note}; exit 1; }}\n"));
        }
    }
    // A server that stays keeps what it has inherited open, so this is a file and no pipe.
    let said = folder.join("said");
    let (output, errors) = {
        let file = File::create(&said).expect("room");
        (file.try_clone().expect("a descriptor"), file)
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let status = Command::new("bash")
        .args(["-c", &script])
        .env("PATH", format!("{}:{path}", text(&bin)))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .expect("bash is there");
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(&said).unwrap_or_default();
    let line = fs::read_to_string(&failed).unwrap_or_default();
    Err(format!(
        "{} failed; the session printed:\n{said}",
        line.trim()
    ))
}

/// What a page finds in its directory: `tree` is `rootfs/`; `image` is that, an image of it, an
/// empty directory `mnt/`, and a disk with one partition, `disk.img`; `sources` is the tree, an
/// archive of it, `overlay/`, and `image/`, a container image in an OCI layout.
fn prepare(setup: &str, place: &Path) {
    let tree = place.join("rootfs");
    fs::create_dir_all(tree.join("etc")).expect("room");
    fs::create_dir_all(tree.join("bin")).expect("room");
    fs::write(tree.join("etc/motd"), "welcome\n").expect("room");
    fs::write(tree.join("etc/hostname"), "eighty\n").expect("room");
    symlink("motd", tree.join("etc/issue")).expect("room");
    let tool = tree.join("bin/tool");
    fs::write(&tool, "#!/bin/sh\necho tool\n").expect("room");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("its owner");
    match setup {
        "tree" => {}
        "image" => {
            let (tree, image) = (text(&tree), place.join("disk.ext4"));
            let build = ["build", tree, "--size", "32M", "-o", text(&image)];
            printed(&mut fourscore(&build));
            fs::create_dir(place.join("mnt")).expect("room");
            disk_with_a_partition(&place.join("disk.img"));
        }
        "sources" => {
            let archive = place.join("rootfs.tar");
            let tar = ["-C", text(&tree), "-cf", text(&archive), "."];
            let status = Command::new("tar").args(tar).status();
            assert!(status.expect("tar is there").success());
            fs::create_dir_all(place.join("overlay/etc")).expect("room");
            fs::write(place.join("overlay/etc/hostname"), "192\n").expect("room");
            let layer = fs::read(&archive).expect("an archive");
            container_image(&place.join("image"), &layer);
        }
        unknown => panic!("no setup is called {unknown:?}"),
    }
}

/// A disk of 32 MiB with a DOS table: one partition of 16 MiB at 1 MiB.
fn disk_with_a_partition(path: &Path) {
    let disk = File::create(path).expect("room");
    disk.set_len(32 << 20).expect("room");
    let numbers = [2048_u32, 32_768].map(u32::to_le_bytes).concat();
    let entry = [&[0, 0, 0, 0, 0x83, 0, 0, 0][..], &numbers].concat();
    disk.write_all_at(&entry, 446).expect("room");
    disk.write_all_at(&[0x55, 0xaa], 510).expect("room");
}

/// An OCI layout with one image of one layer, tagged `latest`.
fn container_image(folder: &Path, layer: &[u8]) {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("room");
    let put = |kind: &str, bytes: &[u8]| {
        let hex: String = Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        fs::write(blobs.join(&hex), bytes).expect("room");
        let kind = format!("application/vnd.oci.image.{kind}");
        json!({ "mediaType": kind, "digest": format!("sha256:{hex}"), "size": bytes.len() })
    };
    let layer = put("layer.v1.tar", layer);
    let diffs = json!({ "type": "layers", "diff_ids": [layer["digest"]] });
    let config = json!({ "architecture": "amd64", "os": "linux", "rootfs": diffs });
    let config = put("config.v1+json", config.to_string().as_bytes());
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
    let mut manifest = put("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": "latest" });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    fs::write(folder.join("index.json"), index.to_string()).expect("room");
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    fs::write(folder.join("oci-layout"), version.to_string()).expect("room");
}

/// Takes away what a failed session has left mounted.
fn unmount_all_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("proc");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(folder)) {
        let status = Command::new("umount").args(["-l", point]).status();
        assert!(status.expect("umount is there").success(), "{point}");
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A fenced block of a page.
struct Block<'a> {
    /// What is behind the fence that begins it.
    info: &'a str,
    /// The number of that line.
    line: usize,
    lines: Vec<&'a str>,
}

fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut found: Vec<Block<'_>> = Vec::new();
    let mut is_inside = false;
    for (index, line) in page.lines().enumerate() {
        match (line.strip_prefix("```"), is_inside) {
            (Some(info), false) => {
                found.push(Block {
                    info,
                    line: index + 1,
                    lines: Vec::new(),
                });
                is_inside = true;
            }
            (Some(_), true) => is_inside = false,
            (None, true) => {
                if let Some(block) = found.last_mut() {
                    block.lines.push(line);
                }
            }
            (None, false) => {}
        }
    }
    found
}

/// The commands of a block with the numbers of their lines. A command goes on behind a backslash
/// and to the end of a here-document; other lines are what it prints.
fn commands(block: &Block<'_>) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut goes_on, mut document_ends) = (false, None);
    for (index, line) in block.lines.iter().enumerate() {
        let is_new = !goes_on && document_ends.is_none();
        match (line.strip_prefix("$ "), found.last_mut()) {
            (Some(command), _) if is_new => {
                found.push((block.line + index + 1, command.to_owned()));
            }
            (_, Some((_, command))) if !is_new => {
                command.push('\n');
                command.push_str(line);
            }
            _ => continue,
        }
        match document_ends {
            Some(end) if *line == end => document_ends = None,
            Some(_) => {}
            None => {
                let word = line
                    .split_once("<<")
                    .map(|(_, word)| word.trim_matches(['\'', ' ']));
                document_ends = word.filter(|_| line.starts_with("$ "));
            }
        }
        goes_on = line.ends_with('\\') && document_ends.is_none();
    }
    found
}

/// The name of the setup in the comment at a page's head.
fn setup(page: &str) -> Option<&str> {
    let comment = page.lines().next()?.strip_prefix("<!-- setup: ")?;
    comment.strip_suffix(" -->")
}
