//! **Purpose.** Shared code of the harness's programs: the choice of injected faults, saved
//! histories, and exit status.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Error, Result, bail};

/// The exit status of a program. Prints an error to stderr after the program's name.
#[must_use]
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Selects the injected fault called `name` from `ways`, or all of them for the name `each`.
///
/// # Errors
/// There is no fault with this name.
pub fn chosen<T: Copy>(ways: &[(&'static str, T)], name: &str) -> Result<Vec<(&'static str, T)>> {
    let meant = |way: &&(&str, T)| name == "each" || way.0 == name;
    let chosen: Vec<_> = ways.iter().filter(meant).copied().collect();
    if chosen.is_empty() {
        let names: Vec<_> = ways.iter().map(|(name, _)| *name).collect();
        bail!(
            "no injected fault is called '{name}'; use 'each' or one of {}",
            names.join(", ")
        );
    }
    Ok(chosen)
}

/// Saves the history of a finding in the folder `findings`. Returns the file, and the error that
/// the history shows. If it cannot be saved, there is no file and the error says why.
pub fn keep(
    findings: &Path,
    name: &str,
    error: Error,
    save: impl FnOnce(&Path) -> Result<()>,
) -> (Option<PathBuf>, Error) {
    let file = findings.join(format!("{name}.history"));
    let saved = fs::create_dir_all(findings)
        .context("the folder of the findings")
        .and_then(|()| save(&file));
    match saved {
        Ok(()) => (Some(file), error),
        Err(trouble) => {
            let why = format!("the history was not saved: {trouble:#}");
            (None, error.context(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn one_or_each_is_chosen_and_unknown_names_list_what_exists() {
        let ways = [("one", 1), ("two", 2)];
        assert_eq!(chosen(&ways, "two").unwrap(), [("two", 2)]);
        assert_eq!(chosen(&ways, "each").unwrap(), ways);
        let error = chosen(&ways, "three").unwrap_err().to_string();
        assert!(
            error.contains("'three'") && error.contains("one, two"),
            "{error}"
        );
    }

    #[test]
    fn a_history_that_cannot_be_kept_hides_no_finding() {
        let folder = tempfile::tempdir().unwrap();
        let findings = folder.path().join("findings");
        let save = |file: &Path| Ok(fs::write(file, "history")?);
        let (file, error) = keep(&findings, "fs-7", anyhow!("bad"), save);
        assert_eq!(fs::read(file.unwrap()).unwrap(), b"history");
        assert_eq!(error.to_string(), "bad");
        let (file, error) = keep(&findings, "fs-7", anyhow!("bad"), |_| bail!("disk full"));
        assert_eq!(file, None);
        let text = format!("{error:#}");
        assert!(
            text.contains("not saved: disk full") && text.contains("bad"),
            "{text}"
        );
    }
}
