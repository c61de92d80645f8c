//! Publishes what the plans note as Kubernetes events. Losing one never fails a reconcile.

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
    /// Remembers what it was told for some minutes and counts it instead of saying it again.
    warnings: Recorder,
}

impl Notes {
    pub(crate) fn new(client: Client, component: &str) -> Self {
        let reporter = Reporter { controller: component.into(), instance: None };
        Self { warnings: Recorder::new(client.clone(), reporter.clone()), client, reporter }
    }

    pub(crate) fn publish(&self, about: &ObjectReference, note: Note) {
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
        // What a plan does it notes once.
        let recorder = match note.kind {
            NoteKind::Normal => Recorder::new(self.client.clone(), self.reporter.clone()),
            NoteKind::Warning => self.warnings.clone(),
        };
        let about = about.clone();
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, reason = event.reason, "event not recorded");
            }
        });
    }
}
