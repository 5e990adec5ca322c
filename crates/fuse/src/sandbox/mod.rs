//! **Purpose.** A server that reads a hostile image can do nothing but serve it: whoever takes it
//! over through a fault of ours has the image, the mount, and no way out.
//!
//! **Model.** A process locks itself up in two steps, which take away, for good:
//!
//! - [`enclose`], when image and mount are open and before the image is looked at: privileges and
//!   the way to new ones, core dumps (which would show files), files but `/dev/fuse` and what
//!   `/sys` tells, connections, signals to others.
//! - [`Enclosed::lock`], when everything else is open and before the first request: the rest of
//!   the files, and every system call but those of `calls`.
//!
//! The first step concerns the thread that takes it and those that it starts, so it comes before
//! there are others. The second one concerns all threads. A system call that is not allowed fails
//! (`EPERM`) and ends nobody: what is refused cannot harm, and a library that tries something and
//! can do without goes on.
//!
//! Rings of io_uring carry out system calls that no filter sees. So they are made before the second
//! step, after which none can be made, and restricted; what opens or connects through one all the
//! same meets the rules for files, which look at what is done and not at how it is asked for.
//!
//! **Not here.** Unmounting, which nobody can do in here: who wants to end the mount keeps a
//! process outside. Memory, which the budgets of the caches bound.
//!
//! **References.** landlock(7), seccomp(2), capabilities(7), `PR_SET_DUMPABLE` of prctl(2).

mod calls;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The newest version of Landlock whose rules were looked at. Older kernels keep those they know.
const LANDLOCK: ABI = ABI::V7;

/// Why a process could not be locked up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Privileges or core dumps could not be given up.
    #[error("privileges: {0}")]
    Privileges(std::io::Error),
    /// The kernel refuses the rules for files and connections.
    #[error("landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// The kernel refuses the filter for system calls.
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
}

/// A process that has taken the first step.
#[derive(Debug)]
pub struct Enclosed(());

/// Takes away what is not needed to open a file system and to make its workers ready. To be called
/// while there is one thread.
///
/// A kernel without Landlock (before 5.13, or where it is off) leaves files to the second step.
///
/// # Errors
/// See [`SandboxError`]; part of it may be taken away then.
pub fn enclose() -> Result<Enclosed, SandboxError> {
    give_up_privileges().map_err(|errno| SandboxError::Privileges(errno.into()))?;
    // Descriptors of more workers are opened here, and the processors counted.
    restrict(&["/dev/fuse"], &["/sys"])?;
    Ok(Enclosed(()))
}

impl Enclosed {
    /// Takes away everything but serving, from all threads of the process.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub fn lock(self) -> Result<(), SandboxError> {
        restrict(&[], &[])?;
        Ok(calls::filter()?)
    }
}

fn give_up_privileges() -> rustix::io::Result<()> {
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_capabilities(None, nothing)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, no_core)
}

/// Leaves this thread the files beneath `written` and, to read them, those beneath `read`.
fn restrict(written: &[&str], read: &[&str]) -> Result<(), SandboxError> {
    let everything = AccessFs::from_all(LANDLOCK);
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(written, everything))?
        .add_rules(path_beneath_rules(read, AccessFs::from_read(LANDLOCK)))?
        .restrict_self()?;
    if status.ruleset != RulesetStatus::FullyEnforced {
        tracing::info!(?status, "this kernel knows fewer rules");
    }
    Ok(())
}
