//! **Purpose.** `fourscore man` and `fourscore completions`: man pages and shell completions, made
//! from the definition of the command line, so that they always fit the command.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::failure::{Failure, Result};
use crate::output::Stdout;

/// `man`
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Verb, and for edit the change [default: the command itself]
    #[arg(value_name = "VERB")]
    verb: Vec<String>,
    /// Writes all pages to a directory, which is made if it is missing
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    output: Option<PathBuf>,
}

/// `completions`
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell
    #[arg(required_unless_present = "output")]
    shell: Option<Shell>,
    /// Writes those of all shells to a directory, which is made if it is missing
    #[arg(long, value_name = "DIR", conflicts_with = "shell")]
    output: Option<PathBuf>,
}

/// Runs `man`.
pub(crate) fn man(args: &ManArgs) -> Result<()> {
    let mut command = crate::command().disable_help_subcommand(true);
    command.build();
    if let Some(folder) = &args.output {
        make(folder)?;
        return write_pages(command, folder);
    }
    for verb in &args.verb {
        let found = { command.get_subcommands() }.find(|one| one.get_name() == verb);
        command = found.cloned().ok_or_else(|| {
            let all = { command.get_subcommands() }.filter(|one| !one.is_hide_set());
            let all: Vec<&str> = all.map(Command::get_name).collect();
            let why = match all.is_empty() {
                true => "is not described on a page of its own".to_owned(),
                false => format!("is no verb; there are {}", all.join(", ")),
            };
            Failure::usage(verb.as_str(), why)
        })?;
    }
    let mut out = Stdout::open()?;
    out.write(&page(command)?)?;
    out.flush()
}

/// Writes the page of a command and those of its verbs.
fn write_pages(command: Command, folder: &Path) -> Result<()> {
    for verb in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        write_pages(verb.clone(), folder)?;
    }
    let name = Man::new(command.clone()).get_filename();
    write(&folder.join(name), &page(command)?)
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let rendered = Man::new(command).render(&mut text);
    rendered.map_err(|why| Failure::new("the man page", why))?;
    Ok(text)
}

/// Runs `completions`.
pub(crate) fn completions(args: &Completions) -> Result<()> {
    if let Some(folder) = &args.output {
        make(folder)?;
        for &shell in Shell::value_variants() {
            let name = clap_complete::Generator::file_name(&shell, NAME);
            write(&folder.join(name), &completions_of(shell))?;
        }
        return Ok(());
    }
    let Some(shell) = args.shell else {
        return Err(Failure::usage("completions", "give a shell"));
    };
    let mut out = Stdout::open()?;
    out.write(&completions_of(shell))?;
    out.flush()
}

const NAME: &str = "fourscore";

fn completions_of(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut crate::command(), NAME, &mut text);
    text
}

fn make(folder: &Path) -> Result<()> {
    let made = fs::create_dir_all(folder);
    made.map_err(|why| Failure::new(folder.display().to_string(), why))
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    let written = fs::write(path, text);
    written.map_err(|why| Failure::new(path.display().to_string(), why))
}
