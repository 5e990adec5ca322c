//! **Purpose.** Selects the paths of a source that are excluded from the image.
//!
//! **Model.** Empty components and `.` are dropped, as in a path, so that `./etc//x` is `/etc/x`. A
//! pattern with a slash before a component that is left is matched against the whole path from the
//! root, any other pattern against each name. `*` and `?` do not match slashes, `**` does; `[a-z]`
//! matches one byte of a set and `[!a-z]` one outside of it; `\` quotes the next byte. Unlike in
//! gitignore, `a/**/b` does not match `a/b`, and `a/` matches files too. Everything in an excluded
//! directory is excluded. Patterns and names are bytes.
//!
//! Each pattern records whether it has matched, since one that never does is probably a mistake.
//!
//! **Locking.** Threads that scan a directory share the patterns. The record is an atomic flag that
//! is only ever set; it is read after the scan.

use fourscore_sync::atomic::{AtomicBool, Ordering};

/// A set of patterns for excluded paths.
#[derive(Debug, Default)]
pub struct Excludes {
    patterns: Vec<Pattern>,
}

#[derive(Debug)]
struct Pattern {
    /// As it was given.
    text: Vec<u8>,
    steps: Vec<Step>,
    /// Whether the pattern is matched against paths instead of names.
    is_path: bool,
    has_matched: AtomicBool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Byte(u8),
    /// Any byte except a slash.
    Any,
    /// Any number of bytes, with or without slashes.
    Many {
        slashes: bool,
    },
    Set {
        ranges: Vec<(u8, u8)>,
        is_negated: bool,
    },
}

const SLASH: Step = Step::Byte(b'/');
const DOT: Step = Step::Byte(b'.');

/// An invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not a pattern: {why}", pattern.escape_ascii())]
pub struct PatternError {
    pattern: Vec<u8>,
    why: &'static str,
}

impl Excludes {
    /// Adds a pattern.
    ///
    /// # Errors
    /// An empty pattern, the root, and one with an unclosed set or a component `..`.
    pub fn add(&mut self, pattern: &[u8]) -> Result<(), PatternError> {
        let wrong = |why| PatternError {
            pattern: pattern.to_vec(),
            why,
        };
        if pattern.is_empty() {
            return Err(wrong("it is empty"));
        }
        let written = parse(pattern).ok_or(wrong("the set is not closed"))?;
        let (mut steps, mut is_path) = (Vec::new(), false);
        for (at, component) in written.split(|step| *step == SLASH).enumerate() {
            match component {
                [] | [DOT] => continue,
                [DOT, DOT] => return Err(wrong("'..' is in no path of an image")),
                _ => {}
            }
            if !steps.is_empty() {
                steps.push(SLASH);
            }
            steps.extend_from_slice(component);
            is_path = at > 0;
        }
        if steps.is_empty() {
            return Err(wrong("it is the root"));
        }
        self.patterns.push(Pattern {
            text: pattern.to_vec(),
            steps,
            is_path,
            has_matched: AtomicBool::new(false),
        });
        Ok(())
    }

    /// The patterns, as they were given, that no path has matched so far. A path in an excluded
    /// directory is matched with none.
    pub fn without_effect(&self) -> impl Iterator<Item = &[u8]> {
        let unmatched = |pattern: &&Pattern| !pattern.has_matched.load(Ordering::Relaxed);
        let patterns = self.patterns.iter().filter(unmatched);
        patterns.map(|pattern| pattern.text.as_slice())
    }

    /// Whether there are no patterns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether the path itself matches a pattern, for walks that do not enter excluded directories.
    /// `path` has single slashes between names, and none at its ends.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let name = slash.map_or(path, |slash| &path[slash + 1..]);
        // All patterns that match are recorded, not only the first one.
        let mut is_excluded = false;
        for pattern in &self.patterns {
            let text = if pattern.is_path { path } else { name };
            let has_matched = pattern.has_matched.load(Ordering::Relaxed);
            if (is_excluded && has_matched) || !is_match(&pattern.steps, text) {
                continue;
            }
            is_excluded = true;
            if !has_matched {
                pattern.has_matched.store(true, Ordering::Relaxed);
            }
        }
        is_excluded
    }

    /// Whether a path, as written in an archive, or one of its parent directories matches a
    /// pattern.
    #[must_use]
    pub fn contain(&self, path: &[u8]) -> bool {
        if self.patterns.is_empty() {
            return false;
        }
        let mut above = Vec::with_capacity(path.len());
        path.split(|&byte| byte == b'/')
            .filter(|name| !matches!(*name, b"" | b"."))
            .any(|name| {
                if !above.is_empty() {
                    above.push(b'/');
                }
                above.extend_from_slice(name);
                self.matches(&above)
            })
    }
}

/// Parses a pattern; `None` if a set in it is not closed.
fn parse(pattern: &[u8]) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = pattern;
    while let [first, after @ ..] = rest {
        rest = after;
        steps.push(match first {
            b'*' => {
                let stars = rest.iter().take_while(|&&byte| byte == b'*').count();
                rest = &rest[stars..];
                Step::Many { slashes: stars > 0 }
            }
            b'?' => Step::Any,
            b'[' => {
                let (set, after) = parse_set(rest)?;
                rest = after;
                set
            }
            b'\\' => {
                let (byte, after) = rest.split_first().unwrap_or((&b'\\', b""));
                rest = after;
                Step::Byte(*byte)
            }
            byte => Step::Byte(*byte),
        });
    }
    Some(steps)
}

