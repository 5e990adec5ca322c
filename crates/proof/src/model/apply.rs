//! **Purpose.** Derives calls, and does them on the model.

use super::{Call, Expected, Model, Refusals, call};

impl Model {
    /// Derives a call from a number.
    pub(crate) fn draw(&self, number: u64) -> Call {
        call::draw(self, number)
    }

    /// Does a call. If it is refused, nothing has changed.
    pub(crate) fn apply(&mut self, call: &Call) -> Expected {
        let mut why = Refusals::default();
        let made = match call {
            Call::Make(place, kind, owner) => self.make(place, kind, owner, &mut why),
            Call::MakeUnnamed(dir, owner) => self.make_unnamed(*dir, owner, &mut why),
            Call::Link(node, place) => self.link(*node, place, &mut why),
            Call::Unlink(place) => self.unlink(place, &mut why),
            Call::Rmdir(place) => self.rmdir(place, &mut why),
            Call::Rename(from, to, how) => self.rename(from, to, *how, &mut why),
            other => {
                self.change(other, &mut why);
                None
            }
        };
        if why.is_empty() {
            Expected::Done(made)
        } else {
            Expected::Refused(why)
        }
    }
}
