//! The certificates of an installation on a cluster: the leading virt-controller makes and renews them, writes them into
//! secrets that the components watch, and tells the API server which CA to trust.

pub mod authority;
pub mod material;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use ferrovirt_api::v1::{CertConfig, KubeVirt};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use time::OffsetDateTime;

use self::authority::{Authority, Data, Lifetime, Lifetimes, holders};
use crate::up::objects;

const CA_SECRET: &str = "kubevirt-ca";
/// How soon what somebody damaged is repaired. Looking costs a few reads and no writes.
const PAUSE: Duration = Duration::from_secs(30);
/// While something is missing, as at the very beginning.
const HURRY: Duration = Duration::from_secs(1);

/// Keeps the certificates good for as long as it is polled.
pub async fn keep(client: Client, namespace: String) {
    loop {
        let pause = match round(&client, &namespace).await {
            Ok(()) => PAUSE,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "cannot look after the certificates; trying again");
                HURRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn round(client: &Client, namespace: &str) -> Result<()> {
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let lifetimes = lifetimes(client, namespace).await?;
    let now = OffsetDateTime::now_utc();
    let secret = read(&secrets, CA_SECRET).await?;
    let authority = Authority::advance(&data(&secret), now, lifetimes.ca)?;
    // First the CA itself: what it signs must be of use after a crash right here.
    write(&secrets, secret, authority.data()).await?;
    register(client, &authority.bundle()).await?;
    for holder in holders(namespace) {
        let secret = read(&secrets, holder.secret).await?;
        let renewed = holder.renew(&data(&secret), &authority, now, lifetimes.leaf)?;
        write(&secrets, secret, renewed).await?;
    }
    Ok(())
}

async fn read(secrets: &Api<Secret>, name: &str) -> Result<Secret> {
    // The installation brings them, empty: so nobody needs the right to create secrets.
    secrets.get(name).await.with_context(|| format!("cannot read the secret {name}; `ferrovirt install` makes it"))
}

/// Writes only what differs.
async fn write(secrets: &Api<Secret>, mut secret: Secret, wanted: Data) -> Result<()> {
    if data(&secret) == wanted {
        return Ok(());
    }
    let name = secret.name_any();
    tracing::info!(secret = name, "writing new certificates");
    let wanted = wanted.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes())));
    secret.data = Some(wanted.collect::<BTreeMap<_, _>>());
    secrets
        .replace(&name, &PostParams::default(), &secret)
        .await
        .with_context(|| format!("cannot write the secret {name}"))?;
    Ok(())
}

pub fn data(secret: &Secret) -> Data {
    let texts = secret.data.iter().flatten();
    texts.filter_map(|(key, bytes)| Some((key.clone(), String::from_utf8(bytes.0.clone()).ok()?))).collect()
}

/// Tells the API server by which CA it knows our service, wherever it calls it.
async fn register(client: &Client, bundle: &str) -> Result<()> {
    use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
    let bundle = BASE64.encode(bundle);
    for object in objects::bootstrap(false) {
        let Some((resource, name)) = registration(&object) else { continue };
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        let Some(found) = api.get_opt(&name).await? else { continue };
        let (patch, params) = (trust(&found.data, &bundle), PatchParams::default());
        let patch = match patch {
            Some(patch) if resource.kind == "APIService" => Patch::Merge(patch),
            Some(patch) => Patch::Strategic(patch),
            None => continue,
        };
        tracing::info!(kind = resource.kind, name, "telling the API server which CA to trust");
        api.patch(&name, &params, &patch).await.with_context(|| format!("cannot change {} {name}", resource.kind))?;
    }
    Ok(())
}

/// The resource and name of an object that makes the API server call us.
fn registration(object: &Value) -> Option<(ApiResource, String)> {
    let kind =
        object["kind"].as_str().filter(|kind| *kind == "APIService" || kind.ends_with("WebhookConfiguration"))?;
    let (group, version) = object["apiVersion"].as_str()?.split_once('/')?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Some((resource, object["metadata"]["name"].as_str()?.to_owned()))
}

/// The change that is needed, if any.
fn trust(found: &Value, bundle: &str) -> Option<Value> {
    let Some(hooks) = found["webhooks"].as_array() else {
        return (found["spec"]["caBundle"] != bundle).then(|| json!({ "spec": { "caBundle": bundle } }));
    };
    let stale = hooks.iter().filter(|hook| hook["clientConfig"]["caBundle"] != bundle);
    let changes: Vec<Value> =
        stale.map(|hook| json!({ "name": hook["name"], "clientConfig": { "caBundle": bundle } })).collect();
    (!changes.is_empty()).then(|| json!({ "webhooks": changes }))
}

/// What the KubeVirt object says, over our defaults.
async fn lifetimes(client: &Client, namespace: &str) -> Result<Lifetimes> {
    let all = Api::<KubeVirt>::namespaced(client.clone(), namespace).list(&ListParams::default()).await?;
    let mut lifetimes = Lifetimes::default();
    let strategy =
        all.items.into_iter().next().and_then(|kubevirt| kubevirt.spec.certificate_rotate_strategy.self_signed);
    if let Some(strategy) = strategy {
        overlay(&mut lifetimes.ca, strategy.ca.as_ref());
        overlay(&mut lifetimes.leaf, strategy.server.as_ref());
    }
    Ok(lifetimes)
}

fn overlay(lifetime: &mut Lifetime, config: Option<&CertConfig>) {
    let parse = |text: &Option<String>| duration(text.as_deref()?);
    let Some(config) = config else { return };
    if let Some(lasts) = parse(&config.duration) {
        *lifetime = Lifetime { lasts, renew_before: lasts / 5 };
    }
    if let Some(renew_before) = parse(&config.renew_before).filter(|before| *before < lifetime.lasts) {
        lifetime.renew_before = renew_before;
    }
}

/// A duration as Go writes it: `168h`, `1h30m0s`.
pub fn duration(text: &str) -> Option<time::Duration> {
    let mut total = time::Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, after) = rest.split_at_checked(digits)?;
        let number: i64 = number.parse().ok()?;
        let (unit, after) = after.split_at_checked(1)?;
        total += match unit {
            "h" => time::Duration::hours(number),
            "m" => time::Duration::minutes(number),
            "s" => time::Duration::seconds(number),
            _ => return None,
        };
        rest = after;
    }
    (total > time::Duration::ZERO).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, minutes) in [("168h", Some(10080)), ("1h30m0s", Some(90)), ("", None), ("5", None), ("3d", None)] {
            assert_eq!(duration(text), minutes.map(time::Duration::minutes), "{text:?}");
        }
        let mut lifetime = Lifetimes::default().leaf;
        overlay(&mut lifetime, Some(&CertConfig { duration: Some("24h".into()), renew_before: Some("48h".into()) }));
        let hours = |hours: f64| time::Duration::seconds_f64(hours * 3600.0);
        assert_eq!(lifetime, Lifetime { lasts: hours(24.0), renew_before: hours(4.8) });
    }

    #[test]
    fn only_what_differs_is_written() {
        let hooks = |bundle: &str| json!({ "webhooks": [{ "name": "a", "clientConfig": { "caBundle": bundle } }, { "name": "b" }] });
        let change = json!({ "webhooks": [{ "name": "b", "clientConfig": { "caBundle": "x" } }] });
        assert_eq!(trust(&hooks("x"), "x"), Some(change));
        assert_eq!(trust(&json!({ "spec": { "caBundle": "x" } }), "x"), None);
        assert_eq!(trust(&json!({ "spec": {} }), "x"), Some(json!({ "spec": { "caBundle": "x" } })));
    }
}
