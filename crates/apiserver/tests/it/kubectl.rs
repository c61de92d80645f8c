//! A stock kubectl cannot tell.

use crate::support::Server;
use crate::support::kubectl::Kubectl;

const CONFIGMAP: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: t}\ndata: {a: '1', edited: 'no'}\n";

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: t}\nspec: {containers: [{name: c, image: 'i:1', ports: [{containerPort: 80}]}], volumes: [{name: v, emptyDir: {}}]}\n";

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
        (
            "apply -f -",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: t}\ndata: {b: '2', edited: 'no'}\n",
            "configmap/applied configured",
        ),
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
        (
            "patch configmap made -n t --type json -p [{\"op\":\"add\",\"path\":\"/data/z\",\"value\":\"1\"}]",
            "",
            "configmap/made patched",
        ),
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
        (
            "apply --server-side -f -",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ssa, namespace: t}\ndata: {a: '1'}\n",
            "configmap/ssa serverside-applied",
        ),
        ("diff -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ssa, namespace: t}\ndata: {a: '1'}\n", ""),
        ("get --raw /readyz", "", "ok"),
        ("create -f -", POD, "pod/p created"),
        ("get pods -n t -o wide", "", "0/1"),
        ("describe pod p -n t", "", "Status:           Pending"),
        (
            "replace -f -",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: t}\ndata: {r: '1'}\n",
            "configmap/applied replaced",
        ),
        ("events -n t", "", "No events found"),
        ("cluster-info", "", "Kubernetes control plane"),
        ("get nodes,pv,sc", "", "No resources found"),
        ("delete pod p -n t", "", "pod \"p\" deleted"),
        ("get pods -n t", "", "No resources found"),
        ("delete configmap made -n t", "", "configmap \"made\" deleted"),
        ("delete namespace t", "", "namespace \"t\" deleted"),
    ];
    for (args, stdin, expected) in cases {
        let output = k.run(args, stdin).await;
        assert!(output.contains(expected), "kubectl {args}\nwanted: {expected}\ngot: {output}");
        assert!(!complains(&output), "kubectl {args} complained:\n{output}");
    }
    let refused = [
        ("get configmap made -n default", "", "Error from server (NotFound): configmaps \"made\" not found"),
        ("get nonsense", "", "the server doesn't have a resource type \"nonsense\""),
        (
            "apply -f -",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bad}\ndatas: {a: b}\n",
            "unknown field \"datas\"",
        ),
        ("create configmap x -n nowhere", "", "namespaces \"nowhere\" not found"),
        ("auth can-i delete pods --as jane", "", "no"),
    ];
    for (args, stdin, expected) in refused {
        let (success, output) = k.try_run(args, stdin).await;
        assert!(!success && output.contains(expected), "kubectl {args}\nwanted: {expected}\ngot: {output}");
    }
    k.stop().await;
}

/// Lines that kubectl's logger marks as warnings or errors, such as `E0131 10:00:00 …`.
fn complains(output: &str) -> bool {
    output.lines().any(|line| {
        line.starts_with(['W', 'E']) && line.get(1..5).is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit()))
    })
}

const CRD: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, shortNames: [gd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Size, type: string, jsonPath: .spec.size}
    - {name: Weight, type: integer, jsonPath: .spec.weight, priority: 1}
    schema:
      openAPIV3Schema:
        type: object
        description: A gadget of the shop.
        properties:
          spec:
            type: object
            description: What is wanted.
            properties:
              size: {type: string, enum: [small, large], default: small, description: How big it is.}
              weight: {type: integer, minimum: 1}
          status:
            type: object
            properties:
              conditions:
                type: array
                items:
                  type: object
                  required: [type, status]
                  properties: {type: {type: string}, status: {type: string}}
"#;

fn gadget(spec: &str) -> String {
    format!("apiVersion: example.com/v1\nkind: Gadget\nmetadata: {{name: g}}\nspec: {spec}\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_works_with_custom_kinds() {
    let k = Kubectl::start(Server::start().await).await;
    let (small, large) = (gadget("{weight: 2}"), gadget("{weight: 3, size: large}"));
    let cases = [
        ("apply -f -", CRD, "customresourcedefinition.apiextensions.k8s.io/gadgets.example.com created"),
        ("wait --for=condition=Established crd/gadgets.example.com --timeout=5s", "", "condition met"),
        ("apply -f -", CRD, "unchanged"),
        ("apply -f -", small.as_str(), "gadget.example.com/g created"),
        ("apply -f -", small.as_str(), "unchanged"),
        ("apply -f -", large.as_str(), "configured"),
        ("get gd", "", "g      large"),
        ("get gadgets -o wide", "", "WEIGHT"),
        ("get gadgets.v1.example.com g -o yaml", "", "generation: 2"),
        ("get all", "", "gadget.example.com/g"),
        ("describe gadget g", "", "Size:    large"),
        ("explain gadget", "", "A gadget of the shop."),
        ("explain gd.spec.size", "", "How big it is."),
        ("patch gd g --type merge -p {\"spec\":{\"weight\":5}}", "", "patched"),
        (
            "patch gd g --subresource=status --type merge -p {\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}",
            "",
            "patched",
        ),
        ("wait --for=condition=Ready gd/g --timeout=5s", "", "condition met"),
        ("wait --for=jsonpath={.spec.weight}=5 gd/g --timeout=5s", "", "condition met"),
        ("apply --server-side --force-conflicts -f -", large.as_str(), "serverside-applied"),
        ("get events", "", "No resources found"),
        ("delete gd g", "", "deleted"),
        ("delete crd gadgets.example.com --timeout=5s", "", "deleted"),
    ];
    for (args, stdin, expected) in cases {
        let output = k.run(args, stdin).await;
        assert!(output.contains(expected), "kubectl {args}\nwanted: {expected}\ngot: {output}");
        if args.starts_with("wait --for=condition=Established") {
            let unknown = gadget("{wieght: 2}");
            let wrong = gadget("{weight: heavy}");
            let small = gadget("{weight: 0, size: tiny}");
            for (stdin, expected) in [
                (&unknown, "unknown field \"spec.wieght\""),
                (&wrong, "spec.weight: Invalid value: \"string\""),
                (&small, "spec.size: Unsupported value: \"tiny\""),
            ] {
                let (success, output) = k.try_run("apply -f -", stdin).await;
                assert!(!success && output.contains(expected), "wanted: {expected}\ngot: {output}");
            }
        }
    }
    k.stop().await;
}
