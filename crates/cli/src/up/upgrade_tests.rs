//! What hosts of earlier versions stored, taken over by this one. The fixtures are made by `scripts/upgrade-fixture.sh`, and
//! a new one is tried as soon as it is there.

use std::path::{Path, PathBuf};

use ferrovirt_apiserver::{ApiServer, User};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{identities::Part, objects, paths::Paths, services, shipped};

/// The node that the fixtures are of, and where its data directory was: services' addresses follow from that.
const NODE: &str = "fixture";
const PLACE: &str = "/tmp/fv-fixture";

fn fixtures() -> Vec<PathBuf> {
    let found = std::fs::read_dir("testdata").unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = found.filter(|path| path.to_string_lossy().ends_with(".tar.gz")).collect();
    assert!(!found.is_empty(), "there are no fixtures");
    found
}

/// A server of this version on what is stored in a fixture.
struct Host {
    api: ApiServer,
    _directory: tempfile::TempDir,
}

impl Host {
    async fn take_over(fixture: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut unpack = std::process::Command::new("tar");
        unpack.arg("-xzf").arg(fixture).arg("-C").arg(directory.path());
        assert!(unpack.status().unwrap().success());
        let api = ApiServer::start(ferrovirt_apiserver::Config {
            data_dir: directory.path().to_owned(),
            crds: objects::definitions(),
            bootstrap: shipped(true, NODE).unwrap(),
            pod_makers: objects::pod_makers(),
            service_network: Paths::new(Path::new(PLACE)).unwrap().service_network(),
            ..Default::default()
        })
        .await
        .unwrap();
        let host = Self { api, _directory: directory };
        let agent = ferrovirt_node::Config::new(NODE, "/nonexistent".into());
        let agent = ferrovirt_node::agent(host.client(Part::Handler), agent);
        services::register(&host.api, host.client(Part::Api), agent);
        host
    }

    fn client(&self, part: Part) -> kube::Client {
        kube::Client::new(self.api.client_service(part.user(NODE)), "default")
    }

    async fn send(&self, user: &User, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let body = Full::new(bytes::Bytes::from(body.map(Value::to_string).unwrap_or_default()));
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let service = self.api.client_service(user.clone());
        let response = service.oneshot(request.body(body).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> Value {
        let (code, found) = self.send(&admin(), Method::GET, path, None).await;
        assert_eq!(code, 200, "{path}: {found}");
        found
    }

    /// Replaces an object, or its status, by what it is. Says what is wrong with that.
    async fn write_back(&self, user: &User, path: &str, below: &str) -> Option<String> {
        // The server's own controllers write, too.
        for _ in 0..100 {
            let found = self.get(path).await;
            let (code, answer) = self.send(user, Method::PUT, &format!("{path}{below}"), Some(&found)).await;
            match code {
                200 => return None,
                409 => {}
                _ => return Some(format!("PUT {path}{below}: {code} {}", answer["message"])),
            }
        }
        Some(format!("PUT {path}{below}: always a conflict"))
    }

    /// Every resource that can be listed and written.
    async fn resources(&self) -> Vec<Resource> {
        let mut versions = vec!["/api/v1".to_owned()];
        let groups = self.get("/apis").await;
        for group in groups["groups"].as_array().unwrap() {
            let all = group["versions"].as_array().unwrap().iter();
            versions.extend(all.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap())));
        }
        let mut found = vec![];
        for version in versions {
            // Of an API that another part of the host serves there is nothing here.
            let (200, list) = self.send(&admin(), Method::GET, &version, None).await else { continue };
            let all = list["resources"].as_array().unwrap();
            let can = |resource: &Value, verb: &str| resource["verbs"].as_array().unwrap().iter().any(|v| v == verb);
            for resource in all.iter().filter(|resource| can(resource, "list") && can(resource, "update")) {
                let plural = resource["name"].as_str().unwrap().to_owned();
                let status = all.iter().any(|other| other["name"] == format!("{plural}/status"));
                let namespaced = resource["namespaced"] == true;
                found.push(Resource { version: version.clone(), plural, namespaced, status });
            }
        }
        found
    }
}

struct Resource {
    version: String,
    plural: String,
    namespaced: bool,
    status: bool,
}

impl Resource {
    fn item(&self, object: &Value) -> String {
        let (version, plural) = (&self.version, &self.plural);
        let name = object["metadata"]["name"].as_str().unwrap();
        match self.namespaced {
            true => {
                format!("{version}/namespaces/{}/{plural}/{name}", object["metadata"]["namespace"].as_str().unwrap())
            }
            false => format!("{version}/{plural}/{name}"),
        }
    }

    /// Who writes the status of such objects, if it is a part of the host.
    fn owner(&self) -> User {
        match self.plural.as_str() {
            "nodes" | "pods" | "persistentvolumes" | "persistentvolumeclaims" => Part::NodeLite.user(NODE),
            _ => admin(),
        }
    }

    /// Where the owner of a status has no right to replace it.
    fn is_patched(&self) -> bool {
        matches!(self.plural.as_str(), "virtualmachines" | "virtualmachineinstancereplicasets" | "datavolumes")
    }
}

fn admin() -> User {
    User::new("admin", &["system:masters", "system:authenticated"])
}

/// Events are written as core's: of those of events.k8s.io more is asked than the parts of a host say.
fn is_written(resource: &Resource) -> bool {
    resource.version != "/apis/events.k8s.io/v1"
}

