//! A stock kubectl cannot tell.

mod support;

use support::Server;
use support::kubectl::Kubectl;

const CONFIGMAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: t}\ndata: {a: '1', edited: 'no'}\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_works_with_built_in_kinds() {
    let k = Kubectl::start(Server::start().await).await;
    let cases = [
        // (arguments, standard input, what the output has to contain)
        ("version", "", "Server Version: v1.36.0+ferrovirt"),
        ("create namespace t", "", "namespace/t created"),
        ("create configmap made -n t --from-literal=k=v", "", "configmap/made created"),
        ("apply -f -", CONFIGMAP, "configmap/applied created"),
        ("apply -f -", CONFIGMAP, "configmap/applied unchanged"),
        ("apply -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: t}\ndata: {b: '2', edited: 'no'}\n", "configmap/applied configured"),
        ("get configmap applied -n t -o jsonpath={.data}", "", "{\"b\":\"2\",\"edited\":\"no\"}"),
        ("get configmaps -n t", "", "NAME"),
        ("get cm -A -o wide", "", "made"),
        ("get cm made -n t -o yaml", "", "k: v"),
        ("get ns", "", "kube-node-lease"),
        ("get all -n t", "", "No resources found"),
        ("describe configmap made -n t", "", "k:\n----\nv"),
        ("describe namespace t", "", "Status:       Active"),
        ("edit configmap applied -n t", "", "configmap/applied edited"),
        ("get configmap applied -n t -o jsonpath={.data.edited}", "", "done"),
        ("patch configmap made -n t --type merge -p {\"data\":{\"x\":\"y\"}}", "", "configmap/made patched"),
        ("patch configmap made -n t -p {\"data\":{\"x\":null}}", "", "configmap/made patched"),
        ("patch configmap made -n t --type json -p [{\"op\":\"add\",\"path\":\"/data/z\",\"value\":\"1\"}]", "", "configmap/made patched"),
        ("get configmap made -n t -o jsonpath={.data}", "", "{\"k\":\"v\",\"z\":\"1\"}"),
        ("label configmap made -n t color=blue", "", "configmap/made labeled"),
        ("annotate configmap made -n t note=x", "", "configmap/made annotated"),
        ("get cm -n t -l color=blue -o name", "", "configmap/made"),
        ("get cm -n t --field-selector metadata.name=made -o name", "", "configmap/made"),
        ("explain configmap.data", "", "FIELD: data"),
        ("explain pod.spec.containers", "", "FIELD: containers"),
        ("api-resources", "", "customresourcedefinitions"),
        ("api-versions", "", "rbac.authorization.k8s.io/v1"),
        ("auth can-i create pods", "", "yes"),
        ("auth whoami", "", "admin"),
        ("create secret generic s -n t --from-literal=p=q", "", "secret/s created"),
        ("create serviceaccount sa -n t", "", "serviceaccount/sa created"),
        ("create role r -n t --verb=get --resource=pods", "", "role.rbac.authorization.k8s.io/r created"),
        ("create rolebinding rb -n t --role=r --user=jane", "", "rolebinding.rbac.authorization.k8s.io/rb created"),
        ("auth can-i get pods -n t --as jane", "", "yes"),
        ("create priorityclass p --value=10", "", "created"),
        ("create quota q -n t --hard=pods=1", "", "resourcequota/q created"),
        ("create service clusterip svc -n t --tcp=80:80", "", "service/svc created"),
        ("apply --server-side -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ssa, namespace: t}\ndata: {a: '1'}\n", "configmap/ssa serverside-applied"),
        ("diff -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ssa, namespace: t}\ndata: {a: '1'}\n", ""),
        ("get --raw /readyz", "", "ok"),
        ("get pods -n t", "", "No resources found"),
        ("delete configmap made -n t", "", "configmap \"made\" deleted"),
        ("delete namespace t", "", "namespace \"t\" deleted"),
    ];
    for (args, stdin, expected) in cases {
        let output = k.run(args, stdin).await;
        assert!(output.contains(expected), "kubectl {args}\nwanted: {expected}\ngot: {output}");
        assert!(!output.contains("W1115") && !output.contains("E1115"), "kubectl {args} complained:\n{output}");
    }
    let refused = [
        ("get configmap made -n default", "", "Error from server (NotFound): configmaps \"made\" not found"),
        ("get deployments", "", "the server doesn't have a resource type \"deployments\""),
        ("apply -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndatas: {a: b}\n", "unknown field \"datas\""),
        ("create configmap x -n nowhere", "", "namespaces \"nowhere\" not found"),
        ("auth can-i delete pods --as jane", "", "no"),
    ];
    for (args, stdin, expected) in refused {
        let (success, output) = k.try_run(args, stdin).await;
        assert!(!success && output.contains(expected), "kubectl {args}\nwanted: {expected}\ngot: {output}");
    }
    k.stop().await;
}
