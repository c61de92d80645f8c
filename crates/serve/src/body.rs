//! Bodies of answers, and of requests that may not stall.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// An answer that keeps something until its last byte was handed over, or its client left.
pub struct Counted<T> {
    inner: Body,
    _kept: T,
}

impl<T> Counted<T> {
    pub fn new(inner: Body, kept: T) -> Self {
        Self { inner, _kept: kept }
    }
}

impl<T: Unpin> http_body::Body for Counted<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The sender of a body sent nothing for too long.
#[derive(Debug)]
pub struct Stalled;

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nothing of the request's body came for too long")
    }
}

impl std::error::Error for Stalled {}

/// A body that ends with [`Stalled`] when nothing of it comes for a while. However long all of it takes.
pub struct Patient<B> {
    inner: B,
    patience: Duration,
    until: Pin<Box<Sleep>>,
}

impl<B> Patient<B> {
    pub fn new(inner: B, patience: Duration) -> Self {
        Self { inner, patience, until: Box::pin(tokio::time::sleep(patience)) }
    }
}

impl<B> http_body::Body for Patient<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.until.as_mut().reset(Instant::now() + this.patience);
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                ready!(this.until.as_mut().poll(cx));
                Poll::Ready(Some(Err(Stalled.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