/// Everything can be read, and written back as it was read; its status by whoever writes it on a host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_an_earlier_version_stored_can_be_read_and_written() {
    for fixture in fixtures() {
        let host = Host::take_over(&fixture).await;
        let (mut faults, mut kinds, mut count) = (vec![], 0, 0);
        for resource in host.resources().await {
            let list = host.get(&format!("{}/{}", resource.version, resource.plural)).await;
            let items = list["items"].as_array().unwrap();
            kinds += usize::from(!items.is_empty());
            for listed in items {
                count += 1;
                let path = resource.item(listed);
                host.get(&path).await;
                if !is_written(&resource) {
                    continue;
                }
                faults.extend(host.write_back(&admin(), &path, "").await);
                // The other parts patch; see below.
                if resource.status && !resource.is_patched() {
                    faults.extend(host.write_back(&resource.owner(), &path, "/status").await);
                }
            }
        }
        assert!(faults.is_empty(), "{}:\n{}", fixture.display(), faults.join("\n"));
        assert!(kinds > 30 && count > 100, "{}: {count} objects of {kinds} kinds", fixture.display());
        host.api.shutdown().await;
    }
}

/// The parts of a host that patch: each as it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_a_host_can_report_on_what_an_earlier_version_stored() {
    for fixture in fixtures() {
        let host = Host::take_over(&fixture).await;
        let kinds = [
            (
                "/api/v1",
                "nodes",
                Part::NodeLite,
                "/status",
                json!({"conditions": [{"type": "Ready", "status": "True"}]}),
            ),
            ("/api/v1", "pods", Part::NodeLite, "/status", json!({"message": "seen"})),
            ("/api/v1", "persistentvolumeclaims", Part::NodeLite, "/status", json!({"capacity": {"storage": "1Gi"}})),
            ("/api/v1", "persistentvolumes", Part::NodeLite, "/status", json!({"message": "seen"})),
            ("/apis/kubevirt.io/v1", "virtualmachines", Part::Controller, "/status", json!({"ready": false})),
            ("/apis/kubevirt.io/v1", "virtualmachineinstances", Part::Handler, "", json!({"phase": "Running"})),
            ("/apis/cdi.kubevirt.io/v1beta1", "datavolumes", Part::Controller, "/status", json!({"progress": "1%"})),
        ];
        for (version, plural, part, below, status) in kinds {
            let list = host.get(&format!("{version}/{plural}")).await;
            let items = list["items"].as_array().unwrap();
            assert!(!items.is_empty(), "{} has no {plural}", fixture.display());
            for object in items {
                let namespaced = object["metadata"]["namespace"].is_string();
                let resource = Resource { version: version.into(), plural: plural.into(), namespaced, status: true };
                let path = format!("{}{below}", resource.item(object));
                let patch = json!({"status": status});
                let request = Request::patch(&path).header("content-type", "application/merge-patch+json");
                let request = request.body(Full::new(bytes::Bytes::from(patch.to_string()))).unwrap();
                let response = host.api.client_service(part.user(NODE)).oneshot(request).await.unwrap();
                let code = response.status();
                let said = response.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(code, 200, "{part:?} on {path}: {}", String::from_utf8_lossy(&said));
            }
        }
        host.api.shutdown().await;
    }
}

/// Rights that were taken back are gone, what administrators added is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_of_an_earlier_version_gets_the_roles_of_today() {
    for fixture in fixtures() {
        let host = Host::take_over(&fixture).await;
        let may = async |user: &str, verb: &str, group: &str, resource: &str, subresource: &str| {
            let attributes = json!({
                "namespace": "shop", "verb": verb, "group": group, "resource": resource, "subresource": subresource,
            });
            let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let (code, answer) = host.send(&admin(), Method::POST, path, Some(&review)).await;
            assert_eq!(code, 201, "{answer}");
            answer["status"]["allowed"] == true
        };
        let (ours, machines) = ("subresources.kubevirt.io", "virtualmachineinstances");
        assert!(may("jane", "get", ours, machines, "vnc").await);
        assert!(!may("jane", "get", ours, machines, "vnc/screenshot").await, "{}", fixture.display());
        // Added to kubevirt.io:view by hand.
        assert!(may("joe", "get", "shop.test", "fences", "").await, "{}", fixture.display());
        // All that is shipped is there, and hooks are as they are shipped.
        for object in shipped(true, NODE).unwrap() {
            if !object["kind"].as_str().unwrap().ends_with("WebhookConfiguration") {
                continue;
            }
            let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
            let name = object["metadata"]["name"].as_str().unwrap();
            let found = host.get(&format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}")).await;
            let names = |hooks: &Value| -> Vec<Value> {
                hooks["webhooks"].as_array().unwrap().iter().map(|hook| hook["name"].clone()).collect()
            };
            assert_eq!(names(&found), names(&object), "{name}");
        }
        host.api.shutdown().await;
    }
}

/// A fixture that never gave what was taken back proves nothing.
#[test]
fn the_fixtures_are_of_versions_that_gave_more() {
    for fixture in fixtures() {
        let mut read = std::process::Command::new("tar");
        let log = read.arg("-xzOf").arg(&fixture).output().unwrap().stdout;
        let text = String::from_utf8_lossy(&log);
        let role = text.find(r#""name":"kubevirt.io:edit""#).expect("the role is stored");
        let end = text[role..].find(r#""name":"kubevirt.io:view""#).map_or(text.len(), |at| role + at);
        assert!(text[role..end].contains("vnc/screenshot"), "{}", fixture.display());
    }
}
