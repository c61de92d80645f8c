//! What libvirt does not tell because its event loop fails in this process, seen by looking. Calls still work then.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::{DomainEvent, Observed};

const LOOK: Duration = Duration::from_secs(1);

/// Looks whenever nothing is heard, for as long as the launcher lives.
pub(super) async fn watch<F: Future<Output = Option<Observed>>>(
    look: impl Fn() -> F,
    events: mpsc::UnboundedSender<DomainEvent>,
    mut deaf: watch::Receiver<Option<String>>,
) {
    loop {
        let why = match deaf.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => return,
        };
        tracing::warn!(why, "no events come from libvirt; looking at the machine instead");
        let mut last = None;
        loop {
            // Asked before looking, so that there is one look after it works again: what happened before may be lost.
            let hears = deaf.borrow_and_update().is_none();
            if let Some(now) = look().await
                && last.replace(now) != Some(now)
                && events.send(DomainEvent::Observed(now)).is_err()
            {
                return;
            }
            if hears {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                changed = deaf.changed() => if changed.is_err() { return },
            }
        }
        tracing::info!("libvirt's events come again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use ferrovirt_machine::protocol::StopReason;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_machine_is_seen_while_nothing_is_heard() {
        let (deafness, deaf) = watch::channel(None);
        let (events, mut seen) = mpsc::unbounded_channel();
        let state = Arc::new(Mutex::new(None));
        let looked = state.clone();
        tokio::spawn(super::watch(move || std::future::ready(*looked.lock().unwrap()), events, deaf));
        let running = DomainEvent::Observed(Observed::Running);
        let stopped = Observed::Stopped(StopReason::GuestShutdown);
        *state.lock().unwrap() = Some(Observed::Running);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(seen.try_recv().is_err(), "somebody looks though everything is heard");
        deafness.send_replace(Some("broken".into()));
        assert_eq!(seen.recv().await, Some(running.clone()));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(seen.try_recv().is_err(), "the same is told twice");
        *state.lock().unwrap() = Some(stopped);
        assert_eq!(seen.recv().await, Some(DomainEvent::Observed(stopped)));
        // And once more when it works again.
        *state.lock().unwrap() = Some(Observed::Running);
        deafness.send_replace(None);
        assert_eq!(seen.recv().await, Some(running));
        *state.lock().unwrap() = Some(stopped);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(seen.try_recv().is_err());
    }
}
