//! What users may do with DataVolumes: cluster roles under upstream's names that aggregate to Kubernetes' own.

use ferrovirt_api::cdi::names;
use serde_json::{Value, json};

const RBAC: &str = "rbac.authorization.k8s.io";

const OWNED: &[&str] = &["datavolumes", "datasources"];
/// May be read by everyone: where uploads go, and what storage can do.
const SHARED: &[&str] = &["cdiconfigs", "storageprofiles"];
const READ: &[&str] = &["get", "list", "watch"];
const EDIT: &[&str] = &["get", "delete", "create", "update", "patch", "list", "watch"];
const ALL: &[&str] = &["get", "delete", "create", "update", "patch", "list", "watch", "deletecollection"];

pub fn user_roles() -> Vec<Value> {
    let owner = |verbs: &[&str]| {
        vec![
            rule(names::GROUP, OWNED, verbs),
            // Cloning somebody's disk is reading it.
            rule(names::GROUP, &["datavolumes/source"], &["create"]),
            rule(names::UPLOAD_GROUP, &["uploadtokenrequests"], &["create"]),
        ]
    };
    vec![
        role("admin", Some("admin"), &owner(ALL)),
        role("edit", Some("edit"), &owner(EDIT)),
        role("view", Some("view"), &[rule(names::GROUP, OWNED, READ)]),
        role("config-reader", None, &[rule(names::GROUP, SHARED, READ)]),
        json!({
            "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
            "metadata": { "name": "cdi.kubevirt.io:config-reader" },
            "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": "cdi.kubevirt.io:config-reader" },
            "subjects": [{ "apiGroup": RBAC, "kind": "Group", "name": "system:authenticated" }],
        }),
    ]
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": [group], "resources": resources, "verbs": verbs })
}

fn role(name: &str, aggregates_to: Option<&str>, rules: &[Value]) -> Value {
    let labels = aggregates_to.map(|to| json!({ format!("{RBAC}/aggregate-to-{to}"): "true" })).unwrap_or(json!({}));
    json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole",
        "metadata": { "name": format!("cdi.kubevirt.io:{name}"), "labels": labels }, "rules": rules,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_edit_may_upload_and_who_looks_may_not() {
        let roles = user_roles();
        let text = |name: &str| {
            let found = roles.iter().find(|role| role["metadata"]["name"] == format!("cdi.kubevirt.io:{name}"));
            found.unwrap()["rules"].to_string()
        };
        for (name, uploads, makes) in
            [("admin", true, true), ("edit", true, true), ("view", false, false), ("config-reader", false, false)]
        {
            assert_eq!(text(name).contains("uploadtokenrequests"), uploads, "{name}");
            assert_eq!(text(name).contains("create"), makes, "{name}");
        }
    }
}
