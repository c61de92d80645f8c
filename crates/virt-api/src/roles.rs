//! What users may do with machines: cluster roles that aggregate to Kubernetes' own admin, edit and view, and what everyone
//! may read. The same objects in both modes; the rules are upstream's.

use serde_json::{Value, json};

use crate::endpoints::{ENDPOINTS, Verb};

const RBAC: &str = "rbac.authorization.k8s.io";
const SUBRESOURCES: &str = "subresources.kubevirt.io";
const READ: &[&str] = &["get", "list", "watch"];
const EDIT: &[&str] = &["get", "delete", "create", "update", "patch", "list", "watch"];
const ALL: &[&str] = &["get", "delete", "create", "update", "patch", "list", "watch", "deletecollection"];

/// Who looks does not touch: what a viewer may ask of a guest changes nothing and shows nothing that was typed.
const VIEWED: &[&str] = &[
    "virtualmachines/expand-spec",
    "virtualmachines/objectgraph",
    "virtualmachineinstances/guestosinfo",
    "virtualmachineinstances/filesystemlist",
    "virtualmachineinstances/userlist",
    "virtualmachineinstances/sev/fetchcertchain",
    "virtualmachineinstances/sev/querylaunchmeasurement",
    "virtualmachineinstances/objectgraph",
    "virtualmachineinstances/stats",
];

/// Given by the role `kubevirt.io:migrate` alone: moving machines is an operator's decision.
const MIGRATE: &str = "virtualmachines/migrate";
/// For backup software, which is given them by name.
const BY_NAME: &[&str] = &[
    MIGRATE,
    "virtualmachines/removememorydump",
    "virtualmachineinstances/backup",
    "virtualmachineinstances/redefine-checkpoint",
    "virtualmachineinstances/vsock",
];

/// Upstream's `edit` sees the screen and does not take pictures of it.
const ADMIN_ONLY: &[&str] = &["virtualmachineinstances/vnc/screenshot"];

/// Groups whose resources people make and change within their namespaces.
const OWNED: &[(&str, &[&str])] = &[
    (
        "kubevirt.io",
        &[
            "virtualmachines",
            "virtualmachineinstances",
            "virtualmachineinstancepresets",
            "virtualmachineinstancereplicasets",
        ],
    ),
    ("snapshot.kubevirt.io", &["virtualmachinesnapshots", "virtualmachinesnapshotcontents", "virtualmachinerestores"]),
    ("backup.kubevirt.io", &["virtualmachinebackups", "virtualmachinebackuptrackers"]),
    ("export.kubevirt.io", &["virtualmachineexports"]),
    ("clone.kubevirt.io", &["virtualmachineclones"]),
    (
        "instancetype.kubevirt.io",
        &[
            "virtualmachineinstancetypes",
            "virtualmachineclusterinstancetypes",
            "virtualmachinepreferences",
            "virtualmachineclusterpreferences",
        ],
    ),
    ("pool.kubevirt.io", &["virtualmachinepools"]),
];

pub fn user_roles() -> Vec<Value> {
    vec![
        role("kubevirt.io:default", None, default_rules()),
        binding("kubevirt.io:default"),
        role("kubevirt.io:admin", Some("admin"), owner_rules(ALL, &[])),
        role("kubevirt.io:edit", Some("edit"), owner_rules(EDIT, ADMIN_ONLY)),
        role("kubevirt.io:view", Some("view"), view_rules()),
        role(
            "kubevirt.io:migrate",
            None,
            vec![
                rule(SUBRESOURCES, &[MIGRATE], &["update"]),
                rule("kubevirt.io", &["virtualmachineinstancemigrations"], ALL),
            ],
        ),
        role(
            "instancetype.kubevirt.io:view",
            None,
            vec![rule(
                "instancetype.kubevirt.io",
                &["virtualmachineclusterinstancetypes", "virtualmachineclusterpreferences"],
                READ,
            )],
        ),
        binding("instancetype.kubevirt.io:view"),
    ]
}

fn default_rules() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["kubevirts"], &["get", "list"]),
        rule(SUBRESOURCES, &["version", "guestfs"], &["get", "list"]),
    ]
}

fn owner_rules(verbs: &[&str], but: &[&str]) -> Vec<Value> {
    let named = |verb: Verb| -> Vec<String> {
        let all = ENDPOINTS.iter().filter(|endpoint| endpoint.verb == verb);
        let names = all.map(|endpoint| format!("{}/{}", endpoint.resource, endpoint.subresource));
        names.filter(|name| !BY_NAME.contains(&name.as_str()) && !but.contains(&name.as_str())).collect()
    };
    let mut updated = named(Verb::Update);
    updated.push("expand-vm-spec".into());
    let mut rules = vec![rule(SUBRESOURCES, &named(Verb::Get), &["get"]), rule(SUBRESOURCES, &updated, &["update"])];
    rules.extend(OWNED.iter().map(|(group, resources)| rule(group, resources, verbs)));
    rules.push(rule("kubevirt.io", &["virtualmachineinstancemigrations"], READ));
    rules.push(rule("kubevirt.io", &["kubevirts"], &["get", "list"]));
    rules.push(rule("migrations.kubevirt.io", &["migrationpolicies"], READ));
    rules
}

