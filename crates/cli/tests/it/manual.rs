//! Man pages and completions, as programs that read them see them.

use std::fs;
use std::process::Command;

use fourscore_testkit::tools::Need;
use fourscore_testkit::{require, scratch};

use crate::common::{failing, fourscore, printed, text};

#[test]
fn every_verb_has_a_page() {
    let folder = scratch::folder().expect("a folder");
    let pages = folder.path().join("man/man1");
    printed(&mut fourscore(&["man", "--output", text(&pages)]));
    let command = fourscore_cli::command();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    for verb in verbs.map(clap::Command::get_name) {
        let file = fs::read_to_string(pages.join(format!("fourscore-{verb}.1"))).expect(verb);
        assert_eq!(printed(&mut fourscore(&["man", verb])), file, "{verb}");
        assert!(
            file.contains(".SH SYNOPSIS") && file.contains("Example"),
            "{verb}"
        );
    }
    assert!(pages.join("fourscore.1").exists());
    assert!(pages.join("fourscore-edit-setfacl.1").exists());
    assert!(
        !pages.join("fourscore-keep-mount.1").exists(),
        "it is hidden"
    );
    let page = printed(&mut fourscore(&["man", "edit", "chmod"]));
    assert!(page.contains("fourscore\\-edit\\-chmod"), "{page}");
    let (status, message) = failing(&["man", "nonsense"]);
    assert_eq!(status, Some(2));
    assert!(
        message.contains("nonsense: is no verb; there are info, ls,"),
        "{message}"
    );
}

#[test]
fn pages_are_formatted_without_warnings() {
    require!(Need::Program("groff"));
    let folder = scratch::folder().expect("a folder");
    printed(&mut fourscore(&["man", "--output", text(folder.path())]));
    for page in fs::read_dir(folder.path()).expect("pages") {
        let page = page.expect("a page").path();
        let arguments = ["-man", "-Tutf8", "-ww", "-z", text(&page)];
        let output = Command::new("groff")
            .args(arguments)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{}: {said}",
            page.display()
        );
    }
}

/// Bash completes verbs and options with the script that it would load.
#[test]
fn bash_completes_verbs_and_options() {
    require!(Need::Program("bash"));
    let script = printed(&mut fourscore(&["completions", "bash"]));
    let complete = |words: &str| {
        let ask = format!(
            "{script}\nCOMP_WORDS=({words})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _fourscore fourscore \"${{COMP_WORDS[COMP_CWORD]}}\" \
             \"${{COMP_WORDS[COMP_CWORD-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        printed(Command::new("bash").args(["-c", &ask]))
    };
    assert_eq!(complete("fourscore xat"), "xattr-report\n");
    assert_eq!(complete("fourscore build --shr"), "--shrink\n");
    assert_eq!(complete("fourscore edit x.img trunc"), "truncate\n");
    assert!(complete("fourscore ''").lines().any(|verb| verb == "mount"));
}

#[test]
fn all_shells_have_completions() {
    let folder = scratch::folder().expect("a folder");
    printed(&mut fourscore(&[
        "completions",
        "--output",
        text(folder.path()),
    ]));
    let files = [
        "_fourscore",
        "_fourscore.ps1",
        "fourscore.bash",
        "fourscore.elv",
        "fourscore.fish",
    ];
    for (file, shell) in files
        .iter()
        .zip(["zsh", "powershell", "bash", "elvish", "fish"])
    {
        let script = fs::read_to_string(folder.path().join(file)).expect(file);
        assert!(script.contains("xattr-report"), "{file}");
        assert_eq!(printed(&mut fourscore(&["completions", shell])), script);
    }
    assert_eq!(failing(&["completions"]).0, Some(2));
    assert_eq!(failing(&["completions", "csh"]).0, Some(2));
}
