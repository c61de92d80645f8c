//! How many bytes of one client wait for ends that are slow. Messages alone do not say it: one may have a megabyte, and a client has
//! many streams.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of one client. Not less than its largest message.
const MOST: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Budget(Arc<Semaphore>);

struct Held {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MOST)))
    }
}

impl Budget {
    /// Waits until there is room for them. They take it until the last of their copies is dropped.
    pub async fn hold(&self, bytes: Bytes) -> Bytes {
        let count = u32::try_from(bytes.len().min(MOST)).unwrap_or(u32::MAX);
        match self.0.clone().acquire_many_owned(count).await {
            Ok(room) => Bytes::from_owner(Held { bytes, _room: room }),
            // Nobody closes it.
            Err(_) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_is_written_makes_room_for_what_waits() {
        let budget = Budget::default();
        let first = budget.hold(vec![1; MOST - 10].into()).await;
        let second = budget.hold(vec![2; 10].into()).await;
        assert!(budget.hold(vec![3].into()).now_or_never().is_none());
        let part = second.slice(3..);
        drop(second);
        assert!(budget.hold(vec![3].into()).now_or_never().is_none());
        drop(part);
        assert_eq!(budget.hold(vec![3].into()).now_or_never().unwrap(), &[3][..]);
        drop(first);
        // One that is larger than all of it passes alone.
        assert_eq!(budget.hold(vec![4; 2 * MOST].into()).now_or_never().unwrap().len(), 2 * MOST);
    }
}
