//! Who is asking.

use std::collections::BTreeMap;

use x509_parser::prelude::FromDer;

/// The group whose members pass authorization unconditionally.
pub const MASTERS: &str = "system:masters";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";

/// An authenticated identity, as Kubernetes describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user with groups and nothing else.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        Self { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..Self::default() }
    }

    pub fn anonymous() -> Self {
        Self::new("system:anonymous", &[UNAUTHENTICATED])
    }

    /// The server acting on its own behalf (bootstrap, built-in controllers).
    pub(crate) fn system(component: &str) -> Self {
        Self::new(format!("system:{component}"), &[MASTERS, AUTHENTICATED])
    }

    pub fn is_anonymous(&self) -> bool {
        self.groups.iter().any(|g| g == UNAUTHENTICATED)
    }

    pub(crate) fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Every caller that proved an identity belongs to `system:authenticated`, whoever vouched for it.
    pub(crate) fn authenticated(mut self) -> Self {
        if !self.is_anonymous() && !self.in_group(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// The `authentication.k8s.io` form: what reviews, webhooks and the audit log show.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut info = serde_json::json!({"username": self.name, "groups": self.groups});
        if let Some(uid) = &self.uid {
            info["uid"] = uid.clone().into();
        }
        if !self.extra.is_empty() {
            info["extra"] = serde_json::json!(self.extra);
        }
        info
    }

    pub(crate) fn from_json(spec: &serde_json::Value, name_field: &str) -> Self {
        let strings = |v: &serde_json::Value| -> Vec<String> {
            v.as_array()
                .map(|items| items.iter().filter_map(|s| s.as_str().map(str::to_owned)).collect())
                .unwrap_or_default()
        };
        Self {
            name: spec[name_field].as_str().unwrap_or_default().to_owned(),
            uid: spec["uid"].as_str().filter(|u| !u.is_empty()).map(str::to_owned),
            groups: strings(&spec["groups"]),
            extra: spec["extra"]
                .as_object()
                .map(|m| m.iter().map(|(k, v)| (k.clone(), strings(v))).collect())
                .unwrap_or_default(),
        }
    }
}

/// An extension of a request: until when what its caller proved to be someone with holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredentialExpiry(pub std::time::SystemTime);

pub(crate) fn expiry(der: &[u8]) -> Option<CredentialExpiry> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some(CredentialExpiry(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)))
}

/// The identity in a verified client certificate: common name and organisations.
pub(crate) fn from_certificate(der: &[u8]) -> Option<User> {
    let (_, cert) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
    let subject = cert.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    Some(User { name, groups, ..User::default() }.authenticated())
}
