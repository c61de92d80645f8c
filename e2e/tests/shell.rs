//! Into guests: `ferrovirt shell`, `exec` and `cp`, with keys that nobody had to make; and images by name, from a mirror.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use ferrovirt_e2e::{
    Case, Host, Options,
    command::{self, Outcome},
    host, outside,
    servers::Web,
    suite,
};

const CASES: &[Case] = &[
    ("run_gives_a_shell", run_gives_a_shell),
    ("files_are_copied", files_are_copied),
    ("a_restarted_guest_is_the_same", a_restarted_guest_is_the_same),
    ("another_user_gets_nothing", another_user_gets_nothing),
    ("a_vm_made_anew_is_noticed", a_vm_made_anew_is_noticed),
    ("a_guest_without_a_promise_is_met_anew", a_guest_without_a_promise_is_met_anew),
    ("images_come_by_name_from_a_mirror", images_come_by_name_from_a_mirror),
    ("this_machines_own_addresses_are_fetched_here", this_machines_own_addresses_are_fetched_here),
];

fn main() -> ExitCode {
    let embedded_only = &[
        ("images_come_by_name_from_a_mirror", "the mirror is reached through a router of this machine"),
        (
            "this_machines_own_addresses_are_fetched_here",
            "the cluster is reached by an address that is another machine's",
        ),
    ];
    suite(Options { embedded_only, ..Options::default() }, CASES)
}

fn home(host: &Host, user: &str) -> PathBuf {
    host.work_dir().join("homes").join(user)
}

/// `ferrovirt …` as somebody who has a home of his own.
fn by(host: &Host, user: &str, arguments: &[&str], input: &str) -> Result<Outcome> {
    let home = home(host, user);
    fs::create_dir_all(&home)?;
    let mut command = host.command("ferrovirt");
    command.env("HOME", &home).env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME").args(arguments);
    command::run(&mut command, input)
}

fn ana(host: &Host, arguments: &[&str]) -> Result<String> {
    by(host, "ana", arguments, "")?.success()
}

fn run_gives_a_shell(host: &Host) -> Result<()> {
    let said = ana(host, &["run", "demo", "--ephemeral", "--name", "sh", "--detach"])?;
    ensure!(said.contains("ferrovirt shell sh"), "run says: {said}");
    let directory = home(host, "ana").join(".local/share/ferrovirt/ssh");
    let mode = |path: PathBuf| -> Result<u32> { Ok(fs::metadata(path)?.permissions().mode() & 0o777) };
    ensure!(mode(directory.clone())? == 0o700, "others look into {}", directory.display());
    ensure!(mode(directory.join("id_ed25519"))? == 0o600, "others read the key");
    // The guest boots; its ssh server is waited for.
    ensure!(ana(host, &["exec", "sh", "--", "id", "-un"])?.trim() == "demo", "another user than the image's");
    let outcome = by(host, "ana", &["exec", "sh", "--", "sh", "-c", "echo out; echo err >&2; exit 7"], "")?;
    ensure!(outcome.code == Some(7), "the exit code is lost: {outcome}");
    ensure!(outcome.stdout == "out\n" && outcome.stderr == "err\n", "streams are mixed or have more: {outcome}");
    let piped = by(host, "ana", &["exec", "sh", "--", "wc", "-c"], &"x".repeat(300_000))?.success()?;
    ensure!(piped.trim() == "300000", "standard input: {piped}");
    let ssh = by(host, "ana", &["ssh", "vm/sh", "-t", "-o BatchMode=yes", "-c", "id -un"], "")?.success()?;
    ensure!(ssh.trim() == "demo", "`ferrovirt ssh` without a word of the user: {ssh}");
    let words = ana(host, &["exec", "sh", "--", "printf", "%s|", "a  b", "$HOME", "it's", ";id"])?;
    ensure!(words == "a  b|$HOME|it's|;id|", "the guest's shell saw other words: {words}");
    let session = by(host, "ana", &["shell", "sh"], "echo in $(hostname)\nexit 3\n")?;
    ensure!(session.code == Some(3) && session.stdout.contains("in sh"), "shell: {session}");
    for bad in ["-oProxyCommand=id", "$(id)", "vm/a;b"] {
        let outcome = by(host, "ana", &["exec", bad, "--", "true"], "")?;
        ensure!(!outcome.succeeded() && !outcome.stdout.contains("uid="), "{outcome}");
    }
    // What whoever may look at the VM sees is not enough to be it, or to log in.
    let vm = host.kubectl(&["get", "vm", "sh", "-o", "json"])?;
    ensure!(!vm.contains("PRIVATE KEY") && !vm.contains("password"), "the VM tells secrets: {vm}");
    ensure!(vm.contains("ferrovirt.io/ssh-host-key"), "no host key is promised: {vm}");
    Ok(())
}

