//! **Purpose.** Splits the text of a Rust file into code and comments, line by line, and finds its
//! functions.
//!
//! **Model.** Three copies of the text are kept, with the same lines and columns: `code`,
//! `comments` and `strings`. Each has blanks where one of the others has text. Rules then search
//! plain text, and a word in a string is not mistaken for code. This is a scanner, not a parser: it
//! knows nested comments and raw strings, and distinguishes lifetimes from characters.

/// A Rust file, prepared for the rules.
pub(super) struct Source {
    /// The path below the root, with slashes.
    pub(super) path: String,
    /// The lines as they are.
    pub(super) lines: Vec<String>,
    /// The lines without comments and without the content of strings.
    pub(super) code: Vec<String>,
    /// The lines with nothing but comments.
    pub(super) comments: Vec<String>,
    /// The lines with nothing but the content of strings and characters.
    pub(super) strings: Vec<String>,
    /// The functions with a body, in the order of their names' appearance.
    pub(super) functions: Vec<Function>,
}

/// A function with a body. Lines count from 1.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Its name.
    pub(super) name: String,
    /// Where the word `fn` stands.
    pub(super) first_line: usize,
    /// Where its closing brace stands.
    pub(super) last_line: usize,
    /// Whether an attribute above it makes it a test.
    pub(super) is_test: bool,
    /// Whether it has the attribute `should_panic`.
    pub(super) should_panic: bool,
}

impl Source {
    /// Scans a file.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let [code, comments, strings] = split(text);
        let to_lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let code = to_lines(&code);
        Self {
            path: path.to_owned(),
            lines: to_lines(text),
            functions: functions(&code),
            code,
            comments: to_lines(&comments),
            strings: to_lines(&strings),
        }
    }

    /// The folder name of the crate that the file belongs to; `fuzz` for the fuzz crate.
    pub(super) fn crate_folder(&self) -> &str {
        let mut parts = self.path.split('/');
        match parts.next() {
            Some("crates") => parts.next().unwrap_or(""),
            first => first.unwrap_or(""),
        }
    }

    /// Whether it is part of a crate's library or program: neither an integration test nor an
    /// example.
    pub(super) fn in_src(&self) -> bool {
        self.path.contains("/src/")
    }

    /// Whether a line (counted from 0) contains a string or a part of one.
    pub(super) fn has_string(&self, index: usize) -> bool {
        let has_text = |string: &String| !string.trim().is_empty();
        self.code.get(index).is_some_and(|code| code.contains('"'))
            || self.strings.get(index).is_some_and(has_text)
    }

    /// The lines of code of a function, signature included.
    pub(super) fn code_of(&self, function: &Function) -> &[String] {
        self.code
            .get(function.first_line - 1..function.last_line)
            .unwrap_or(&[])
    }
}

/// Whether `word` occurs in `line` with no letter, digit or underscore on either side.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part_of_word)
            && !line[at + word.len()..]
                .chars()
                .next()
                .is_some_and(part_of_word)
    })
}

/// What the scanner is in the middle of.
#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Text { hashes: Option<usize> },
}

/// The code, the comments and the strings of a text, each with blanks where the others are.
fn split(text: &str) -> [String; 3] {
    const KINDS: [Kind; 3] = [Kind::Code, Kind::Comment, Kind::Content];
    let chars: Vec<char> = text.chars().collect();
    let mut parts = KINDS.map(|_| String::new());
    let mut state = State::Code;
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let (next_state, length, kind) = step(state, &chars, at);
        for &c in chars.iter().skip(at).take(length) {
            let blank = if c == '\n' { '\n' } else { ' ' };
            for (part, of) in parts.iter_mut().zip(KINDS) {
                part.push(if kind == of { c } else { blank });
            }
        }
        if c == '\n' && matches!(state, State::LineComment) {
            state = State::Code;
        } else {
            state = next_state;
        }
        at += length;
    }
    parts
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Content,
}

/// Looks at the character at `at`: the state after it, how many characters that takes, and what
/// they are. Quotes count as code, so that a rule still sees that a string is there.
fn step(state: State, chars: &[char], at: usize) -> (State, usize, Kind) {
    let next = chars.get(at + 1).copied();
    match (state, chars[at], next) {
        (State::Code, '/', Some('/')) => (State::LineComment, 2, Kind::Comment),
        (State::Code, '/', Some('*')) => (State::BlockComment { depth: 1 }, 2, Kind::Comment),
        (State::Code, '"', _) => (State::Text { hashes: None }, 1, Kind::Code),
        (State::Code, 'r', Some('"' | '#')) if !ends_in_word(chars, at) => raw_string(chars, at),
        (State::Code, '\'', _) => (State::Code, character_length(chars, at), Kind::Content),
        (State::Code, ..) => (State::Code, 1, Kind::Code),
        (State::LineComment, ..) => (State::LineComment, 1, Kind::Comment),
        (State::BlockComment { depth }, '/', Some('*')) => {
            (State::BlockComment { depth: depth + 1 }, 2, Kind::Comment)
        }
        (State::BlockComment { depth: 1 }, '*', Some('/')) => (State::Code, 2, Kind::Comment),
        (State::BlockComment { depth }, '*', Some('/')) => {
            (State::BlockComment { depth: depth - 1 }, 2, Kind::Comment)
        }
        (State::BlockComment { .. }, ..) => (state, 1, Kind::Comment),
        (State::Text { hashes: None }, '\\', Some(_)) => (state, 2, Kind::Content),
        (State::Text { hashes: None }, '"', _) => (State::Code, 1, Kind::Code),
        (
            State::Text {
                hashes: Some(hashes),
            },
            '"',
            _,
        ) if hashes_from(chars, at + 1) >= hashes => (State::Code, 1 + hashes, Kind::Code),
        (State::Text { .. }, ..) => (state, 1, Kind::Content),
    }
}

