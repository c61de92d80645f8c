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
        let (recorder, about) = (self.0.clone(), about.clone());
        tokio::spawn(async move {
            if let Err(error) = recorder.publish(&event, &about).await {
                tracing::debug!(%error, reason = event.reason, "event not recorded");
            }
        });
    }
}
