//! **Purpose.** A rule about language: comments, messages and documents use the words of the field.

use super::finding::Finding;
use super::source::{Source, has_word};

/// Words that are not used, in lower case, and what to write instead.
const WORDS: &[(&str, &str)] = &[
    ("quiet clock", "grace period"),
    ("crew", "worker pool, workers"),
    ("whoever", "the caller, the thread that"),
    ("who has", "the thread that holds"),
    ("who is", "the thread that is"),
    ("who asks", "the caller"),
    ("who tells", "what reports"),
    ("he", "the noun it stands for"),
    ("his", "its"),
    ("nobody", "no thread, no caller, none"),
    ("somebody", "another thread, a user"),
    ("everybody", "all threads, all users"),
    ("is told", "is notified, is reported, is known"),
    ("are told", "are notified, are reported, are known"),
    ("was told", "was notified, was reported, was known"),
    ("led elsewhere", "refers to another inode"),
    ("anew", "again, restart, rebuild"),
    ("no room", "no space"),
    ("is room", "is space"),
    ("has room", "has space"),
    ("room for", "space for"),
    ("on record", "on the orphan list, recorded"),
    ("of before", "previous, old"),
];

/// Crates and documents that use none of the words, as beginnings of their paths.
const CLEAN: &[&str] = &["crates/", "docs/", "README.md", "fuzz/"];

/// Files that name the user `nobody`.
const WITH_USER_NOBODY: &[&str] = &[
    "crates/build/tests/it/tar.rs",
    "crates/cli/tests/it/conform_databases.rs",
    "crates/cli/tests/it/conform_posix.rs",
];

/// This file, which has to name the words.
const WORD_LIST: &str = "crates/xtask/src/tidy/dialect.rs";

/// `words` for Rust files: in comments and in strings.
pub(super) fn words(source: &Source, found: &mut Vec<Finding>) {
    if is_clean(&source.path) {
        for (index, (comment, string)) in source.comments.iter().zip(&source.strings).enumerate() {
            words_of_line(&source.path, index, comment, found);
            words_of_line(&source.path, index, string, found);
        }
    }
}

/// `words` for Markdown.
pub(super) fn document(path: &str, text: &str, found: &mut Vec<Finding>) {
    if is_clean(path) {
        for (index, line) in text.lines().enumerate() {
            words_of_line(path, index, line, found);
        }
    }
}

fn is_clean(path: &str) -> bool {
    path != WORD_LIST && CLEAN.iter().any(|clean| path.starts_with(clean))
}

fn words_of_line(path: &str, index: usize, line: &str, found: &mut Vec<Finding>) {
    let line = line.to_lowercase();
    for (word, replacement) in WORDS {
        let is_user = *word == "nobody" && WITH_USER_NOBODY.contains(&path);
        if has_word(&line, word) && !is_user {
            let what = format!("'{word}' is on the list of words to avoid (write: {replacement})");
            found.push(Finding::new("words", index + 1, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::findings_of;
    use super::*;

    #[test]
    fn words_are_seen_in_comments_strings_and_documents() {
        let lines = |text: &str| findings_of(words, "crates/xtask/src/tidy/size.rs", text);
        assert_eq!(lines("// Nobody waits.\n"), [1]);
        assert_eq!(lines("\n/// A thread, and his\n/// crew\n"), [2, 3]);
        assert_eq!(lines("let a = \"who is this\";\n"), [1]);
        assert!(lines("let nobody = \"nobody_s\"; // the sewing crews\n").is_empty());
        assert!(findings_of(words, WORD_LIST, "// nobody\n").is_empty());
        assert!(findings_of(words, WITH_USER_NOBODY[0], "// nobody\n").is_empty());
        assert!(findings_of(words, "scripts/a.rs", "// nobody\n").is_empty());

        let mut found = Vec::new();
        document("CHANGELOG.md", "A caller is told.\n", &mut found);
        assert!(found.is_empty());
        words_of_line("docs/TESTING.md", 0, "It is told.", &mut found);
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("is notified"));
    }
}
