//! **Purpose.** The crash harness: builds its program, for the journal alone, for the whole file
//! system or for the kernel's ext4, and runs it until enough crash states are checked.
//!
//! **Model.** The progress of a campaign is the first seed that is not done and the number of
//! states that were checked before it. Both are kept in a small file, so that a long run may be
//! interrupted and resumed. The programs are built like tests, with debug assertions.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::builds::Programs;
use crate::run::run as run_command;
use crate::workspace::Workspace;

/// Compiles the code that injects faults where a test or a program asks for one.
pub(crate) const FAULTS: &str =
    "--features=fourscore/sabotage,fourscore-testkit/sabotage,fourscore-proof/sabotage";

/// The build of the programs of the harness.
const BUILD: [&str; 7] = [
    "build",
    "--package",
    "fourscore-testkit",
    "--package",
    "fourscore-proof",
    "--features=fourscore-testkit/sabotage,fourscore-proof/sabotage",
    "--bins",
];

/// The formats of file systems other than the default, as the program names them.
const FORMATS: [&str; 6] = [
    "inline",
    "clusters",
    "pointers",
    "orphan-file",
    "no-sums",
    "quota",
];
/// States of each of them in the run that is part of `test`.
const FORMAT_STATES: u64 = 2_000;
/// The injected faults of fast commits, each of which must be found.
const FAST_COMMIT_FAULTS: [&str; 7] = [
    "no-flush-before-fast-commit",
    "name-without-inode",
    "unordered-records",
    "unclosed-cut",
    "early-fast-commit",
    "freed-number-reused",
    "recorded-block-reused",
];

/// States with fast commits in the run that is part of `test`.
const FAST_COMMIT_STATES: u64 = 10_000;

/// What the harness tests.
#[derive(Clone, Copy)]
enum Client {
    /// The journal alone.
    Journal,
    /// The whole file system.
    Fs,
    /// The kernel's ext4.
    Kernel,
}

impl Client {
    fn program(self) -> &'static str {
        match self {
            Self::Journal => "fourscore-crash",
            Self::Fs => "fourscore-crash-fs",
            Self::Kernel => "fourscore-crash-kernel",
        }
    }

    /// The name of the file with the progress of a campaign.
    fn progress(self) -> &'static str {
        match self {
            Self::Journal => "crash-progress",
            Self::Fs => "crash-fs-progress",
            Self::Kernel => "crash-kernel-progress",
        }
    }

    /// States of the run that is part of `test`.
    fn smoke_states(self) -> u64 {
        match self {
            Self::Journal => 200_000,
            Self::Fs => 40_000,
            Self::Kernel => 600,
        }
    }

    /// States between two updates of that file: some minutes of work.
    fn chunk_states(self) -> u64 {
        match self {
            Self::Journal => 500_000,
            Self::Fs => 50_000,
            Self::Kernel => 10_000,
        }
    }
}

/// What to test, and for how long.
#[derive(Args)]
pub(crate) struct Options {
    /// The whole file system instead of the journal alone.
    #[arg(long)]
    fs: bool,
    /// The kernel's own ext4: what it writes is recovered by us, by the kernel and by e2fsck
    /// (root).
    #[arg(long, conflicts_with_all = ["fs", "broken"])]
    kernel: bool,
    /// The format of the file systems, with `--fs`, if not the default of mke2fs.
    #[arg(long, requires = "fs", value_parser = FORMATS)]
    #[arg(conflicts_with_all = ["smoke", "replay", "broken", "faults"])]
    format: Option<String>,
    /// File systems with the feature `fast_commit`, with `--fs`.
    #[arg(long, requires = "fs", conflicts_with_all = ["format", "smoke", "replay", "faults"])]
    fast_commit: bool,
    /// Runs until this number of crash states is checked, summed over all runs.
    #[arg(long, default_value_t = 2_000_000)]
    states: u64,
    /// Checks one seed only.
    #[arg(long, conflicts_with_all = ["states", "smoke"])]
    seed: Option<u64>,
    /// Checks again a history that was saved because it showed a fault.
    #[arg(long, conflicts_with_all = ["states", "seed", "smoke"])]
    replay: Option<PathBuf>,
    /// ... and only one of its states.
    #[arg(long, requires = "replay")]
    state: Option<u64>,
    /// Injects the fault of this name, or `each` in turn, and expects that it is found.
    #[arg(long, conflicts_with_all = ["states", "seed", "replay", "smoke"])]
    broken: Option<String>,
    /// Makes the device fail at every moment of every operation.
    #[arg(long, requires = "fs")]
    #[arg(conflicts_with_all = ["states", "seed", "replay", "broken", "smoke"])]
    faults: bool,
    /// Runs what is part of `test`: a number of states, and each injected fault.
    #[arg(long, conflicts_with = "states")]
    smoke: bool,
}

