//! A connection that counts for as long as anybody holds it, also after an upgrade, and that can be cut from outside.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::door::Guest;

/// Says to a connection that it is over.
#[derive(Debug, Default)]
pub struct Scissors {
    cut: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Scissors {
    pub fn cut(&self) {
        self.cut.store(true, SeqCst);
        self.reader.wake();
        self.writer.wake();
    }

    pub fn is_cut(&self) -> bool {
        self.cut.load(SeqCst)
    }
}

pub struct Held {
    pub stream: TcpStream,
    pub guest: Guest,
}

fn over() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the server ended this connection")
}

impl Held {
    /// After an operation that has to wait: be woken by the scissors, too.
    fn wait<T>(&self, waker: &AtomicWaker, cx: &Context<'_>) -> Poll<io::Result<T>> {
        waker.register(cx.waker());
        if self.guest.scissors().is_cut() { Poll::Ready(Err(over())) } else { Poll::Pending }
    }
}

impl AsyncRead for Held {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.guest.scissors().is_cut() {
            return Poll::Ready(Err(over()));
        }
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Pending => self.wait(&self.guest.scissors().reader, cx),
            ready => ready,
        }
    }
}

impl AsyncWrite for Held {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.guest.scissors().is_cut() {
            return Poll::Ready(Err(over()));
        }
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.wait(&self.guest.scissors().writer, cx),
            ready => ready,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.guest.scissors().is_cut() {
            return Poll::Ready(Err(over()));
        }
        match Pin::new(&mut self.stream).poll_write_vectored(cx, slices) {
            Poll::Pending => self.wait(&self.guest.scissors().writer, cx),
            ready => ready,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
