//! How objects of an image are named and listed: `IMAGE:PATH`, patterns, several paths.

use std::fs;
use std::os::unix::fs::symlink;

use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{failing, fourscore, printed, text};
use crate::place::Place;

fn image(place: &Place) -> String {
    let tree = place.path("small");
    fs::create_dir_all(tree.join("logs/old")).expect("space");
    for (name, content) in [
        ("logs/a.log", "a\n"),
        ("logs/b.log", "b\n"),
        ("logs/.hidden.log", "hidden\n"),
        ("logs/c.txt", "c\n"),
        ("logs/old/a.log", "old\n"),
        ("lit*ral", "literal\n"),
        ("literal", "other\n"),
    ] {
        fs::write(tree.join(name), content).expect("space");
    }
    fs::hard_link(tree.join("logs/a.log"), tree.join("logs/same.log")).expect("space");
    symlink("a.log", tree.join("logs/link")).expect("space");
    let image = place.text("disk");
    printed(&mut fourscore(&[
        "build",
        text(&tree),
        "--size",
        "16M",
        "-o",
        &image,
    ]));
    image
}

fn said(words: &[&str]) -> String {
    printed(&mut fourscore(words))
}

#[test]
fn paths_may_be_patterns_and_follow_a_colon() {
    let place = Place::new();
    let disk = image(&place);
    let at = |path: &str| format!("{disk}:{path}");
    assert_eq!(said(&["cat", &disk, "/logs/[ab].log"]), "a\nb\n");
    assert_eq!(said(&["cat", &at("/logs/*.log")]), "a\nb\na\n");
    assert_eq!(
        said(&["cat", &at("/logs/.*.log"), &at("/*/old/?.log")]),
        "hidden\nold\n"
    );
    assert_eq!(said(&["cat", &disk, "/lit*ral"]), "literal\n");
    assert_eq!(said(&["cat", &disk, "/lit\\*ral"]), "literal\n");
    assert_eq!(said(&["readlink", &at("/logs/link")]), "a.log\n");
    assert_eq!(said(&["walk", &at("/logs/old")]).lines().count(), 2);
    assert!(said(&["stat", &at("/logs")]).contains("directory"));
    let (status, message) = failing(&["cat", &disk, "/none*"]);
    assert_eq!(status, Some(1));
    assert_eq!(
        message,
        format!("fourscore: {disk}: /none*: no such file or directory\n")
    );
    said(&["edit", &disk, "rm", "/logs/*.log"]);
    let expected = ".hidden.log\nc.txt\nlink\nold\n";
    assert_eq!(said(&["ls", &at("/logs")]), expected);
}

/// What can be read is printed, and the status says that something could not.
#[test]
fn cat_prints_what_it_can() {
    let place = Place::new();
    let disk = image(&place);
    let output = fourscore(&["cat", &disk, "/logs/a.log", "/none", "/logs", "/logs/c.txt"])
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a\nc\n");
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "fourscore: {disk}: /none: no such file or directory\nfourscore: {disk}: /logs: is a \
         directory\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn ls_has_the_options_of_ls() {
    let place = Place::new();
    let disk = image(&place);
    assert_eq!(
        said(&["ls", "-d", &disk, "/logs", "/literal"]),
        "/logs\n/literal\n"
    );
    assert!(said(&["ls", "-a", &disk, "/logs"]).starts_with(".\n..\n.hidden.log\na.log\n"));
    let several = said(&["ls", &disk, "/literal", "/logs/old", "/logs/ol?"]);
    assert_eq!(
        several,
        "/literal\n\n/logs/old:\na.log\n\n/logs/old:\na.log\n"
    );
    said(&["edit", &disk, "touch", "-d", "@2000000000", "/logs/c.txt"]);
    said(&["edit", &disk, "touch", "-d", "@1900000000", "/logs/b.log"]);
    assert!(said(&["ls", "-t", &disk, "/logs"]).starts_with("c.txt\nb.log\n"));
    said(&["edit", &disk, "truncate", "-s", "1500000", "/logs/c.txt"]);
    let long = said(&["ls", "-l", "-h", &disk, "/logs"]);
    assert!(
        long.lines()
            .any(|line| line.contains("1.5M") && line.ends_with("c.txt")),
        "{long}"
    );
}

#[test]
fn some_paths_are_extracted_with_their_directories() {
    let place = Place::new();
    let disk = image(&place);
    let to = place.path("out");
    said(&[
        "extract",
        &disk,
        text(&to),
        "/logs/*.log",
        "/logs/old",
        "literal",
    ]);
    let read = |path: &str| fs::read_to_string(to.join(path)).expect(path);
    assert_eq!(
        (read("logs/b.log"), read("logs/old/a.log")),
        ("b\n".into(), "old\n".into())
    );
    assert_eq!(read("literal"), "other\n");
    assert!(!to.join("logs/c.txt").exists());
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &str| fs::metadata(to.join(path)).expect(path).ino();
    assert_eq!(inode("logs/a.log"), inode("logs/same.log"));
    let (status, message) = failing(&["extract", &disk, text(&to), "/logs/../literal"]);
    assert_eq!(status, Some(1), "{message}");
    assert_eq!(failing(&["extract", &disk, "-", "/logs"]).0, Some(2));
}

