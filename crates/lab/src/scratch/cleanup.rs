//! **Purpose.** What has to be undone of scratch file systems, whenever the program ends: mounts,
//! their servers, the processes of a command, and the folder of the images.
//!
//! **Model.** What has an effect outside of this process begins under the lock of the list, and is
//! in the list before the lock is released. [`Cleanup::end`] takes the lock, undoes all that is in
//! the list, and nothing can begin after it. So a signal that comes while a file system is being
//! mounted waits for that mount and undoes it.
//!
//! Servers and commands have process groups of their own: a Ctrl-C of the terminal does not reach
//! them, and what a command starts is ended with it. A process that is in the list has not been
//! reaped, so its number is not used again.
//!
//! **Locking.** One lock, held while a program mounts or unmounts.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fourscore_sync::{Mutex, thread};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use wait4::{ResUse, Wait4};

/// How long a process has after each signal.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a mount may stay busy before it is detached.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(2);

/// A list of all that has to be undone.
#[derive(Debug, Default)]
pub struct Cleanup {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    has_ended: bool,
    processes: Vec<Pid>,
    mounts: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Cleanup {
    /// Undoes everything; nothing can begin after it. What is in use by this process itself is
    /// detached, and ends with the process.
    pub fn end(&self) {
        let mut list = self.list.lock();
        list.has_ended = true;
        // A command first: it uses the mount. Then its server, which unmounts.
        for pid in std::mem::take(&mut list.processes).into_iter().rev() {
            end_group(pid);
        }
        for point in std::mem::take(&mut list.mounts).into_iter().rev() {
            // Nothing else can be done about a failure.
            let _ = unmount(&point, Duration::ZERO);
        }
        for folder in std::mem::take(&mut list.folders) {
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// Whether [`Cleanup::end`] was called.
    pub fn has_ended(&self) -> bool {
        self.list.lock().has_ended
    }

    /// Makes a new folder in `base` for this process.
    pub(super) fn make_folder(&self, base: &Path) -> io::Result<PathBuf> {
        let mut list = self.begin()?;
        for nr in 0_u32.. {
            let path = base.join(format!("fourscore-lab-{}-{nr}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
                Err(why) => return Err(why),
                Ok(()) => {
                    list.folders.push(path.clone());
                    return Ok(path);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Removes a folder.
    pub(super) fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let mut list = self.begin()?;
        fs::remove_dir_all(path)?;
        list.folders.retain(|folder| folder != path);
        Ok(())
    }

    /// Runs a program that mounts on `point`.
    pub(super) fn mount(&self, command: &mut Command, point: &Path) -> io::Result<()> {
        let mut list = self.begin()?;
        run(command.process_group(0))?;
        list.mounts.push(point.to_owned());
        Ok(())
    }

    /// Unmounts `point`. If it stays in use for two seconds it is detached, which is an error.
    pub(super) fn unmount(&self, point: &Path) -> io::Result<()> {
        let mut list = self.begin()?;
        list.mounts.retain(|mount| mount != point);
        unmount(point, BUSY_TIMEOUT)
    }

    /// Starts a process in a group of its own.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<Child> {
        let mut list = self.begin()?;
        let child = command.process_group(0).spawn()?;
        list.processes.push(Pid::from_child(&child));
        Ok(child)
    }

    /// Waits until a process has ended, ends what it has started and left running, and reaps it.
    pub(super) fn reap(&self, mut child: Child) -> io::Result<ResUse> {
        let pid = Pid::from_child(&child);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), options))?;
        let mut list = self.begin()?;
        // The group may be empty. Its number is that of the leader, which is not reaped yet.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        list.processes.retain(|process| *process != pid);
        child.wait4()
    }

    /// Asks a server to end, and reaps it.
    pub(super) fn stop(&self, child: Child) -> io::Result<ResUse> {
        let pid = Pid::from_child(&child);
        // It may have ended.
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        self.reap(child)
    }

    /// The list, for something that begins.
    fn begin(&self) -> io::Result<fourscore_sync::MutexGuard<'_, List>> {
        let list = self.list.lock();
        match list.has_ended {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(list),
        }
    }
}

/// Ends all processes of a group: asks twice, since a server of ours serves files that are open
/// until the second signal, and then kills.
fn end_group(pid: Pid) {
    for signal in [Signal::TERM, Signal::TERM, Signal::KILL] {
        // The group may be empty but for its leader, which is not reaped yet.
        let _ = rustix::process::kill_process_group(pid, signal);
        if has_ended_within(pid, PATIENCE) {
            break;
        }
    }
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
}

/// Whether a process that was not reaped has ended.
pub(super) fn has_ended(child: &Child) -> bool {
    has_ended_within(Pid::from_child(child), Duration::ZERO)
}

/// Waits for the end of a process, and does not reap it.
fn has_ended_within(pid: Pid, time: Duration) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let began = Instant::now();
    loop {
        let ended = rustix::process::waitid(WaitId::Pid(pid), options);
        match ended {
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            // It has ended, or another thread has reaped it.
            Ok(Some(_)) | Err(_) => return true,
        }
        if began.elapsed() >= time {
            return false;
        }
        thread::sleep(POLL);
    }
}

/// Whether something is mounted on `point`.
pub(super) fn is_mounted(point: &Path) -> bool {
    source_of(point).is_some()
}

/// The source of the mount on `point`, as the kernel lists it.
pub(super) fn source_of(point: &Path) -> Option<String> {
    let mounts = fs::read("/proc/self/mounts").ok()?;
    mounts.split(|&byte| byte == b'\n').find_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let source = words.next()?;
        let is_here = unescaped(words.next()?) == point.as_os_str().as_bytes();
        is_here.then(|| String::from_utf8_lossy(source).into_owned())
    })
}

