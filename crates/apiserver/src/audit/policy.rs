//! What is logged of which request: an `audit.k8s.io/v1` Policy.
//!
//! As upstream reads it: the first rule that matches decides. Two things differ. There is one stage, `ResponseComplete`, so
//! one line per request. And content that is a credential (Secrets, tokens) is logged only by a rule that names its resource:
//! a rule for everything means the rest.

use serde::Deserialize;

use crate::authn::User;
use crate::http::request::{RequestInfo, Target};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Level {
    None,
    Metadata,
    Request,
    RequestResponse,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    api_version: String,
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<String>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("not an audit policy")]
    Syntax(#[source] serde_saphyr::Error),
    #[error("an audit policy has apiVersion audit.k8s.io/v1 and kind Policy, not {0} {1}")]
    Kind(String, String),
    #[error("rules[{rule}].{field}: {problem}")]
    Rule { rule: usize, field: &'static str, problem: String },
    #[error("rules: an audit policy needs at least one")]
    Empty,
}

/// What is decided for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub level: Level,
    pub omit_managed_fields: bool,
}

const STAGES: [&str; 4] = ["RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"];
const STAGE: &str = "ResponseComplete";

impl Default for Policy {
    /// Everything, without content.
    fn default() -> Self {
        Self {
            api_version: String::new(),
            kind: String::new(),
            _metadata: serde::de::IgnoredAny,
            rules: vec![Rule {
                level: Level::Metadata,
                users: Vec::new(),
                user_groups: Vec::new(),
                verbs: Vec::new(),
                resources: Vec::new(),
                namespaces: Vec::new(),
                non_resource_urls: Vec::new(),
                omit_stages: Vec::new(),
                omit_managed_fields: None,
            }],
            omit_stages: Vec::new(),
            omit_managed_fields: false,
        }
    }
}

impl Policy {
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let policy: Self = serde_saphyr::from_str(text).map_err(PolicyError::Syntax)?;
        if policy.api_version != "audit.k8s.io/v1" || policy.kind != "Policy" {
            return Err(PolicyError::Kind(policy.api_version, policy.kind));
        }
        if policy.rules.is_empty() {
            return Err(PolicyError::Empty);
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            let wrong = |field, problem: String| Err(PolicyError::Rule { rule: index, field, problem });
            if let Some(stage) =
                rule.omit_stages.iter().chain(&policy.omit_stages).find(|s| !STAGES.contains(&s.as_str()))
            {
                return wrong("omitStages", format!("{stage:?} is not one of {STAGES:?}"));
            }
            let of_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
            if of_resources && !rule.non_resource_urls.is_empty() {
                return wrong("nonResourceURLs", "a rule is for resources or for other URLs, not for both".into());
            }
            let bad_url =
                |url: &&String| *url != "*" && (!url.starts_with('/') || url.trim_end_matches('*').contains('*'));
            if let Some(url) = rule.non_resource_urls.iter().find(bad_url) {
                return wrong(
                    "nonResourceURLs",
                    format!("{url:?} needs a slash at its start, and a * only at its end"),
                );
            }
            if rule.resources.iter().any(|r| !r.resource_names.is_empty() && r.resources.is_empty()) {
                return wrong("resources.resourceNames", "names need the resources that they are of".into());
            }
        }
        Ok(policy)
    }

    pub fn decide(&self, user: &User, info: &RequestInfo, verb: &str) -> Decision {
        let nothing = Decision { level: Level::None, omit_managed_fields: false };
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(user, info, verb)) else {
            return nothing;
        };
        if rule.omit_stages.iter().chain(&self.omit_stages).any(|stage| stage == STAGE) {
            return nothing;
        }
        let credential = info.target.as_ref().is_some_and(is_credential) && rule.resources.is_empty();
        let level = if credential { rule.level.min(Level::Metadata) } else { rule.level };
        Decision { level, omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields) }
    }
}

/// Whether a resource's content lets its reader be somebody.
fn is_credential(target: &Target) -> bool {
    matches!(
        (target.group.as_str(), target.resource.as_str(), target.subresource.as_deref()),
        ("", "secrets", _)
            | ("", "serviceaccounts", Some("token"))
            | ("authentication.k8s.io", "tokenreviews", _)
            | ("upload.cdi.kubevirt.io", "uploadtokenrequests", _)
    )
}

impl Rule {
    fn matches(&self, user: &User, info: &RequestInfo, verb: &str) -> bool {
        let any =
            |list: &[String], holds: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|item| holds(item));
        if !any(&self.users, &|name| name == user.name)
            || !any(&self.user_groups, &|group| user.in_group(group))
            || !any(&self.verbs, &|wanted| wanted == verb)
        {
            return false;
        }
        match &info.target {
            Some(_) if !self.non_resource_urls.is_empty() => false,
            Some(target) => {
                let namespace = target.namespace.as_deref().unwrap_or_default();
                any(&self.namespaces, &|wanted| wanted == namespace)
                    && (self.resources.is_empty() || self.resources.iter().any(|one| one.matches(target)))
            }
            None => {
                self.resources.is_empty()
                    && self.namespaces.is_empty()
                    && any(&self.non_resource_urls, &|url| match url.strip_suffix('*') {
                        Some(start) => info.path.starts_with(start),
                        None => info.path == url,
                    })
            }
        }
    }
}

