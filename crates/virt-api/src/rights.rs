//! Nothing that someone does through a VM gives a right that they lack on pods.
//!
//! A launcher pod is made by our controller, in whose name it may mount what it likes. So what a VM brings into its pod is
//! judged by what the person who wrote the VM may do: whoever may create pods in the namespace could have brought it
//! there without us; anyone else must have the right on each thing itself.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use serde_json::Value;

use crate::validate::Cause;

const FORBIDDEN: &str = "FieldValueForbidden";

/// A right that a field of a VM stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    field: String,
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    namespace: String,
    name: String,
    /// What stands for the claim, where that is not what the right is about.
    by: String,
}

/// One cause for each thing in the VM that its writer has no right to.
pub(crate) async fn missing(client: &Client, review: &Value, spec: &str) -> Result<Vec<Cause>, kube::Error> {
    let request = &review["request"];
    let namespace = request["namespace"].as_str().unwrap_or_default();
    let path = spec.trim_start_matches('/').replace('/', ".");
    let mut needed = in_namespace(request["object"].pointer(spec).unwrap_or(&Value::Null), &path, namespace);
    // What was there before was judged then, by who wrote it.
    let before = in_namespace(request["oldObject"].pointer(spec).unwrap_or(&Value::Null), &path, namespace);
    needed.retain(|right| !before.iter().any(|known| same(known, right)));
    if !needed.is_empty() {
        let pods = Right {
            field: String::new(),
            verb: "create",
            group: "",
            resource: "pods",
            subresource: "",
            namespace: namespace.into(),
            name: String::new(),
            by: String::new(),
        };
        if allowed(client, &request["userInfo"], &pods).await? {
            needed.clear();
        }
    }
    let mut foreign = elsewhere(&request["object"], namespace);
    let known = elsewhere(&request["oldObject"], namespace);
    foreign.retain(|right| !known.iter().any(|before| same(before, right)));
    needed.extend(foreign);
    let mut causes = vec![];
    for right in needed {
        if !allowed(client, &request["userInfo"], &right).await? {
            causes.push(cause(&right));
        }
    }
    Ok(causes)
}

fn same(a: &Right, b: &Right) -> bool {
    (a.resource, &a.namespace, &a.name, &a.by) == (b.resource, &b.namespace, &b.name, &b.by)
}

fn cause(right: &Right) -> Cause {
    let Right { field, verb, resource, subresource, namespace, name, group, by: _ } = right;
    let resource = if subresource.is_empty() { (*resource).to_owned() } else { format!("{resource}/{subresource}") };
    let group = if group.is_empty() { String::new() } else { format!(" in API group \"{group}\"") };
    let message = format!(
        "{field}: you cannot {verb} resource \"{resource}\" {name:?}{group} in the namespace \"{namespace}\", and a VM does \
         not give you that right"
    );
    Cause { reason: FORBIDDEN, field: field.clone(), message }
}

