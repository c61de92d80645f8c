//! Who may do what: RBAC, evaluated on an index of the stored roles and bindings.

mod bootstrap;
mod escalation;
mod rules;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

pub use bootstrap::policy as bootstrap_policy;
pub use escalation::check as check_escalation;
pub use rules::{Rule, aggregated_rules};
use serde_json::Value;

use crate::authn::{MASTERS, User};
use crate::http::request::{RequestInfo, Target};
use crate::status::{ApiError, Subject};
use crate::storage::{Store, parse};

pub const GROUP: &str = "rbac.authorization.k8s.io";

/// Paths that need no identity.
const PUBLIC_PATHS: &[&str] = &["/healthz", "/livez", "/readyz", "/version"];

/// One question: may this user do this?
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub verb: &'a str,
    pub on: On<'a>,
}

#[derive(Debug, Clone, Copy)]
pub enum On<'a> {
    Path(&'a str),
    Resource { group: &'a str, resource: &'a str, subresource: &'a str, namespace: &'a str, name: &'a str },
}

impl<'a> Attributes<'a> {
    pub fn of(user: &'a User, info: &'a RequestInfo) -> Self {
        let on = match &info.target {
            None => On::Path(&info.path),
            Some(target) => On::of(target),
        };
        Self { user, verb: info.verb, on }
    }
}

impl<'a> On<'a> {
    pub fn of(target: &'a Target) -> Self {
        Self::Resource {
            group: &target.group,
            resource: &target.resource,
            subresource: target.subresource.as_deref().unwrap_or_default(),
            namespace: target.namespace.as_deref().unwrap_or_default(),
            name: target.name.as_deref().unwrap_or_default(),
        }
    }
}

/// Rules granted to a subject, cluster-wide or in one namespace.
type Grants = HashMap<String, Vec<Arc<[Rule]>>>;

#[derive(Debug, Default)]
struct Index {
    cluster: Grants,
    namespaced: HashMap<String, Grants>,
}

/// The authorizer. The index is rebuilt at the first question after a change.
#[derive(Debug, Default)]
pub struct Rbac {
    index: RwLock<Option<Arc<Index>>>,
}

impl Rbac {
    /// Called after every committed change of a role or binding.
    pub fn invalidate(&self) {
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn allowed(&self, store: &Store, question: Attributes<'_>) -> bool {
        if question.user.in_group(MASTERS) {
            return true;
        }
        if let On::Path(path) = question.on
            && PUBLIC_PATHS.iter().any(|p| path == *p || path.strip_prefix(p).is_some_and(|rest| rest.starts_with('/')))
        {
            return true;
        }
        let index = self.index(store);
        let namespace = match question.on {
            On::Resource { namespace, .. } => namespace,
            On::Path(_) => "",
        };
        let scopes = [Some(&index.cluster), index.namespaced.get(namespace).filter(|_| !namespace.is_empty())];
        scopes.into_iter().flatten().any(|grants| {
            subject_keys(question.user)
                .filter_map(|key| grants.get(&key))
                .flatten()
                .any(|rules| rules.iter().any(|rule| rule.allows(question.verb, &question.on)))
        })
    }

    pub fn authorize(&self, store: &Store, question: Attributes<'_>) -> Result<(), ApiError> {
        if self.allowed(store, question) {
            return Ok(());
        }
        Err(forbidden(question))
    }

    /// All rules that apply to a user in a namespace (SelfSubjectRulesReview).
    pub fn rules(&self, store: &Store, user: &User, namespace: &str) -> Vec<Rule> {
        let index = self.index(store);
        let scopes = [Some(&index.cluster), index.namespaced.get(namespace)];
        let mut rules: Vec<Rule> = scopes
            .into_iter()
            .flatten()
            .flat_map(|grants| {
                subject_keys(user)
                    .filter_map(|key| grants.get(&key))
                    .flatten()
                    .flat_map(|r| r.iter().cloned())
                    .collect::<Vec<_>>()
            })
            .collect();
        if user.in_group(MASTERS) {
            rules.push(Rule::everything());
        }
        rules
    }

    fn index(&self, store: &Store) -> Arc<Index> {
        if let Some(index) = &*self.index.read().unwrap_or_else(PoisonError::into_inner) {
            return index.clone();
        }
        // Built under the lock: an invalidation that comes meanwhile waits, and clears the result.
        let mut slot = self.index.write().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| Arc::new(Index::build(store))).clone()
    }
}

impl Index {
    fn build(store: &Store) -> Self {
        let load = |plural: &str| -> Vec<Value> {
            let resource = format!("rbac.authorization.k8s.io/{plural}");
            store.list(&resource, None).items.iter().filter_map(|e| parse(e).ok()).collect()
        };
        let cluster_roles = load("clusterroles");
        let by_name: HashMap<&str, Arc<[Rule]>> = cluster_roles
            .iter()
            .map(|role| (crate::object::name(role), effective_rules(role, &cluster_roles).into()))
            .collect();
        let roles = load("roles");
        let by_namespace: HashMap<(&str, &str), Arc<[Rule]>> = roles
            .iter()
            .map(|role| ((namespace_of(role), crate::object::name(role)), Rule::parse_all(&role["rules"]).into()))
            .collect();
        let mut index = Self::default();
        for binding in load("clusterrolebindings") {
            if let Some(RoleRef::Cluster(name)) = RoleRef::of(&binding, "")
                && let Some(rules) = by_name.get(name)
            {
                grant(&mut index.cluster, &binding, rules);
            }
        }
        for binding in load("rolebindings") {
            let namespace = namespace_of(&binding);
            let rules = match RoleRef::of(&binding, namespace) {
                Some(RoleRef::Cluster(name)) => by_name.get(name),
                Some(RoleRef::Namespaced(namespace, name)) => by_namespace.get(&(namespace, name)),
                None => None,
            };
            if let Some(rules) = rules {
                grant(index.namespaced.entry(namespace.to_owned()).or_default(), &binding, rules);
            }
        }
        index
    }
}

/// The role that a binding is about. What it names exactly is what it gives: a role of its own namespace, or a cluster role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoleRef<'a> {
    Cluster(&'a str),
    Namespaced(&'a str, &'a str),
}

impl<'a> RoleRef<'a> {
    /// None if no role can be meant: another kind or group, or a namespaced role in a binding that has no namespace.
    fn of(binding: &'a Value, namespace: &'a str) -> Option<Self> {
        let reference = &binding["roleRef"];
        let name = reference["name"].as_str().filter(|name| !name.is_empty())?;
        if reference["apiGroup"].as_str() != Some(GROUP) {
            return None;
        }
        match reference["kind"].as_str()? {
            "ClusterRole" => Some(Self::Cluster(name)),
            "Role" if !namespace.is_empty() => Some(Self::Namespaced(namespace, name)),
            _ => None,
        }
    }
}

impl Index {
    /// The rules of one role. None if there is no such role.
    fn rules_of(store: &Store, role: RoleRef<'_>) -> Option<Vec<Rule>> {
        let load = |plural: &str| store.list(&format!("rbac.authorization.k8s.io/{plural}"), None).items;
        let name = match role {
            RoleRef::Cluster(name) => name,
            RoleRef::Namespaced(namespace, name) => {
                let key = ferrovirt_store::Key::new(namespace, name);
                let role = store.get("rbac.authorization.k8s.io/roles", &key).and_then(|e| parse(&e).ok());
                return role.map(|r| Rule::parse_all(&r["rules"]));
            }
        };
        let all: Vec<Value> = load("clusterroles").iter().filter_map(|e| parse(e).ok()).collect();
        let role = all.iter().find(|r| crate::object::name(r) == name);
        role.map(|r| effective_rules(r, &all))
    }
}

/// The rules of a cluster role, with those of the roles it aggregates.
fn effective_rules(role: &Value, all: &[Value]) -> Vec<Rule> {
    match role.get("aggregationRule") {
        Some(aggregation) if aggregation.is_object() => {
            Rule::parse_all(&Value::Array(aggregated_rules(aggregation, all)))
        }
        _ => Rule::parse_all(&role["rules"]),
    }
}

fn namespace_of(object: &Value) -> &str {
    crate::object::text(object, &["metadata", "namespace"])
}

fn grant(grants: &mut Grants, binding: &Value, rules: &Arc<[Rule]>) {
    for subject in binding["subjects"].as_array().into_iter().flatten() {
        let name = subject["name"].as_str().unwrap_or_default();
        let key = match subject["kind"].as_str() {
            Some("User") => format!("u:{name}"),
            Some("Group") => format!("g:{name}"),
            Some("ServiceAccount") => {
                format!(
                    "u:system:serviceaccount:{}:{name}",
                    subject["namespace"].as_str().unwrap_or_else(|| namespace_of(binding))
                )
            }
            _ => continue,
        };
        grants.entry(key).or_default().push(rules.clone());
    }
}

fn subject_keys(user: &User) -> impl Iterator<Item = String> {
    std::iter::once(format!("u:{}", user.name)).chain(user.groups.iter().map(|g| format!("g:{g}")))
}

fn forbidden(question: Attributes<'_>) -> ApiError {
    let user = &question.user.name;
    match question.on {
        On::Path(path) => {
            let mut error = ApiError::new(
                403,
                "Forbidden",
                format!("forbidden: User \"{user}\" cannot {} path \"{path}\"", question.verb),
            );
            error.body["details"] = serde_json::json!({});
            error
        }
        On::Resource { group, resource, subresource, namespace, name } => {
            let full = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
            let place = if namespace.is_empty() || resource == "namespaces" {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace \"{namespace}\"")
            };
            let why = format!(
                "User \"{user}\" cannot {} resource \"{full}\" in API group \"{group}\" {place}",
                question.verb
            );
            ApiError::forbidden(Subject { group, kind: resource, name }, &why)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_binding_gives_only_the_role_that_it_names() {
        let binding =
            |group: &str, kind: &str, name: &str| json!({"roleRef": {"apiGroup": group, "kind": kind, "name": name}});
        let admin = "cluster-admin";
        for (binding, namespace, expected) in [
            (binding(GROUP, "ClusterRole", admin), "", Some(RoleRef::Cluster(admin))),
            (binding(GROUP, "ClusterRole", admin), "a", Some(RoleRef::Cluster(admin))),
            (binding(GROUP, "Role", admin), "a", Some(RoleRef::Namespaced("a", admin))),
            // A namespaced role outside of any namespace is none, whatever cluster role has its name.
            (binding(GROUP, "Role", admin), "", None),
            (binding(GROUP, "", admin), "", None),
            (binding(GROUP, "", admin), "a", None),
            (binding(GROUP, "clusterrole", admin), "", None),
            (binding("", "ClusterRole", admin), "", None),
            (binding("example.com", "ClusterRole", admin), "", None),
            (binding(GROUP, "ClusterRole", ""), "", None),
            (json!({}), "", None),
        ] {
            assert_eq!(RoleRef::of(&binding, namespace), expected, "{binding} in {namespace:?}");
        }
    }
}