impl GroupResources {
    fn matches(&self, target: &Target) -> bool {
        let name = target.name.as_deref().unwrap_or_default();
        let named = self.resource_names.is_empty() || self.resource_names.iter().any(|wanted| wanted == name);
        let resource = |wanted: &String| match (wanted.split_once('/'), target.subresource.as_deref()) {
            _ if wanted == "*" => true,
            (None, None) => *wanted == target.resource,
            (Some((of, sub)), Some(actual)) => (of == "*" || of == target.resource) && (sub == "*" || sub == actual),
            // `pods/*` is the pod itself, too.
            (Some((of, "*")), None) => of == target.resource,
            _ => false,
        };
        self.group == target.group && named && (self.resources.is_empty() || self.resources.iter().any(resource))
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, Uri};

    use super::*;
    use crate::http::request::Query;

    const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitManagedFields: true
omitStages: [RequestReceived]
rules:
  - level: None
    users: [system:kube-proxy]
    verbs: [watch]
    resources: [{group: "", resources: [endpoints, services]}]
  - level: None
    nonResourceURLs: ["/healthz*", /version]
  - level: None
    omitStages: [ResponseComplete]
    userGroups: [quiet]
  - level: Request
    namespaces: [kube-system]
    resources: [{group: "", resources: [configmaps]}]
  - level: RequestResponse
    omitManagedFields: false
    resources: [{group: "", resources: [pods, pods/status]}, {group: apps}]
  - level: Metadata
    resources: [{group: "", resources: ["pods/*"], resourceNames: [p]}]
  - level: RequestResponse
"#;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = Policy::parse(POLICY).unwrap();
        let cases = [
            ("system:kube-proxy", "GET /api/v1/services?watch=1", Level::None),
            ("alice", "GET /api/v1/services?watch=1", Level::RequestResponse),
            ("alice", "GET /healthz/ping", Level::None),
            ("alice", "GET /version", Level::None),
            ("alice", "GET /version/x", Level::RequestResponse),
            ("quiet", "POST /api/v1/namespaces/a/pods", Level::None),
            ("alice", "PUT /api/v1/namespaces/kube-system/configmaps/a", Level::Request),
            ("alice", "PUT /api/v1/namespaces/default/configmaps/a", Level::RequestResponse),
            ("alice", "GET /api/v1/namespaces/a/pods/p", Level::RequestResponse),
            ("alice", "GET /api/v1/namespaces/a/pods/p/log", Level::Metadata),
            ("alice", "GET /api/v1/namespaces/a/pods/q/log", Level::RequestResponse),
            ("alice", "POST /apis/apps/v1/namespaces/a/deployments", Level::RequestResponse),
        ];
        for (name, request, expected) in cases {
            assert_eq!(decide(&policy, name, request).level, expected, "{name} {request}");
        }
        assert!(decide(&policy, "alice", "GET /api/v1/nodes").omit_managed_fields);
        assert!(!decide(&policy, "alice", "GET /api/v1/namespaces/a/pods/p").omit_managed_fields);
    }

    fn decide(policy: &Policy, name: &str, request: &str) -> Decision {
        let (method, uri) = request.split_once(' ').unwrap();
        let (method, uri): (Method, Uri) = (method.parse().unwrap(), uri.parse().unwrap());
        let info = RequestInfo::parse(&method, &uri, &Query::parse(&uri));
        policy.decide(&User::new(name, &[name]), &info, info.verb)
    }

    /// A rule for everything does not write passwords into a log.
    #[test]
    fn credentials_are_logged_only_where_a_rule_names_them() {
        let all =
            Policy::parse("{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: RequestResponse}]}").unwrap();
        for request in [
            "POST /api/v1/namespaces/a/secrets",
            "GET /api/v1/secrets",
            "POST /api/v1/namespaces/a/serviceaccounts/x/token",
            "POST /apis/authentication.k8s.io/v1/tokenreviews",
            "POST /apis/upload.cdi.kubevirt.io/v1beta1/namespaces/a/uploadtokenrequests",
        ] {
            assert_eq!(decide(&all, "a", request).level, Level::Metadata, "{request}");
            assert_eq!(decide(&Policy::default(), "a", request).level, Level::Metadata, "{request}");
        }
        let named = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Request, resources: [{resources: [secrets]}]}]}";
        assert_eq!(decide(&Policy::parse(named).unwrap(), "a", "GET /api/v1/secrets").level, Level::Request);
    }

    #[test]
    fn mistakes_in_a_policy_are_told() {
        for (rules, told) in [
            ("[]", "at least one"),
            ("[{level: Everything}]", "not an audit policy"),
            ("[{level: None, user: [a]}]", "not an audit policy"),
            ("[{level: None, omitStages: [Later]}]", "rules[0].omitStages"),
            ("[{level: None, nonResourceURLs: [healthz]}]", "rules[0].nonResourceURLs"),
            ("[{level: None, nonResourceURLs: [/a], namespaces: [a]}]", "rules[0].nonResourceURLs"),
            ("[{level: None, resources: [{resourceNames: [a]}]}]", "rules[0].resources.resourceNames"),
        ] {
            let text = format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: {rules}}}");
            let error = Policy::parse(&text).unwrap_err().to_string();
            assert!(error.contains(told), "{rules}: {error}");
        }
        assert!(Policy::parse("{apiVersion: v1, kind: Policy, rules: [{level: None}]}").is_err());
    }
}