/// Whether the character before `at` belongs to a name (`for"` is not a raw string), a byte or C
/// prefix aside.
fn ends_in_word(chars: &[char], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|at| chars.get(at)).copied();
    let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match before(1) {
        Some('b' | 'c') => part_of_word(before(2)),
        c => part_of_word(c),
    }
}

fn hashes_from(chars: &[char], at: usize) -> usize {
    chars.iter().skip(at).take_while(|&&c| c == '#').count()
}

/// `r"`, `r#"` and so on; `r#name` is a name.
fn raw_string(chars: &[char], at: usize) -> (State, usize, Kind) {
    let hashes = hashes_from(chars, at + 1);
    if chars.get(at + 1 + hashes) == Some(&'"') {
        (
            State::Text {
                hashes: Some(hashes),
            },
            hashes + 2,
            Kind::Code,
        )
    } else {
        (State::Code, 1, Kind::Code)
    }
}

/// How many characters the literal that begins with the quote at `at` has; 1 for a lifetime.
fn character_length(chars: &[char], at: usize) -> usize {
    if chars.get(at + 1) == Some(&'\\') {
        let rest = chars.iter().skip(at + 3);
        return rest.take_while(|&&c| c != '\'').count() + 4;
    }
    if chars.get(at + 2) == Some(&'\'') {
        3
    } else {
        1
    }
}

/// The functions with a body.
fn functions(code: &[String]) -> Vec<Function> {
    let mut found = Vec::new();
    let (mut test_attribute, mut should_panic) = (false, false);
    for (index, line) in code.iter().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("#[") {
            test_attribute |= is_test_attribute(trimmed);
            should_panic |= trimmed.starts_with("#[should_panic");
        } else if let Some(name) = function_name(trimmed) {
            if let Some(last) = end_of_body(code, index) {
                found.push(Function {
                    name,
                    first_line: index + 1,
                    last_line: last + 1,
                    is_test: test_attribute,
                    should_panic,
                });
            }
            (test_attribute, should_panic) = (false, false);
        } else if !trimmed.is_empty() {
            (test_attribute, should_panic) = (false, false);
        }
    }
    found
}

/// `#[test]` and what other crates call so.
fn is_test_attribute(line: &str) -> bool {
    line.starts_with("#[test]") || line.contains("::test]")
}

/// The name in a line that begins a function.
fn function_name(line: &str) -> Option<String> {
    let at = line.find("fn ")?;
    let before = line[..at].trim_end();
    let qualifiers = before.split_whitespace().all(|word| {
        word.starts_with("pub")
            || word.ends_with(')')
            || ["const", "async", "unsafe", "extern", "in", "\"", "\"\""].contains(&word)
            || word.starts_with('"')
    });
    let name: String = line[at + 3..]
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    (qualifiers && !name.is_empty()).then_some(name)
}

/// The line with the brace that closes the body of the function that begins at `first`; nothing if
/// it has no body.
fn end_of_body(code: &[String], first: usize) -> Option<usize> {
    let (mut braces, mut brackets) = (0_usize, 0_usize);
    for (index, line) in code.iter().enumerate().skip(first) {
        for c in line.chars() {
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                ';' if braces == 0 && brackets == 0 => return None,
                '{' => braces += 1,
                '}' if braces == 1 => return Some(index),
                '}' => braces = braces.saturating_sub(1),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_code_are_kept_apart() {
        let text = "let a = \"x // y\"; // b \"c\n/* d /* e */ f */ let g = 'h';\n\
                    fn i<'j>(k: &'j str) {}\nlet l = r#\"m\" // n\"#; let o = b'\\'';\n";
        let source = Source::new("crates/x/src/lib.rs", text);
        assert_eq!(source.code[0].trim_end(), "let a = \"      \";");
        assert_eq!(source.comments[0].trim(), "// b \"c");
        assert_eq!(source.strings[0].trim(), "x // y");
        assert_eq!(source.code[1].trim(), "let g =    ;");
        assert_eq!(source.comments[1].trim_end(), "/* d /* e */ f */");
        assert_eq!(source.code[2], "fn i< j>(k: & j str) {}");
        assert!(!source.code[3].contains("//"), "{}", source.code[3]);
        assert!(source.code[3].contains("let o = b"), "{}", source.code[3]);
    }

    #[test]
    fn functions_have_their_lines_and_tests_are_known() {
        let text = "pub(crate) const fn one(\n    a: [u8; 2],\n) -> u8 {\n    { a[0] }\n}\n\
                    trait T {\n    fn none(&self);\n}\n#[test]\n#[ignore]\nfn two() {}\n";
        let functions = Source::new("crates/x/src/lib.rs", text).functions;
        let found: Vec<_> = functions
            .iter()
            .map(|f| (f.name.as_str(), f.first_line, f.last_line, f.is_test))
            .collect();
        assert_eq!(found, [("one", 1, 5, false), ("two", 11, 11, true)]);
    }

    #[test]
    fn words_end_at_letters() {
        assert!(has_word("// TODO: x", "TODO"));
        assert!(!has_word("// TODOS", "TODO"));
        assert!(!has_word("s_TODO", "TODO"));
    }
}
