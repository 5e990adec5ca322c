//! **Purpose.** Rules about the text of comments and documents.

use super::finding::Finding;
use super::source::{Source, has_word};

/// Words that mark unfinished work.
const UNFINISHED: &[&str] = &["TODO", "FIXME", "XXX", "HACK", "WIP"];

/// Phrases that do the same, in lower case.
const UNFINISHED_PHRASES: &[&str] = &[
    "for now,",
    "for now.",
    "for the time being",
    "not yet implemented",
];

/// Words that, followed by a number, name a step of some plan instead of a property of the code.
const PHASES: &[&str] = &["phase", "milestone", "sprint", "iteration"];

/// Documents that may contain dates.
const DATED_DOCUMENTS: &[&str] = &["CHANGELOG.md", "docs/PERFORMANCE.md", "docs/results/"];

/// `module-purpose`: a file below src/ opens with a module comment, and in a library crate that
/// comment states the module's purpose. Files of tests need none: it is that of the tested module.
pub(super) fn module_purpose(source: &Source, found: &mut Vec<Finding>) {
    if !source.in_src() {
        return;
    }
    let header = || {
        source
            .lines
            .iter()
            .take_while(|line| line.starts_with("//!"))
    };
    if header().next().is_none() {
        found.push(Finding::new(
            "module-purpose",
            1,
            "the file does not open with //!",
        ));
    } else if !source.path.ends_with("tests.rs")
        && !header().any(|line| line.contains("**Purpose.**"))
    {
        found.push(Finding::new(
            "module-purpose",
            1,
            "the module comment has no **Purpose.**",
        ));
    }
}

/// `no-todo`: neither code nor comments mark unfinished work, which belongs in an issue.
pub(super) fn no_todo(source: &Source, found: &mut Vec<Finding>) {
    for (index, line) in source.comments.iter().enumerate() {
        if let Some(word) = unfinished(line) {
            found.push(Finding::new(
                "no-todo",
                index + 1,
                format_args!("'{word}' in a comment"),
            ));
        }
    }
    for (index, line) in source.code.iter().enumerate() {
        for name in ["todo!", "unimplemented!"] {
            if line.contains(name) {
                found.push(Finding::new(
                    "no-todo",
                    index + 1,
                    format_args!("{name} in the code"),
                ));
            }
        }
    }
}

fn unfinished(line: &str) -> Option<&'static str> {
    let lower = line.to_lowercase();
    let phrase = UNFINISHED_PHRASES
        .iter()
        .find(|phrase| lower.contains(**phrase));
    UNFINISHED
        .iter()
        .find(|word| has_word(line, word))
        .or(phrase)
        .copied()
}

/// `no-phase-names`: comments name no step of a plan, no date and no status, which become outdated.
pub(super) fn no_phase_names(source: &Source, found: &mut Vec<Finding>) {
    for (index, line) in source.comments.iter().enumerate() {
        if let Some(what) = phase(line).or_else(|| date(line)) {
            found.push(Finding::new(
                "no-phase-names",
                index + 1,
                format_args!("'{what}'"),
            ));
        }
    }
}

/// `phase 2`, `Milestone 3` and the like.
fn phase(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).find_map(|pair| {
        let [name, number] = pair else { return None };
        let named = PHASES.iter().any(|phase| name.eq_ignore_ascii_case(phase));
        (named && number.starts_with(|c: char| c.is_ascii_digit())).then(|| pair.join(" "))
    })
}

/// A date of this century, `20YY-MM-DD`.
fn date(line: &str) -> Option<String> {
    let is_date = |word: &str| {
        word.len() == 10
            && word.starts_with("20")
            && word.chars().enumerate().all(|(at, c)| match at {
                4 | 7 => c == '-',
                _ => c.is_ascii_digit(),
            })
    };
    line.split(|c: char| !c.is_ascii_digit() && c != '-')
        .find(|word| is_date(word))
        .map(str::to_owned)
}

/// `machine-paths`: no comment names a home or working folder of one machine. Strings may: paths
/// inside of test images look like that.
pub(super) fn machine_paths(source: &Source, found: &mut Vec<Finding>) {
    for (index, line) in source.comments.iter().enumerate() {
        machine_path(index, line, found);
    }
}

