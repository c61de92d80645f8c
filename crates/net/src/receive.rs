//! Receiving for as long as a device is there. One error of a socket is no reason to leave a guest without addresses for the rest
//! of its life.

use std::{io, thread, time::Duration};

use crate::link;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// After so many errors in a row the socket itself is given up, and another one opened.
const ENOUGH: u32 = 5;

/// Opens a socket on `device` and calls `turn` with it again and again. Returns when the device is gone.
pub(crate) fn forever<S>(
    device: &str,
    open: impl FnMut() -> io::Result<S>,
    turn: impl FnMut(&S) -> io::Result<()>,
) -> io::Result<()> {
    run(open, turn, || link::exists(device), thread::sleep)
}

fn run<S>(
    mut open: impl FnMut() -> io::Result<S>,
    mut turn: impl FnMut(&S) -> io::Result<()>,
    there: impl Fn() -> bool,
    mut sleep: impl FnMut(Duration),
) -> io::Result<()> {
    let mut pause = FIRST_PAUSE;
    // What cannot be opened the first time is configured wrongly: whoever started it should hear of it.
    let mut socket = open()?;
    let mut errors = 0;
    loop {
        let error = match turn(&socket) {
            Ok(()) => {
                (errors, pause) = (0, FIRST_PAUSE);
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => error,
        };
        if !there() {
            return Err(error);
        }
        sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
        errors += 1;
        if errors >= ENOUGH
            && let Ok(fresh) = open()
        {
            (socket, errors) = (fresh, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    #[test]
    fn errors_end_nothing_while_the_device_is_there() {
        let (opened, turns, there) = (Cell::new(0), Cell::new(0), Cell::new(true));
        let pauses = RefCell::new(vec![]);
        let broken = || Err(io::Error::from_raw_os_error(nix::libc::ENETDOWN));
        let turn = |socket: &u32| {
            turns.set(turns.get() + 1);
            match turns.get() {
                // A first packet, then a socket that only fails, until there is a new one.
                1 => Ok(()),
                2..=100 if *socket == 1 => broken(),
                2..=100 => Ok(()),
                101 => Err(io::ErrorKind::Interrupted.into()),
                _ => {
                    there.set(false);
                    broken()
                }
            }
        };
        let open = || {
            opened.set(opened.get() + 1);
            Ok(opened.get())
        };
        let end = run(open, turn, || there.get(), |pause| pauses.borrow_mut().push(pause)).unwrap_err();
        assert_eq!(end.raw_os_error(), Some(nix::libc::ENETDOWN));
        assert_eq!((opened.get(), turns.get()), (2, 102));
        let pauses: Vec<_> = pauses.borrow().iter().map(Duration::as_millis).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160]);
    }

    #[test]
    fn what_cannot_be_opened_at_first_is_told() {
        let refused = || Err::<u32, _>(io::ErrorKind::PermissionDenied.into());
        let end = run(refused, |_| Ok(()), || true, |_| ()).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::PermissionDenied);
    }
}
