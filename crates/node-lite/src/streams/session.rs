//! What a client and a program in a pod say to each other, whatever carries it.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Messages that wait in one direction. A client sends 32 KiB at a time, or less.
pub(super) const QUEUE: usize = 8;

/// The program's side.
pub(super) struct Inside {
    /// Ends when the client has said all, or is gone.
    pub stdin: mpsc::Receiver<Bytes>,
    pub resize: mpsc::Receiver<Size>,
    /// Closed when the client is gone.
    pub output: mpsc::Sender<Output>,
}

/// The client's side.
pub(super) struct Outside {
    pub stdin: mpsc::Sender<Bytes>,
    pub resize: mpsc::Sender<Size>,
    /// Ends after the status.
    pub output: mpsc::Receiver<Output>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    Stdout(Bytes),
    Stderr(Bytes),
    /// How it ended, as the API says it. The last one.
    Status(Value),
}

/// Of a terminal, as clients write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Size {
    pub width: u16,
    pub height: u16,
}

/// Which streams a client asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

pub(super) fn pair() -> (Inside, Outside) {
    let (stdin, said) = mpsc::channel(QUEUE);
    let (resize, sizes) = mpsc::channel(QUEUE);
    let (output, heard) = mpsc::channel(QUEUE);
    (Inside { stdin: said, resize: sizes, output }, Outside { stdin, resize, output: heard })
}

/// The status of a program that ended with an exit code.
pub(super) fn exited(code: i32) -> Value {
    if code == 0 {
        return json!({ "metadata": {}, "status": "Success" });
    }
    json!({
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
    })
}

/// The status of one that could not be run.
pub(super) fn failed(message: &str) -> Value {
    json!({ "metadata": {}, "status": "Failure", "reason": "InternalError", "message": message, "code": 500 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_told_as_clients_read_them() {
        assert_eq!(exited(0), json!({ "metadata": {}, "status": "Success" }));
        let status = exited(3);
        assert_eq!((&status["reason"], &status["status"]), (&json!("NonZeroExitCode"), &json!("Failure")));
        assert_eq!(status["details"]["causes"], json!([{ "reason": "ExitCode", "message": "3" }]));
        assert_eq!(
            serde_json::from_str::<Size>(r#"{"Width":80,"Height":24}"#).unwrap(),
            Size { width: 80, height: 24 }
        );
        assert!(serde_json::from_str::<Size>(r#"{"Width":80000,"Height":24}"#).is_err());
    }
}
