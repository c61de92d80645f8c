use serde_json::{Value, json};

use super::*;

fn rule(verbs: &[&str], resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": ["g"], "resources": resources})
}

fn role(rules: &[Value]) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules})
}

fn binding(role: &str, users: &[&str]) -> Value {
    let subjects: Vec<Value> = users.iter().map(|user| json!({"kind": "User", "name": user})).collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects,
    })
}

#[test]
fn rights_that_we_took_back_go_and_those_of_others_stay() {
    let get_a = || rule(&["get"], &["a"]);
    // Now, shipped last, shipped by this version, and what comes of it.
    let cases = [
        ("nothing new", vec![get_a()], Some(vec![get_a()]), vec![get_a()], None),
        ("what covers it is enough", vec![rule(&["*"], &["*"])], Some(vec![]), vec![get_a()], None),
        (
            "a right more",
            vec![get_a()],
            Some(vec![get_a()]),
            vec![rule(&["get", "list"], &["a"])],
            Some(vec![rule(&["get", "list"], &["a"])]),
        ),
        (
            "a right less",
            vec![rule(&["get", "list"], &["a", "b"])],
            Some(vec![rule(&["get", "list"], &["a", "b"])]),
            vec![rule(&["get"], &["a", "b"])],
            Some(vec![rule(&["get"], &["a", "b"])]),
        ),
        (
            "somebody's own rule stays",
            vec![rule(&["get", "list"], &["a"]), rule(&["watch"], &["c"])],
            Some(vec![rule(&["get", "list"], &["a"])]),
            vec![get_a()],
            Some(vec![get_a(), rule(&["watch"], &["c"])]),
        ),
        (
            "and a verb that somebody added to a rule of ours",
            vec![rule(&["get", "list", "watch"], &["a"])],
            Some(vec![rule(&["get", "list"], &["a"])]),
            vec![get_a()],
            Some(vec![get_a(), rule(&["watch"], &["a"])]),
        ),
        ("what somebody took away comes back", vec![], Some(vec![get_a()]), vec![get_a()], Some(vec![get_a()])),
        (
            "nothing is known to be ours without an inventory",
            vec![rule(&["list"], &["a"])],
            None,
            vec![get_a()],
            Some(vec![get_a(), rule(&["list"], &["a"])]),
        ),
    ];
    for (name, current, last, wanted, expected) in cases {
        let merged = merge(&role(&current), last.map(|last| role(&last)).as_ref(), &role(&wanted));
        assert_eq!(merged.map(|role| role["rules"].clone()), expected.map(Value::from), "{name}");
    }
}

#[test]
fn names_and_paths_are_rights_of_their_own() {
    let named =
        |names: &[&str]| json!({"verbs": ["get"], "apiGroups": [""], "resources": ["s"], "resourceNames": names});
    let urls = |urls: &[&str]| json!({"verbs": ["get"], "nonResourceURLs": urls});
    let (last, wanted) = (role(&[named(&["a", "b"]), urls(&["/x", "/y"])]), role(&[named(&["a"]), urls(&["/x"])]));
    let current = role(&[named(&["a", "b", "mine"]), urls(&["/x", "/y", "/mine"])]);
    let expected = json!([named(&["a"]), urls(&["/x"]), named(&["mine"]), urls(&["/mine"])]);
    assert_eq!(merge(&current, Some(&last), &wanted).unwrap()["rules"], expected);
}

#[test]
fn bindings_keep_the_subjects_of_others() {
    let cases = [
        (binding("r", &["us", "joe"]), binding("r", &["us"]), None),
        (binding("r", &["us", "joe"]), binding("r", &["them"]), Some(vec!["them", "joe"])),
        // Upstream makes such a binding anew, with its own subjects.
        (binding("other", &["us", "joe"]), binding("r", &["us"]), Some(vec!["us"])),
    ];
    for (current, wanted, expected) in cases {
        let merged = merge(&current, Some(&binding("r", &["us"])), &wanted);
        let expected = expected.map(|users| binding("r", &users));
        assert_eq!(merged, expected);
    }
}

