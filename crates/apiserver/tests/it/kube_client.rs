//! kube-rs over the in-process service, the way the controllers use it.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::json;

use crate::support::{Server, configmap};

#[tokio::test]
async fn kube_works_in_process() {
    let server = Server::start().await;
    let service = server.api.client_service(ferrovirt_apiserver::User::new("controller", &["system:masters"]));
    let client = Client::new(service, "default");
    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let object: ConfigMap = serde_json::from_value(configmap("a")).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"b": "2"}});
    api.patch("a", &PatchParams::apply("test"), &Patch::Apply(apply)).await.unwrap();
    let read = api.get("a").await.unwrap();
    assert_eq!(read.data.unwrap().len(), 2);
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let missing = api.get("nope").await.unwrap_err();
    assert!(matches!(&missing, kube::Error::Api(status) if status.code == 404), "{missing}");
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut seen = Box::pin(watcher(api.clone(), config).applied_objects());
        let first =
            tokio::time::timeout(std::time::Duration::from_secs(10), seen.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(first.metadata.name.as_deref(), Some("a"));
        api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"x": "y"}}})))
            .await
            .unwrap();
        api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": null}}))).await.unwrap();
        let next =
            tokio::time::timeout(std::time::Duration::from_secs(10), seen.try_next()).await.unwrap().unwrap().unwrap();
        assert!(next.metadata.labels.is_some());
    }
    api.delete("a", &DeleteParams::foreground()).await.unwrap();
}
