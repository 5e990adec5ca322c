//! **Purpose.** What transports hand requests to.

use crate::reply::Reply;
use crate::request::Request;

/// Whether a request has a reply.
#[derive(Debug)]
pub(crate) enum Answered {
    WithReply,
    WithoutReply,
    /// With the last one: nothing is written to the device any more, which holds everything, or
    /// could not.
    Farewell(fourscore::Result<()>),
}

/// What a transport calls when the last reply has gone.
pub(crate) type Farewell<'f> = &'f (dyn Fn(fourscore::Result<()>) + Sync);

/// What answers requests, from all workers at the same time: a file system, or what one is measured
/// against.
pub(crate) trait Serve: Sync {
    /// Answers a request: does what it says, and makes the reply.
    fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answered;

    /// Undoes what a reply has counted that did not arrive.
    fn take_back(&self, reply: &mut Reply);
}
