//! **Purpose.** Scripts of `fourscore edit`: splits text into lines of words.
//!
//! **Model.** As in a shell: words are separated by blanks; single and double quotes and the
//! backslash take their special meaning from characters; a backslash at the end of a line continues
//! it; a word that begins with `#` begins a comment. A word that begins with `<`, unquoted, names
//! the input of the line. Nothing is expanded.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// A line that is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ScriptLine {
    /// The number of the line that it begins on, from 1.
    pub(super) number: usize,
    pub(super) words: Vec<OsString>,
    /// What follows `<`.
    pub(super) input: Option<OsString>,
}

/// A line that cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable {
    pub(super) number: usize,
    pub(super) why: &'static str,
}

/// The lines of a script.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = Result<ScriptLine, Unreadable>> + '_ {
    let mut reader = Reader {
        rest: text,
        number: 1,
    };
    std::iter::from_fn(move || {
        while !reader.rest.is_empty() {
            match reader.line() {
                Ok(line) if line.words.is_empty() && line.input.is_none() => {}
                Ok(line) => return Some(Ok(line)),
                Err(why) => {
                    let number = reader.number;
                    // Nothing behind it is read.
                    reader.rest = b"";
                    return Some(Err(Unreadable { number, why }));
                }
            }
        }
        None
    })
}

struct Reader<'t> {
    rest: &'t [u8],
    number: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.number += usize::from(byte == b'\n');
        Some(byte)
    }

    fn line(&mut self) -> Result<ScriptLine, &'static str> {
        let mut line = ScriptLine {
            number: self.number,
            ..ScriptLine::default()
        };
        loop {
            match self.rest {
                [] | [b'\n', ..] => {
                    self.next();
                    return Ok(line);
                }
                [b' ' | b'\t' | b'\r', ..] => {
                    self.next();
                }
                [b'\\', b'\n', ..] => {
                    self.next();
                    self.next();
                }
                [b'#', ..] => {
                    while !matches!(self.rest, [] | [b'\n', ..]) {
                        self.next();
                    }
                }
                [b'<', ..] => {
                    self.next();
                    while matches!(self.rest, [b' ' | b'\t', ..]) {
                        self.next();
                    }
                    let name = self.word()?;
                    if name.is_empty() {
                        return Err("there is no file behind '<'");
                    }
                    if line.input.replace(OsString::from_vec(name)).is_some() {
                        return Err("a line has one '<' only");
                    }
                }
                _ => {
                    let word = self.word()?;
                    line.words.push(OsString::from_vec(word));
                }
            }
        }
    }

    fn word(&mut self) -> Result<Vec<u8>, &'static str> {
        let mut word = Vec::new();
        loop {
            match self.rest {
                [] | [b'\n' | b' ' | b'\t' | b'\r', ..] => return Ok(word),
                [b'\'' | b'"', ..] => self.quoted(&mut word)?,
                [b'\\', b'\n', ..] => {
                    self.next();
                    self.next();
                }
                [b'\\', _, ..] => {
                    self.next();
                    word.extend(self.next());
                }
                [b'\\'] => return Err("the script ends with a backslash"),
                _ => word.extend(self.next()),
            }
        }
    }

    /// Appends what is between two quotes.
    fn quoted(&mut self, word: &mut Vec<u8>) -> Result<(), &'static str> {
        let quote = self.next();
        loop {
            match (self.next(), quote) {
                (None, _) => return Err("a quote is not closed"),
                (byte, quote) if byte == quote => return Ok(()),
                (Some(b'\\'), Some(b'"')) => match self.next() {
                    Some(byte @ (b'"' | b'\\' | b'$' | b'`')) => word.push(byte),
                    Some(b'\n') => {}
                    Some(byte) => word.extend([b'\\', byte]),
                    None => return Err("a quote is not closed"),
                },
                (Some(byte), _) => word.push(byte),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Result<Vec<ScriptLine>, Unreadable> {
        lines(text.as_bytes()).collect()
    }

    fn line(number: usize, words: &[&str], input: Option<&str>) -> ScriptLine {
        ScriptLine {
            number,
            words: words.iter().map(OsString::from).collect(),
            input: input.map(OsString::from),
        }
    }

    #[test]
    fn words_are_split_as_in_a_shell() {
        let text = "rm -r /a\n\n# note\n  mkdir 'b c' \"d\\\"e\\n\" f\\ g # end\n\
                    write /x \\\n  <in.txt\r\nln -s '' h#i";
        assert_eq!(
            all(text),
            Ok(vec![
                line(1, &["rm", "-r", "/a"], None),
                line(4, &["mkdir", "b c", "d\"e\\n", "f g"], None),
                line(5, &["write", "/x"], Some("in.txt")),
                line(7, &["ln", "-s", "", "h#i"], None),
            ])
        );
        assert_eq!(all(""), Ok(vec![]));
        let quoted = all("a '<b' \\<c < 'd e'");
        assert_eq!(quoted, Ok(vec![line(1, &["a", "<b", "<c"], Some("d e"))]));
    }

    #[test]
    fn what_cannot_be_split_is_named_with_its_line() {
        for (text, number) in [("a\nb 'c", 2), ("a <\n", 1), ("a <b <c", 1), ("\\", 1)] {
            let error = all(text).expect_err(text);
            assert_eq!(error.number, number, "{text}: {}", error.why);
        }
    }
}
