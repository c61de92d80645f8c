//! Who the parts of an embedded host are, and what each may do.
//!
//! They have the names and the roles that they have on a cluster, read from the chart itself: a rule that is missing there is
//! missing here, and a test finds it. Only what a cluster brings with it (a kubelet, a scheduler, what binds volumes) is
//! `node-lite` here, and gets a role of its own. Nobody is in `system:masters`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use ferrovirt_api::names;
use ferrovirt_apiserver::User;
use serde_json::{Value, json};

use super::services::NAMESPACE;

/// The chart's roles. There are no templates in it, so that it can be read here.
const CHART: &str = include_str!("../../../../charts/ferrovirt/templates/rbac.yaml");
const GROUP: &str = "rbac.authorization.k8s.io";
const NODE_LITE: &str = "ferrovirt:node-lite";
const UP: &str = "ferrovirt:up";

/// A part of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// virt-controller and the controller of DataVolumes.
    Controller,
    /// virt-api and the upload proxy.
    Api,
    /// The node agent.
    Handler,
    NodeLite,
    /// This program itself.
    Up,
}

impl Part {
    pub fn user(self, node: &str) -> User {
        let account = |name: &str| {
            let groups = ["system:serviceaccounts", "system:serviceaccounts:kubevirt", "system:authenticated"];
            User::new(format!("system:serviceaccount:{NAMESPACE}:{name}"), &groups)
        };
        match self {
            Self::Controller => account("kubevirt-controller"),
            Self::Api => account("kubevirt-apiserver"),
            Self::Handler => User {
                extra: BTreeMap::from([("authentication.kubernetes.io/node-name".into(), vec![node.to_owned()])]),
                ..account("kubevirt-handler")
            },
            Self::NodeLite => User::new(format!("system:node:{node}"), &["system:nodes", "system:authenticated"]),
            Self::Up => User::new(names::UP_USER, &["system:authenticated"]),
        }
    }
}

/// The roles and bindings of all parts.
pub fn roles(node: &str) -> Result<Vec<Value>> {
    let mut objects = chart()?;
    objects.extend([
        cluster_role(NODE_LITE, &node_lite(node)),
        binding(NODE_LITE, &Part::NodeLite.user(node).name),
        cluster_role(UP, &up(node)),
        binding(UP, names::UP_USER),
    ]);
    Ok(objects)
}

fn chart() -> Result<Vec<Value>> {
    let documents = CHART.split("\n---\n").map(|text| {
        serde_saphyr::from_str::<Value>(text).with_context(|| format!("cannot read the roles of the chart: {text}"))
    });
    documents.collect()
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

fn named(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "resourceNames": names, "verbs": verbs })
}

/// What a kubelet, a scheduler, the controllers of endpoints and volumes, and a DNS server do on a cluster.
fn node_lite(node: &str) -> Vec<Value> {
    let see = &["get", "list", "watch"][..];
    vec![
        // Runs pods, says how they are, and takes away those that ended; binds them to the node.
        rule("", &["pods"], &["get", "list", "watch", "delete"]),
        rule("", &["pods/status"], &["get", "update", "patch"]),
        rule("", &["pods/binding"], &["create"]),
        // Whether somebody may run a command in a pod.
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // What a namespace allows to its pods, and what its network lets through.
        rule("", &["namespaces"], see),
        rule("networking.k8s.io", &["networkpolicies"], see),
        // What pods mount. It does not look around in them.
        rule("", &["secrets", "configmaps", "serviceaccounts"], &["get"]),
        rule("", &["serviceaccounts/token"], &["create"]),
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]),
        // Its node, and that it lives.
        rule("", &["nodes"], &["get", "list", "watch", "create"]),
        named("", &["nodes", "nodes/status"], &[node], &["update", "patch"]),
        rule("coordination.k8s.io", &["leases"], &["create"]),
        named("coordination.k8s.io", &["leases"], &[node], &["get", "update", "patch"]),
        // Makes, binds and reclaims volumes.
        rule("", &["persistentvolumes"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
        rule("", &["persistentvolumes/status"], &["update", "patch"]),
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "update", "patch"]),
        rule("", &["persistentvolumeclaims/status"], &["update", "patch"]),
        rule("storage.k8s.io", &["storageclasses"], &["get", "list", "watch", "patch"]),
        // Where services lead.
        rule("", &["services"], see),
        // Which address a load balancer has.
        rule("", &["services/status"], &["patch"]),
        rule("discovery.k8s.io", &["endpointslices"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
        rule("", &["endpoints"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
        // The DNS server's own service: applying one that is not there makes it.
        rule("", &["services"], &["create"]),
        named("", &["services"], &["kube-dns"], &["update", "patch"]),
        rule("", &["events"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// What the command line asks for, and the tries of hypervisors.
fn up(node: &str) -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["kubevirts"], &["get", "patch"]),
        named("cdi.kubevirt.io", &["cdiconfigs"], &["config"], &["get", "patch"]),
        // A watch of one node is a list of those with its name.
        rule("", &["nodes"], &["get", "list", "watch"]),
        named("", &["nodes"], &[node], &["patch"]),
        rule("", &["pods"], &["get", "list", "watch", "create", "delete"]),
        rule("", &["pods/log"], &["get"]),
    ]
}

fn cluster_role(name: &str, rules: &[Value]) -> Value {
    json!({ "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules })
}

fn binding(role: &str, user: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding", "metadata": { "name": role },
        "roleRef": { "apiGroup": GROUP, "kind": "ClusterRole", "name": role },
        "subjects": [{ "apiGroup": GROUP, "kind": "User", "name": user }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_the_host_is_a_master_of_everything() {
        for part in [Part::Controller, Part::Api, Part::Handler, Part::NodeLite, Part::Up] {
            let user = part.user("n");
            assert!(!user.groups.iter().any(|group| group == "system:masters"), "{user:?}");
            let bound = roles("n").unwrap().into_iter().filter(|object| object["kind"] == "ClusterRoleBinding");
            let mut subjects = bound.flat_map(|binding| binding["subjects"].as_array().cloned().unwrap_or_default());
            let names = |subject: &Value| match subject["kind"].as_str() {
                Some("ServiceAccount") => format!(
                    "system:serviceaccount:{}:{}",
                    subject["namespace"].as_str().unwrap(),
                    subject["name"].as_str().unwrap()
                ),
                _ => subject["name"].as_str().unwrap().to_owned(),
            };
            assert!(subjects.any(|subject| names(&subject) == user.name), "{} has no role", user.name);
        }
        for role in roles("n").unwrap().iter().filter(|object| object["kind"] == "ClusterRole") {
            let text = role["rules"].to_string();
            assert!(!text.contains("\"*\""), "{role}");
            assert!(!text.contains("rbac.authorization.k8s.io"), "{role}");
        }
        assert_eq!(Part::Controller.user("n").name, names::CONTROLLER_USER);
        assert_eq!(Part::Up.user("n").name, names::UP_USER);
    }
}