/// Checks crash states.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let client = match options {
        _ if options.fs => Client::Fs,
        _ if options.kernel => Client::Kernel,
        _ => Client::Journal,
    };
    let programs = built(workspace)?;
    if options.smoke {
        return match client {
            Client::Journal => smoke_journal(workspace, &programs),
            Client::Fs => smoke_fs(workspace, &programs),
            Client::Kernel => smoke_kernel(workspace, &programs),
        };
    }
    let mut program = Program::new(workspace, &programs, client)?.on(options.format.as_deref());
    if options.fast_commit {
        program = program.with_fast_commits();
    }
    let mut command = program.command();
    if options.faults {
        command.arg("--faults");
    } else if let Some(file) = &options.replay {
        command.arg("--replay").arg(file);
        if let Some(state) = options.state {
            command.arg(format!("--state={state}"));
        }
    } else if let Some(name) = &options.broken {
        command.arg(format!("--broken={name}"));
    } else if let Some(seed) = options.seed {
        command.arg(format!("--seed={seed}")).arg("--states=1");
    } else {
        return campaign(workspace, &program, options.states);
    }
    run_command(&mut command)
}

/// Runs the part of `test` for the journal alone.
pub(crate) fn smoke_journal(workspace: &Workspace, programs: &Programs) -> Result<()> {
    let client = Client::Journal;
    smoke(&Program::new(workspace, programs, client)?, client)
}

/// Runs the part of `test` for the whole file system: crash states, failing devices, other formats,
/// and fast commits.
pub(crate) fn smoke_fs(workspace: &Workspace, programs: &Programs) -> Result<()> {
    let program = || Program::new(workspace, programs, Client::Fs);
    smoke(&program()?, Client::Fs)?;
    run_command(program()?.command().arg("--faults"))?;
    for format in FORMATS {
        program()?.on(Some(format)).explore(0, FORMAT_STATES)?;
    }
    let program = program()?.with_fast_commits();
    program.explore(0, FAST_COMMIT_STATES)?;
    for fault in FAST_COMMIT_FAULTS {
        run_command(program.command().arg(format!("--broken={fault}")))?;
    }
    Ok(())
}

/// Runs the part of `test` for the kernel's ext4. Where that is not possible, it is reported as a
/// skipped test.
pub(crate) fn smoke_kernel(workspace: &Workspace, programs: &Programs) -> Result<()> {
    let client = Client::Kernel;
    let mut command = Program::new(workspace, programs, client)?.command();
    // The same seeds each time, whatever the machine.
    command.args(["--skip", "--threads=1", "--samples=3"]);
    command.arg(format!("--states={}", client.smoke_states()));
    run_command(&mut command)
}

/// Checks many states of the sound code, then expects that every injected fault is found.
fn smoke(program: &Program<'_>, client: Client) -> Result<()> {
    program.explore(0, client.smoke_states())?;
    run_command(program.command().arg("--broken=each"))
}

/// Runs until `states` were checked, summed over all runs.
fn campaign(workspace: &Workspace, program: &Program<'_>, states: u64) -> Result<()> {
    let file = workspace.target().join(&program.progress);
    let mut progress = Progress::load(&file)?;
    while progress.states < states {
        let wanted = program.chunk_states.min(states - progress.states);
        let done = program.explore(progress.next_seed, wanted)?;
        progress.next_seed = done.next_seed;
        progress.states += done.states;
        progress.store(&file)?;
    }
    let Progress { states, next_seed } = progress;
    println!("{states} states in the histories of {next_seed} seeds");
    Ok(())
}

