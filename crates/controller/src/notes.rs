//! Publishes what the plans note as Kubernetes events. Losing one never fails a reconcile.

use ferrovirt_plan::{Note, NoteKind};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

#[derive(Clone)]
pub(crate) struct Notes(Recorder);

impl Notes {
    pub(crate) fn new(client: Client, component: &str) -> Self {
        Self(Recorder::new(client, Reporter { controller: component.into(), instance: None }))
    }

    pub(crate) async fn publish(&self, about: &ObjectReference, note: Note) {
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
        if let Err(error) = self.0.publish(&event, about).await {
            tracing::debug!(%error, reason = event.reason, "event not recorded");
        }
    }
}
