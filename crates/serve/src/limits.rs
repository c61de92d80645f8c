//! What a listener takes on.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More is not useful, and some programs walk over all descriptors that they could have.
const MOST_DESCRIPTORS: u64 = 1 << 16;

/// How many connections a listener holds, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub total: usize,
    /// Connections of one address (of one /64 with IPv6).
    pub per_peer: usize,
    /// Connections of one name.
    pub per_name: usize,
    /// Connections of whoever did not say yet who it is.
    pub strangers: usize,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// How long a stranger may be connected without ever asking for anything.
    pub stranger_idle: Duration,
    /// How long an answer to a stranger may take until its last byte was read.
    pub stranger_request: Duration,
    /// How long anybody may be connected without asking for anything; also the time for the headers of a request.
    pub idle: Duration,
    /// How long open requests may run on after the end was asked for.
    pub drain: Duration,
    /// Requests at a time on one HTTP/2 connection; none means that HTTP/2 is not spoken.
    pub streams: Option<u32>,
    /// What a connection may hold of headers, and of an answer that its client does not read.
    pub buffer: usize,
}

impl Limits {
    /// For `total` connections, but no more than a `part` of this process' descriptors: others need some, too.
    pub fn new(total: usize, part: f64) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(MOST_DESCRIPTORS).min(MOST_DESCRIPTORS);
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let share = (descriptors as f64 * part) as usize;
        let total = total.min(share).max(8);
        Self {
            total,
            per_peer: (total / 2).max(4),
            per_name: (total / 4).max(4),
            strangers: (total / 8).max(4),
            handshake: Duration::from_secs(10),
            stranger_idle: Duration::from_secs(15),
            stranger_request: Duration::from_secs(120),
            // Clients give up idle connections after 90 s, and they should be the ones to do it.
            idle: Duration::from_secs(100),
            drain: Duration::from_secs(5),
            streams: None,
            buffer: 128 << 10,
        }
    }
}

/// Lets this process have as many descriptors as it may, within reason. Says how many.
pub fn raise_descriptor_limit() -> u64 {
    let now = getrlimit(Resource::Nofile);
    let wanted = now.maximum.unwrap_or(MOST_DESCRIPTORS).min(MOST_DESCRIPTORS);
    match now.current {
        Some(current) if current < wanted => {
            match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: now.maximum }) {
                Ok(()) => wanted,
                Err(_) => current,
            }
        }
        current => current.unwrap_or(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_never_takes_all_descriptors() {
        let most = raise_descriptor_limit();
        for (total, part) in [(1, 0.5), (4096, 0.5), (usize::MAX, 0.5), (usize::MAX, 0.125)] {
            let limits = Limits::new(total, part);
            assert!(limits.total as u64 <= most / 2 && limits.total >= 8, "{limits:?}");
            assert!(limits.strangers < limits.per_peer.max(5) && limits.per_peer <= limits.total, "{limits:?}");
        }
    }
}
