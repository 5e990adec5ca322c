//! **Purpose.** The progress bar of a build: files, bytes, rate and remaining time. While the
//! sources are read and the total is unknown, it shows the number of objects and bytes read.
//!
//! **Model.** Nothing is shown for the first second, nor if standard error is not a terminal.
//!
//! **Locking.** Objects and bytes read are counted per core. Threads that write the image replace
//! the last report under a mutex. They skip it if the mutex is taken, since the next report follows
//! soon.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use fourscore_build::{Phase, Progress};
use fourscore_sync::{Arc, Condvar, Counter, Mutex, thread};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

use crate::verbosity;

const SILENT: Duration = Duration::from_secs(1);
const REDRAW: Duration = Duration::from_millis(100);
const READING: &str = "reading the sources: {msg}, {elapsed}";
const WRITING: &str =
    "{prefix} {bar:30} {msg}, {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// Shows progress until it is dropped.
pub(crate) struct Bar {
    shared: Arc<Shared>,
    drawer: Option<thread::JoinHandle<()>>,
}

struct Shared {
    read_objects: Counter,
    read_bytes: Counter,
    state: Mutex<State>,
    stop: Condvar,
}

#[derive(Default)]
struct State {
    /// Progress of the image, once it has begun.
    progress: Option<Progress>,
    is_stopped: bool,
}

impl Bar {
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Shared {
            read_objects: Counter::default(),
            read_bytes: Counter::default(),
            state: Mutex::new(State::default()),
            stop: Condvar::new(),
        });
        let is_shown = stderr().is_terminal() && !verbosity::is_quiet();
        let drawer = is_shown.then(|| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.draw())
        });
        Self { shared, drawer }
    }

    /// Counts objects of the sources.
    pub(super) fn read_objects(&self) -> &Counter {
        &self.shared.read_objects
    }

    /// Counts bytes of archives.
    pub(super) fn read_bytes(&self) -> &Counter {
        &self.shared.read_bytes
    }

    /// Takes a report.
    pub(super) fn set(&self, progress: Progress) {
        if self.drawer.is_some()
            && let Some(mut state) = self.shared.state.try_lock()
        {
            state.progress = Some(progress);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopped = true;
        self.shared.stop.notify_all();
        if let Some(drawer) = self.drawer.take() {
            // A failure to draw the bar does not matter: the work is done.
            let _ = drawer.join();
        }
    }
}

impl Shared {
    fn draw(&self) {
        if self.after(SILENT).is_none() {
            return;
        }
        let bar = ProgressBar::new(0).with_elapsed(SILENT);
        let mut shown = None;
        while let Some(progress) = self.after(REDRAW) {
            let phase = progress.map(|progress| progress.phase);
            if shown != Some(phase) {
                if shown.replace(phase).is_some() {
                    // Rate and remaining time are those of this phase.
                    bar.reset();
                }
                bar.set_prefix(match phase {
                    Some(Phase::ReadingBack) => "reading back",
                    _ => "writing",
                });
                let template = if phase.is_some() { WRITING } else { READING };
                let style = ProgressStyle::with_template(template);
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            }
            match progress {
                None => bar.set_message(self.read()),
                Some(progress) => show(&bar, &progress),
            }
            bar.tick();
        }
        bar.finish_and_clear();
    }

    /// What has been read of the sources, as text.
    fn read(&self) -> String {
        let objects = self.read_objects.sum();
        match self.read_bytes.sum() {
            0 => format!("{objects} objects"),
            bytes => format!("{objects} objects, {}", HumanBytes(bytes)),
        }
    }

    /// The last report, after this time; `None` at the end.
    fn after(&self, time: Duration) -> Option<Option<Progress>> {
        let mut state = self.state.lock();
        if !state.is_stopped {
            self.stop.wait_for(&mut state, time);
        }
        (!state.is_stopped).then_some(state.progress)
    }
}

fn show(bar: &ProgressBar, progress: &Progress) {
    bar.set_length(progress.bytes);
    bar.set_position(progress.bytes_done);
    let (done, all) = (progress.objects_done, progress.objects);
    bar.set_message(format!("{done}/{all} files"));
}