/// A shell passes a directory and names in it, and some names twice, if patterns overlap.
#[test]
fn paths_that_overlap_are_extracted_once_and_errors_end_nothing() {
    let place = Place::new();
    let disk = image(&place);
    let to = place.path("out");
    let extract = ["extract", &disk, text(&to)];
    let paths = [
        "/logs/a.log",
        "/logs",
        "/log*",
        "/logs/old/a.log",
        "literal",
    ];
    said(&[&extract[..], &paths].concat());
    for path in ["logs/a.log", "logs/old/a.log", "literal"] {
        assert!(to.join(path).exists(), "{path}");
    }
    // Objects of a later directory are extracted after an error with one of an earlier directory.
    fs::remove_dir_all(to.join("logs/old")).expect("it is there");
    let (status, message) = failing(&[&extract[..], &["literal", "/logs/old/a.log"]].concat());
    assert_eq!(status, Some(1), "{message}");
    assert!(message.contains("literal: File exists"), "{message}");
    assert!(to.join("logs/old/a.log").exists());
}

/// Links of the image and of the host lead nowhere, also when one command makes and passes them.
#[test]
fn extracted_paths_stay_below_their_directory() {
    let place = Place::new();
    let (tree, outside) = (place.path("small"), place.path("outside"));
    let inner = tree.join(outside.strip_prefix("/").expect("absolute"));
    fs::create_dir_all(&inner).expect("space");
    fs::create_dir(&outside).expect("space");
    fs::write(inner.join("pwn"), "").expect("space");
    symlink(&outside, tree.join("link")).expect("space");
    let disk = place.text("disk");
    let build = ["build", text(&tree), "--size", "16M", "-o", &disk];
    said(&build);
    for (to, paths) in [("out", ["/link", "/link/pwn"]), ("out2", ["/*", "/l*/*"])] {
        let to = place.path(to);
        let (status, message) = failing(&["extract", &disk, text(&to), paths[0], paths[1]]);
        assert_eq!(status, Some(1), "{message}");
        assert!(message.contains("symbolic link"), "{message}");
        assert!(message.contains(text(&to.join("link"))), "{message}");
        assert_eq!(fs::read_dir(&outside).expect("there").count(), 0);
    }
    // The link that DIR itself is may lead anywhere.
    symlink(place.path("out3"), place.path("to")).expect("space");
    fs::create_dir(place.path("out3")).expect("space");
    said(&["extract", &disk, &place.text("to"), "/link/pwn"]);
    assert!(place.path("out3/link/pwn").exists());
}

/// The keys are those of docs/JSON.md, and one object looks the same in `ls`, `stat` and `walk`.
#[test]
fn objects_have_the_same_json_everywhere() {
    let place = Place::new();
    let disk = image(&place);
    let value = |text: &str| -> serde_json::Value { serde_json::from_str(text).expect("JSON") };
    let path = "/logs/link";
    let stat = value(&said(&["stat", "--json", &disk, path]));
    let walked = said(&["walk", "--json", "--full", "--hash", &disk]);
    let walked: Vec<_> = walked.lines().map(value).collect();
    let walked = walked
        .iter()
        .find(|one| one["path"] == path)
        .expect("it is there");
    let listed = said(&["ls", "--json", &disk, "/logs"]);
    let listed: Vec<_> = listed.lines().map(value).collect();
    let listed = listed
        .iter()
        .find(|one| one["path"] == path)
        .expect("it is there");
    let page = include_str!("../../../../docs/JSON.md");
    for found in [&stat, walked, listed] {
        for (key, value) in found.as_object().expect("an object") {
            assert!(page.contains(&format!("`{key}`")), "{key}");
            assert_eq!(&stat.get(key).unwrap_or(value), &value, "{key}");
        }
    }
    assert_eq!(walked["target"], "a.log");
    assert!(
        walked.as_object().is_some_and(|keys| keys.len() == 17),
        "{walked}"
    );
}

/// Names of an image are printed as they are, but for a terminal, to which control characters in
/// them could be commands.
#[test]
fn a_terminal_gets_no_control_characters_of_an_image() {
    require!(Need::Program("script"));
    let place = Place::new();
    let (tree, disk) = (place.path("odd"), place.text("odd.img"));
    let hostile = "red\u{1b}[31m\u{9b}2J\u{7}";
    fs::create_dir_all(tree.join(hostile)).expect("space");
    fs::write(tree.join(hostile).join(hostile), "").expect("space");
    symlink(hostile, tree.join("link")).expect("space");
    printed(&mut fourscore(&["build", text(&tree), "-o", &disk]));
    let command = env!("CARGO_BIN_EXE_fourscore");
    let debugfs = place.path("debugfs");
    symlink(command, &debugfs).expect("space");
    let requests = ["ls", "ls -l", "ls -p", "stat link"];
    let requests = requests.map(|request| format!("{} -R '{request}' {disk}", text(&debugfs)));
    let verbs = ["ls -lR", "walk", "readlink", "stat"].map(|verb| {
        let path = if matches!(verb, "readlink" | "stat") {
            "/link"
        } else {
            "/"
        };
        format!("{command} {verb} {disk} {path}")
    });
    // An error that names an object of the image.
    let error = format!("{command} cat {disk} '/*'");
    for line in [&requests[..], &verbs, &[error]].concat() {
        let mut script = std::process::Command::new("script");
        let output = script.args(["-qec", &line, "/dev/null"]).output();
        let shown = output.expect("it runs").stdout;
        let shown = String::from_utf8_lossy(&shown).replace("\r\n", "");
        assert!(!shown.contains(char::is_control), "{line}: {shown:?}");
    }
    let listed = said(&["ls", "-lR", &disk, "/"]);
    assert_eq!(listed.matches(hostile).count(), 4, "{listed:?}");
    assert_eq!(said(&["readlink", &disk, "/link"]), format!("{hostile}\n"));
}
