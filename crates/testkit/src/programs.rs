//! **Purpose.** What the programs of the harness have in common: which way of breaking is meant,
//! where histories are kept, and how they end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Error, Result, bail};

/// What a program tells its caller; an error goes to stderr, behind the program's name.
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

/// Of the `ways` in which something can be broken the one that is called `name`, or `each`.
///
/// # Errors
/// There is none with this name.
pub fn chosen<T: Copy>(ways: &[(&'static str, T)], name: &str) -> Result<Vec<(&'static str, T)>> {
    let meant = |way: &&(&str, T)| name == "each" || way.0 == name;
    let chosen: Vec<_> = ways.iter().filter(meant).copied().collect();
    if chosen.is_empty() {
        let names: Vec<_> = ways.iter().map(|(name, _)| *name).collect();
        bail!(
            "nothing is broken by '{name}'; there are {}",
            names.join(", ")
        );
    }
    Ok(chosen)
}

/// Has a history saved in the folder of the findings. Gives the file, if it could be, and the error
/// that the history shows, with the reason if not.
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
    fn one_way_or_each_is_chosen_and_others_are_told_what_there_is() {
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
        let (file, error) = keep(&findings, "fs-7", anyhow!("bad"), |_| bail!("no room"));
        assert_eq!(file, None);
        let told = format!("{error:#}");
        assert!(
            told.contains("not saved: no room") && told.contains("bad"),
            "{told}"
        );
    }
}
