//! **Purpose.** TODO-HEADER.

pub(crate) mod change;
pub(crate) mod descriptor;
pub(crate) mod prefetch;
pub(crate) mod table;
