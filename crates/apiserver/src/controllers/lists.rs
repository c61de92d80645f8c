//! Lets go of what is kept for lists that nobody went on with.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::server::Server;

const SWEEP: Duration = Duration::from_secs(30);

pub async fn run(server: Arc<Server>) {
    loop {
        tokio::select! {
            () = server.stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP) => server.begun.prune(Instant::now()),
        }
    }
}
