//! **Purpose.** Threads and thread-locals.
//!
//! In the model a task is a coroutine: a thread-local of the standard library would be shared by
//! all tasks, so `thread_local!` comes from here as well.

#[cfg(not(feature = "shuttle"))]
pub use std::thread::{
    Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, ThreadId, current, park,
    park_timeout, scope, sleep, spawn, yield_now,
};
#[cfg(not(feature = "shuttle"))]
pub use std::thread_local;

#[cfg(feature = "shuttle")]
pub use shuttle::thread::{
    Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, ThreadId, current, park, scope,
    sleep, spawn, yield_now,
};
#[cfg(feature = "shuttle")]
pub use shuttle::thread_local;

pub use std::thread::{available_parallelism, panicking};

/// As [`park`]: in the model no timeout ends, so that a lost wake-up that only the timeout hides
/// shows as a deadlock.
#[cfg(feature = "shuttle")]
pub fn park_timeout(_timeout: std::time::Duration) {
    park();
}

/// Starts a thread of `scope`. Unlike [`Scope::spawn`] it does not panic if the host refuses a
/// thread.
///
/// # Errors
/// The host's error if this process can have no further thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    act: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
    #[cfg(not(feature = "shuttle"))]
    let thread = Builder::new().spawn_scoped(scope, act);
    // In the model, starting a thread never fails.
    #[cfg(feature = "shuttle")]
    let thread = Ok(scope.spawn(act));
    thread
}

/// Waits before a retry of an operation that another thread disturbs: about ten nanoseconds after
/// the first attempt (0), longer after each further one, and from the fifth on until the scheduler
/// has run other threads of this core.
pub fn back_off(attempt: u32) {
    #[cfg(not(feature = "shuttle"))]
    if attempt < 4 {
        (0..16_u32 << attempt).for_each(|_| std::hint::spin_loop());
        return;
    }
    let _ = attempt;
    yield_now();
}

/// Gives the calling thread a working directory of its own: a later `chdir` by this thread does not
/// affect other threads. For threads made for one job; this cannot be undone.
///
/// # Errors
/// The host's error, for example if a sandbox forbids it. Kind `Unsupported` on systems other than
/// Linux.
pub fn own_working_directory() -> std::io::Result<()> {
    crate::host::own_working_directory()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::env::{current_dir, set_current_dir};

    #[test]
    fn a_thread_with_its_own_directory_does_not_move_others() {
        let before = current_dir().expect("a directory");
        let inside = super::spawn(|| {
            // A sandbox may forbid it; then there is nothing to test.
            super::own_working_directory().ok()?;
            set_current_dir("/").expect("always allowed");
            current_dir().ok()
        });
        let inside = inside.join().expect("no panic");
        assert!(inside.is_none_or(|path| path.as_os_str() == "/"));
        assert_eq!(current_dir().expect("a directory"), before);
    }
}