/// The program of a client.
struct Program<'a> {
    workspace: &'a Workspace,
    path: PathBuf,
    findings: PathBuf,
    /// The format of its file systems, if not the default.
    format: Option<String>,
    /// Whether they have the feature `fast_commit`.
    fast_commit: bool,
    /// The name of the file with the progress of a campaign.
    progress: String,
    chunk_states: u64,
}

/// Builds the programs of the harness.
pub(crate) fn built(workspace: &Workspace) -> Result<Programs> {
    Programs::build(workspace, &BUILD)
}

impl<'a> Program<'a> {
    fn new(workspace: &'a Workspace, programs: &Programs, client: Client) -> Result<Self> {
        Ok(Self {
            workspace,
            path: programs.path(client.program())?.to_path_buf(),
            findings: workspace.target().join("crash-findings"),
            format: None,
            fast_commit: false,
            progress: client.progress().to_owned(),
            chunk_states: client.chunk_states(),
        })
    }

    /// The program, for file systems of a format.
    fn on(mut self, format: Option<&str>) -> Self {
        if let Some(format) = format {
            self.format = Some(format.to_owned());
            self.progress = format!("{}-{format}", self.progress);
        }
        self
    }

    /// The program, for file systems with the feature `fast_commit`.
    fn with_fast_commits(mut self) -> Self {
        self.fast_commit = true;
        self.progress.push_str("-fast-commit");
        self
    }

    fn command(&self) -> Command {
        let mut command = self.workspace.program(&self.path);
        command.args(self.fast_commit.then_some("--fast-commit"));
        command.arg("--findings").arg(&self.findings);
        command.args(
            self.format
                .iter()
                .map(|format| format!("--format={format}")),
        );
        command
    }

    /// Checks `states` states from a seed on, and returns the progress.
    fn explore(&self, seed: u64, states: u64) -> Result<Progress> {
        let mut command = self.command();
        command
            .arg(format!("--seed={seed}"))
            .arg(format!("--states={states}"))
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("{}", self.path.display()))?;
        let stdout = child.stdout.take().context("no stdout of the program")?;
        let mut text = String::new();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            println!("{line}");
            text.push_str(&line);
            text.push('\n');
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("a crash state was recovered wrongly, see above ({status})");
        }
        Progress::parse(&text).context("the program printed no progress")
    }
}

/// The progress of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Progress {
    states: u64,
    next_seed: u64,
}

impl Progress {
    /// Reads the lines `states: N` and `next seed: N`.
    fn parse(text: &str) -> Option<Self> {
        let number = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        Some(Self {
            states: number("states:")?,
            next_seed: number("next seed:")?,
        })
    }

    fn load(file: &PathBuf) -> Result<Self> {
        if !file.exists() {
            return Ok(Self::default());
        }
        Self::parse(&fs::read_to_string(file)?)
            .with_context(|| format!("{} holds no progress", file.display()))
    }

    /// Replaces the file as a whole, so that an interrupt leaves the old numbers or the new ones.
    fn store(&self, file: &PathBuf) -> Result<()> {
        let new = file.with_extension("new");
        let Self { states, next_seed } = self;
        fs::write(&new, format!("states: {states}\nnext seed: {next_seed}\n"))?;
        fs::rename(&new, file)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_stored_and_garbage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("crash-progress");
        assert_eq!(Progress::load(&file).unwrap(), Progress::default());
        let progress = Progress {
            states: 2_000_017,
            next_seed: 411,
        };
        progress.store(&file).unwrap();
        assert_eq!(Progress::load(&file).unwrap(), progress);
        fs::write(&file, "states: many\n").unwrap();
        assert!(Progress::load(&file).is_err());
    }

    #[test]
    fn progress_is_read_from_among_other_lines() {
        let text = "15 histories, 3 s\nstates: 30594\nnext seed: 5\n";
        let expected = Progress {
            states: 30594,
            next_seed: 5,
        };
        assert_eq!(Progress::parse(text), Some(expected));
        assert_eq!(Progress::parse("states: 1\n"), None);
    }
}
