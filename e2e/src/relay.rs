//! A stretch of network that breaks once, after so many bytes.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    thread,
};

use anyhow::Result;

use crate::wait::{self, Seen};

/// Passes connections on. The one on which the limit is reached is held until [`Relay::release`], and then broken.
pub struct Relay {
    pub port: u16,
    state: Arc<(Mutex<State>, Condvar)>,
}

struct State {
    target: SocketAddr,
    /// Bytes from clients.
    passed: u64,
    limit: u64,
    held: bool,
    released: bool,
    ended: bool,
}

impl Relay {
    pub fn start(target: SocketAddr, limit: u64) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let first = State { target, passed: 0, limit, held: false, released: false, ended: false };
        let state = Arc::new((Mutex::new(first), Condvar::new()));
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if lock(&shared).ended {
                    return;
                }
                let shared = shared.clone();
                thread::spawn(move || carry(client, &shared));
            }
        });
        Ok(Self { port, state })
    }

    /// Waits until the limit is reached and nothing moves any more.
    pub fn wait_held(&self) -> Result<()> {
        wait::until("the relay to hold a connection", wait::SOON, || {
            let state = lock(&self.state);
            Ok(if state.held { Seen::Yes(()) } else { Seen::Not(format!("{} bytes passed", state.passed)) })
        })
    }

    /// Breaks what is held, and leads what comes after it to another place.
    pub fn release(&self, target: SocketAddr) {
        let mut state = lock(&self.state);
        state.target = target;
        state.released = true;
        self.state.1.notify_all();
    }

    pub fn passed(&self) -> u64 {
        lock(&self.state).passed
    }
}

fn lock(state: &(Mutex<State>, Condvar)) -> std::sync::MutexGuard<'_, State> {
    state.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn carry(client: TcpStream, shared: &Arc<(Mutex<State>, Condvar)>) -> io::Result<()> {
    let server = TcpStream::connect(lock(shared).target)?;
    let (mut answers, mut back) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut answers, &mut back);
        let _ = back.shutdown(Shutdown::Both);
    });
    let (mut client, mut server) = (client, server);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = client.read(&mut buffer)?;
        if read == 0 {
            return server.shutdown(Shutdown::Write);
        }
        server.write_all(&buffer[..read])?;
        let mut state = lock(shared);
        state.passed += read as u64;
        if state.passed >= state.limit && !state.released {
            state.held = true;
            while !state.released {
                state = shared.1.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            drop(state);
            let _ = server.shutdown(Shutdown::Both);
            return client.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        (state.ended, state.released) = (true, true);
        drop(state);
        self.state.1.notify_all();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}
