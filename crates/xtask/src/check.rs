//! **Purpose.** `check`: formatting, lints, documentation and tidy; nothing is changed.

use anyhow::Result;

use crate::run::{Steps, cargo, run as run_command};
use crate::tidy;
use crate::workspace::Workspace;

/// Runs all four and fails if one fails.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut steps = Steps::default();
    add_to(&mut steps, workspace);
    steps.finish()
}

/// Adds the four steps to a longer list.
pub(crate) fn add_to(steps: &mut Steps, workspace: &Workspace) {
    steps.step("tidy", || tidy::check(workspace));
    steps.step("rustfmt", || {
        run_command(cargo(workspace).args(["fmt", "--all", "--check"]))
    });
    steps.step("clippy", || {
        run_command(cargo(workspace).args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]))
    });
    steps.step("rustdoc", || {
        run_command(
            cargo(workspace)
                .args([
                    "doc",
                    "--workspace",
                    "--no-deps",
                    "--document-private-items",
                ])
                // Module tables name private modules too; private items are part of the build.
                .env(
                    "RUSTDOCFLAGS",
                    "-D warnings -A rustdoc::private-intra-doc-links",
                ),
        )
    });
}
