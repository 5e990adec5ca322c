//! **Purpose.** The progress bar of a build: files, bytes, rate and what is left.
//!
//! **Model.** Nothing is shown for the first second, nor if standard error is no terminal.
//!
//! **Locking.** Those who report replace the last report under a mutex, which they skip if it is
//! taken: the next report is as good.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use fourscore_build::Progress;
use fourscore_sync::{Arc, Condvar, Mutex, thread};
use indicatif::{ProgressBar, ProgressStyle};

const SILENT: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(100);
const TEMPLATE: &str = "{bar:30} {msg}, {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// Shows progress until it is dropped.
pub(super) struct Bar {
    shared: Arc<Shared>,
    drawer: Option<thread::JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    stop: Condvar,
}

#[derive(Default)]
struct State {
    progress: Progress,
    is_stopped: bool,
}

impl Bar {
    pub(super) fn new() -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            stop: Condvar::new(),
        });
        let drawer = stderr().is_terminal().then(|| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.draw())
        });
        Self { shared, drawer }
    }

    /// Takes a report.
    pub(super) fn set(&self, progress: Progress) {
        if self.drawer.is_some()
            && let Some(mut state) = self.shared.state.try_lock()
        {
            state.progress = progress;
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.stop.notify_all();
        if let Some(drawer) = self.drawer.take() {
            // Whatever happened to the bar, the work is done.
            let _ = drawer.join();
        }
    }
}

impl Shared {
    fn draw(&self) {
        if self.after(SILENT).is_none() {
            return;
        }
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template(TEMPLATE);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        while let Some(progress) = self.after(REDRAW) {
            bar.set_length(progress.bytes);
            bar.set_position(progress.bytes_done);
            let Progress {
                objects_done,
                objects,
                ..
            } = progress;
            bar.set_message(format!("{objects_done}/{objects} files"));
        }
        bar.finish_and_clear();
    }

    /// The last report, after this time; `None` at the end.
    fn after(&self, time: Duration) -> Option<Progress> {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.stop.wait_for(&mut state, time);
        }
        (!state.is_stopped).then_some(state.progress)
    }
}
