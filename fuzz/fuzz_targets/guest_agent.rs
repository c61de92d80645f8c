//! An agent inside a guest that answers every command with the same strange value.
#![no_main]

use std::time::Duration;

use ferrovirt_launcher::{
    domain::DomainError,
    guest::{Agent, Memory, answer},
};
use ferrovirt_machine::protocol::GuestCall;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

#[derive(Clone)]
struct Strange(Value);

impl Agent for Strange {
    async fn command(&self, _: Value, _: Duration) -> Result<Value, DomainError> {
        Ok(self.0.clone())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(value) = serde_json::from_slice(bytes) else { return };
    let agent = Strange(value);
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build() else { return };
    runtime.block_on(async {
        let exec = GuestCall::Exec { command: "x".into(), args: vec![], timeout_seconds: 1 };
        for call in [GuestCall::Report {}, exec, GuestCall::Ping {}] {
            let _ = answer(&agent, &Memory::default(), call).await;
        }
    });
});