/// What a VM's pod would hold that belongs to its namespace.
fn in_namespace(spec: &Value, path: &str, namespace: &str) -> Vec<Right> {
    let mut rights = vec![];
    let mut add = |field: String, verb, resource, subresource, name: &Value| {
        if let Some(name) = name.as_str().filter(|name| !name.is_empty()) {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            let by = String::new();
            rights.push(Right { field, verb, group: "", resource, subresource, namespace, name, by });
        }
    };
    for (index, volume) in spec["volumes"].as_array().into_iter().flatten().enumerate() {
        let field = |below: &str| format!("{path}.volumes[{index}].{below}");
        add(field("secret"), "get", "secrets", "", &volume["secret"]["secretName"]);
        add(field("configMap"), "get", "configmaps", "", &volume["configMap"]["name"]);
        // With a pod's token one is that account.
        let account = &volume["serviceAccount"]["serviceAccountName"];
        add(field("serviceAccount"), "create", "serviceaccounts", "token", account);
        add(field("sysprep"), "get", "secrets", "", &volume["sysprep"]["secret"]["name"]);
        add(field("sysprep"), "get", "configmaps", "", &volume["sysprep"]["configMap"]["name"]);
        for kind in ["cloudInitNoCloud", "cloudInitConfigDrive"] {
            for key in ["secretRef", "networkDataSecretRef"] {
                add(field(&format!("{kind}.{key}")), "get", "secrets", "", &volume[kind][key]["name"]);
            }
        }
        let image_secret = &volume["containerDisk"]["imagePullSecret"];
        add(field("containerDisk.imagePullSecret"), "get", "secrets", "", image_secret);
    }
    for (index, credential) in spec["accessCredentials"].as_array().into_iter().flatten().enumerate() {
        for kind in ["sshPublicKey", "userPassword"] {
            let name = &credential[kind]["source"]["secret"]["secretName"];
            add(format!("{path}.accessCredentials[{index}].{kind}"), "get", "secrets", "", name);
        }
    }
    let kernel = &spec["domain"]["firmware"]["kernelBoot"]["container"]["imagePullSecret"];
    add(format!("{path}.domain.firmware.kernelBoot.container.imagePullSecret"), "get", "secrets", "", kernel);
    let account = &spec["serviceAccountName"];
    add(format!("{path}.serviceAccountName"), "create", "serviceaccounts", "token", account);
    rights
}

/// What a VM would take from other namespaces.
fn elsewhere(object: &Value, namespace: &str) -> Vec<Right> {
    let mut rights = vec![];
    let templates = object["spec"]["dataVolumeTemplates"].as_array().into_iter().flatten();
    for (index, template) in templates.enumerate() {
        rights.extend(sources(&template["spec"], &format!("spec.dataVolumeTemplates[{index}].spec"), namespace));
    }
    for (path, spec) in [("spec.template.spec", &object["spec"]["template"]["spec"]), ("spec", &object["spec"])] {
        for (index, network) in spec["networks"].as_array().into_iter().flatten().enumerate() {
            let name = network["multus"]["networkName"].as_str().unwrap_or_default();
            if let Some((from, name)) = name.split_once('/').filter(|(from, _)| *from != namespace) {
                rights.push(Right {
                    field: format!("{path}.networks[{index}].multus.networkName"),
                    verb: "get",
                    group: "k8s.cni.cncf.io",
                    resource: "network-attachment-definitions",
                    subresource: "",
                    namespace: from.into(),
                    name: name.into(),
                    by: String::new(),
                });
            }
        }
    }
    rights
}

/// What a DataVolume would copy from another namespace. A DataSource stands for a claim of its own namespace.
fn sources(spec: &Value, path: &str, namespace: &str) -> Vec<Right> {
    let pvc = ("source.pvc", &spec["source"]["pvc"], &spec["source"]["pvc"]["name"]);
    let snapshot = ("source.snapshot", &spec["source"]["snapshot"], &spec["source"]["snapshot"]["name"]);
    let reference = ("sourceRef", &spec["sourceRef"], &Value::Null);
    let foreign = [pvc, snapshot, reference].into_iter().filter_map(|(field, source, name)| {
        let from = source["namespace"].as_str().filter(|from| !from.is_empty() && *from != namespace)?;
        Some(Right {
            field: format!("{path}.{field}"),
            verb: "create",
            group: "cdi.kubevirt.io",
            resource: "datavolumes",
            subresource: "source",
            namespace: from.into(),
            name: name.as_str().unwrap_or_default().into(),
            by: source["name"].as_str().filter(|_| field == "sourceRef").unwrap_or_default().into(),
        })
    });
    foreign.collect()
}

/// One cause for each claim of another namespace that the writer of a DataVolume may not copy.
pub(crate) async fn missing_sources(client: &Client, review: &Value) -> Result<Vec<Cause>, kube::Error> {
    let request = &review["request"];
    let namespace = request["namespace"].as_str().unwrap_or_default();
    let mut causes = vec![];
    for right in sources(&request["object"]["spec"], "spec", namespace) {
        if !allowed(client, &request["userInfo"], &right).await? {
            causes.push(cause(&right));
        }
    }
    Ok(causes)
}