fn machine_path(index: usize, line: &str, found: &mut Vec<Finding>) {
    for path in [
        concat!("/ho", "me/"),
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
    ] {
        let begins_there = line.match_indices(path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|c| c.is_whitespace() || "\"'`(=:".contains(c))
        });
        if begins_there {
            let what = format!("'{path}' is a folder of one machine");
            found.push(Finding::new("machine-paths", index + 1, what));
        }
    }
}

/// `todo-docs`, `no-phase-names` and `machine-paths` for Markdown.
pub(super) fn document(path: &str, text: &str, found: &mut Vec<Finding>) {
    for (index, line) in text.lines().enumerate() {
        if let Some(word) = unfinished(line) {
            found.push(Finding::new(
                "todo-docs",
                index + 1,
                format_args!("'{word}'"),
            ));
        }
        if !DATED_DOCUMENTS.iter().any(|dated| path.starts_with(dated))
            && let Some(what) = phase(line).or_else(|| date(line))
        {
            found.push(Finding::new(
                "no-phase-names",
                index + 1,
                format_args!("'{what}'"),
            ));
        }
        machine_path(index, line, found);
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::findings_of;
    use super::*;

    const PATH: &str = "crates/fs/src/a.rs";

    #[test]
    fn module_purpose_wants_a_header_with_a_purpose() {
        let lines = |path: &str, text: &str| findings_of(module_purpose, path, text);
        assert_eq!(lines(PATH, "use a::b;\n"), [1]);
        assert_eq!(lines(PATH, "//! Inodes.\n"), [1]);
        assert!(lines(PATH, "//! **Purpose.** Inodes.\n").is_empty());
        assert!(lines("crates/fs/src/a/tests.rs", "//! Tests.\n").is_empty());
        assert!(lines("crates/fs/tests/a.rs", "").is_empty());
    }

    #[test]
    fn no_todo_sees_words_phrases_and_macros() {
        let lines = |text: &str| findings_of(no_todo, PATH, text);
        assert_eq!(lines("// TODO: later\n"), [1]);
        assert_eq!(lines("\n/* FIXME */\n"), [2]);
        assert_eq!(lines("/// Linear for now, a tree later.\n"), [1]);
        assert_eq!(lines("fn a() { todo!() }\n"), [1]);
        assert_eq!(lines("fn a() { unimplemented!() }\n"), [1]);
        assert!(lines("let a = \"TODO\"; // the todo list of a user\n").is_empty());
    }

    #[test]
    fn no_phase_names_sees_phases_and_dates_in_comments() {
        let lines = |text: &str| findings_of(no_phase_names, PATH, text);
        assert_eq!(lines("// Phase 2: the writer\n"), [1]);
        assert_eq!(lines("// as of 2026-11-21\n"), [1]);
        assert!(lines("let a = \"2026-11-21\"; // the second phase of the scan\n").is_empty());
    }

    #[test]
    fn machine_paths_are_seen_at_the_start_of_a_path_only() {
        assert_eq!(
            findings_of(machine_paths, PATH, "// see /home/user/x\n"),
            [1]
        );
        assert!(findings_of(machine_paths, PATH, "// below target/work/x\n").is_empty());
        assert!(findings_of(machine_paths, PATH, "let a = \"/home/user/x\";\n").is_empty());
    }

    #[test]
    fn documents_are_held_to_the_same_words() {
        let rules = |path: &str, text: &str| {
            let mut found = Vec::new();
            document(path, text, &mut found);
            found
                .into_iter()
                .map(|finding| finding.rule)
                .collect::<Vec<_>>()
        };
        assert_eq!(rules("README.md", "TODO: write\n"), ["todo-docs"]);
        assert_eq!(
            rules("docs/DESIGN.md", "Since 2026-01-02.\n"),
            ["no-phase-names"]
        );
        assert!(rules("CHANGELOG.md", "## 0.1.0, 2026-01-02\n").is_empty());
        assert_eq!(rules("README.md", "in `/work/x`\n"), ["machine-paths"]);
    }
}
