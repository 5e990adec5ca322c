//! Errors are one line, exit statuses are those of the documentation, and every verb has help.

use std::io::Read;
use std::process::Stdio;

use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require, scratch};

use crate::common::{failing, fourscore, printed, text};

#[test]
fn every_verb_has_an_example() {
    let command = fourscore_cli::command();
    let verbs: Vec<_> = command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set())
        .map(|verb| verb.get_name().to_owned())
        .collect();
    assert_eq!(
        verbs,
        [
            "info",
            "ls",
            "stat",
            "cat",
            "readlink",
            "cp",
            "edit",
            "extract",
            "walk",
            "build",
            "mount",
            "mkfs",
            "freefrag",
            "filefrag",
            "stats",
            "xattr-report",
            "tune",
            "resize",
            "umount",
            "bench",
            "lab",
            "check",
            "completions",
            "man"
        ]
    );
    for verb in verbs {
        let help = printed(&mut fourscore(&[verb.as_str(), "--help"]));
        assert!(
            help.contains("Example") && help.contains(&format!("fourscore {verb}")),
            "{help}"
        );
    }
    fourscore_cli::command().debug_assert();
}

#[test]
fn wrong_usage_is_status_2() {
    for arguments in [
        &[][..],
        &["ls"],
        &["walk"],
        &["nonsense"],
        &["ls", "x.img@1X"],
    ] {
        let (status, message) = failing(arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {message}");
    }
    let both = failing(&["walk", "x.img", "--host", "dir"]);
    assert_eq!(both.0, Some(2), "{}", both.1);
}

#[test]
fn a_closed_pipe_is_no_error_of_a_list() {
    require!(Need::Program("mke2fs"));
    let source = scratch::folder().expect("a folder");
    for nr in 0..2000 {
        let name = format!("{}-{nr}", "long".repeat(50));
        std::fs::write(source.path().join(name), [0xaa; 3000]).expect("space");
    }
    let image = Image::builder(MiB(64))
        .kind("ext4")
        .source(source.path())
        .make();
    let image = image.expect("mke2fs runs");
    let path = text(image.path());
    for (arguments, expected) in [
        (["walk", path].as_slice(), 0),
        // Who keeps the archive or the image has only its beginning.
        (&["extract", path, "-"], 141),
        (&["build", text(source.path()), "-o", "-"], 141),
    ] {
        let mut child = fourscore(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program exists");
        let mut stdout = child.stdout.take().expect("a pipe");
        stdout.read_exact(&mut [0; 10]).expect("some output");
        drop(stdout);
        let output = child.wait_with_output().expect("it ends");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(expected),
            "{arguments:?}: {message}"
        );
        assert_eq!(message, "");
    }
}

/// The reader of the output sleeps, so that the work takes longer than the bar is hidden.
#[test]
fn long_work_shows_a_bar_on_a_terminal() {
    require!(Need::Program("mke2fs"), Need::Program("script"));
    let source = scratch::folder().expect("a folder");
    // More output than the pipe and the command's buffer hold. The directories are small, since
    // mke2fs searches each from the start for every name.
    for folder in 0..60 {
        let folder = source.path().join(format!("folder-{folder}"));
        std::fs::create_dir(&folder).expect("space");
        for nr in 0..150 {
            let name = format!("{}-{nr}", "long".repeat(60));
            std::fs::write(folder.join(name), b"").expect("space");
        }
    }
    let image = Image::builder(MiB(64))
        .kind("ext4")
        .source(source.path())
        .make()
        .expect("mke2fs runs");
    let program = env!("CARGO_BIN_EXE_fourscore");
    for arguments in ["walk IMAGE", "extract IMAGE -"] {
        let arguments = arguments.replace("IMAGE", text(image.path()));
        let shell = format!("{program} {arguments} | (sleep 2; cat > /dev/null)");
        let shown = std::process::Command::new("script")
            .args(["-q", "-e", "-c", &shell, "/dev/null"])
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        let bar = String::from_utf8_lossy(&shown.stdout);
        assert!(shown.status.success(), "{bar}");
        assert!(bar.contains("objects, "), "{arguments}: {bar:?}");
    }
}

#[test]
fn a_partition_is_found_at_its_offset() {
    require!(Need::Program("mke2fs"));
    let image = Image::builder(MiB(8))
        .kind("ext2")
        .make()
        .expect("mke2fs runs");
    let place = scratch::folder().expect("a folder");
    let disk = place.path().join("disk");
    let mut bytes = vec![0; 1 << 20];
    bytes.extend(std::fs::read(image.path()).expect("the image"));
    std::fs::write(&disk, bytes).expect("space");
    let inside = format!("{}@1M", text(&disk));
    let whole = printed(&mut fourscore(&["walk", text(image.path())]));
    assert_eq!(printed(&mut fourscore(&["walk", &inside])), whole);
    assert_eq!(failing(&["walk", text(&disk)]).0, Some(1));
    assert_eq!(
        failing(&["walk", &format!("{}@1G", text(&disk))]).0,
        Some(1)
    );
}

#[test]
fn the_feature_table_is_printed() {
    let table = printed(&mut fourscore(&["info", "--features"]));
    assert!(
        table.contains("| metadata_csum_seed") && table.contains("INCOMPAT"),
        "{table}"
    );
    let json = printed(&mut fourscore(&["info", "--features", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json.as_array().is_some_and(|rows| rows.len() > 40));
}

#[test]
fn info_of_15_tib_does_not_read_the_groups() {
    require!(Need::Program("mke2fs"));
    let place = scratch::folder().expect("a folder");
    let path = place.path().join("big");
    let file = std::fs::File::create(&path).expect("space");
    file.set_len(15 << 40).expect("a sparse file");
    let mut mke2fs = fourscore_testkit::tools::command("mke2fs").expect("found before");
    let options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,packed_meta_blocks=1";
    mke2fs
        .args(["-q", "-F", "-t", "ext4", "-N", "1000000", "-E", options])
        .arg(&path);
    fourscore_testkit::tools::stdout_of(&mut mke2fs).expect("mke2fs runs");
    let start = std::time::Instant::now();
    let info = printed(&mut fourscore(&["info", text(&path)]));
    let took = start.elapsed();
    assert!(
        info.contains("Block count:              4026531840"),
        "{info}"
    );
    // The target is 50 ms; reading 122 880 descriptors or bitmaps would take seconds.
    assert!(took < std::time::Duration::from_secs(1), "{took:?}");
}
