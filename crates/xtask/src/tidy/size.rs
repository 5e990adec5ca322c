//! **Purpose.** Rules about how large things may be.

use super::finding::Finding;
use super::source::Source;

/// The limit for files: a longer one has more than one responsibility.
const FILE_LINES: usize = 800;

/// The limit for functions, which should fit a screen (about 70 lines).
const FUNCTION_LINES: usize = 80;

/// The width that rustfmt keeps for code; comments keep it too.
const LINE_COLUMNS: usize = 100;

/// `file-length`: no file is longer than 800 lines.
pub(super) fn file_length(source: &Source, found: &mut Vec<Finding>) {
    if source.lines.len() > FILE_LINES {
        found.push(Finding::new(
            "file-length",
            source.lines.len(),
            format_args!(
                "{} lines, {FILE_LINES} are allowed (split by responsibility)",
                source.lines.len()
            ),
        ));
    }
}

/// `function-length`: no function is longer than 80 lines, signature and braces included.
pub(super) fn function_length(source: &Source, found: &mut Vec<Finding>) {
    for function in &source.functions {
        let lines = function.last_line - function.first_line + 1;
        if lines > FUNCTION_LINES {
            found.push(Finding::new(
                "function-length",
                function.first_line,
                format_args!(
                    "{} has {lines} lines, {FUNCTION_LINES} are allowed",
                    function.name
                ),
            ));
        }
    }
}

/// `line-width`: no line is wider than 100 characters. Rows of tables, addresses and string
/// literals are exempt: rustfmt does not break them either.
pub(super) fn line_width(source: &Source, found: &mut Vec<Finding>) {
    for (index, line) in source.lines.iter().enumerate() {
        let columns = line.chars().count();
        let is_table = line.trim_start_matches(['/', '!', ' ']).starts_with('|');
        let exempt = is_table || line.contains("://") || source.has_string(index);
        if columns > LINE_COLUMNS && !exempt {
            found.push(Finding::new(
                "line-width",
                index + 1,
                format_args!("{columns} columns, {LINE_COLUMNS} are allowed"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::findings_of;
    use super::*;

    const PATH: &str = "crates/fs/src/a.rs";

    #[test]
    fn file_length_counts_lines() {
        assert!(findings_of(file_length, PATH, &"\n".repeat(FILE_LINES)).is_empty());
        assert_eq!(
            findings_of(file_length, PATH, &"\n".repeat(FILE_LINES + 1)).len(),
            1
        );
    }

    #[test]
    fn function_length_counts_from_fn_to_brace() {
        let of = |lines: usize| format!("\nfn a() {{\n{}}}\n", "    b();\n".repeat(lines - 2));
        assert!(findings_of(function_length, PATH, &of(FUNCTION_LINES)).is_empty());
        assert_eq!(
            findings_of(function_length, PATH, &of(FUNCTION_LINES + 1)),
            [2]
        );
    }

    #[test]
    fn line_width_counts_characters() {
        let wide = "x".repeat(LINE_COLUMNS - 2);
        assert_eq!(
            findings_of(line_width, PATH, &format!("\n// {wide}\n")),
            [2]
        );
        assert!(
            findings_of(line_width, PATH, &format!("//{}\n", wide.replace('x', "ä"))).is_empty()
        );
        assert!(findings_of(line_width, PATH, &format!("//! | {wide} |\n")).is_empty());
        assert!(findings_of(line_width, PATH, &format!("// https://{wide}\n")).is_empty());
        assert!(findings_of(line_width, PATH, &format!("let a = \"{wide}\";\n")).is_empty());
    }
}
