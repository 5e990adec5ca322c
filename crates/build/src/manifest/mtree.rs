//! **Purpose.** The lines of an mtree as entries with whole paths.
//!
//! **Model.** A name with a slash in it is a path from the root. One without is a name in the
//! current directory; if it is a directory's it becomes the current one, and `..` leads back.
//! `/set` gives keywords to all entries that follow, `/unset` takes them away. A backslash at the
//! end of a line continues it on the next.

use std::io::{self, BufRead};

use fourscore_ondisk::inode::FileType;

use super::keyword::Facts;
use super::vis::unescaped;
use crate::source::{Fault, Parsed};

/// What an mtree says of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: Vec<u8>,
    pub(super) facts: Facts,
}

/// Reads an mtree line by line.
pub(super) struct Lines<R> {
    from: R,
    /// Room for a line.
    text: Vec<u8>,
    /// The first line of the entry that was read last, and how many lines it has.
    line: usize,
    lines: usize,
    set: Facts,
    /// The names that lead to the current directory.
    way: Vec<Vec<u8>>,
    path: Option<Vec<u8>>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            text: Vec::new(),
            line: 0,
            lines: 1,
            set: Facts::default(),
            way: Vec::new(),
            path: None,
        }
    }

    /// The number of the line that was read last.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The path of the line that was read last, if it has one that makes sense.
    pub(super) fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// The next entry.
    pub(super) fn next_entry(&mut self) -> Parsed<Option<Entry>> {
        let mut text = std::mem::take(&mut self.text);
        let found = loop {
            match self.next_line(&mut text) {
                Ok(true) => {}
                Ok(false) => break Ok(None),
                Err(error) => break Err(error.into()),
            }
            match self.take_line(&text) {
                Ok(None) => {}
                found => break found,
            }
        };
        self.text = text;
        found
    }

    /// The entry of a line, if it has one.
    fn take_line(&mut self, line: &[u8]) -> Parsed<Option<Entry>> {
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
                    self.set.take(word)?;
                }
            }
            b"/unset" => {
                for word in words {
                    self.set.forget(word)?;
                }
            }
            b".." => {
                self.way.pop().ok_or_else(|| Fault::ManifestWord {
                    word: first.to_vec(),
                    why: "leads out of the tree",
                })?;
            }
            _ if first.starts_with(b"/") && !first[1..].contains(&b'/') => {
                return Err(Fault::ManifestWord {
                    word: first.to_vec(),
                    why: "is no command (there are /set and /unset)",
                });
            }
            name => return self.entry(name, words).map(Some),
        }
        Ok(None)
    }

    fn entry<'w>(&mut self, name: &[u8], words: impl Iterator<Item = &'w [u8]>) -> Parsed<Entry> {
        let name = unescaped(name).ok_or_else(|| Fault::ManifestWord {
            word: name.to_vec(),
            why: "has an escape that is none",
        })?;
        let is_whole = name.contains(&b'/');
        let path = match is_whole {
            true => name.clone(),
            false => {
                let mut names = self.way.clone();
                names.push(name.clone());
                names.join(&b'/')
            }
        };
        self.path = Some(path.clone());
        let mut facts = self.set.clone();
        for word in words {
            facts.take(word)?;
        }
        if !is_whole && facts.kind == Some(FileType::Directory) {
            self.way.push(name);
        }
        Ok(Entry { path, facts })
    }

    /// Reads a line with those that continue it; says whether there was one.
    fn next_line(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        self.line += std::mem::replace(&mut self.lines, 1);
        out.clear();
        if !push_line(&mut self.from, out)? {
            return Ok(false);
        }
        while is_continued(out) {
            out.pop();
            if !push_line(&mut self.from, out)? {
                break;
            }
            self.lines += 1;
        }
        Ok(true)
    }
}

/// Appends a line without what ends it; says whether there was one.
pub(super) fn push_line(from: &mut impl BufRead, out: &mut Vec<u8>) -> io::Result<bool> {
    let count = from.read_until(b'\n', out)?;
    if count > 0 && out.last() == Some(&b'\n') {
        out.pop();
    }
    Ok(count > 0)
}

/// A backslash at the end that does not belong to another one.
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
    fn names_are_in_the_current_directory_and_paths_are_not() {
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
    fn set_and_unset_hold_for_what_follows() {
        let text = b"/set type=file uid=7 mode=0600\na\nb uid=8\n/unset uid mode\nc\n/unset all\nd";
        let mut lines = Lines::new(&text[..]);
        let mut next = || lines.next_entry().unwrap().unwrap().facts;
        assert_eq!(next().uid, Some(7));
        assert_eq!(next().uid, Some(8));
        let third = next();
        assert_eq!((third.uid, third.permissions), (None, None));
        assert_eq!(third.kind, Some(FileType::Regular));
        assert_eq!(next(), Facts::default());
    }

    #[test]
    fn malformed_lines_are_named() {
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