fn view_rules() -> Vec<Value> {
    let mut rules = vec![rule(SUBRESOURCES, VIEWED, &["get"]), rule(SUBRESOURCES, &["expand-vm-spec"], &["update"])];
    rules.extend(OWNED.iter().map(|(group, resources)| rule(group, resources, READ)));
    rules.push(rule("kubevirt.io", &["virtualmachineinstancemigrations"], READ));
    rules.push(rule("kubevirt.io", &["kubevirts"], &["get", "list"]));
    rules.push(rule("migrations.kubevirt.io", &["migrationpolicies"], READ));
    rules
}

fn rule<S: AsRef<str>>(group: &str, resources: &[S], verbs: &[&str]) -> Value {
    let resources: Vec<&str> = resources.iter().map(AsRef::as_ref).collect();
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

fn role(name: &str, aggregates_to: Option<&str>, rules: Vec<Value>) -> Value {
    let mut labels = json!({ "kubevirt.io": "" });
    if let Some(to) = aggregates_to {
        labels[format!("{RBAC}/aggregate-to-{to}")] = "true".into();
    }
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": { "name": name, "labels": labels }, "rules": rules,
    })
}

/// For everyone who has proved to be someone.
fn binding(name: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
        "metadata": { "name": name, "labels": { "kubevirt.io": "" } },
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": name },
        "subjects": [{ "apiGroup": RBAC, "kind": "Group", "name": "system:authenticated" }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(role: &str, verb: &str, group: &str, resource: &str) -> bool {
        let roles = user_roles();
        let found = roles.iter().find(|object| object["kind"] == "ClusterRole" && object["metadata"]["name"] == role);
        let has = |list: &Value, item: &str| list.as_array().unwrap().iter().any(|value| value == item);
        found.unwrap()["rules"].as_array().unwrap().iter().any(|rule| {
            has(&rule["apiGroups"], group) && has(&rule["resources"], resource) && has(&rule["verbs"], verb)
        })
    }

    #[test]
    fn roles_give_what_their_names_say() {
        let (view, edit, admin) = ("kubevirt.io:view", "kubevirt.io:edit", "kubevirt.io:admin");
        let rows: &[(&str, &str, &str, &str, bool)] = &[
            (view, "get", "kubevirt.io", "virtualmachines", true),
            (view, "watch", "kubevirt.io", "virtualmachineinstances", true),
            (view, "create", "kubevirt.io", "virtualmachines", false),
            (view, "get", SUBRESOURCES, "virtualmachineinstances/console", false),
            (view, "get", SUBRESOURCES, "virtualmachineinstances/vnc", false),
            (view, "get", SUBRESOURCES, "virtualmachineinstances/vnc/screenshot", false),
            (view, "get", SUBRESOURCES, "virtualmachineinstances/portforward", false),
            (view, "update", SUBRESOURCES, "virtualmachines/start", false),
            (view, "update", SUBRESOURCES, "virtualmachineinstances/pause", false),
            (view, "get", SUBRESOURCES, "virtualmachineinstances/guestosinfo", true),
            (view, "get", SUBRESOURCES, "virtualmachines/expand-spec", true),
            (edit, "create", "kubevirt.io", "virtualmachines", true),
            (edit, "deletecollection", "kubevirt.io", "virtualmachines", false),
            (edit, "update", SUBRESOURCES, "virtualmachines/stop", true),
            (edit, "get", SUBRESOURCES, "virtualmachineinstances/console", true),
            (edit, "get", SUBRESOURCES, "virtualmachineinstances/vnc", true),
            (edit, "get", SUBRESOURCES, "virtualmachineinstances/vnc/screenshot", false),
            (admin, "get", SUBRESOURCES, "virtualmachineinstances/vnc/screenshot", true),
            (edit, "get", SUBRESOURCES, "virtualmachines/portforward", true),
            (edit, "update", SUBRESOURCES, "virtualmachines/migrate", false),
            (edit, "create", "kubevirt.io", "virtualmachineinstancemigrations", false),
            (edit, "update", "kubevirt.io", "kubevirts", false),
            (admin, "deletecollection", "kubevirt.io", "virtualmachines", true),
            (admin, "update", SUBRESOURCES, "virtualmachines/migrate", false),
            (admin, "update", "kubevirt.io", "virtualmachines/status", false),
            ("kubevirt.io:migrate", "update", SUBRESOURCES, "virtualmachines/migrate", true),
            ("kubevirt.io:default", "get", SUBRESOURCES, "version", true),
        ];
        for (role, verb, group, resource, expected) in rows {
            assert_eq!(allows(role, verb, group, resource), *expected, "{role}: {verb} {resource}");
        }
    }
}
