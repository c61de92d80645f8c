//! Leader election with a Lease: at most one process holds it, and the others see when it stops renewing.
//!
//! Clocks of different machines are never compared. A candidate counts the time since it last saw the lease change, on its
//! own clock; the holder stops well before that time has passed for anybody.

use std::time::{Duration, Instant};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

pub const LEASE: &str = "virt-controller";
/// After this long without a renewal, others may take the lease.
const DURATION: Duration = Duration::from_secs(10);
/// A holder that could not renew for this long stops.
const DEADLINE: Duration = Duration::from_secs(7);
const RENEW: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_secs(1);

pub struct Elector {
    leases: Api<Lease>,
    name: String,
    identity: String,
    seen: Option<Seen>,
}

/// The last change of the lease that was seen, and when.
struct Seen {
    version: Option<String>,
    at: Instant,
}

impl Elector {
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let leases = Api::namespaced(client, namespace);
        Self { leases, name: name.into(), identity: identity.into(), seen: None }
    }

    /// Waits until this process holds the lease.
    pub async fn acquire(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, lease = self.name, "cannot look at the lease; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Renews the lease; resolves when it is lost or could not be renewed in time.
    pub async fn keep(&mut self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW).await;
            let left = DEADLINE.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.attempt()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, lease = self.name, "cannot renew the lease"),
                Err(_) => {}
            }
            if renewed.elapsed() >= DEADLINE {
                return;
            }
        }
    }

    /// Gives the lease up, so that another can take it at once.
    pub async fn release(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else { return };
        if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity)) {
            spec.holder_identity = None;
            let _ = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        }
    }

    /// Takes or renews the lease if that is allowed now; true if this process holds it.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let now = Timestamp::now();
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..Default::default() },
                spec: Some(spec(None, &self.identity, now)),
            };
            return settle(self.leases.create(&PostParams::default(), &lease).await);
        };
        if self.seen.as_ref().is_none_or(|seen| seen.version != lease.metadata.resource_version) {
            self.seen = Some(Seen { version: lease.metadata.resource_version.clone(), at: Instant::now() });
        }
        let quiet = self.seen.as_ref().map_or(Duration::ZERO, |seen| seen.at.elapsed());
        if !may_take(lease.spec.as_ref(), &self.identity, quiet) {
            return Ok(false);
        }
        lease.spec = Some(spec(lease.spec.take(), &self.identity, now));
        settle(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
    }
}

/// Somebody who was faster is no error.
fn settle(answer: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

fn may_take(spec: Option<&LeaseSpec>, identity: &str, quiet: Duration) -> bool {
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
    holder.is_empty() || holder == identity || quiet > seconds.map_or(DURATION, Duration::from_secs)
}

fn spec(old: Option<LeaseSpec>, identity: &str, now: Timestamp) -> LeaseSpec {
    let old = old.unwrap_or_default();
    let kept = old.holder_identity.as_deref() == Some(identity);
    let transitions = old.lease_transitions.unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.into()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: if kept { old.acquire_time.clone() } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if kept { transitions } else { transitions + 1 }),
        ..old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_when_it_is_free_ours_or_quiet_for_too_long() {
        let held = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(10),
            ..Default::default()
        };
        let seconds = Duration::from_secs;
        let cases = [
            (None, 0, true),
            (Some(held("")), 0, true),
            (Some(held("me")), 0, true),
            (Some(held("other")), 0, false),
            (Some(held("other")), 10, false),
            (Some(held("other")), 11, true),
        ];
        for (spec, quiet, expected) in cases {
            assert_eq!(may_take(spec.as_ref(), "me", seconds(quiet)), expected, "{spec:?} {quiet}");
        }
    }

    #[test]
    fn a_renewal_keeps_the_time_of_acquisition_and_a_change_of_hands_is_counted() {
        let first = spec(None, "a", Timestamp::UNIX_EPOCH);
        let later = Timestamp::from_second(100).unwrap();
        let renewed = spec(Some(first.clone()), "a", later);
        assert_eq!(renewed.acquire_time, first.acquire_time);
        assert_eq!(renewed.lease_transitions, Some(1));
        assert_eq!(renewed.renew_time, Some(MicroTime(later)));
        let taken = spec(Some(renewed), "b", later);
        assert_eq!((taken.lease_transitions, taken.holder_identity.as_deref()), (Some(2), Some("b")));
    }
}
