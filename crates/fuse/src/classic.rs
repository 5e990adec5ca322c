//! **Purpose.** The transport through `/dev/fuse`: reads a request, lets the server answer it, and
//! writes the reply.
//!
//! **Model.** Each worker has a descriptor and buffers of its own.

use std::io;
use std::os::fd::AsFd;

use crate::device::{self, Received, Sent};
use crate::reply::Reply;
use crate::request::Request;
use crate::serve::{Answered, Farewell, Serve};

/// Answers requests of up to `request_bytes` from `device` until the file system is unmounted.
///
/// # Errors
/// Those of the device.
pub(crate) fn serve(
    device: &impl AsFd,
    request_bytes: usize,
    server: &impl Serve,
    farewell: Farewell<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; request_bytes];
    let mut reply = Reply::new(request_bytes);
    loop {
        let Received::Request(len) = device::receive(device, &mut buffer)? else {
            return Ok(());
        };
        let Some(request) = Request::parse(&buffer[..len]) else {
            tracing::error!(len, "not a request");
            continue;
        };
        let answered = server.answer(&request, &mut reply);
        if matches!(answered, Answered::WithoutReply) {
            continue;
        }
        match device::send(device, &reply.slices()) {
            Ok(Sent::Arrived) => {}
            Ok(Sent::Unwanted) => server.undo_lookups(&mut reply),
            Err(error) => tracing::error!(%error, "a reply was refused"),
        }
        if let Answered::Farewell(ended) = answered {
            farewell(ended);
        }
    }
}
