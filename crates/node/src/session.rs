//! Streams that were given to somebody: whether one of a kind is in use, and that it was taken away.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose end is an error if another client has taken it: clients tell that from a guest that ended.
pub(crate) struct Session<S> {
    stream: S,
    taken: Taken,
    /// Held as long as the stream is.
    _in_use: Option<Arc<()>>,
}

/// Set before a stream is ended for the sake of another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken(Arc<AtomicBool>);

impl Taken {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl<S> Session<S> {
    pub(crate) fn new(stream: S, taken: Taken) -> Self {
        Self { stream, taken, _in_use: None }
    }

    pub(crate) fn counted(stream: S, in_use: Arc<()>) -> Self {
        Self { stream, taken: Taken::default(), _in_use: Some(in_use) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Session<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let ended = buffer.filled().len() == before && buffer.remaining() > 0;
        if ended && self.taken.0.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Session<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Who looks at the screens of which instances, by the instance's uid.
#[derive(Clone, Default)]
pub(crate) struct Screens(Arc<Mutex<HashMap<String, Weak<()>>>>);

impl Screens {
    /// Something to hold while somebody looks. `None` if another does, and is not to be disturbed.
    pub(crate) fn enter(&self, uid: &str, preserve: bool) -> Option<Arc<()>> {
        let mut screens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        screens.retain(|_, held| held.strong_count() > 0);
        let held = screens.get(uid).and_then(Weak::upgrade);
        if preserve && held.is_some() {
            return None;
        }
        let held = held.unwrap_or_default();
        screens.insert(uid.to_owned(), Arc::downgrade(&held));
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn who_does_not_want_to_disturb_comes_when_nobody_is_there() {
        let screens = Screens::default();
        let first = screens.enter("a", true).unwrap();
        assert!(screens.enter("a", true).is_none());
        assert!(screens.enter("b", true).is_some(), "another instance's");
        let second = screens.enter("a", false).unwrap();
        drop(first);
        assert!(screens.enter("a", true).is_none(), "the second is still there");
        drop(second);
        assert!(screens.enter("a", true).is_some());
        assert_eq!(screens.0.lock().unwrap().len(), 1, "nothing is left of those who went");
    }

    #[tokio::test]
    async fn the_end_of_a_stream_that_was_taken_is_an_error() {
        for is_taken in [false, true] {
            let (ours, mut theirs) = tokio::io::duplex(64);
            let taken = Taken::default();
            let mut session = Session::new(ours, taken.clone());
            theirs.write_all(b"bye").await.unwrap();
            if is_taken {
                taken.set();
            }
            drop(theirs);
            let mut heard = vec![];
            let end = session.read_to_end(&mut heard).await;
            assert_eq!(heard, b"bye", "what was said before is heard");
            assert_eq!(end.map_err(|error| error.kind()).err(), is_taken.then_some(io::ErrorKind::ConnectionAborted));
        }
    }
}
