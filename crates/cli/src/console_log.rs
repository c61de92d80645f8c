//! `ferrovirt console --log`: what a guest wrote to its console since it started, from its pod's log.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use ferrovirt_api::{names, v1::VirtualMachineInstance};
use ferrovirt_plan::pod::console_log::CONTAINER;
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, LogParams},
};

/// Prints the log, and with `follow` what comes, until the pod ends.
pub async fn run(client: &Client, namespace: &str, name: &str, follow: bool) -> Result<()> {
    let instances = Api::<VirtualMachineInstance>::namespaced(client.clone(), namespace);
    let Some(vmi) = instances.get_opt(name).await? else {
        bail!("{name} is not running, and its console's log went with its last run: ferrovirt start {name}");
    };
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    let pod = pod_of(&pods, &vmi).await?;
    let parameters = LogParams { container: Some(CONTAINER.into()), follow, ..LogParams::default() };
    let log =
        pods.log_stream(&pod, &parameters).await.with_context(|| format!("cannot read the log of the pod {pod}"))?;
    let mut log = std::pin::pin!(log);
    let mut output = std::io::stdout();
    let mut cleaner = output.is_terminal().then(Cleaner::default);
    let mut buffer = vec![0_u8; 16 * 1024];
    loop {
        let length = log.read(&mut buffer).await?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        match &mut cleaner {
            Some(cleaner) => output.write_all(&cleaner.clean(bytes))?,
            None => output.write_all(bytes)?,
        }
        output.flush()?;
    }
}

/// The instance's own pod, if its console is logged.
async fn pod_of(pods: &Api<Pod>, vmi: &VirtualMachineInstance) -> Result<String> {
    let (name, uid) = (vmi.name_any(), vmi.uid().unwrap_or_default());
    let owned = ListParams::default().labels(&format!("{}={uid}", names::CREATED_BY_LABEL));
    let found = pods.list(&owned).await.context("cannot look for the VM's pod")?;
    // A label is anybody's to write; which pods are the instance's says its status.
    let mut own: Vec<Pod> = found.items.into_iter().filter(|pod| is_own(vmi, pod)).collect();
    own.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
    let Some(pod) = own.pop() else { bail!("{name} has no pod yet: ferrovirt why {name} says what it waits for") };
    let spec = pod.spec.clone().unwrap_or_default();
    if !spec.init_containers.iter().flatten().any(|container| container.name == CONTAINER) {
        bail!(
            "the console of {name} is not logged; set spec.template.spec.domain.devices.logSerialConsole to true and restart it"
        );
    }
    Ok(pod.name_any())
}

fn is_own(vmi: &VirtualMachineInstance, pod: &Pod) -> bool {
    pod.uid().is_some_and(|uid| vmi.status.active_pods.contains_key(&uid))
}

/// Takes what is for a terminal out of a guest's words: whoever looks at a log did not ask to have their terminal changed.
#[derive(Default)]
struct Cleaner {
    state: State,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    Escape,
    /// After `ESC [`, until a letter.
    Sequence,
    /// After `ESC ]` and its like, until BEL or `ESC \`.
    Line,
    LineEscape,
    /// After the first byte of a character of two, among which there are some that terminals obey: each stands for `ESC` and a letter.
    Lead,
}

/// What terminals take for the first byte of U+0080 to U+00BF.
const LEAD: u8 = 0xc2;

impl Cleaner {
    fn clean(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes.iter().copied() {
            let (mut state, mut byte) = (self.state, byte);
            match (state, byte) {
                (State::Lead, 0x80..=0x9f) => (state, byte) = (State::Escape, byte - 0x40),
                (State::Lead, _) => {
                    out.push(LEAD);
                    state = State::Text;
                }
                _ => {}
            }
            self.state = match (state, byte) {
                (State::Text, LEAD) => State::Lead,
                (State::Text, 0x1b) => State::Escape,
                (State::Text, b'\n' | b'\t' | b' '..=b'~' | 0x80..) => {
                    out.push(byte);
                    State::Text
                }
                (State::Text, _) => State::Text,
                (State::Escape, b'[') => State::Sequence,
                (State::Escape, b']' | b'P' | b'X' | b'^' | b'_') => State::Line,
                (State::Escape, b' '..=b'/') => State::Escape,
                (State::Escape, _) => State::Text,
                (State::Sequence, b'@'..=b'~') => State::Text,
                (State::Sequence, _) => State::Sequence,
                (State::Line, 0x07) => State::Text,
                (State::Line, 0x1b) => State::LineEscape,
                // One that never ends must not hide the rest.
                (State::Line | State::LineEscape, b'\n') => {
                    out.push(byte);
                    State::Text
                }
                (State::LineEscape, b'\\') => State::Text,
                (State::Line | State::LineEscape, _) => State::Line,
                // It was turned into another one above.
                (State::Lead, _) => State::Text,
            };
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_words_do_nothing_to_a_terminal() {
        for (written, shown) in [
            ("plain\r\nünï\tcode\n", "plain\nünï\tcode\n"),
            ("\x1b[2J\x1b[1;31mred\x1b[0m\x07", "red"),
            ("a\x1b]0;title\x07b\x1b]52;c;c2VjcmV0\x1b\\c", "abc"),
            ("\x1bP1;2|x\x1b\\y", "y"),
            ("\x1b(Bz\x1bc!", "z!"),
            ("\x1b]never\nends", "\nends"),
            // The same in one character each.
            ("a\u{9b}2Jb\u{9d}0;title\x07c\u{90}x\x1b\\d\u{85}© §\u{a0}", "abcd© §\u{a0}"),
        ] {
            let mut cleaner = Cleaner::default();
            // In pieces of one byte, as a log may come.
            let pieces: Vec<u8> = written.bytes().flat_map(|byte| cleaner.clean(&[byte])).collect();
            assert_eq!(String::from_utf8(pieces).unwrap(), shown, "{written:?}");
        }
    }
}
