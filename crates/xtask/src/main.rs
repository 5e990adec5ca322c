//! **Purpose.** Everything a developer or the CI does, as verbs of one program: `cargo xtask VERB`,
//! or `./x VERB`, which first checks that Rust and a C compiler are installed.
//!
//! | module | responsibility |
//! |---|---|
//! | [`workspace`] | where the sources are and which crates and features they have |
//! | [`run`] | child processes, and the summary of a list of steps |
//! | [`builds`] | builds of the programs that steps run, some of them beside other steps |
//! | [`leftovers`] | what a run has left behind: mounts, loop devices, folders |
//! | [`setup`] | the system packages, and what this machine supports |
//! | [`check`] | formatting, lints, documentation, tidy |
//! | [`tidy`] | the rules of style that a program can check |
//! | [`suites`] | the test suites, alone and all in a row |
//! | [`crash`] | crash states of the journal and of the file system, resumable |
//! | [`oracle`] | the concurrent oracle: results of calls while other threads change the same |
//! | [`torture`] | the torture test: a process under load that is killed again and again |
//! | [`fuzz`] | coverage-guided fuzzing on the stable compiler, resumable |
//! | [`mod@bench`] | measurements with other people's programs beside them |
//! | [`predict`] | published tables, predicted for machines with many cores |
//! | [`demo`] | the tour |
//! | [`documents`] | the parts of documents that follow from sources and records |
//! | [`generate`] | man pages and shell completions |
//! | [`mod@package`] | a static command, and a Debian package |
#![forbid(unsafe_code)]

mod bench;
mod builds;
mod check;
mod crash;
mod demo;
mod documents;
mod fuzz;
mod generate;
mod leftovers;
mod oracle;
mod package;
mod predict;
mod run;
mod setup;
mod suites;
mod tidy;
mod torture;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use workspace::Workspace;

/// Developer commands of fourscore.
#[derive(Parser)]
#[command(name = "x", bin_name = "./x", disable_help_subcommand = false)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Installs the system packages that tests and demo use, and reports what this machine
    /// supports.
    Setup,
    /// Formatting, clippy, documentation and the tidy rules; changes nothing.
    Check,
    /// Only the tidy rules (part of check).
    Tidy(tidy::Options),
    /// Set-up, check and every test suite, with a summary at the end.
    Test,
    /// The tour: an image of a real tree of this machine is made, read back and compared.
    Demo(demo::Options),
    /// Tests that compare with a model, in all crates (those with `model` in their name).
    Model,
    /// The model-checked builds: every crate with a `shuttle` feature.
    Shuttle,
    /// The counting builds: every crate with a `count` feature.
    Count,
    /// Checks crash states of the journal, or of the file system, until their number is reached.
    Crash(crash::Options),
    /// Checks the results of calls while other threads change the same files and directories.
    Oracle(oracle::Options),
    /// Runs every kind of operation on one image, in a process that is killed at random moments,
    /// again and again.
    Torture(torture::Options),
    /// Fuzzes one target until its executions, over all calls, reach a number.
    Fuzz(fuzz::Options),
    /// Measures fourscore beside other people's programs, with tables.
    Bench(bench::Options),
    /// Predicts published tables of ext4's allocator on machines with many cores.
    Predict(predict::Options),
    /// Writes the parts of documents that follow from sources and records.
    Documents,
    /// Writes the man pages to a directory.
    Man(generate::Options),
    /// Writes the shell completions to a directory.
    Completions(generate::Options),
    /// Builds a static command and a Debian package of it, and checks the package.
    Package(package::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = Workspace::locate().and_then(|workspace| match &arguments.verb {
        Verb::Setup => setup::run(&workspace),
        Verb::Check => check::run(&workspace),
        Verb::Tidy(options) => tidy::run(&workspace, options),
        Verb::Test => suites::test(&workspace),
        Verb::Demo(options) => demo::run(&workspace, options),
        Verb::Model => suites::model(&workspace),
        Verb::Shuttle => suites::feature(&workspace, suites::Feature::Shuttle),
        Verb::Count => suites::feature(&workspace, suites::Feature::Count),
        Verb::Crash(options) => crash::run(&workspace, options),
        Verb::Oracle(options) => oracle::run(&workspace, options),
        Verb::Torture(options) => torture::run(&workspace, options),
        Verb::Fuzz(options) => fuzz::run(&workspace, options),
        Verb::Bench(options) => bench::run(&workspace, options),
        Verb::Predict(options) => predict::run(&workspace, options),
        Verb::Documents => documents::write(&workspace),
        Verb::Man(options) => generate::run(&workspace, generate::What::Man, options),
        Verb::Completions(options) => {
            generate::run(&workspace, generate::What::Completions, options)
        }
        Verb::Package(options) => package::run(&workspace, options),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