async fn allowed(client: &Client, user: &Value, right: &Right) -> Result<bool, kube::Error> {
    let strings = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let extra =
        user["extra"].as_object().map(|map| map.iter().map(|(key, value)| (key.clone(), strings(value))).collect());
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user["username"].as_str().map(Into::into),
            groups: Some(strings(&user["groups"])),
            uid: user["uid"].as_str().map(Into::into),
            extra,
            resource_attributes: Some(ResourceAttributes {
                verb: Some(right.verb.into()),
                group: Some(right.group.into()),
                resource: Some(right.resource.into()),
                subresource: some(right.subresource),
                namespace: Some(right.namespace.clone()),
                name: some(&right.name),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = Api::<SubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_vm_brings_into_its_pod_is_known() {
        let spec = json!({
            "serviceAccountName": "robot",
            "volumes": [
                { "name": "a", "secret": { "secretName": "s" } },
                { "name": "b", "serviceAccount": { "serviceAccountName": "root" } },
                { "name": "c", "cloudInitNoCloud": { "secretRef": { "name": "user" }, "userData": "" } },
                { "name": "d", "containerDisk": { "image": "x" } },
                { "name": "e", "configMap": { "name": "m" } },
            ],
            "accessCredentials": [{ "sshPublicKey": { "source": { "secret": { "secretName": "keys" } } } }],
            "domain": { "firmware": { "kernelBoot": { "container": { "image": "x", "imagePullSecret": "pull" } } } },
        });
        let found: Vec<String> = in_namespace(&spec, "spec", "n")
            .into_iter()
            .map(|right| {
                format!("{} {} {}/{} {}", right.field, right.verb, right.resource, right.subresource, right.name)
            })
            .collect();
        assert_eq!(
            found,
            [
                "spec.volumes[0].secret get secrets/ s",
                "spec.volumes[1].serviceAccount create serviceaccounts/token root",
                "spec.volumes[2].cloudInitNoCloud.secretRef get secrets/ user",
                "spec.volumes[4].configMap get configmaps/ m",
                "spec.accessCredentials[0].sshPublicKey get secrets/ keys",
                "spec.domain.firmware.kernelBoot.container.imagePullSecret get secrets/ pull",
                "spec.serviceAccountName create serviceaccounts/token robot",
            ]
        );
    }

    #[test]
    fn what_comes_from_other_namespaces_is_known() {
        let object = json!({ "spec": {
            "dataVolumeTemplates": [
                { "spec": { "source": { "pvc": { "namespace": "theirs", "name": "disk" } } } },
                { "spec": { "source": { "pvc": { "namespace": "mine", "name": "disk" } } } },
            ],
            "template": { "spec": { "networks": [{ "name": "x", "multus": { "networkName": "theirs/net" } }] } },
        } });
        let found = elsewhere(&object, "mine");
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].resource, found[0].subresource), ("datavolumes", "source"));
        assert_eq!((found[1].resource, found[1].namespace.as_str()), ("network-attachment-definitions", "theirs"));
        let said = cause(&found[0]).message;
        assert!(said.contains("cannot create resource \"datavolumes/source\""), "{said}");
    }

    /// What another one wrote into a VM is not a right to all that is beside it.
    #[test]
    fn a_source_that_was_judged_is_not_exchanged_for_another() {
        let vm = |source: Value| json!({ "spec": { "dataVolumeTemplates": [{ "spec": source }] } });
        let golden = vm(json!({ "sourceRef": { "kind": "DataSource", "namespace": "golden", "name": "debian" } }));
        let other = vm(json!({ "sourceRef": { "kind": "DataSource", "namespace": "golden", "name": "payroll" } }));
        let claim = vm(json!({ "source": { "pvc": { "namespace": "golden", "name": "debian" } } }));
        let [known, new, claim] = [golden, other, claim].map(|vm| elsewhere(&vm, "mine").remove(0));
        assert!(same(&known, &known.clone()) && !same(&known, &new) && !same(&known, &claim));
        // The right itself is to the namespace: which claim it is, is known later.
        assert_eq!((known.name.as_str(), new.name.as_str(), claim.name.as_str()), ("", "", "debian"));
    }
}