fn files_are_copied(host: &Host) -> Result<()> {
    let directory = host.work_dir().join("files");
    fs::create_dir_all(directory.join("tree/deep"))?;
    fs::write(directory.join("tree/deep/leaf"), "leaf")?;
    fs::write(directory.join("a:b"), "colon")?;
    let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
    ana(host, &["cp", "-r", &path("tree"), &path("a:b"), "sh:"])?;
    ensure!(ana(host, &["exec", "sh", "--", "cat", "tree/deep/leaf", "a:b"])? == "leafcolon", "not what was sent");
    ana(host, &["cp", "-r", "sh:tree", &path("back")])?;
    ensure!(fs::read_to_string(directory.join("back/deep/leaf"))? == "leaf", "not what was there");
    Ok(())
}

fn a_restarted_guest_is_the_same(host: &Host) -> Result<()> {
    ana(host, &["restart", "sh"])?;
    let outcome = by(host, "ana", &["exec", "sh", "--", "hostname"], "")?;
    ensure!(outcome.stdout == "sh\n" && outcome.succeeded(), "{outcome}");
    ensure!(!outcome.stderr.contains("HOST IDENTIFICATION"), "{outcome}");
    Ok(())
}

fn another_user_gets_nothing(host: &Host) -> Result<()> {
    let outcome = by(host, "bob", &["exec", "sh", "--", "true"], "")?;
    ensure!(outcome.code == Some(255), "bob's key opens ana's guest: {outcome}");
    ensure!(outcome.stderr.contains("credentials add-ssh-key sh"), "no next step: {outcome}");
    Ok(())
}

fn a_vm_made_anew_is_noticed(host: &Host) -> Result<()> {
    ana(host, &["delete", "vm", "sh"])?;
    // By herself: nothing to say.
    ana(host, &["run", "demo", "--ephemeral", "--name", "sh", "--detach"])?;
    let outcome = by(host, "ana", &["exec", "sh", "--", "true"], "")?;
    ensure!(outcome.succeeded() && !outcome.stderr.contains("note:"), "{outcome}");
    // By somebody else: she is told, and her key is not there.
    ana(host, &["delete", "vm", "sh"])?;
    by(host, "bob", &["run", "demo", "--ephemeral", "--name", "sh", "--detach"], "")?.success()?;
    let outcome = by(host, "ana", &["exec", "sh", "--", "true"], "")?;
    ensure!(outcome.code == Some(255) && outcome.stderr.contains("made anew"), "{outcome}");
    by(host, "bob", &["exec", "sh", "--", "true"], "")?.success()?;
    // A promise that changes under the same VM is not believed.
    let other =
        "ferrovirt.io/ssh-host-key=ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINdamAGCsQq31Uv+08lkBzoO4XLz2qYjJa8CGmj3B1Ea";
    host.kubectl(&["annotate", "vm", "sh", "--overwrite", other])?;
    let said = by(host, "bob", &["exec", "sh", "--", "true"], "")?.failure()?;
    ensure!(said.contains("--accept-host-key"), "{said}");
    by(host, "bob", &["exec", "--accept-host-key", "sh", "--", "true"], "")?.success()?;
    by(host, "bob", &["exec", "sh", "--", "true"], "")?.success()?;
    ana(host, &["delete", "vm", "sh"])?;
    Ok(())
}

/// A VM from a manifest, whose guest makes a host key at each start.
fn a_guest_without_a_promise_is_met_anew(host: &Host) -> Result<()> {
    let mut vm = ferrovirt_e2e::manifest::vm("plain", "Always");
    ana(host, &["images"])?;
    let key = fs::read_to_string(home(host, "ana").join(".local/share/ferrovirt/ssh/id_ed25519.pub"))?;
    let data = &mut vm["spec"]["template"]["spec"]["volumes"][1]["cloudInitNoCloud"]["userData"];
    *data = format!("{}ssh_authorized_keys:\n  - {}\n", data.as_str().unwrap_or_default(), key.trim()).into();
    host.apply(&vm)?;
    host.wait_running("plain")?;
    for _ in 0..2 {
        // The user is the one that cloud-init names.
        let outcome = by(host, "ana", &["exec", "plain", "--", "id", "-un"], "")?;
        ensure!(outcome.stdout == "demo\n" && outcome.succeeded(), "{outcome}");
        ana(host, &["restart", "plain"])?;
    }
    ana(host, &["stop", "plain"])?;
    let outcome = by(host, "ana", &["exec", "plain", "--", "true"], "")?;
    ensure!(outcome.code == Some(5) && outcome.stderr.contains("ferrovirt start"), "{outcome}");
    ana(host, &["delete", "vm", "plain"])?;
    Ok(())
}

