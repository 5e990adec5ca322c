//! **Purpose.** Parses the lines of an mtree into entries with full paths.
//!
//! **Model.** A name that contains a slash is a path from the root. A name without one is in the
//! current directory; if its type is a directory, it becomes the current directory, and `..`
//! returns to its parent. `/set` sets default keywords for all entries that follow, `/unset`
//! removes them. A backslash at the end of a line continues it on the next line.

use std::io::{self, BufRead};

use fourscore_ondisk::inode::FileType;

use super::keyword::Keywords;
use super::vis::unescaped;
use crate::source::{Fault, Parsed};

/// An entry of an mtree: a path with its keywords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) keywords: Keywords,
}

/// Reads an mtree line by line.
pub(super) struct Lines<R> {
    from: R,
    /// Buffer for a line.
    text: Vec<u8>,
    /// Number of the first line of the current entry, and how many lines the entry has.
    line: usize,
    lines: usize,
    /// The keywords of the last `/set` commands.
    defaults: Keywords,
    /// The path components of the current directory.
    current_directory: Vec<Vec<u8>>,
    path: Option<Vec<u8>>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            text: Vec::new(),
            line: 0,
            lines: 1,
            defaults: Keywords::default(),
            current_directory: Vec::new(),
            path: None,
        }
    }

    /// The number of the current line.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The path of the current line, if it could be parsed.
    pub(super) fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// Parses the next entry; `None` at the end.
    pub(super) fn next_entry(&mut self) -> Parsed<Option<Entry>> {
        let mut text = std::mem::take(&mut self.text);
        let found = loop {
            match self.next_line(&mut text) {
                Ok(true) => {}
                Ok(false) => break Ok(None),
                Err(error) => break Err(error.into()),
            }
            match self.parse_line(&text) {
                Ok(None) => {}
                found => break found,
            }
        };
        self.text = text;
        found
    }

    /// Parses a line; `None` for comments and commands.
    fn parse_line(&mut self, line: &[u8]) -> Parsed<Option<Entry>> {
        self.path = None;
        let mut words = line
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let Some(first) = words.next().filter(|word| !word.starts_with(b"#")) else {
            return Ok(None);
        };
        match first {
            b"/set" => {
                for word in words {
                    self.defaults.set(word)?;
                }
            }
            b"/unset" => {
                for word in words {
                    self.defaults.unset(word)?;
                }
            }
            b".." => {
                self.current_directory
                    .pop()
                    .ok_or_else(|| Fault::ManifestWord {
                        word: first.to_vec(),
                        why: "leaves the root directory",
                    })?;
            }
            _ if first.starts_with(b"/") && !first[1..].contains(&b'/') => {
                return Err(Fault::ManifestWord {
                    word: first.to_vec(),
                    why: "is not a command (use /set or /unset)",
                });
            }
            name => return self.entry(name, words).map(Some),
        }
        Ok(None)
    }

    fn entry<'w>(&mut self, name: &[u8], words: impl Iterator<Item = &'w [u8]>) -> Parsed<Entry> {
        let name = unescaped(name).ok_or_else(|| Fault::ManifestWord {
            word: name.to_vec(),
            why: "has an invalid escape",
        })?;
        let is_full_path = name.contains(&b'/');
        let path = match is_full_path {
            true => name.clone(),
            false => {
                let mut names = self.current_directory.clone();
                names.push(name.clone());
                names.join(&b'/')
            }
        };
        self.path = Some(path.clone());
        let mut keywords = self.defaults.clone();
        for word in words {
            keywords.set(word)?;
        }
        if !is_full_path && keywords.kind == Some(FileType::Directory) {
            self.current_directory.push(name);
        }
        Ok(Entry { path, keywords })
    }

    /// Reads a line and its continuation lines; returns false at the end of the file.
    fn next_line(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        self.line += std::mem::replace(&mut self.lines, 1);
        out.clear();
        if !read_line(&mut self.from, out)? {
            return Ok(false);
        }
        while is_continued(out) {
            out.pop();
            if !read_line(&mut self.from, out)? {
                break;
            }
            self.lines += 1;
        }
        Ok(true)
    }
}

/// Appends a line without its line break; returns false at the end of the file.
pub(super) fn read_line(from: &mut impl BufRead, out: &mut Vec<u8>) -> io::Result<bool> {
    let count = from.read_until(b'\n', out)?;
    if count > 0 && out.last() == Some(&b'\n') {
        out.pop();
    }
    Ok(count > 0)
}

/// Whether the line ends with a backslash that is not itself escaped.
fn is_continued(line: &[u8]) -> bool {
    line.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<(String, usize)> {
        let mut lines = Lines::new(text.as_bytes());
        let mut found = Vec::new();
        while let Some(entry) = lines.next_entry().expect(text) {
            let path = String::from_utf8(entry.path).expect("text");
            found.push((path, lines.line()));
        }
        found
    }

    #[test]
    fn names_are_relative_to_the_current_directory_and_paths_to_the_root() {
        let text = "#mtree\n/set type=file\n. type=dir\n\ta\\040b\n\n sub type=dir mode=0755\\\n  \
                    uid=1\n\tdeep\n\t..\n# a comment\nc\n./x/y type=dir\nd\n";
        let expected = [
            ("./a b", 4),
            ("./sub", 6),
            ("./sub/deep", 8),
            ("./c", 11),
            ("./x/y", 12),
            ("./d", 13),
        ];
        let mut all = paths(text);
        assert_eq!(all.remove(0), (".".to_owned(), 3));
        let expected = expected.map(|(path, line)| (path.to_owned(), line));
        assert_eq!(all, expected);
    }

    #[test]
    fn set_and_unset_apply_to_the_entries_that_follow() {
        let text = b"/set type=file uid=7 mode=0600\na\nb uid=8\n/unset uid mode\nc\n/unset all\nd";
        let mut lines = Lines::new(&text[..]);
        let mut next = || lines.next_entry().unwrap().unwrap().keywords;
        assert_eq!(next().uid, Some(7));
        assert_eq!(next().uid, Some(8));
        let third = next();
        assert_eq!((third.uid, third.permissions), (None, None));
        assert_eq!(third.kind, Some(FileType::Regular));
        assert_eq!(next(), Keywords::default());
    }

    #[test]
    fn errors_have_the_number_of_the_malformed_line() {
        for (text, line) in [
            ("a\n..\n", 2),
            ("/frob x\n", 1),
            ("a\nb\\q type=file\n", 2),
            ("a\n\nb nonsense=1\n", 3),
        ] {
            let mut lines = Lines::new(text.as_bytes());
            let error = loop {
                match lines.next_entry() {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("{text}"),
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, Fault::ManifestWord { .. }), "{error}");
            assert_eq!(lines.line(), line, "{text}");
        }
    }
}
