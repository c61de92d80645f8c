//! The status of validating admission policies: whether their expressions fit the kinds they match.

use std::sync::Arc;

use super::client::Client;
use super::follow::{Follower, Seen};
use crate::admission::policy::type_checking;
use crate::object::at;
use crate::server::Server;
use crate::storage::parse;

const STORAGE: &str = "admissionregistration.k8s.io/validatingadmissionpolicies";

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "apiserver");
    let mut follower = Follower::new(&server, STORAGE);
    while let Some(seen) = follower.next().await {
        let Seen::Present(entry) = seen else { continue };
        let Ok(mut policy) = parse(&entry) else { continue };
        let generation = at(&policy, &["metadata", "generation"]).cloned().unwrap_or_default();
        if at(&policy, &["status", "observedGeneration"]) == Some(&generation) {
            continue;
        }
        let checking = type_checking(&server, &policy);
        let status = crate::object::field_map(&mut policy, "status");
        status.insert("observedGeneration".into(), generation);
        status.insert("typeChecking".into(), checking);
        // A conflict means that there is a newer one, which is seen next.
        if let Err(error) = client.update_at(&policy, "status").await {
            tracing::debug!(error = error.message(), "cannot update the status of an admission policy");
        }
    }
}
