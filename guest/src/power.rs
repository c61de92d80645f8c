//! The ACPI power button: waits for it on every input device that has one, and powers the guest off in order.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::mpsc;

use anyhow::{Result, bail};

const EV_KEY: u16 = 1;
const KEY_POWER: u16 = 116;
/// `struct input_event` on 64-bit Linux: two words of time, type, code, value.
const EVENT: usize = 24;

pub fn run() -> Result<()> {
    let (send, pressed) = mpsc::channel();
    let mut watching = 0;
    for entry in std::fs::read_dir("/dev/input")? {
        let path = entry?.path();
        let is_event = path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("event"));
        let Some(mut device) = is_event.then(|| File::open(&path).ok()).flatten() else {
            continue;
        };
        let send = send.clone();
        watching += 1;
        std::thread::spawn(move || {
            let mut event = [0u8; EVENT];
            while device.read_exact(&mut event).is_ok() {
                if is_power_press(&event) && send.send(()).is_err() {
                    return;
                }
            }
        });
    }
    drop(send);
    if watching == 0 || pressed.recv().is_err() {
        bail!("no input device to watch");
    }
    // Init gives this role no terminal (see the inittab), so the line goes to the console by name.
    if let Ok(mut console) = File::options().write(true).open("/dev/console") {
        let _ = writeln!(console, "ferrovirt-guest: power button pressed, powering off");
    }
    Command::new("/sbin/poweroff").status()?;
    // Init would start this role again while it takes everything down.
    loop {
        std::thread::park();
    }
}

fn is_power_press(event: &[u8; EVENT]) -> bool {
    let word = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
    word(16) == EV_KEY && word(18) == KEY_POWER && event[20..24] == 1i32.to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_press_of_the_power_key_counts() {
        let event = |kind: u16, code: u16, value: i32| {
            let mut e = [0u8; EVENT];
            e[16..18].copy_from_slice(&kind.to_ne_bytes());
            e[18..20].copy_from_slice(&code.to_ne_bytes());
            e[20..].copy_from_slice(&value.to_ne_bytes());
            e
        };
        assert!(is_power_press(&event(1, 116, 1)));
        assert!(!is_power_press(&event(1, 116, 0)));
        assert!(!is_power_press(&event(1, 30, 1)));
        assert!(!is_power_press(&event(0, 116, 1)));
    }
}
