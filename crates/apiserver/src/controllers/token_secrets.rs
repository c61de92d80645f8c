//! Secrets of the type `kubernetes.io/service-account-token` hold a token of the account they name, as long as both live.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::client::Client;
use super::follow::{Follower, Seen};
use crate::object::{at, metadata, text};
use crate::server::Server;
use crate::storage::{Entry, parse};
use crate::tokens::{Bound, Claims, ISSUER, Reference};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";
/// Such tokens end with their secret, not with time.
const LIFETIME: i64 = 1 << 32;

pub async fn run(server: Arc<Server>) {
    let client = Client::new(&server, "serviceaccount:kube-system:token-controller");
    let mut secrets = Follower::new(&server, "secrets");
    let mut accounts = Follower::new(&server, "serviceaccounts");
    loop {
        let (seen, account) = tokio::select! {
            seen = secrets.next() => (seen, false),
            seen = accounts.next() => (seen, true),
        };
        match seen {
            None => return,
            Some(Seen::Present(entry)) if !account => look_at(&server, &client, &entry).await,
            // An account came or went: its secrets follow.
            Some(Seen::Present(entry) | Seen::Removed(entry)) if account => {
                for secret in server.store.list("secrets", Some(&entry.key.namespace)).items {
                    look_at(&server, &client, &secret).await;
                }
            }
            Some(_) => {}
        }
    }
}

async fn look_at(server: &Arc<Server>, client: &Client, entry: &Entry) {
    if !std::str::from_utf8(&entry.bytes).is_ok_and(|text| text.contains(TYPE)) {
        return;
    }
    let Ok(mut secret) = parse(entry) else { return };
    if text(&secret, &["type"]) != TYPE || entry.meta.deleting {
        return;
    }
    let name = text(&secret, &["metadata", "annotations", NAME]).to_owned();
    let key = ferrovirt_store::Key::new(&*entry.key.namespace, name.as_str());
    let account = server.store.get("serviceaccounts", &key);
    let known = text(&secret, &["metadata", "annotations", UID]);
    let Some(account) = account.filter(|a| known.is_empty() || known == &*a.meta.uid) else {
        // Without its account, or with another one of that name, the secret is of no use; it may still be waiting.
        if !known.is_empty() {
            let path = format!("/api/v1/namespaces/{}/secrets/{}", entry.key.namespace, entry.key.name);
            let _ = client.delete(&path, &json!({"preconditions": {"uid": &*entry.meta.uid}})).await;
        }
        return;
    };
    if at(&secret, &["data", "token"]).is_some() {
        return;
    }
    if !fill(server, &mut secret, entry, &name, &account.meta.uid) {
        return;
    }
    match client.update(&secret).await {
        Ok(_) => {}
        Err(error) if matches!(error.code, 404 | 409) => {}
        Err(error) => tracing::warn!(secret = %entry.key.name, error = error.message(), "cannot write a token"),
    }
}

/// Puts in what a client needs. False if this server signs no tokens.
fn fill(server: &Server, secret: &mut Value, entry: &Entry, account: &str, uid: &str) -> bool {
    let now = jiff::Timestamp::now().as_second();
    let namespace = entry.key.namespace.to_string();
    let claims = Claims {
        iss: ISSUER.to_owned(),
        sub: format!("system:serviceaccount:{namespace}:{account}"),
        aud: vec![ISSUER.to_owned()],
        exp: now + LIFETIME,
        iat: now,
        nbf: now,
        jti: uuid::Uuid::new_v4().to_string(),
        kubernetes: Bound {
            namespace: namespace.clone(),
            serviceaccount: Reference { name: account.to_owned(), uid: uid.to_owned() },
            pod: None,
            secret: Some(Reference { name: entry.key.name.to_string(), uid: entry.meta.uid.to_string() }),
        },
    };
    let Some(token) = server.tokens.sign(&claims) else { return false };
    let data = crate::object::field_map(secret, "data");
    data.insert("token".into(), STANDARD.encode(token).into());
    data.insert("namespace".into(), STANDARD.encode(&namespace).into());
    if let Some(pem) = &server.root_ca_pem {
        data.insert("ca.crt".into(), STANDARD.encode(pem).into());
    }
    if let Some(annotations) = metadata(secret).get_mut("annotations") {
        annotations[UID] = uid.into();
    }
    true
}
