//! The logins that a pod has for registries.

use k8s_openapi::api::core::v1::{PodSpec, Secret, ServiceAccount};
use kube::Api;
use serde_json::json;

/// Configurations of the pod's own pull secrets and of those of its service account. One that does not exist is left out, as
/// a kubelet does: the registry may not ask for it.
pub(crate) async fn read(client: &kube::Client, namespace: &str, spec: &PodSpec) -> Result<Vec<Vec<u8>>, kube::Error> {
    let mut names: Vec<String> = spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.clone()).collect();
    let account = spec.service_account_name.as_deref().unwrap_or("default");
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    if let Some(account) = accounts.get_opt(account).await? {
        names.extend(account.image_pull_secrets.into_iter().flatten().map(|secret| secret.name));
    }
    let secrets = Api::<Secret>::namespaced(client.clone(), namespace);
    let mut found = Vec::new();
    for name in names {
        let Some(secret) = secrets.get_opt(&name).await? else { continue };
        let data = secret.data.unwrap_or_default();
        if let Some(config) = data.get(".dockerconfigjson") {
            found.push(config.0.clone());
        } else if let Some(config) = data.get(".dockercfg") {
            let auths: serde_json::Value = serde_json::from_slice(&config.0).unwrap_or_default();
            found.push(json!({ "auths": auths }).to_string().into_bytes());
        } else if let (Some(user), Some(password)) = (data.get("accessKeyId"), data.get("secretKey")) {
            // As the secrets of DataVolumes say it: the login for whatever registry the image is in.
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
            let login = json!({ "username": text(&user.0), "password": text(&password.0) });
            found.push(json!({ "auths": { "*": login } }).to_string().into_bytes());
        }
    }
    Ok(found)
}