#[test]
fn roles_that_are_kept_by_hand_are_left_alone() {
    let mut current = role(&[rule(&["get"], &["a"])]);
    current["metadata"]["annotations"] = json!({AUTOUPDATE: "false"});
    assert_eq!(merge(&current, Some(&current), &role(&[])), None);
    assert_eq!(without(&current, &role(&[rule(&["get"], &["a"])])), Some(current));
}

/// Aggregation gives rights by labels, so a label that was taken back is a right that was taken back.
#[test]
fn labels_and_selectors_are_taken_back_too() {
    let labelled = |labels: Value| {
        let mut role = role(&[]);
        role["metadata"]["labels"] = labels;
        role
    };
    let merged = merge(
        &labelled(json!({"to-edit": "true", "to-view": "true", "mine": "1"})),
        Some(&labelled(json!({"to-edit": "true", "to-view": "true"}))),
        &labelled(json!({"to-view": "true"})),
    );
    assert_eq!(merged.unwrap()["metadata"]["labels"], json!({"to-view": "true", "mine": "1"}));

    let selecting = |names: &[&str]| {
        let mut role = role(&[]);
        let selectors: Vec<Value> = names.iter().map(|name| json!({"matchLabels": {*name: "true"}})).collect();
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
        role
    };
    let merged = merge(&selecting(&["a", "b", "mine"]), Some(&selecting(&["a", "b"])), &selecting(&["a"]));
    assert_eq!(merged.unwrap()["aggregationRule"], selecting(&["a", "mine"])["aggregationRule"]);
    // The rules are the aggregation's, and no change.
    let mut filled = selecting(&["a"]);
    filled["rules"] = json!([rule(&["get"], &["a"])]);
    assert_eq!(merge(&filled, Some(&selecting(&["a"])), &selecting(&["a"])), None);
}

#[test]
fn hooks_follow_the_version_with_all_they_contain() {
    let hooks = |hooks: Value| json!({"apiVersion": "a/v1", "kind": "W", "metadata": {"name": "w"}, "webhooks": hooks});
    let shipped = hooks(json!([{"name": "one", "match": "x"}, {"name": "two"}]));
    // With what the server adds.
    let stored = hooks(json!([{"name": "one", "match": "x", "timeout": 10}, {"name": "two", "timeout": 10}]));
    assert_eq!(merge(&stored, Some(&shipped), &shipped), None);
    let today = hooks(json!([{"name": "one"}]));
    assert_eq!(merge(&stored, Some(&shipped), &today), Some(today.clone()));
    assert_eq!(merge(&stored, None, &today), Some(today));

    let service = |spec: Value| json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "a"}, "spec": spec});
    let merged = merge(
        &service(json!({"port": 1, "insecure": true, "added": {"by": "somebody"}})),
        Some(&service(json!({"port": 1, "insecure": true}))),
        &service(json!({"port": 2})),
    );
    assert_eq!(merged, Some(service(json!({"port": 2, "added": {"by": "somebody"}}))));
}

#[test]
fn what_is_not_shipped_any_more_goes_but_for_what_others_added() {
    let last = role(&[rule(&["get"], &["a"])]);
    assert_eq!(without(&last, &last), None);
    let more = role(&[rule(&["get", "list"], &["a"])]);
    assert_eq!(without(&more, &last).unwrap()["rules"], json!([rule(&["list"], &["a"])]));
    assert_eq!(without(&binding("r", &["us"]), &binding("r", &["us"])), None);
    assert_eq!(without(&binding("r", &["us", "joe"]), &binding("r", &["us"])), Some(binding("r", &["joe"])));
    let hook = json!({"apiVersion": "a/v1", "kind": "W", "metadata": {"name": "w"}, "webhooks": [{"name": "x"}]});
    assert_eq!(without(&hook, &json!({})), None);
}
