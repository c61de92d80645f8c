//! Looking into a running domain: its agent, its screen, its counters.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::connection::{apart, blocking, c_string};
use crate::domain::{Domain, Inner};
use crate::error::{ErrorCode, Result, last_error, owned_text, text};
use crate::ffi;

/// Most that a screen may have: 8192 by 8192 pixels of three bytes, and a header.
const SCREEN_LIMIT: usize = 3 * 8192 * 8192 + 64;
const CHUNK: usize = 256 << 10;

/// A picture as libvirt gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screenshot {
    /// Such as `image/x-portable-pixmap` or `image/png`.
    pub mime: String,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Counter {
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Flag(bool),
    Text(String),
}

impl Domain {
    /// Sends one command in the guest agent's own JSON and returns its JSON answer. QEMU only.
    pub async fn agent_command(&self, command: &str, timeout: Duration) -> Result<String> {
        let inner = self.inner.clone();
        let command = c_string(command)?;
        let seconds = c_int::try_from(timeout.as_secs().max(1)).unwrap_or(c_int::MAX);
        apart(move || {
            // SAFETY: live domain, NUL-terminated text; the returned string is ours to free.
            let answer =
                unsafe { owned_text(ffi::virDomainQemuAgentCommand(inner.raw.as_ptr(), command.as_ptr(), seconds, 0)) };
            answer.ok_or_else(last_error)
        })
        .await
    }

    /// What the first screen shows.
    pub async fn screenshot(&self) -> Result<Screenshot> {
        let inner = self.inner.clone();
        blocking(move || screenshot(&inner)).await
    }

    /// All counters that the driver has, by libvirt's names (`cpu.time`, `block.0.rd.bytes`, …).
    pub async fn stats(&self) -> Result<Vec<(String, Counter)>> {
        let inner = self.inner.clone();
        blocking(move || match stats(&inner) {
            // Not every driver has counters; what each of them knows has the same names here.
            Err(error) if error.code() == Some(ErrorCode::NoSupport) => basics(&inner),
            outcome => outcome,
        })
        .await
    }
}

/// An owned stream: aborted, if it was not finished, and freed at the end.
struct Stream {
    raw: NonNull<ffi::VirStream>,
    finished: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the one reference that virStreamNew gave us, and nobody uses it afterwards.
        unsafe {
            if !self.finished {
                ffi::virStreamAbort(self.raw.as_ptr());
            }
            ffi::virStreamFree(self.raw.as_ptr());
        }
    }
}

fn screenshot(inner: &Inner) -> Result<Screenshot> {
    // SAFETY: live connection.
    let raw = unsafe { ffi::virStreamNew(inner.connection.as_ptr(), 0) };
    let mut stream = Stream { raw: NonNull::new(raw).ok_or_else(last_error)?, finished: true };
    // SAFETY: live domain and stream; the returned string is ours to free.
    let mime = unsafe { owned_text(ffi::virDomainScreenshot(inner.raw.as_ptr(), stream.raw.as_ptr(), 0, 0)) };
    let mime = mime.ok_or_else(last_error)?;
    stream.finished = false;
    let mut bytes = Vec::new();
    let mut chunk = vec![0u8; CHUNK];
    while bytes.len() < SCREEN_LIMIT {
        // SAFETY: live stream; the buffer is as long as is said and outlives the call.
        let read = unsafe { ffi::virStreamRecv(stream.raw.as_ptr(), chunk.as_mut_ptr().cast::<c_char>(), chunk.len()) };
        let read = usize::try_from(read).map_err(|_| last_error())?;
        if read == 0 {
            break;
        }
        bytes.extend_from_slice(chunk.get(..read).unwrap_or_default());
    }
    stream.finished = true;
    // SAFETY: live stream.
    if unsafe { ffi::virStreamFinish(stream.raw.as_ptr()) } < 0 {
        return Err(last_error());
    }
    Ok(Screenshot { mime, bytes })
}

fn stats(inner: &Inner) -> Result<Vec<(String, Counter)>> {
    let mut domains = [inner.raw.as_ptr(), ptr::null_mut()];
    let mut records: *mut *mut ffi::VirDomainStatsRecord = ptr::null_mut();
    let every: c_uint = 0;
    // SAFETY: a NULL-terminated array of one live domain; `records` outlives the call and takes a list that is ours.
    let count = unsafe { ffi::virDomainListGetStats(domains.as_mut_ptr(), every, &raw mut records, 0) };
    let count = usize::try_from(count).map_err(|_| last_error())?;
    let mut counters = Vec::new();
    for index in 0..count {
        // SAFETY: the list has `count` records, each with `nparams` parameters, all valid until the list is freed below.
        let parameters = unsafe {
            let record = &**records.add(index);
            match usize::try_from(record.nparams) {
                Ok(length) if !record.params.is_null() => std::slice::from_raw_parts(record.params, length),
                _ => &[],
            }
        };
        counters.extend(parameters.iter().filter_map(counter));
    }
    if !records.is_null() {
        // SAFETY: the list that the call above gave us, and nobody uses it afterwards.
        unsafe { ffi::virDomainStatsRecordListFree(records) };
    }
    Ok(counters)
}

/// CPU time and memory, which every driver tells.
fn basics(inner: &Inner) -> Result<Vec<(String, Counter)>> {
    let mut info = ffi::VirDomainInfo::default();
    // SAFETY: live domain; `info` outlives the call, which fills it.
    if unsafe { ffi::virDomainGetInfo(inner.raw.as_ptr(), &raw mut info) } < 0 {
        return Err(last_error());
    }
    let numbers = [
        ("cpu.time", info.cpu_time),
        ("vcpu.current", info.nr_virt_cpu.into()),
        ("balloon.maximum", info.max_mem),
        ("balloon.current", info.memory),
    ];
    Ok(numbers.map(|(name, number)| (name.to_owned(), Counter::Unsigned(number))).to_vec())
}

fn counter(parameter: &ffi::VirTypedParameter) -> Option<(String, Counter)> {
    // SAFETY: libvirt ends the name within its field with a NUL.
    let name = unsafe { CStr::from_ptr(parameter.field.as_ptr()) }.to_string_lossy().into_owned();
    // SAFETY: `kind` says which member libvirt wrote; a string is NUL-terminated and lives as long as its list.
    let value = unsafe {
        match parameter.kind {
            ffi::PARAM_INT => Counter::Signed(parameter.value.i.into()),
            ffi::PARAM_UINT => Counter::Unsigned(parameter.value.ui.into()),
            ffi::PARAM_LLONG => Counter::Signed(parameter.value.l),
            ffi::PARAM_ULLONG => Counter::Unsigned(parameter.value.ul),
            ffi::PARAM_DOUBLE => Counter::Float(parameter.value.d),
            ffi::PARAM_BOOLEAN => Counter::Flag(parameter.value.b != 0),
            ffi::PARAM_STRING => Counter::Text(text(parameter.value.s)?),
            _ => return None,
        }
    };
    Some((name, value))
}
