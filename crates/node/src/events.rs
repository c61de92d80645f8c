//! What the agent tells people about an instance, in upstream's words. Losing one harms nothing.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferrovirt_api::{
    Said,
    v1::{VirtualMachineInstance, values::sync_event},
};
use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

#[derive(Clone)]
pub(crate) struct Events {
    client: Client,
    reporter: Reporter,
    warnings: Arc<Mutex<Said>>,
}

impl Events {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: "virt-handler".into(), instance: Some(node.into()) };
        Self { client, reporter, warnings: Arc::default() }
    }

    pub(crate) async fn created(&self, vmi: &VirtualMachineInstance) {
        self.publish(vmi, EventType::Normal, sync_event::CREATED, "VirtualMachineInstance defined.");
    }

    pub(crate) async fn started(&self, vmi: &VirtualMachineInstance) {
        self.publish(vmi, EventType::Normal, sync_event::STARTED, "VirtualMachineInstance started.");
    }

    pub(crate) async fn shutting_down(&self, vmi: &VirtualMachineInstance) {
        let message = "Signaled Graceful Shutdown";
        self.publish(vmi, EventType::Normal, sync_event::SHUTTING_DOWN, message);
    }

    pub(crate) async fn stopped(&self, vmi: &VirtualMachineInstance, succeeded: bool, why: &str) {
        let (kind, message) = match succeeded {
            true => (EventType::Normal, "The VirtualMachineInstance was shut down.".to_owned()),
            false => (EventType::Warning, format!("The VirtualMachineInstance crashed: {why}.")),
        };
        self.publish(vmi, kind, sync_event::STOPPED, &message);
    }

    /// The machine of an instance that is being deleted has ended.
    pub(crate) async fn deleted(&self, vmi: &VirtualMachineInstance) {
        self.publish(vmi, EventType::Normal, sync_event::DELETED, "Signaled Deletion");
    }

    pub(crate) async fn failed(&self, vmi: &VirtualMachineInstance, why: &str) {
        self.publish(vmi, EventType::Warning, sync_event::SYNC_FAILED, why);
    }

    fn publish(&self, vmi: &VirtualMachineInstance, type_: EventType, reason: &str, message: &str) {
        // What an instance does in its life it does once; what fails is tried again.
        if type_ == EventType::Warning {
            let mut said = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            if !said.is_news(Instant::now(), vmi.metadata.uid.as_deref().unwrap_or_default(), reason, message) {
                return;
            }
        }
        let event =
            Event { type_, reason: reason.into(), note: Some(message.into()), action: reason.into(), secondary: None };
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        // Nobody waits for an event, least of all the guest that it is about.
        let about = vmi.object_ref(&());
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, reason = event.reason, "event not recorded");
            }
        });
    }
}
