//! **Purpose.** Marks that threads leave in a recording, so that the begin and the return of each
//! step have a place among the writes.

/// A note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// A step of a thread begins.
    Begins { thread: usize, step: usize },
    /// A step of a thread has returned.
    Ends { thread: usize, step: usize },
    /// The file system was unmounted.
    Unmounted,
}

const UNMOUNTED: u64 = u64::MAX;

impl Note {
    /// The number that stands for it.
    pub(super) fn number(self) -> u64 {
        let of = |thread: usize, step: usize| (thread as u64) << 32 | (step as u64) << 1;
        match self {
            Self::Begins { thread, step } => of(thread, step),
            Self::Ends { thread, step } => of(thread, step) | 1,
            Self::Unmounted => UNMOUNTED,
        }
    }

    /// What a number stands for.
    pub(super) fn of(number: u64) -> Self {
        let thread = usize::try_from(number >> 32).unwrap_or(usize::MAX);
        let step = usize::try_from((number & 0xffff_ffff) >> 1).unwrap_or(usize::MAX);
        match number & 1 {
            _ if number == UNMOUNTED => Self::Unmounted,
            0 => Self::Begins { thread, step },
            _ => Self::Ends { thread, step },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_restored_from_its_number() {
        let (thread, step) = (7, 1_000_000);
        for note in [
            Note::Begins { thread, step },
            Note::Ends { thread, step },
            Note::Ends { thread: 0, step: 0 },
            Note::Unmounted,
        ] {
            assert_eq!(Note::of(note.number()), note);
        }
    }
}
