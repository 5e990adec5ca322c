//! **Purpose.** Splits the code of a Rust file into tokens, and leaves out what only tests compile.

use super::source::Source;

/// A word, one of `::`, `->` and `=>`, or a single character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// The token itself.
    pub(super) text: &'a str,
    /// The line that it stands on; lines count from 1.
    pub(super) line: usize,
}

impl Token<'_> {
    /// Whether the token is a name, a keyword or a number.
    pub(super) fn is_word(&self) -> bool {
        self.text.starts_with(part_of_word)
    }
}

/// The tokens of a file. Comments and the content of strings are no tokens.
pub(super) fn tokens(source: &Source) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (index, line) in source.code.iter().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let length = if part_of_word(first) {
                rest.find(|c| !part_of_word(c)).unwrap_or(rest.len())
            } else if ["::", "->", "=>"].iter().any(|pair| rest.starts_with(pair)) {
                2
            } else {
                first.len_utf8()
            };
            let (text, after) = rest.split_at(length);
            found.push(Token {
                text,
                line: index + 1,
            });
            rest = after.trim_start();
        }
    }
    found
}

fn part_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The tokens without the items, fields and statements under `#[cfg(test)]` or
/// `#[cfg(all(test, ..))]`.
pub(super) fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    const PLAIN: &[&str] = &["#", "[", "cfg", "(", "test", ")", "]"];
    const WITH_MORE: &[&str] = &["#", "[", "cfg", "(", "all", "(", "test", ","];
    let mut kept = Vec::new();
    let mut at = 0;
    while let Some(&token) = tokens.get(at) {
        if starts_with(&tokens[at..], PLAIN) || starts_with(&tokens[at..], WITH_MORE) {
            at = end_of_item(tokens, at);
        } else {
            kept.push(token);
            at += 1;
        }
    }
    kept
}

/// Whether tokens begin with these texts.
pub(super) fn starts_with(tokens: &[Token<'_>], texts: &[&str]) -> bool {
    tokens.len() >= texts.len() && tokens.iter().zip(texts).all(|(a, b)| a.text == *b)
}

/// The position after the item whose first attribute stands at `at`. An item ends with `;`, with
/// `,`, with the closing brace of its body, or where the block around it ends.
fn end_of_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    while starts_with(&tokens[at..], &["#", "["]) {
        at = after_group(tokens, at + 1);
    }
    let mut angles = 0_usize;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "{" => {
                at = after_group(tokens, at);
                let ends_here = |token: &Token<'_>| token.text == ";" || token.text == ",";
                return at + usize::from(tokens.get(at).is_some_and(ends_here));
            }
            "(" | "[" => at = after_group(tokens, at),
            ")" | "]" | "}" => return at,
            ";" => return at + 1,
            "," if angles == 0 => return at + 1,
            text => {
                match text {
                    "<" => angles += 1,
                    ">" => angles = angles.saturating_sub(1),
                    _ => {}
                }
                at += 1;
            }
        }
    }
    at
}

/// The position after the group whose opening bracket stands at `at`.
pub(super) fn after_group(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, change: fn(&[Token<'_>]) -> Vec<(String, usize)>) -> Vec<(String, usize)> {
        change(&tokens(&Source::new("crates/x/src/a.rs", text)))
    }

    fn owned(tokens: &[Token<'_>]) -> Vec<(String, usize)> {
        let own = |token: &Token<'_>| (token.text.to_owned(), token.line);
        tokens.iter().map(own).collect()
    }

    #[test]
    fn words_and_signs_are_tokens_with_their_lines() {
        let found = texts("use a::b_1; // c\nd->\"e\"\n", owned);
        let expected = [
            ("use", 1),
            ("a", 1),
            ("::", 1),
            ("b_1", 1),
            (";", 1),
            ("d", 2),
            ("->", 2),
            ("\"", 2),
            ("\"", 2),
        ];
        assert_eq!(found, expected.map(|(text, line)| (text.to_owned(), line)));
    }

    #[test]
    fn what_only_tests_compile_is_left_out() {
        let kept = |text: &str| -> String {
            let found = texts(text, |tokens| owned(&without_tests(tokens)));
            found.into_iter().map(|(text, _)| text).collect()
        };
        assert_eq!(kept("#[cfg(test)]\nmod tests {\n fn a() {}\n}\nb\n"), "b");
        assert_eq!(
            kept("#[cfg(all(test, not(x)))]\n#[y]\nmod tests;\nb\n"),
            "b"
        );
        assert_eq!(kept("#[cfg(test)]\nuse a::{b, c};\nd\n"), "d");
        assert_eq!(kept("x{#[cfg(test)]\na: B<C, D>,\ne: F}"), "x{e:F}");
        assert_eq!(kept("x{#[cfg(test)]\na: B}"), "x{}");
        assert_eq!(kept("#[cfg(test)]\nfn a<B, C>(d: [E; 2]) -> F {}\ng"), "g");
        assert!(kept("#[cfg(feature = \"test\")]\nmod a;\n").ends_with("moda;"));
    }
}
