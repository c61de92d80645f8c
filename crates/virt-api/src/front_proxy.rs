//! Whom to believe about who is calling: the API server's front proxy, as the cluster itself describes it.

use http::{HeaderMap, HeaderName, HeaderValue};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use x509_parser::prelude::{FromDer, X509Certificate};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";

#[derive(Debug, thiserror::Error)]
pub enum FrontProxyError {
    #[error("cannot read the configmap {NAMESPACE}/{NAME}")]
    Read(#[from] kube::Error),
    #[error("the configmap {NAMESPACE}/{NAME} has no usable {0}; is the API server's aggregation layer set up?")]
    Missing(&'static str),
}

/// What the API server says of its front proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontProxy {
    /// PEM texts of the CAs that sign the front proxy's certificate.
    pub client_ca: String,
    /// Common names to accept; empty for any that the CA signed.
    pub allowed_names: Vec<String>,
    pub user_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    /// What the names of headers with anything else about the caller begin with.
    pub extra_prefixes: Vec<String>,
}

impl FrontProxy {
    pub async fn read(client: &Client) -> Result<Self, FrontProxyError> {
        let map = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE).get(NAME).await?;
        let text = |key: &'static str| map.data.as_ref().and_then(|data| data.get(key)).map(String::as_str);
        let list = |key: &'static str| match text(key) {
            None => Ok(vec![]),
            Some(text) => serde_json::from_str::<Vec<String>>(text).map_err(|_| FrontProxyError::Missing(key)),
        };
        let client_ca = text("requestheader-client-ca-file").filter(|ca| !ca.is_empty());
        let user_headers = list("requestheader-username-headers")?;
        if user_headers.is_empty() {
            return Err(FrontProxyError::Missing("requestheader-username-headers"));
        }
        Ok(Self {
            client_ca: client_ca.ok_or(FrontProxyError::Missing("requestheader-client-ca-file"))?.into(),
            allowed_names: list("requestheader-allowed-names")?,
            user_headers,
            group_headers: list("requestheader-group-headers")?,
            uid_headers: list("requestheader-uid-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?,
        })
    }

    /// True if a certificate that the CA signed is the front proxy's. Others may have one of the same CA.
    pub(crate) fn is(&self, certificate: &[u8]) -> bool {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
        let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
        self.allowed_names.is_empty() || name.is_some_and(|name| self.allowed_names.iter().any(|n| n == name))
    }

    /// Leaves in `headers` the caller's identity under the names that this service reads, and only if `trusted`.
    pub(crate) fn identify(&self, headers: &mut HeaderMap, trusted: bool) {
        let take = |headers: &HeaderMap, names: &[String]| -> Vec<HeaderValue> {
            let first = names.iter().find(|name| headers.contains_key(name.as_str()));
            first.map(|name| headers.get_all(name.as_str()).iter().cloned().collect()).unwrap_or_default()
        };
        let (users, groups) = (take(headers, &self.user_headers), take(headers, &self.group_headers));
        let uids = take(headers, &self.uid_headers);
        let extra = self.extra(headers);
        let remote: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
        for name in remote {
            headers.remove(name);
        }
        if !trusted {
            return;
        }
        if let Some(user) = users.into_iter().next() {
            headers.insert("x-remote-user", user);
        }
        if let Some(uid) = uids.into_iter().next() {
            headers.insert("x-remote-uid", uid);
        }
        for group in groups {
            headers.append("x-remote-group", group);
        }
        for (name, value) in extra {
            headers.append(name, value);
        }
    }

    /// What else the front proxy says, under the names that this service reads.
    fn extra(&self, headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        let prefixes: Vec<String> = self.extra_prefixes.iter().map(|prefix| prefix.to_lowercase()).collect();
        let named = headers.iter().filter_map(|(name, value)| {
            let key = prefixes.iter().find_map(|prefix| name.as_str().strip_prefix(prefix.as_str()))?;
            Some((HeaderName::try_from(format!("x-remote-extra-{key}")).ok()?, value.clone()))
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy() -> FrontProxy {
        FrontProxy {
            client_ca: String::new(),
            allowed_names: vec!["front-proxy-client".into()],
            user_headers: vec!["X-Remote-User".into()],
            group_headers: vec!["X-Remote-Group".into()],
            uid_headers: vec!["X-Remote-Uid".into()],
            extra_prefixes: vec!["X-Remote-Extra-".into()],
        }
    }

    #[test]
    fn only_the_front_proxy_names_callers() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static("alice"));
        headers.append("x-remote-group", HeaderValue::from_static("one"));
        headers.append("x-remote-group", HeaderValue::from_static("two"));
        headers.insert("x-remote-extra-scopes", HeaderValue::from_static("all"));
        headers.append("x-remote-extra-scopes", HeaderValue::from_static("more"));
        headers.insert("x-remote-uid", HeaderValue::from_static("7"));
        let mut forged = headers.clone();

        proxy().identify(&mut headers, true);
        assert_eq!(headers["x-remote-user"], "alice");
        assert_eq!(headers.get_all("x-remote-group").iter().count(), 2);
        assert_eq!(headers["x-remote-uid"], "7");
        let scopes: Vec<_> = headers.get_all("x-remote-extra-scopes").iter().collect();
        assert_eq!(scopes, ["all", "more"]);

        proxy().identify(&mut forged, false);
        assert!(forged.is_empty());
    }

    #[test]
    fn the_certificate_must_bear_an_allowed_name() {
        let certificate = |name: &str| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.self_signed(&key).unwrap().der().to_vec()
        };
        assert!(proxy().is(&certificate("front-proxy-client")));
        assert!(!proxy().is(&certificate("somebody")));
        assert!(!proxy().is(b"not a certificate"));
        assert!(FrontProxy { allowed_names: vec![], ..proxy() }.is(&certificate("somebody")));
    }
}
