//! `-q` and `-v` of all verbs, and names of users and groups in `--owner`.

use std::fs;

use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, require};

use crate::common::{fourscore, printed, refused, text};
use crate::place::Place;

/// Standard output and standard error of a run that succeeds.
#[track_caller]
fn both(arguments: &[&str]) -> (String, String) {
    let output = fourscore(arguments).output().expect("the program exists");
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", lossy(&output.stderr));
    (lossy(&output.stdout), lossy(&output.stderr))
}

#[test]
fn every_verb_takes_q_and_v() {
    fn verbs(command: &clap::Command, above: &[&str]) {
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let words = [above, &[verb.get_name()]].concat();
            verbs(verb, &words);
            if verb.get_name() == "help" {
                continue;
            }
            let help = printed(&mut fourscore(&[&words[..], &["--help"]].concat()));
            assert!(help.contains("--quiet"), "{words:?}: {help}");
            // The value of setfattr has this letter.
            let is_taken = verb.get_name() == "setfattr";
            assert!(
                is_taken || help.contains("-v, --verbose"),
                "{words:?}: {help}"
            );
        }
    }
    verbs(&fourscore_cli::command(), &[]);
}

#[test]
fn quiet_verbs_print_only_what_was_asked_for() {
    let place = Place::new();
    let (tree, image) = (place.text("tree"), place.text("image"));
    let nothing = (String::new(), String::new());
    assert_eq!(both(&["build", "-q", &tree, "-o", &image]), nothing);
    assert_eq!(both(&["-q", "check", "-n", &image]), nothing);
    let json = both(&["build", "-q", "--json", &tree, "-F", "-o", &image]);
    assert!(json.0.contains("\"uuid\""), "{json:?}");
    let listed = both(&["ls", &image, "/"]);
    assert_eq!(both(&["ls", "-q", &image, "/"]), listed);
    assert!(!listed.0.is_empty());
    refused(
        &["ls", "-q", &image, "/none"],
        "/none: no such file or directory",
    );
}

#[test]
fn verbose_verbs_print_their_steps_to_standard_error() {
    let place = Place::new();
    let (tree, image) = (place.text("tree"), place.text("image"));
    let (_, steps) = both(&["build", "-v", &tree, "--size", "32M", "-o", &image]);
    assert!(
        steps.contains("INFO") && steps.contains("the source is read"),
        "{steps}"
    );
    let plain = both(&["ls", &image, "/"]);
    assert_eq!(plain.1, "");
    let (listed, steps) = both(&["ls", "-v", &image, "/"]);
    assert_eq!(listed, plain.0);
    assert!(steps.contains("the file system is open"), "{steps}");
    assert!(steps.contains(&format!("image=\"{image}\"")), "{steps}");
    let into = format!("{image}:/copied");
    let (_, steps) = both(&["cp", "--verbose", "/etc/passwd", &into]);
    assert!(
        steps.contains("copy from=\"/etc/passwd\" to=\"/copied\""),
        "{steps}"
    );
    let (_, steps) = both(&["edit", "-v", &image, "rm", "/copied"]);
    assert!(steps.contains("Rm") && steps.contains("copied"), "{steps}");
    let (_, steps) = both(&[
        "edit", &image, "setfattr", "-n", "user.a", "-v", "value", "/",
    ]);
    assert_eq!(steps, "", "-v of setfattr is the value");
}

#[test]
fn a_replay_of_the_journal_is_a_step() {
    require!(Need::Program("debugfs"));
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .make()
        .expect("mke2fs runs");
    let path = text(image.path());
    let script = image.path().with_extension("script");
    fs::write(&script, "jo\njw -b 4000 /dev/zero\njc\n").expect("space");
    let words = ["-w", "-f", text(&script), path].map(AsRef::as_ref);
    fourscore_testkit::tools::run("debugfs", &words).expect("it runs");
    let (_, steps) = both(&["ls", "-v", path]);
    assert!(
        steps.contains("the journal is replayed in memory blocks=1"),
        "{steps}"
    );
    let (_, steps) = both(&["edit", "-v", path, "mkdir", "/x"]);
    assert!(
        steps.contains("the journal is replayed blocks=1"),
        "{steps}"
    );
}

#[test]
fn owners_are_names_of_the_image() {
    let place = Place::new();
    let tree = place.tree();
    fs::create_dir_all(tree.join("etc")).expect("space");
    // Not the numbers of any host.
    fs::write(
        tree.join("etc/passwd"),
        "root:x:0:0::/:\ndaemon:x:4711:4712::/:\n",
    )
    .expect("space");
    fs::write(tree.join("etc/group"), "root:x:0:\nstaff:x:4713:\n").expect("space");
    let image = place.text("image");
    for (owner, expected) in [
        ("daemon:staff", (4711, 4713)),
        ("daemon:", (4711, 4712)),
        ("root:staff", (0, 4713)),
        ("5:daemon", (0, 0)),
        ("7:8", (7, 8)),
    ] {
        let size = ["--size", "32M"];
        let build = ["build", text(&tree), "-F", "-o", &image, "--owner", owner];
        let build = [&build[..], &size].concat();
        if owner == "5:daemon" {
            let why = "--owner: group 'daemon': is not in /etc/group of the image (give the number";
            refused(&build, why);
            continue;
        }
        both(&build);
        let stat = printed(&mut fourscore(&["stat", "--json", &image, "/etc/passwd"]));
        let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
        assert_eq!(
            (&stat["uid"], &stat["gid"]),
            (&expected.0.into(), &expected.1.into()),
            "{owner}"
        );
        let into = format!("{image}:/copy");
        both(&["cp", "--owner", owner, "/etc/hostname", &into]);
        let copy = printed(&mut fourscore(&["stat", "--json", &image, "/copy"]));
        let copy: serde_json::Value = serde_json::from_str(&copy).expect("JSON");
        assert_eq!(
            (&copy["uid"], &copy["gid"]),
            (&stat["uid"], &stat["gid"]),
            "{owner}"
        );
    }
}

#[test]
fn root_is_an_owner_of_an_image_without_users() {
    let place = Place::new();
    let image = place.text("image");
    let bare = place.path("bare");
    fs::create_dir_all(bare.join("sub")).expect("space");
    let words = ["build", text(&bare), "-o", &image, "--owner"];
    both(&[&words[..], &["root:root"]].concat());
    let walk = printed(&mut fourscore(&["walk", &image]));
    assert!(walk.lines().all(|line| line.contains(" 0 0 ")), "{walk}");
    let unknown = [&words[..], &["anna", "-F"]].concat();
    refused(
        &unknown,
        "user 'anna': /etc/passwd: the sources have no such file (give the number",
    );
}