/// Parses a set after its opening bracket; returns it and the rest of the pattern.
fn parse_set(text: &[u8]) -> Option<(Step, &[u8])> {
    let (is_negated, body) = match text {
        [b'!' | b'^', body @ ..] => (true, body),
        body => (false, body),
    };
    let mut ranges = Vec::new();
    let mut rest = body;
    // A closing bracket in the first position is a member.
    while rest.first() != Some(&b']') || ranges.is_empty() {
        match rest {
            [low, b'-', high, after @ ..] if *high != b']' => {
                ranges.push((*low, *high));
                rest = after;
            }
            [byte, after @ ..] => {
                ranges.push((*byte, *byte));
                rest = after;
            }
            [] => return None,
        }
    }
    Some((Step::Set { ranges, is_negated }, &rest[1..]))
}

impl Step {
    fn matches(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Any => byte != b'/',
            Self::Many { slashes } => *slashes || byte != b'/',
            Self::Set { ranges, is_negated } => {
                let is_in = ranges
                    .iter()
                    .any(|&(low, high)| (low..=high).contains(&byte));
                byte != b'/' && is_in != *is_negated
            }
        }
    }
}

/// Simulates the pattern as a nondeterministic automaton, so that matching takes at most the length
/// of the text times that of the pattern.
fn is_match(steps: &[Step], text: &[u8]) -> bool {
    let mut states = vec![false; steps.len() + 1];
    let mut next = states.clone();
    activate(steps, &mut states, 0);
    for &byte in text {
        next.fill(false);
        for (at, step) in steps.iter().enumerate() {
            if states[at] && step.matches(byte) {
                let stays = matches!(step, Step::Many { .. });
                activate(steps, &mut next, if stays { at } else { at + 1 });
            }
        }
        std::mem::swap(&mut states, &mut next);
    }
    states[steps.len()]
}

/// Marks a state, and those that follow without consuming a byte.
fn activate(steps: &[Step], states: &mut [bool], mut at: usize) {
    states[at] = true;
    while let Some(Step::Many { .. }) = steps.get(at) {
        at += 1;
        states[at] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excludes(patterns: &[&str]) -> Excludes {
        let mut excludes = Excludes::default();
        for pattern in patterns {
            excludes.add(pattern.as_bytes()).expect(pattern);
        }
        excludes
    }

    #[test]
    fn names_and_paths() {
        let names = excludes(&["*.o", "core", "lost+found/"]);
        for path in ["a.o", "./x/y/b.o", "core/in/it", "/lost+found", ".o"] {
            assert!(names.contain(path.as_bytes()), "{path}");
        }
        for path in ["a.oo", "score", "corex", "", "."] {
            assert!(!names.contain(path.as_bytes()), "{path}");
        }
        let paths = excludes(&["/proc/*", "usr/**/*.pyc", "/tmp"]);
        for path in [
            "proc/1",
            "proc/1/fd",
            "usr/lib/python/a.pyc",
            "tmp",
            "./tmp/x",
        ] {
            assert!(paths.contain(path.as_bytes()), "{path}");
        }
        for path in ["proc", "usr/a.pyc", "x/proc/1"] {
            assert!(!paths.contain(path.as_bytes()), "{path}");
        }
        assert!(!Excludes::default().contain(b"a"));
    }

    #[test]
    fn a_leading_slash_anchors_a_pattern_at_the_root() {
        let root_only = excludes(&["/tmp"]);
        assert!(!root_only.contain(b"var/tmp"));
        assert!(excludes(&["tmp"]).contain(b"var/tmp/x"));
    }

    #[test]
    fn components_that_name_nothing_are_dropped() {
        for pattern in ["./a/b", "/a//b/", "a/./b", "//a/b/./", r"a\/b"] {
            let path = excludes(&[pattern]);
            assert!(
                path.contain(b"a/b/c") && !path.contain(b"x/a/b"),
                "{pattern}"
            );
        }
        for pattern in ["a", "a//", "a/."] {
            assert!(excludes(&[pattern]).contain(b"x/a"), "{pattern}");
        }
        for pattern in ["./a", "/./a/"] {
            let path = excludes(&[pattern]);
            assert!(path.contain(b"a") && !path.contain(b"x/a"), "{pattern}");
        }
    }

    #[test]
    fn patterns_without_effect_are_known() {
        let all = excludes(&["*.o", "a.o", "./b//", "/x/c", "d"]);
        for (path, is_excluded) in [("a.o", true), ("e.o", true), ("x/d/c", true), ("y", false)] {
            assert_eq!(all.contain(path.as_bytes()), is_excluded, "{path}");
        }
        let unmatched: Vec<_> = all.without_effect().collect();
        assert_eq!(unmatched, [&b"./b//"[..], b"/x/c"]);
    }

    #[test]
    fn sets_and_escapes() {
        let one = |pattern, path: &str| excludes(&[pattern]).matches(path.as_bytes());
        assert!(one("[a-c]x", "bx") && !one("[a-c]x", "dx"));
        assert!(one("[!a-c]x", "dx") && !one("[!a-c]x", "ax"));
        assert!(one("[]x]", "]") && one("[x-]", "-"));
        assert!(one(r"\*", "*") && !one(r"\*", "a"));
        assert!(one("a?c", "a\u{7f}c") && !one("/a?c", "a/c"));
        assert!(one("a**c", "abc"));
    }

    #[test]
    fn many_stars_take_linear_time() {
        let pattern = "a*".repeat(50) + "b";
        assert!(!excludes(&[&pattern]).matches(&[b'a'; 5000]));
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for pattern in [
            "", "/", "[a", "x[!]", ".", "./", "/./", "..", "a/..", "../a",
        ] {
            let error = Excludes::default().add(pattern.as_bytes());
            assert!(error.is_err(), "{pattern}");
        }
    }
}
