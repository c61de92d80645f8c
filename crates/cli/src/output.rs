//! Standard output, whose reader may leave before we are done: `ferrovirt get vms | head -1`.
//!
//! The standard library's `println!` panics then. For the ones here a reader that has seen enough is no failure: what the
//! command does is done to its end, and the rest of its words are dropped.

use std::{
    fmt::Arguments,
    io::{self, Write},
    process,
};

macro_rules! println {
    () => { $crate::output::write(format_args!("\n")) };
    ($($part:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($part)*))) };
}

macro_rules! print {
    ($($part:tt)*) => { $crate::output::write(format_args!($($part)*)) };
}

pub fn write(text: Arguments<'_>) {
    bytes(text.to_string().as_bytes());
}

/// Writes what is text already, or no text at all.
pub fn bytes(bytes: &[u8]) {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        // A full disk, most likely: whoever reads the file must not take it for whole.
        Err(error) => {
            eprintln!("error: cannot write to standard output: {error}");
            process::exit(1);
        }
    }
}

/// What others wrote, guests among them, without what a terminal would obey.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The same for what may have several lines.
pub fn harmless_lines(text: &str) -> String {
    text.split('\n').map(harmless).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_told_nothing_by_others() {
        assert_eq!(harmless("10.0.0.1"), "10.0.0.1");
        assert_eq!(harmless("a\x1b[2Jb\rc\n"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}");
        assert_eq!(harmless_lines("a\n\x1b[2J\u{9b}b\n"), "a\n\u{fffd}[2J\u{fffd}b\n");
    }
}
