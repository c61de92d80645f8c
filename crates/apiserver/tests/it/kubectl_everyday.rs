//! What people do with kubectl all day, beyond apply and get.

use std::sync::Arc;

use ferrovirt_apiserver::{Body, Handler};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};

use crate::support::Server;
use crate::support::kubectl::Kubectl;
use crate::tokens::with_key;

const NODE: &str = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n";
const EVENT: &str = "apiVersion: v1\nkind: Event\nmetadata: {name: e1, namespace: t}\ninvolvedObject: {kind: Pod, name: p, namespace: t}\nreason: Started\nmessage: it runs\ntype: Normal\nfirstTimestamp: '2026-01-01T00:00:00Z'\nlastTimestamp: '2026-01-01T00:00:00Z'\ncount: 1\n";
const OTHERS: &str = r#"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: example.com/local
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv1}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: local, hostPath: {path: /x}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: pvc1, namespace: t}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: lr, namespace: t}
spec: {limits: [{type: PersistentVolumeClaim, max: {storage: 10Gi}}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: ep, namespace: t}
subsets: [{addresses: [{ip: 192.0.2.1}], ports: [{port: 80}]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: es, namespace: t}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1]}]
ports: [{port: 80}]
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: l, namespace: t}
spec: {holderIdentity: me, leaseDurationSeconds: 15}
---
apiVersion: apps/v1
kind: ControllerRevision
metadata: {name: cr, namespace: t}
revision: 1
data: {a: b}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: vwc}
webhooks: []
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mwc}
webhooks: []
"#;

/// Stands in for a node: the log of any pod is its path.
fn log() -> Handler {
    Arc::new(|request: Request<Body>| {
        let line = format!("log of {}\n", request.uri().path());
        Box::pin(async move { Response::new(Full::from(line).map_err(|never| match never {}).boxed_unsync()) })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_works_all_day() {
    let server = Server::start_with(with_key()).await;
    server.api.register_subresource("", "pods", "log", log());
    let k = Kubectl::start(server).await;
    let cases = [
        ("create namespace t", "", "created"),
        ("create serviceaccount robot -n t", "", "created"),
        ("create token robot -n t --duration=20m", "", "eyJ"),
        ("create token robot -n t --audience=vault -o json", "", "\"kind\": \"TokenRequest\""),
        ("create clusterrole reader --verb=get,list --resource=pods,configmaps", "", "created"),
        ("create clusterrolebinding readers --clusterrole=reader --serviceaccount=t:robot", "", "created"),
        ("auth can-i list pods -n t --as system:serviceaccount:t:robot", "", "yes"),
        ("auth can-i --list -n t --as system:serviceaccount:t:robot", "", "configmaps"),
        ("auth can-i --list", "", "*.*"),
        ("create service nodeport np -n t --tcp=80:8080 --node-port=31000", "", "created"),
        ("create service externalname en -n t --external-name example.com", "", "created"),
        ("create service loadbalancer lb -n t --tcp=80", "", "created"),
        ("get svc np -n t", "", "80:31000/TCP"),
        ("get svc en -n t", "", "example.com"),
        ("create poddisruptionbudget b -n t --selector=a=b --min-available=1", "", "created"),
        ("get pdb -n t", "", "b      1               N/A               0"),
        ("create quota q -n t --hard=pods=5,services=9", "", "created"),
        ("wait --for=jsonpath={.status.used.pods}=0 quota/q -n t --timeout=5s", "", "condition met"),
        ("get quota q -n t", "", "pods: 0/5, services: 3/9"),
        (
            "create secret docker-registry reg -n t --docker-server=s --docker-username=u --docker-password=p",
            "",
            "created",
        ),
        ("create -f -", OTHERS, "mwc created"),
        ("get pv,pvc,sc -n t", "", "pvc1"),
        ("get limits,endpointslices,leases,controllerrevisions -n t", "", "lease.coordination.k8s.io/l"),
        ("describe pvc pvc1 -n t", "", "Status:        Pending"),
        ("describe svc np -n t", "", "NodePort:"),
        ("create -f -", NODE, "node/n1 created"),
        ("label node n1 zone=a", "", "labeled"),
        ("cordon n1", "", "cordoned"),
        ("taint node n1 a=b:NoSchedule", "", "tainted"),
        ("get nodes", "", "SchedulingDisabled"),
        ("uncordon n1", "", "uncordoned"),
        ("run p -n t --image=i:1 --labels=app=p --port=80", "", "pod/p created"),
        ("expose pod p -n t --port=80", "", "service/p exposed"),
        ("get svc p -n t -o jsonpath={.spec.selector.app}", "", "p"),
        ("logs p -n t", "", "log of /api/v1/namespaces/t/pods/p/log"),
        ("set image pod/p -n t p=i:2", "", "image updated"),
        ("create -f -", EVENT, "created"),
        ("events -n t", "", "it runs"),
        ("get events -n t --field-selector involvedObject.name=p", "", "Started"),
        ("get --raw /api/v1/namespaces/t/configmaps", "", "ConfigMapList"),
        ("get --raw /version", "", "v1.36"),
        ("get --raw /openapi/v3", "", "apis/rbac.authorization.k8s.io/v1"),
        ("get pods -n t -o custom-columns=N:.metadata.name,I:.spec.containers[0].image", "", "i:2"),
        ("get pods -n t --sort-by=.metadata.name -o name", "", "pod/p"),
        ("delete pod p -n t --grace-period=0 --force", "", "deleted"),
        ("wait --for=delete pod/p -n t --timeout=5s", "", ""),
        ("delete node n1", "", "deleted"),
        ("delete namespace t --timeout=20s", "", "deleted"),
    ];
    for (args, stdin, expected) in cases {
        let output = k.run(args, stdin).await;
        assert!(output.contains(expected), "kubectl {args}\nwanted: {expected}\ngot: {output}");
    }
    // A difference is an exit status of 1 and a diff.
    let before = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\ndata: {a: '1'}\n";
    k.run("apply -f -", before).await;
    let (same, output) = k.try_run("diff -f -", &before.replace("'1'", "'2'")).await;
    assert!(!same && output.contains("-  a: \"1\"") && output.contains("+  a: \"2\""), "{output}");
    let output = k.run("create deployment d --image=i", "").await;
    assert!(output.contains("Warning: this host runs virtual machines, not workload controllers"), "{output}");
    k.stop().await;
}
