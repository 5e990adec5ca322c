//! **Purpose.** A progress bar for work that takes more than a second, on a terminal only.
//!
//! **Locking.** The count is per core. A separate thread reads the sum ten times a second and draws
//! the bar.

use std::io::{IsTerminal, stderr, stdout};
use std::time::Duration;

use fourscore_sync::{Arc, Condvar, Counter, Mutex, thread};
use indicatif::{ProgressBar, ProgressStyle};

use crate::verbosity;

/// Time before the bar is shown.
const SILENT: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(100);

/// Counts work and shows the bar until this is dropped.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    drawer: Option<thread::JoinHandle<()>>,
}

struct Shared {
    done: Counter,
    stopped: Mutex<bool>,
    stop: Condvar,
}

impl Progress {
    /// Starts counting towards `total` objects.
    pub(crate) fn of_objects(total: u64) -> Self {
        Self::new(Some(total), stderr().is_terminal())
    }

    /// As [`Progress::of_objects`], for a command that prints; `total` is `None` if it is unknown.
    /// There is no bar if the output goes to the same terminal, whose lines it would disturb.
    pub(crate) fn beside_output(total: Option<u64>) -> Self {
        Self::new(total, stderr().is_terminal() && !stdout().is_terminal())
    }

    fn new(total: Option<u64>, shown: bool) -> Self {
        let shared = Arc::new(Shared {
            done: Counter::default(),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        });
        let drawer = (shown && !verbosity::is_quiet()).then(|| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.draw(total))
        });
        Self { shared, drawer }
    }

    /// Adds `count` finished objects.
    pub(crate) fn add(&self, count: usize) {
        self.shared.done.add(count as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *self.shared.stopped.lock() = true;
        self.shared.stop.notify_all();
        if let Some(drawer) = self.drawer.take() {
            // A failure to draw the bar does not matter: the work is done.
            let _ = drawer.join();
        }
    }
}

impl Shared {
    fn draw(&self, total: Option<u64>) {
        if self.stopped_within(SILENT) {
            return;
        }
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{bar:40} {pos}/{len} objects, {eta} left",
            ),
            None => (ProgressBar::no_length(), "{pos} objects in {elapsed}"),
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        while !self.stopped_within(REDRAW) {
            bar.set_position(self.done.sum().min(total.unwrap_or(u64::MAX)));
        }
        bar.finish_and_clear();
    }

    fn stopped_within(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.stop.wait_for(&mut stopped, time);
        }
        *stopped
    }
}
