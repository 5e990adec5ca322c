//! **Purpose.** Rules about functions: tests that can fail, and parameters that show their meaning.

use super::finding::Finding;
use super::source::{Function, Source, has_word};

/// What makes a test able to fail, apart from a question mark.
const ASSERTIONS: &[&str] = &[
    "assert", // assert!, assert_eq!, prop_assert!, debug_assert!, and functions named after them
    "panic!",
    "unreachable!",
    ".unwrap()",
    ".unwrap_err()",
    ".expect(",
    ".expect_err(",
    "proptest!",
    "model::check",
    "shuttle::check",
    "loom::model",
];

/// `test-has-assert`: a test contains something that can fail, itself or in a function of the same
/// file that it calls.
pub(super) fn test_has_assert(source: &Source, found: &mut Vec<Finding>) {
    let mut failing: Vec<&Function> = source
        .functions
        .iter()
        .filter(|function| asserts(source, function))
        .collect();
    loop {
        let callers: Vec<&Function> = source
            .functions
            .iter()
            .filter(|function| !failing.contains(function))
            .filter(|function| failing.iter().any(|callee| calls(source, function, callee)))
            .collect();
        if callers.is_empty() {
            break;
        }
        failing.extend(callers);
    }
    for test in source.functions.iter().filter(|function| function.is_test) {
        if !failing.contains(&test) {
            found.push(Finding::new(
                "test-has-assert",
                test.first_line,
                format_args!("{} cannot fail (assert something)", test.name),
            ));
        }
    }
}

fn asserts(source: &Source, function: &Function) -> bool {
    function.should_panic
        || source.code_of(function).iter().any(|line| {
            ASSERTIONS.iter().any(|assertion| line.contains(assertion))
                || ["?;", "?."].iter().any(|operator| line.contains(operator))
                || line.trim_end().ends_with('?')
        })
}

fn calls(source: &Source, function: &Function, callee: &Function) -> bool {
    source
        .code_of(function)
        .iter()
        .skip(1)
        .any(|line| has_word(line, &callee.name))
        || source.code_of(function).first().is_some_and(|line| {
            line.split_once('{')
                .is_some_and(|(_, body)| has_word(body, &callee.name))
        })
}

/// `bare-bool`: no public function takes a bare `bool`: at a call, `true` has no name.
pub(super) fn bare_bool(source: &Source, found: &mut Vec<Finding>) {
    if !source.in_src() {
        return;
    }
    for (index, line) in source.code.iter().enumerate() {
        let trimmed = line.trim_start();
        let is_public = trimmed.starts_with("pub fn ")
            || trimmed.starts_with("pub const fn ")
            || trimmed.starts_with("pub unsafe fn ");
        if is_public && takes_bool(&parameters(&source.code, index)) {
            found.push(Finding::new(
                "bare-bool",
                index + 1,
                "a public function takes a bare bool (make it an enum)",
            ));
        }
    }
}

/// The text between the parentheses of a function that begins at a line.
fn parameters(code: &[String], first: usize) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for c in code
        .iter()
        .skip(first)
        .flat_map(|line| line.chars().chain([' ']))
    {
        match c {
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            _ => {}
        }
        if depth > 0 {
            text.push(c);
        }
    }
    text
}

/// Whether a parameter's whole type is `bool`; one inside of `impl Fn(..) -> bool` is not.
fn takes_bool(parameters: &str) -> bool {
    parameters.split(',').any(|parameter| {
        parameter
            .split_once(':')
            .is_some_and(|(_, kind)| kind.trim() == "bool")
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::findings_of;
    use super::*;

    const PATH: &str = "crates/fs/src/a.rs";

    #[test]
    fn test_has_assert_sees_tests_that_cannot_fail() {
        let lines = |text: &str| findings_of(test_has_assert, PATH, text);
        assert_eq!(lines("#[test]\nfn a() {\n    let _ = b();\n}\n"), [2]);
        assert!(lines("#[test]\nfn a() {\n    b().unwrap();\n}\n").is_empty());
        assert!(lines("#[test]\nfn a() -> R {\n    b()?;\n    Ok(())\n}\n").is_empty());
        assert!(lines("#[test]\nfn a() { c() }\nfn c() {\n    assert!(d());\n}\n").is_empty());
        assert_eq!(
            lines("#[test]\nfn a() { c() }\nfn c() {\n    d();\n}\n"),
            [2]
        );
        assert!(
            lines("#[test]\n#[should_panic(expected = \"x\")]\nfn a() {\n    b();\n}\n").is_empty()
        );
        assert!(lines("fn a() {\n    b();\n}\n").is_empty());
    }

    #[test]
    fn bare_bool_sees_parameters_of_public_functions() {
        let lines = |text: &str| findings_of(bare_bool, PATH, text);
        assert_eq!(lines("pub fn a(b: bool) {}\n"), [1]);
        assert_eq!(lines("\npub fn a(\n    b: u8,\n    c: bool,\n) {}\n"), [2]);
        assert!(lines("fn a(b: bool) {}\n").is_empty());
        assert!(lines("pub fn a(b: impl Fn(u8) -> bool) -> bool {}\n").is_empty());
        assert!(lines("pub fn a(b: Option<bool>) {}\n").is_empty());
    }
}
