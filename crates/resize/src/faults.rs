//! **Purpose.** Injected faults, by which the crash test of a shrink is tested: it must notice when
//! a step of the crash-safety argument is missing.
//!
//! **Model.** A fault can be switched on only in a build with the feature `sabotage`. In all other
//! builds the query returns `false` at compile time.

/// A step that is done too early or too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "sabotage"),
    expect(unreachable_pub, reason = "exported with the feature")
)]
pub enum Sabotage {
    /// Old places are discarded before the step that frees them is durable.
    EarlyDiscard,
    /// A step is made durable before its data is copied.
    LateCopies,
}

/// The injected fault, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    #[cfg(feature = "sabotage")]
    injected: Option<Sabotage>,
}

impl Faults {
    #[cfg(feature = "sabotage")]
    pub(crate) fn injected(fault: Option<Sabotage>) -> Self {
        Self { injected: fault }
    }

    /// Whether there is this fault.
    #[cfg(feature = "sabotage")]
    pub(crate) fn has(self, fault: Sabotage) -> bool {
        self.injected == Some(fault)
    }

    /// Whether there is this fault: never, in a build without the feature.
    #[cfg(not(feature = "sabotage"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(crate) fn has(self, _: Sabotage) -> bool {
        false
    }
}