fn images_come_by_name_from_a_mirror(host: &Host) -> Result<()> {
    let directory = host.work_dir().join("mirror");
    let www = directory.join("www/os");
    fs::create_dir_all(&www)?;
    let disk = host::guest_archive()?.with_file_name("demo.qcow2");
    fs::copy(&disk, www.join("demo.qcow2"))?;
    let sum = command::output("sha256sum", &[&disk.to_string_lossy()])?;
    let sum = sum.split(' ').next().context("no checksum")?;
    fs::write(www.join("SHA256SUMS"), format!("{sum} *demo.qcow2\n"))?;
    fs::write(www.join("WRONG"), format!("SHA256 (demo.qcow2) = {}\n", "0".repeat(64)))?;
    let web = Web::start(&directory, None)?;
    let mirror = format!("http://{}:{}/", outside::address(host)?, web.port);
    let entry = |name: &str, list: &str| {
        format!(
            "- name: {name}\n  user: demo\n  memory: 128Mi\n  disk: 1Gi\n  architectures:\n    amd64:\n      \
             url: https://os.invalid/os/demo.qcow2\n      checksums: https://os.invalid/os/{list}\n"
        )
    };
    let entries = [("own:1", "SHA256SUMS"), ("changed:1", "WRONG"), ("lost:1", "NOTHING")];
    let entries: String = entries.iter().map(|(name, list)| entry(name, list)).collect();
    let catalog = directory.join("catalog.yaml");
    fs::write(&catalog, format!("images:\n{entries}mirrors:\n- from: https://os.invalid/\n  to: {mirror}\n"))?;
    let catalog = catalog.to_string_lossy().into_owned();
    let listed = ana(host, &["images", "--catalog", &catalog])?;
    ensure!(listed.contains("debian:12") && listed.contains("own:1"), "images says: {listed}");
    // As said on the command line, and as an administrator would.
    ana(host, &["run", "own:1", "--catalog", &catalog, "--detach"])?;
    let volume = host.get("dv", "own")?;
    let source = &volume["spec"]["source"]["http"];
    ensure!(
        source["checksum"] == format!("sha256:{sum}") && source["url"] == format!("{mirror}os/demo.qcow2"),
        "{volume}"
    );
    ensure!(ana(host, &["exec", "own", "--", "id", "-un"])?.trim() == "demo", "another user than the catalogue's");
    let said = by(host, "ana", &["run", "lost:1", "--catalog", &catalog, "--detach"], "")?.failure()?;
    ensure!(said.contains("404") && said.contains("--no-checksum"), "{said}");
    ensure!(host.object("vm", "lost")?.is_none(), "a VM was made of an image that cannot be checked");
    let own = home(host, "ana").join(".config/ferrovirt/images.d");
    fs::create_dir_all(&own)?;
    fs::copy(&catalog, own.join("own.yaml"))?;
    by(host, "ana", &["run", "changed:1"], "")?.failure()?;
    let volume = host.wait_for("dv", "changed", "to fail", |volume| volume["status"]["phase"] == "Failed")?;
    ensure!(volume.to_string().contains("ChecksumMismatch"), "{volume}");
    let said = by(host, "ana", &["run", "debain:12"], "")?.failure()?;
    ensure!(said.contains("did you mean debian:12?"), "{said}");
    ana(host, &["delete", "vm", "own", "changed"])?;
    Ok(())
}

fn this_machines_own_addresses_are_fetched_here(host: &Host) -> Result<()> {
    let directory = host.work_dir().join("own-address");
    fs::create_dir_all(directory.join("www"))?;
    fs::copy(host::guest_archive()?.with_file_name("demo.qcow2"), directory.join("www/demo.qcow2"))?;
    let web = Web::start(&directory, None)?;
    let url = format!("http://127.0.0.1:{}/demo.qcow2", web.port);
    let arguments = ["run", &url, "--name", "here", "--memory", "128Mi", "--disk-size", "1Gi", "--detach"];
    let outcome = by(host, "ana", &arguments, "")?;
    ensure!(outcome.succeeded() && outcome.stderr.contains("fetching"), "{outcome}");
    ensure!(host.get("dv", "here")?["spec"]["source"]["upload"].is_object(), "it was not sent from here");
    ana(host, &["delete", "vm", "here"])?;
    Ok(())
}
