//! **Purpose.** A rule about parameters: each has a name.

use super::finding::Finding;
use super::source::Source;
use super::tokens::{Token, after_group, starts_with, tokens};

/// `tuple-parameter`: no function takes a tuple apart in its list of parameters, as in `(block,
/// offset): (PhysBlock, usize)`. Parameters of closures may.
pub(super) fn tuple_parameter(source: &Source, found: &mut Vec<Finding>) {
    let tokens = tokens(source);
    for (at, token) in tokens.iter().enumerate() {
        let Some(name) = tokens.get(at + 1).filter(|name| name.is_word()) else {
            continue;
        };
        if token.text != "fn" {
            continue;
        }
        for parameter in parameters(&tokens[at + 2..]) {
            if is_tuple(parameter) {
                found.push(Finding::new(
                    "tuple-parameter",
                    parameter[0].line,
                    format_args!(
                        "a parameter of {} is a tuple (name a type, or take its parts one by one)",
                        name.text
                    ),
                ));
            }
        }
    }
}

/// The parameters of a function, from the tokens after its name.
fn parameters<'a, 'b>(tokens: &'b [Token<'a>]) -> Vec<&'b [Token<'a>]> {
    let mut found = Vec::new();
    let Some(open) = tokens.iter().position(|token| token.text == "(") else {
        return found;
    };
    let inside = tokens
        .get(open + 1..after_group(tokens, open) - 1)
        .unwrap_or(&[]);
    let (mut begin, mut at) = (0, 0);
    while let Some(token) = inside.get(at) {
        match token.text {
            "(" | "[" | "{" => at = after_group(inside, at),
            "," => {
                found.push(&inside[begin..at]);
                at += 1;
                begin = at;
            }
            _ => at += 1,
        }
    }
    found.push(&inside[begin..]);
    found
}

/// Whether both the pattern and the type of a parameter are tuples.
fn is_tuple(parameter: &[Token<'_>]) -> bool {
    let begins = |tokens: &[Token<'_>]| {
        let at = tokens.iter().position(|token| token.text != "&");
        let tokens = at.and_then(|at| tokens.get(at..)).unwrap_or(&[]);
        starts_with(tokens, &["("]) && !starts_with(tokens, &["(", ")"])
    };
    let colon = parameter.iter().position(|token| token.text == ":");
    colon.is_some_and(|colon| begins(parameter) && begins(&parameter[colon + 1..]))
}

#[cfg(test)]
mod tests {
    use super::super::finding::findings_of;
    use super::*;

    #[test]
    fn tuple_parameter_sees_patterns_of_functions_only() {
        let lines = |text: &str| findings_of(tuple_parameter, "crates/sync/src/a.rs", text);
        assert_eq!(lines("fn a((b, c): (B, C)) {}\n"), [1]);
        assert_eq!(
            lines("fn a<T>(\n    &self,\n    (b, c): &(B, T),\n) {}\n"),
            [3]
        );
        assert!(lines("fn a(b: B, c: [C; 2]) { d.map(|(e, f): (E, F)| e); }\n").is_empty());
        assert!(lines("fn a(f: impl Fn((B, C)) -> D, Point(x, y): Point) {}\n").is_empty());
        assert!(lines("fn a((): (), b: B) {}\n").is_empty());
    }
}
