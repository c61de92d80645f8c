//! Keeps what is known of the guest current: asks its agent when it connects, soon again while the guest comes up, and
//! now and then afterwards.

use std::time::Duration;

use ferrovirt_machine::protocol::GuestFacts;
use tokio::sync::{mpsc, watch};

use super::{Agent, Memory, credentials, report};
use crate::domain::DomainEvent;

const FIRST: Duration = Duration::from_secs(2);
/// A secret that changed should reach the guest while whoever changed it still looks.
const MOST: Duration = Duration::from_secs(20);

/// Runs until the receiver of its events is gone.
pub async fn follow<A: Agent>(
    agent: A,
    memory: Memory,
    mut connected: watch::Receiver<bool>,
    events: mpsc::UnboundedSender<DomainEvent>,
) {
    let mut known = GuestFacts::default();
    loop {
        if connected.wait_for(|connected| *connected).await.is_err() {
            return;
        }
        let mut pause = FIRST;
        let mut applied = vec![];
        while *connected.borrow_and_update() {
            if let Ok(facts) = report::facts(&agent).await
                && *connected.borrow()
            {
                // A frozen guest tells nothing else; what was known still holds.
                known = if facts.frozen { GuestFacts { frozen: true, ..known } } else { facts };
                if events.send(DomainEvent::Guest(Box::new(known.clone()))).is_err() {
                    return;
                }
                let wanted = memory.credentials();
                if !wanted.is_empty() && !known.frozen {
                    let result = credentials::apply(&agent, &memory, &wanted, &mut applied).await;
                    let result = result.map_err(|error| ferrovirt_machine::chain(&error));
                    let _ = events.send(DomainEvent::Credentials(result));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(MOST),
                () = memory.changed.notified() => pause = FIRST,
                changed = connected.changed() => if changed.is_err() { return },
            }
        }
    }
}