/// A word of the list of mounts, in which white space and backslashes are octal numbers.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(first));
        rest = match byte {
            Some(_) => &behind[3..],
            None => behind,
        };
    }
    bytes
}

/// Unmounts, and detaches what is in use for longer than `timeout`.
fn unmount(point: &Path, timeout: Duration) -> io::Result<()> {
    let began = Instant::now();
    while is_mounted(point) {
        let Err(why) = run(Command::new("umount").arg(point)) else {
            continue;
        };
        if began.elapsed() >= timeout {
            run(Command::new("umount").arg("--lazy").arg(point))?;
            return Err(why);
        }
        thread::sleep(10 * POLL);
    }
    Ok(())
}

/// Runs a program to its end. What it printed as errors is the message of a failure.
pub(super) fn run(command: &mut Command) -> io::Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|why| io::Error::other(format!("{program}: {why}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    Err(io::Error::other(match text.is_empty() {
        true => format!("{program}: {}", output.status),
        false => format!("{program}: {text}"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_processes_end_and_nothing_begins_afterwards() {
        let base = tempfile::tempdir().expect("a directory");
        let cleanup = Cleanup::default();
        let folder = cleanup.make_folder(base.path()).expect("a folder");
        fs::write(folder.join("image"), "content").expect("space");
        let mut shell = Command::new("sh");
        // The process that the shell starts ends with it.
        shell.args(["-c", "sleep 60 & echo $! > pid; wait"]);
        let child = cleanup.start(shell.current_dir(base.path())).expect("sh");
        let pid = loop {
            let text = fs::read_to_string(base.path().join("pid")).unwrap_or_default();
            if let Ok(pid) = text.trim().parse::<i32>() {
                break Pid::from_raw(pid).expect("a process");
            }
            thread::sleep(POLL);
        };
        cleanup.end();
        assert!(!folder.exists());
        let began = Instant::now();
        let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
        // A zombie waits for its new parent only.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(began.elapsed() < PATIENCE, "sleep goes on");
            thread::sleep(POLL);
        }
        for begun in [
            cleanup.make_folder(base.path()).map(drop),
            cleanup.start(&mut Command::new("true")).map(drop),
            cleanup.reap(child).map(drop),
        ] {
            let why = begun.expect_err("it has ended");
            assert_eq!(why.kind(), io::ErrorKind::Interrupted);
        }
    }

    #[test]
    fn what_a_command_leaves_running_ends_with_it() {
        let cleanup = Cleanup::default();
        let mut shell = Command::new("sh");
        let base = tempfile::tempdir().expect("a directory");
        shell.args(["-c", "sleep 60 & echo $! > pid; exit 3"]);
        let child = cleanup.start(shell.current_dir(base.path())).expect("sh");
        let used = cleanup.reap(child).expect("it ends");
        assert_eq!(used.status.code(), Some(3));
        let pid = fs::read_to_string(base.path().join("pid")).expect("a number");
        let stat = format!("/proc/{}/stat", pid.trim());
        let began = Instant::now();
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(began.elapsed() < PATIENCE, "sleep goes on");
            thread::sleep(POLL);
        }
    }

    #[test]
    fn names_with_white_space_are_found_in_the_list_of_mounts() {
        assert_eq!(unescaped(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescaped(br"/a\04"), br"/a\04");
        assert!(is_mounted(Path::new("/proc")) && !is_mounted(Path::new("/proc/none")));
    }

    #[test]
    fn the_message_of_a_failure_is_what_the_program_printed() {
        let mut shell = Command::new("sh");
        let failed = run(shell.args(["-c", "echo no >&2; exit 1"])).expect_err("it fails");
        assert_eq!(failed.to_string(), "sh: no");
        let failed = run(&mut Command::new("/no/such")).expect_err("it fails");
        assert!(failed.to_string().starts_with("/no/such: "), "{failed}");
    }
}
