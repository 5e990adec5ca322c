//! **Purpose.** Random calls on names and directories.

use fourscore_sync::Arc;
use fourscore_sync::atomic::{AtomicUsize, Ordering};

use super::super::call::{Call, Event, Kind, Name, Outcome, Place};
use super::super::shared::{GROWS_IN, Growing, STEADY};
use super::super::target::Target;
use super::super::theme::Theme;
use super::{Worker, done, number};

/// Names in a directory.
const NAMES: usize = 6;
/// Names in a directory where directories are moved: few, so that threads collide.
const TREE_NAMES: usize = 2;
/// The most lookups of the name that is created and removed again.
const LOOKS: usize = 300;
/// The number of names after which another directory grows.
const MOST_GROWN: usize = 400;
/// The most directories that grow in a round.
const MOST_GROWING: usize = 150;
/// The same for a file system with few inodes.
const MOST_GROWING_FEW_INODES: usize = 12;

impl<T: Target> Worker<'_, T> {
    /// A directory: a permanent one, or one that a thread has looked up.
    fn dir(&mut self) -> T::Dir {
        let is_tree = self.shared.shape.theme == Theme::Tree;
        if self.random.happens(if is_tree { 3 } else { 2 }, 4) {
            let known_dirs = self.shared.known_dirs.lock();
            if !known_dirs.is_empty() {
                return known_dirs[self.random.below(known_dirs.len())].clone();
            }
        }
        let permanent = &self.shared.permanent;
        permanent[self.random.below(permanent.len())].dir.clone()
    }

    fn place(&mut self) -> (T::Dir, Place) {
        let dir = self.dir();
        let is_tree = self.shared.shape.theme == Theme::Tree;
        let name = Name::any(self.random.below(if is_tree { TREE_NAMES } else { NAMES }));
        let number = self.shared.target.number(&dir);
        (dir, Place { dir: number, name })
    }

    /// A name that always exists, and the index of its permanent directory.
    fn steady(&mut self) -> (usize, Place) {
        let permanent = &self.shared.permanent;
        let at = self.random.below(permanent.len());
        let name = Name::steady(self.random.below(STEADY));
        (
            at,
            Place {
                dir: permanent[at].number,
                name,
            },
        )
    }

    pub(super) fn make(&mut self) {
        let (dir, at) = self.place();
        let kind = *self.random.pick(&[Kind::File, Kind::File, Kind::Symlink]);
        self.make_at(&dir, at, kind);
    }

    fn make_at(&mut self, dir: &T::Dir, at: Place, kind: Kind) {
        self.note(Call::Make(kind, at), |shared| {
            match shared.target.make(dir, at.name, kind) {
                Ok(Some(number)) => Outcome::Number(number),
                Ok(None) => Outcome::Done,
                Err(failure) => Outcome::Failed(failure),
            }
        });
    }

    pub(super) fn make_directory(&mut self) {
        let (dir, at) = self.place();
        self.make_at(&dir, at, Kind::Directory);
        self.look_up_directory(&dir, at);
    }

    /// Looks up a directory, and makes it known to the other threads.
    fn look_up_directory(&mut self, dir: &T::Dir, at: Place) {
        let mut found = None;
        self.note(Call::Lookup(at), |shared| {
            match shared.target.open_dir(dir, at.name) {
                Ok(dir) => {
                    let number = shared.target.number(&dir);
                    found = Some(dir);
                    Outcome::Number(number)
                }
                Err(failure) => Outcome::Failed(failure),
            }
        });
        if let Some(dir) = found {
            self.shared.publish_dir(dir, self.random.below(1000));
        }
    }

    pub(super) fn remove(&mut self) {
        let (dir, at) = self.place();
        self.note(Call::Unlink(at), |shared| {
            done(shared.target.unlink(&dir, at.name))
        });
    }

    pub(super) fn remove_directory(&mut self) {
        let (dir, at) = self.place();
        self.note(Call::Rmdir(at), |shared| {
            done(shared.target.rmdir(&dir, at.name))
        });
    }

    pub(super) fn rename(&mut self) {
        let ((from, old), (to, new)) = (self.place(), self.place());
        let replaces = !self.random.happens(1, 4);
        self.rename_at(&from, old, &to, new, replaces);
    }

    fn rename_at(&mut self, from: &T::Dir, old: Place, to: &T::Dir, new: Place, replaces: bool) {
        if old == new {
            return;
        }
        let call = Call::Rename {
            from: old,
            to: new,
            replaces,
        };
        self.note(call, |shared| {
            done(
                shared
                    .target
                    .rename((from, old.name), (to, new.name), replaces),
            )
        });
    }

    pub(super) fn exchange(&mut self) {
        let ((one, old), (other, new)) = (self.place(), self.place());
        if old != new {
            self.note(Call::Exchange(old, new), |shared| {
                done(shared.target.exchange((&one, old.name), (&other, new.name)))
            });
        }
    }

    pub(super) fn link(&mut self) {
        if !self.shared.shape.has_links {
            return;
        }
        let permanent = &self.shared.permanent;
        let permanent = &permanent[self.random.below(permanent.len())];
        let name = Name::any(self.random.below(NAMES));
        let at = Place {
            dir: permanent.number,
            name,
        };
        let file = self.file();
        let number_of = self.shared.target.file_number(&file.file);
        self.note(Call::Link(number_of, at), |shared| {
            number(shared.target.link(&file.file, &permanent.dir, at.name))
        });
    }

    pub(super) fn lookup(&mut self) {
        let (dir, at) = if self.random.happens(1, 4) {
            let (permanent, at) = self.steady();
            (self.shared.permanent[permanent].dir.clone(), at)
        } else {
            self.place()
        };
        let mut found = None;
        self.note(Call::Lookup(at), |shared| {
            let answer = shared.target.lookup(&dir, at.name);
            found = answer.as_ref().ok().copied();
            number(answer)
        });
        if let Some(found) = found {
            self.note(Call::StatNumber(found), |shared| {
                done(shared.target.stat_number(found))
            });
        }
    }

    /// The name that is created and removed again and again.
    fn flickering(&self) -> (T::Dir, Place) {
        let permanent = &self.shared.permanent[0];
        let (dir, name) = (permanent.number, Name::any(0));
        (permanent.dir.clone(), Place { dir, name })
    }

    /// Creates the name that others look up, and removes it again.
    pub(super) fn flicker(&mut self) {
        let (dir, at) = self.flickering();
        let kind = *self
            .random
            .pick(&[Kind::File, Kind::File, Kind::Directory, Kind::Symlink]);
        self.make_at(&dir, at, kind);
        self.note(Call::Lookup(at), |shared| {
            number(shared.target.lookup(&dir, at.name))
        });
        if kind == Kind::Directory {
            self.note(Call::Rmdir(at), |shared| {
                done(shared.target.rmdir(&dir, at.name))
            });
        } else {
            self.note(Call::Unlink(at), |shared| {
                done(shared.target.unlink(&dir, at.name))
            });
        }
    }

    /// Looks up the name that is created and removed, and gets the attributes of its inode as soon
    /// as it exists.
    pub(super) fn hunt(&mut self) {
        let (dir, at) = self.flickering();
        for _ in 0..LOOKS {
            let begin = self.shared.now();
            let Ok(found) = self.shared.target.lookup(&dir, at.name) else {
                continue;
            };
            let end = self.shared.now();
            let thread = self.thread;
            let (call, outcome) = (Call::Lookup(at), Outcome::Number(found));
            self.events.push(Event {
                begin,
                end,
                thread,
                call,
                outcome,
            });
            self.note(Call::StatNumber(found), |shared| {
                done(shared.target.stat_number(found))
            });
            return;
        }
    }

    /// Gets the attributes of a file that is never changed, so that another inode is evicted.
    pub(super) fn stat_bystander(&mut self) {
        let bystanders = &self.shared.bystanders;
        let number = bystanders[self.random.below(bystanders.len())];
        self.note(Call::StatNumber(number), |shared| {
            done(shared.target.stat_number(number))
        });
    }

    /// Removes a file and creates a directory under the same name, or the other way round, which
    /// often reuses the inode number.
    pub(super) fn flip(&mut self) {
        let (dir, at) = self.place();
        self.note(Call::Unlink(at), |shared| {
            done(shared.target.unlink(&dir, at.name))
        });
        if self.random.happens(1, 3) {
            self.note(Call::Rmdir(at), |shared| {
                done(shared.target.rmdir(&dir, at.name))
            });
            self.make_at(&dir, at, Kind::File);
            return;
        }
        self.make_at(&dir, at, Kind::Directory);
        self.look_up_directory(&dir, at);
    }

    pub(super) fn resolve(&mut self) {
        let (permanent, mut at) = self.steady();
        let last = self.shared.permanent.len();
        let path = if self.random.happens(1, 4) {
            // The symbolic link in the root.
            at = Place {
                dir: self.shared.permanent[last - 1].number,
                name: Name::steady(0),
            };
            vec![Name::fixed(last)]
        } else {
            let mut path = self.shared.permanent[permanent].path.clone();
            path.push(at.name);
            path
        };
        self.note(Call::Resolve(at), |shared| {
            number(shared.target.resolve(&path))
        });
    }

    /// Replaces the inode under a name that always exists.
    pub(super) fn replace(&mut self) {
        let (permanent, at) = self.steady();
        let dir = &self.shared.permanent[permanent].dir;
        if self.random.happens(1, 4) {
            let (other, to) = self.steady();
            if at != to {
                let other = &self.shared.permanent[other].dir;
                self.note(Call::Exchange(at, to), |shared| {
                    done(shared.target.exchange((dir, at.name), (other, to.name)))
                });
            }
            return;
        }
        let name = Name::temporary(self.thread);
        let from = Place { dir: at.dir, name };
        self.make_at(dir, from, Kind::File);
        self.rename_at(dir, from, dir, at, true);
    }

    pub(super) fn list(&mut self) {
        let most = self.random.happens(1, 4).then(|| self.random.below(40));
        let grows = matches!(self.shared.shape.theme, Theme::Listings | Theme::Eviction);
        let dir = if grows && self.random.happens(4, 5) {
            self.shared.growing.read().dir.clone()
        } else {
            self.dir()
        };
        self.list_at(&dir, most);
    }

    fn list_at(&mut self, dir: &T::Dir, most: Option<usize>) {
        let number = self.shared.target.number(dir);
        self.note(Call::List(number), |shared| {
            match shared.target.list(dir, most) {
                Ok((entries, listed)) => Outcome::Entries(entries, listed),
                Err(failure) => Outcome::Failed(failure),
            }
        });
    }

    /// Creates a name in the growing directory, which others list.
    pub(super) fn grow(&mut self) {
        let growing = Arc::clone(&self.shared.growing.read());
        let count = growing.names.fetch_add(1, Ordering::Relaxed);
        if count >= MOST_GROWN {
            self.grow_another();
            return;
        }
        let (dir, name) = (&growing.dir, Name::long(count));
        let at = Place {
            dir: growing.number,
            name,
        };
        let anchor = &self.shared.anchor;
        let anchor_nr = self.shared.target.file_number(anchor);
        match self.random.below(20) {
            0 if count > 0 => {
                let old = Name::long(self.random.below(count));
                let from = Place {
                    dir: growing.number,
                    name: old,
                };
                self.rename_at(dir, from, dir, at, true);
            }
            1 if count > 0 => {
                let name = Name::long(self.random.below(count));
                let at = Place {
                    dir: growing.number,
                    name,
                };
                self.note(Call::Unlink(at), |shared| {
                    done(shared.target.unlink(dir, name))
                });
            }
            _ => self.note(Call::Link(anchor_nr, at), |shared| {
                number(shared.target.link(anchor, dir, name))
            }),
        }
    }

    fn grow_another(&mut self) {
        let shape = &self.shared.shape;
        let most = if shape.has_few_inodes() {
            MOST_GROWING_FEW_INODES
        } else {
            MOST_GROWING
        };
        let grown = self.shared.grown.fetch_add(1, Ordering::Relaxed);
        if grown >= most {
            return;
        }
        let within = &self.shared.permanent[GROWS_IN];
        let name = Name::fixed(10 + grown);
        let at = Place {
            dir: within.number,
            name,
        };
        self.make_at(&within.dir, at, Kind::Directory);
        if let Ok(dir) = self.shared.target.open_dir(&within.dir, name) {
            let number = self.shared.target.number(&dir);
            let names = AtomicUsize::new(0);
            *self.shared.growing.write() = Arc::new(Growing { dir, number, names });
        }
    }

    /// Reads all names, when no thread changes anything any more.
    pub(super) fn read_all_names(&mut self) {
        for permanent in &self.shared.permanent {
            self.list_at(&permanent.dir, None);
        }
        let growing = Arc::clone(&self.shared.growing.read());
        self.list_at(&growing.dir, None);
        let known_dirs = self.shared.known_dirs.lock().clone();
        for dir in &known_dirs {
            self.list_at(dir, None);
            for name in 0..NAMES {
                let name = Name::any(name);
                let at = Place {
                    dir: self.shared.target.number(dir),
                    name,
                };
                self.note(Call::Lookup(at), |shared| {
                    number(shared.target.lookup(dir, name))
                });
            }
        }
    }
}
