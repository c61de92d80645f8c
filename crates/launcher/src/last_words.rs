//! Writes how the machine ended where the container runtime keeps it, as soon as it is known.

use std::{fs::OpenOptions, io::Write};

use ferrovirt_machine::{
    last_words,
    protocol::{MachinePhase, MachineState},
};
use tokio::sync::watch;

/// Resolves when it is written, or the states end.
pub async fn write(mut states: watch::Receiver<MachineState>) {
    loop {
        let words = {
            let state = states.borrow_and_update();
            (state.phase == MachinePhase::Stopped).then(|| last_words::of(&state))
        };
        if let Some(words) = words {
            // Not every pod has the file. A pod that has none keeps its exit code.
            let opened = OpenOptions::new().write(true).truncate(true).open(last_words::PATH);
            let written = opened.and_then(|mut file| {
                file.write_all(words.as_bytes())?;
                // It may be all that is left of us after a power cut.
                file.sync_data()
            });
            if let Err(error) = written {
                tracing::debug!(%error, "no place for last words");
            }
            return;
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}
