//! Publishes what the plans note as Kubernetes events. Losing one never fails a reconcile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ferrovirt_api::Said;
use ferrovirt_plan::{Note, NoteKind};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

#[derive(Clone)]
pub(crate) struct Notes {
    client: Client,
    reporter: Reporter,
    warnings: Arc<Mutex<Said>>,
}

impl Notes {
    pub(crate) fn new(client: Client, component: &str) -> Self {
        let reporter = Reporter { controller: component.into(), instance: None };
        Self { client, reporter, warnings: Arc::default() }
    }

    pub(crate) fn publish(&self, about: &ObjectReference, note: Note) {
        // What a plan does it notes once; what fails it notes at every try.
        if note.kind == NoteKind::Warning {
            let mut said = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
            if !said.is_news(Instant::now(), about.uid.as_deref().unwrap_or_default(), note.reason, &note.message) {
                return;
            }
        }
        let event = Event {
            type_: match note.kind {
                NoteKind::Normal => EventType::Normal,
                NoteKind::Warning => EventType::Warning,
            },
            reason: note.reason.into(),
            note: Some(note.message),
            action: note.reason.into(),
            secondary: None,
        };
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        let about = about.clone();
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, reason = event.reason, "event not recorded");
            }
        });
    }
}
