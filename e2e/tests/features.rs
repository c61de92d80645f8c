//! What a machine can ask of its node beyond plain memory and CPUs, each with a guest that has it.

use std::{fs, process::ExitCode};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{Case, Host, Options, manifest, suite, wait};
use serde_json::{Value, json};

const CASES: &[Case] = &[("huge_pages_hold_the_guest", huge_pages_hold_the_guest)];

const EMBEDDED_ONLY: &[(&str, &str)] =
    &[("huge_pages_hold_the_guest", "kubelets count the pages of their node only when they start")];

fn main() -> ExitCode {
    suite(Options { embedded_only: EMBEDDED_ONLY, ..Options::default() }, CASES)
}

/// More pages in the machine's pool, taken back when dropped.
struct Pages {
    before: u64,
}

impl Pages {
    const FILE: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve(more: u64) -> Result<Self> {
        let reserved = Self { before: Self::count()? };
        fs::write(Self::FILE, (reserved.before + more).to_string())?;
        let now = Self::count()?;
        ensure!(now >= reserved.before + more, "the machine reserves {now} pages of {}", reserved.before + more);
        Ok(reserved)
    }

    fn count() -> Result<u64> {
        Ok(fs::read_to_string(Self::FILE)?.trim().parse()?)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, self.before.to_string());
    }
}

fn remove(host: &Host, name: &str) -> Result<()> {
    host.kubectl(&["delete", "vm", name, "--wait=false"])?;
    host.wait_gone("vmi", name)
}

fn huge_pages_hold_the_guest(host: &Host) -> Result<()> {
    const NAME: &str = "huge";
    // More than any pool has: its pod waits, and says for what.
    let mut vm = manifest::plain_vm(NAME, "Always");
    vm["spec"]["template"]["spec"]["domain"]["memory"] =
        json!({ "guest": "900Gi", "hugepages": { "pageSize": "2Mi" } });
    host.apply(&vm)?;
    host.wait_for("vmi", NAME, "to say which pages are missing", |vmi| {
        let conditions = vmi["status"]["conditions"].as_array();
        let told = |condition: &Value| condition["message"].as_str().unwrap_or_default().contains("hugepages-2Mi");
        conditions.is_some_and(|conditions| conditions.iter().any(told))
    })?;
    remove(host, NAME)?;
    host.wait_gone("vm", NAME)?;

    const MIB: u64 = 128;
    let _pages = Pages::reserve(MIB / 2)?;
    vm["spec"]["template"]["spec"]["domain"]["memory"]["guest"] = json!(format!("{MIB}Mi"));
    host.apply(&vm)?;
    host.wait_running(NAME)?;
    let qemu = host.qemu(NAME)?;
    let path = format!("/proc/{}/smaps_rollup", qemu.pid);
    wait::until("the guest's memory to be in huge pages", wait::SOON, || {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let kilobytes = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let huge = kilobytes("Private_Hugetlb:") + kilobytes("Shared_Hugetlb:");
        Ok(if huge == MIB * 1024 { wait::Seen::Yes(()) } else { wait::Seen::Not(format!("{huge} kB are")) })
    })?;
    remove(host, NAME)
}
