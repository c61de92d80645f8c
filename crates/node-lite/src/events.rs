//! Events on pods and claims, with the reasons of the kubelet and its siblings. An event that cannot be written is only logged.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferrovirt_api::Said;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};

use crate::status::time;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

#[derive(Clone)]
pub struct Events {
    client: kube::Client,
    host: String,
    said: Arc<Mutex<Said>>,
}

impl Events {
    pub fn new(client: kube::Client, host: &str) -> Self {
        Self { client, host: host.to_owned(), said: Arc::default() }
    }

    /// Writes the event in the background.
    pub fn publish(&self, component: &'static str, pod: &Pod, severity: Severity, reason: &str, message: &str) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: pod.metadata.resource_version.clone(),
            ..Default::default()
        };
        self.publish_about(component, about, severity, reason, message);
    }

    /// The same about any object. Events about objects of no namespace go to `default`, as upstream's do.
    pub fn publish_about(
        &self,
        component: &'static str,
        about: ObjectReference,
        severity: Severity,
        reason: &str,
        message: &str,
    ) {
        {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if !said.is_news(Instant::now(), about.uid.as_deref().unwrap_or_default(), reason, message) {
                return;
            }
        }
        let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = about.name.clone().unwrap_or_default();
        let at = Timestamp::now();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", at.as_nanosecond())),
                namespace: Some(namespace.clone()),
                ..Default::default()
            },
            involved_object: about,
            reason: Some(reason.to_owned()),
            message: Some(message.chars().take(1024).collect()),
            type_: Some(match severity {
                Severity::Normal => "Normal".to_owned(),
                Severity::Warning => "Warning".to_owned(),
            }),
            count: Some(1),
            first_timestamp: Some(time(at)),
            last_timestamp: Some(time(at)),
            source: Some(EventSource { component: Some(component.to_owned()), host: Some(self.host.clone()) }),
            reporting_component: Some(component.to_owned()),
            reporting_instance: Some(self.host.clone()),
            ..Default::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        tokio::spawn(async move {
            if let Err(error) = api.create(&PostParams::default(), &event).await {
                tracing::debug!(%error, reason = event.reason, "cannot write an event");
            }
        });
    }
}
