//! Real namespaces, cgroups and plugins, without any API. Needs root, like the product.

#![allow(clippy::unwrap_used, clippy::panic)]

mod node_config;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferrovirt_node_lite::Config;
use ferrovirt_node_lite::cgroup::Limits;
use ferrovirt_node_lite::identity::ProcessId;
use ferrovirt_node_lite::logs::{LogOptions, read_log};
use ferrovirt_node_lite::records::{self, InitPlan, MountPlan, PodRecord, SidecarPlan, StateRecord};
use ferrovirt_node_lite::sandbox::{Found, Sandboxes};

const SHIM: &str = env!("CARGO_BIN_EXE_ferrovirt-shim");

/// A node of its own: directories, bridge, addresses and cgroup carry the instance.
struct Node {
    config: Config,
    sandboxes: Sandboxes,
    _root: tempfile::TempDir,
}

impl Node {
    fn new(number: u8) -> Self {
        assert!(nix::unistd::geteuid().is_root(), "this test makes namespaces and cgroups: run it as root");
        let root = tempfile::tempdir().unwrap();
        let config = node_config::of(root.path(), number, (64, 64), "10.201.16.0/20");
        let sandboxes = Sandboxes::open(&config).unwrap();
        sandboxes.prepare().unwrap();
        Self { config, sandboxes, _root: root }
    }

    fn record(&self, uid: &str) -> PodRecord {
        PodRecord {
            uid: uid.into(),
            namespace: "default".into(),
            name: format!("pod-{uid}"),
            container: "compute".into(),
            grace_seconds: 30,
            netns: self.sandboxes.netns(uid),
        }
    }

    /// A pod that runs a shell script, ready to be started.
    async fn prepare(&self, uid: &str, script: &str) -> InitPlan {
        let record = self.record(uid);
        let dir = self.sandboxes.create_dir(&record).unwrap();
        let limits = Limits { cpu_request_milli: 100, cpu_limit_milli: None, memory_limit_bytes: Some(64 << 20) };
        let cgroup_procs = self.sandboxes.create_cgroup(uid, &limits, None).unwrap();
        self.sandboxes.attach_network(&record, vec![]).await.unwrap();
        let sockets = dir.volume("kubernetes.io~empty-dir", "sockets");
        fs::create_dir_all(&sockets).unwrap();
        std::os::unix::fs::chown(&sockets, Some(107), Some(107)).unwrap();
        let image = dir.root().join("image");
        fs::create_dir_all(&image).unwrap();
        fs::write(image.join("disk.img"), "disk").unwrap();
        let mount = |source: &Path, target: &str, read_only| MountPlan {
            source: source.to_owned(),
            sub_path: None,
            target: target.into(),
            read_only,
            follow_host: false,
        };
        InitPlan {
            privileged: false,
            memory_placement: false,
            pod_uid: uid.into(),
            container: "compute".into(),
            hostname: "guest-host".into(),
            netns: record.netns,
            cgroup_procs,
            staging: dir.staging(),
            launcher: "/bin/sh".into(),
            program_path: None,
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            working_dir: "/".into(),
            env: vec![("PATH".into(), "/usr/bin:/bin:/usr/sbin:/sbin".into()), ("POD".into(), uid.into())],
            uid: 107,
            gid: 107,
            groups: vec![],
            first_id: None,
            devices: vec![],
            sysctls: vec![("net.ipv4.ip_unprivileged_port_start".into(), "0".into())],
            mounts: vec![
                mount(&sockets, "/var/run/kubevirt/sockets", false),
                mount(&image, "/var/run/kubevirt/container-disks/root", true),
            ],
            files: vec![("/etc/passwd".into(), "qemu:x:107:107:qemu:/home/qemu:/usr/sbin/nologin\n".into())],
            sidecar: None,
        }
    }

    fn log(&self, uid: &str) -> String {
        self.log_of(uid, "compute")
    }

    fn log_of(&self, uid: &str, container: &str) -> String {
        let bytes = read_log(&self.config.data_dir, uid, container, &LogOptions::default()).unwrap_or_default();
        String::from_utf8(bytes).unwrap()
    }

    /// Everything of this node that the kernel still knows.
    fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let base = self.config.data_dir.parent().unwrap().to_str().unwrap().to_owned();
        found.extend(mounts.lines().filter(|line| line.contains(&base)).map(|line| format!("mount {line}")));
        let bridge = format!("fv{}", self.config.instance);
        if Path::new("/sys/class/net").join(&bridge).exists() {
            found.push(format!("bridge {bridge}"));
        }
        let cgroup = format!("ferrovirt-{}", self.config.instance);
        for entry in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            if entry.path().join(&cgroup).exists() || entry.file_name() == *cgroup {
                found.push(format!("cgroup {}", entry.path().display()));
            }
        }
        let tables = Command::new("nft").args(["list", "tables"]).output().map(|out| out.stdout).unwrap_or_default();
        let tables = String::from_utf8_lossy(&tables).into_owned();
        found.extend(tables.lines().filter(|line| line.contains(&cgroup)).map(str::to_owned));
        found
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match condition() {
            Ok(()) => return,
            Err(seen) if Instant::now() > deadline => panic!("{what}: {seen}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

const TOUR: &str = r#"
echo "pid=$$ uid=$(id -u) gid=$(id -g) groups=$(id -G) host=$(uname -n) pod=$POD"
grep -E '^(CapEff|CapBnd|CapPrm|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\t' | tr '\n' ' '; echo
echo "address=$(ip -4 -o addr show eth0 | awk '{print $4}') lo=$(ip -o addr show lo | grep -c 127.0.0.1)"
echo "cgroup=$(grep -c 'ferrovirt-.*/podtour' /proc/self/cgroup)"
echo "processes=$(ls -d /proc/[0-9]* | wc -l | awk '{print ($1 < 6)}')"
echo "root=$(ls / | tr '\n' ' ')"
echo "launcher=$([ -x /usr/bin/ferrovirt-launcher ] && echo yes) usr=$([ -x /usr/bin/env ] && echo yes)"
touch /usr/bin/x 2>/dev/null && echo "usr is writable"
touch /etc/x 2>/dev/null && echo "etc is writable"
cat /var/run/kubevirt/container-disks/root/disk.img; echo
touch /var/run/kubevirt/container-disks/root/x 2>/dev/null && echo "image is writable"
echo hello > /var/run/kubevirt/sockets/file
touch /tmp/x /run/x && echo "tmp=ok"
echo gone > /dev/null && head -c 4 /dev/urandom > /tmp/r && [ ! -e /dev/kvm ] && [ ! -e /dev/vda ] && echo "dev=ok"
ls -l /proc/self/fd | grep -c -e '->' | awk '{print "fds=" ($1 <= 4)}'
echo "ports=$(cat /proc/sys/net/ipv4/ip_unprivileged_port_start)"
echo "out" >&2
exit 7
"#;

#[tokio::test]
async fn a_pod_sees_only_its_own_world_and_its_end_is_recorded() {
    let node = Node::new(1);
    let plan = node.prepare("tour", TOUR).await;
    let address = node.sandboxes.addresses("tour").unwrap()[0];
    let running = node.sandboxes.start(&plan).await.unwrap();
    let ended = running.wait().await.unwrap();
    let log = node.log("tour");
    assert_eq!((ended.exit.exit_code, ended.exit.reason.as_str()), (7, "Error"), "{log}");
    for expected in [
        "pid=1 uid=107 gid=107 groups=107 host=guest-host pod=tour\n",
        "CapPrm:0000000000000000 CapEff:0000000000000000 CapBnd:0000000000000000 NoNewPrivs:1 Seccomp:2 \n",
        &format!("address={address}/24 lo=1\n"),
        "processes=1\n",
        "launcher=yes usr=yes\n",
        "disk\n",
        "tmp=ok\n",
        "dev=ok\n",
        "fds=1\n",
        "ports=0\n",
        "out\n",
    ] {
        assert!(log.contains(expected), "missing {expected:?} in\n{log}");
    }
    assert!(!log.contains("writable"), "{log}");
    assert!(!log.contains("cgroup=0"), "{log}");
    let root = log.lines().find(|line| line.starts_with("root=")).unwrap();
    for hidden in ["root ", "work", "data", "boot", "media", "srv"] {
        assert!(!root.trim_start_matches("root=").contains(hidden), "{root}");
    }
    let shared = node.sandboxes.dir("tour").volume("kubernetes.io~empty-dir", "sockets").join("file");
    assert_eq!(fs::read_to_string(shared).unwrap(), "hello\n");

    node.sandboxes.remove("tour").await.unwrap();
    node.sandboxes.remove("tour").await.unwrap();
    assert!(node.sandboxes.list().unwrap().is_empty());
    node.sandboxes.teardown().await.unwrap();
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

/// Each line is a way that leads further where it is open. Errors of the kernel are the same in every language.
const ATTACKS: &str = r#"
export LC_ALL=C
for flag in --user --mount --net --pid --ipc --uts --cgroup --time; do
  unshare $flag true 2>/dev/null && echo "open: unshare $flag"
done
mount -t tmpfs none /tmp 2>/dev/null && echo "open: mount"
nsenter --net=/proc/1/ns/net true 2>/dev/null && echo "open: setns"
dmesg >/dev/null 2>&1 && echo "open: the node's log"
chroot / true 2>/dev/null && echo "open: chroot"
[ "$(uname -m)" = x86_64 ] && perl -e 'for ([321,"bpf"],[298,"perf_event_open"],[250,"keyctl"],[425,"io_uring_setup"],[323,"userfaultfd"],[101,"ptrace"],[175,"init_module"],[246,"kexec_load"],[304,"open_by_handle_at"]) { $! = 0; syscall($_->[0], 0, 0, 0, 0); print "open: $_->[1] $!\n" unless $!{EPERM} }
  $! = 0; syscall(435, 0, 0); print "open: clone3 $!\n" unless $!{ENOSYS};
  $! = 0; syscall(41, 40, 1, 0); print "open: vsock $!\n" unless $!{EPERM};
  $! = 0; syscall(41, 38, 5, 0); print "open: af_alg $!\n" unless $!{EPERM};
  $! = 0; syscall(0x40000000, 0, 0, 0); print "open: x32 $!\n" unless $!{ENOSYS};'
ulimit -Hc | grep -qx 0 || echo "open: dumps"
echo tried
"#;

#[tokio::test]
async fn a_launcher_cannot_call_what_containers_may_not() {
    let node = Node::new(7);
    let plan = node.prepare("caller", &format!("{ATTACKS}\nwhile :; do sleep 0.05; done")).await;
    let running = node.sandboxes.start(&plan).await.unwrap();
    until("the attacks were tried", || {
        if node.log("caller").contains("tried") { Ok(()) } else { Err(node.log("caller")) }
    })
    .await;
    assert!(!node.log("caller").contains("open:"), "{}", node.log("caller"));
    // What is run in the pod later is held the same.
    let dir = node.sandboxes.dir("caller");
    let exec = Command::new(SHIM).arg("pod-exec").arg(dir.root()).args(["/bin/sh", "-c", ATTACKS]).output().unwrap();
    let said = String::from_utf8_lossy(&exec.stdout);
    assert!(said.contains("tried") && !said.contains("open:"), "{exec:?}");
    running.kill().unwrap();
    running.wait().await.unwrap();
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

/// Real, effective, saved and file system user of a process, as the host has them.
fn users_of(pid: i32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

#[tokio::test]
async fn two_machines_share_no_user() {
    let node = Node::new(8);
    assert_eq!(node.sandboxes.shared_user(), None, "this test needs a file system with id-mapped mounts for its files");
    let script = "umask 077; id -u > /var/run/kubevirt/sockets/own; echo up; while :; do sleep 0.05; done";
    let mut pods = Vec::new();
    for uid in ["left", "right"] {
        let mut plan = node.prepare(uid, script).await;
        // A volume inside of another one, as a claim's is: what it is mounted on is made where the host's root is nobody.
        let inner = node.sandboxes.dir(uid).volume("kubernetes.io~empty-dir", "inner");
        fs::create_dir_all(&inner).unwrap();
        std::os::unix::fs::chown(&inner, Some(107), Some(107)).unwrap();
        plan.mounts.push(MountPlan {
            source: inner,
            target: "/var/run/kubevirt/sockets/a/b".into(),
            ..plan.mounts[0].clone()
        });
        pods.push((uid, node.sandboxes.start(&plan).await.unwrap()));
        until("the pod is up", || if node.log(uid).contains("up") { Ok(()) } else { Err(node.log(uid)) }).await;
    }
    let [(_, left), (_, right)] = pods.as_slice() else { panic!("two pods") };
    let (left, right) = (left.state.process.pid, right.state.process.pid);
    let (one, two) = (users_of(left), users_of(right));
    assert!(one.iter().all(|id| *id == one[0]) && two.iter().all(|id| *id == two[0]), "{one:?} {two:?}");
    assert!(one[0] != two[0] && one[0] != 107 && two[0] != 107, "{one:?} {two:?}");

    // On disk their files are 107's, so that volumes move between machines; and it is 107 that they see themselves.
    let own = node.sandboxes.dir("right").volume("kubernetes.io~empty-dir", "sockets").join("own");
    let stored = fs::metadata(&own).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!((stored.uid(), stored.gid(), stored.mode() & 0o777), (107, 107, 0o600));
    assert_eq!(fs::read_to_string(&own).unwrap(), "107\n");

    // The left one has broken out: it is in the host's namespaces, with nothing but its user.
    let as_left = |script: String| {
        let id = one[0].to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
        command.args(["/bin/sh", "-c", &script]).output().unwrap()
    };
    let itself = as_left(format!("kill -0 {left} && echo mine"));
    assert_eq!(String::from_utf8_lossy(&itself.stdout), "mine\n", "{itself:?}");
    for attack in [
        format!("kill -0 {right}"),
        format!("ls /proc/{right}/root/"),
        format!("cat /proc/{right}/environ"),
        format!("ls /proc/{right}/fd"),
        format!("cat /proc/{right}/root/var/run/kubevirt/sockets/own"),
    ] {
        let tried = as_left(attack.clone());
        assert!(!tried.status.success() && tried.stdout.is_empty(), "{attack}: {tried:?}");
    }
    // Their ranges are given back with them, and only then.
    let claims = node.config.run_dir.parent().unwrap().join("user-ids");
    let claimed = || fs::read_dir(&claims).unwrap().flatten().filter(|entry| entry.file_name() != "lock").count();
    assert_eq!(claimed(), 2);
    for (uid, pod) in &pods {
        pod.kill().unwrap();
        pod.wait().await.unwrap();
        node.sandboxes.remove(uid).await.unwrap();
    }
    assert_eq!(claimed(), 0);
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_pod_that_cannot_start_says_why() {
    let node = Node::new(2);
    let mut plan = node.prepare("broken", "").await;
    plan.command = vec!["/no/such/program".into()];
    let ended = node.sandboxes.start(&plan).await.unwrap().wait().await.unwrap();
    assert_eq!((ended.exit.exit_code, ended.exit.reason.as_str()), (128, "StartError"));
    let message = ended.exit.message.unwrap();
    assert!(message.contains("/no/such/program"), "{message}");
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_volume_that_was_swapped_for_a_link_is_not_mounted() {
    let node = Node::new(7);
    let base = node.config.data_dir.join("claims");
    fs::create_dir_all(base.join("outside/inner")).unwrap();
    fs::write(base.join("outside/inner/secret"), "of the host").unwrap();
    std::os::unix::fs::symlink(base.join("outside"), base.join("link")).unwrap();
    let script = "cat /x/secret /x/inner/secret";
    for (uid, source, sub_path) in [
        ("last", base.join("link"), None),
        ("between", base.join("link/inner"), None),
        ("magic", "/proc/self/root/etc".into(), None),
        ("sub", base.join("link"), Some("inner".into())),
    ] {
        let mut plan = node.prepare(uid, script).await;
        let (target, read_only) = ("/x".into(), true);
        plan.mounts.push(MountPlan { source, sub_path, target, read_only, follow_host: false });
        let ended = node.sandboxes.start(&plan).await.unwrap().wait().await.unwrap();
        assert_eq!(ended.exit.reason, "StartError", "{uid}: {}", node.log(uid));
        assert!(!node.log(uid).contains("of the host"), "{uid}");
    }
    let mut plan = node.prepare("plain", script).await;
    let (source, target) = (base.join("outside"), "/x".into());
    plan.mounts.push(MountPlan { source, sub_path: Some("inner".into()), target, read_only: true, follow_host: false });
    node.sandboxes.start(&plan).await.unwrap().wait().await.unwrap();
    assert!(node.log("plain").contains("of the host"), "{}", node.log("plain"));
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_pods_leftovers_are_removed_without_following_them() {
    let node = Node::new(8);
    let base = node.config.data_dir.join("theirs");
    fs::create_dir_all(&base).unwrap();
    fs::write(base.join("file"), "kept").unwrap();
    node.prepare("messy", "").await;
    let volume = node.sandboxes.dir("messy").volume("kubernetes.io~empty-dir", "sockets");
    for name in ["link", "with space", "back\\slash", "new\nline"] {
        std::os::unix::fs::symlink(&base, volume.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("/proc/self/root", volume.join("magic")).unwrap();
    fs::create_dir_all(volume.join("a/\\040/b")).unwrap();
    node.sandboxes.remove("messy").await.unwrap();
    assert_eq!(fs::read_to_string(base.join("file")).unwrap(), "kept");
    let left: Vec<_> =
        fs::read_dir(node.config.data_dir.join("pods")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    node.sandboxes.teardown().await.unwrap();
}

#[tokio::test]
async fn killing_pid_1_takes_the_whole_tree_and_term_is_delivered() {
    let node = Node::new(3);
    let plan = node.prepare("tree", "setsid sleep 1000 & setsid sleep 1000 & echo up; wait").await;
    let running = node.sandboxes.start(&plan).await.unwrap();
    until("the tree is up", || {
        let members = node.sandboxes.cgroup_members("tree");
        if members.len() >= 4 { Ok(()) } else { Err(format!("{members:?}")) }
    })
    .await;
    assert!(node.sandboxes.remove("tree").await.is_err(), "a running pod was removed");
    running.kill().unwrap();
    let ended = running.wait().await.unwrap();
    assert_eq!((ended.exit.exit_code, ended.exit.signal), (137, Some(9)));
    assert_eq!(node.sandboxes.cgroup_members("tree"), Vec::<i32>::new());

    let plan = node.prepare("term", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done").await;
    let running = node.sandboxes.start(&plan).await.unwrap();
    until("the trap is set", || if node.log("term").contains("up") { Ok(()) } else { Err(node.log("term")) }).await;
    let exec = |script: &str| {
        let dir = node.sandboxes.dir("term");
        Command::new(SHIM).arg("pod-exec").arg(dir.root()).args(["/bin/sh", "-c", script]).output().unwrap()
    };
    let inside = exec(
        "echo uid=$(id -u) pod=$POD host=$(hostname) first=$(tr '\\0' ' ' </proc/1/cmdline | cut -c1-7); \
        grep -c 'NoNewPrivs:.1' /proc/self/status; exit 3",
    );
    let text = String::from_utf8_lossy(&inside.stdout);
    assert_eq!(inside.status.code(), Some(3), "{inside:?}");
    assert!(text.starts_with("uid=107 pod=term host=guest-host first=/bin/sh"), "{inside:?}");
    assert!(text.ends_with("\n1\n"), "{inside:?}");
    running.terminate().unwrap();
    let ended = running.wait().await.unwrap();
    assert_eq!((ended.exit.exit_code, ended.exit.reason.as_str()), (0, "Completed"));
    let late = exec("echo too late");
    assert!(!late.status.success() && late.stdout.is_empty(), "{late:?}");
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn a_pod_outlives_who_started_it_and_is_found_again() {
    let node = Node::new(4);
    let plan = node.prepare("orphan", "echo up; while [ ! -e /run/kubevirt/sockets/stop ]; do sleep 0.05; done").await;
    // A process between us and the shim stands for `up`: it starts the shim and is killed.
    let dir = node.sandboxes.dir("orphan");
    records::write(&dir.init(), &plan).unwrap();
    records::write_bytes(&dir.attempt(), b"one").unwrap();
    let mut parent = Command::new("/bin/sh")
        .args(["-c", "\"$0\" pod-shim \"$1\" one & read never", SHIM])
        .arg(dir.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the pod is recorded", || if dir.state().exists() { Ok(()) } else { Err("no state.json".into()) }).await;
    let before: StateRecord = records::read(&dir.state()).unwrap().unwrap();
    parent.kill().unwrap();
    parent.wait().unwrap();

    let Found::Running(running) = node.sandboxes.find("orphan").await.unwrap() else { panic!("not adopted") };
    assert_eq!(running.state, before);
    assert!(node.sandboxes.start(&plan).await.is_err(), "a second instance was started");
    // A late shim of an attempt that was given up must not start anything either.
    let late = Command::new(SHIM).arg("pod-shim").arg(dir.root()).arg("two").output().unwrap();
    assert!(!late.status.success());
    assert_eq!(records::read::<StateRecord>(&dir.state()).unwrap().unwrap(), before);

    fs::File::create(dir.volume("kubernetes.io~empty-dir", "sockets").join("stop")).unwrap().write_all(b"").unwrap();
    assert_eq!(running.wait().await.unwrap().exit.exit_code, 0);
    let Found::Exited(ended) = node.sandboxes.find("orphan").await.unwrap() else { panic!("not ended") };
    assert_eq!((ended.exit.exit_code, ended.started_at), (0, Some(before.started_at)));
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn ends_that_nobody_saw_are_told_apart() {
    let node = Node::new(5);
    let plan = node.prepare("shimless", "echo up; while :; do sleep 0.05; done").await;
    let running = node.sandboxes.start(&plan).await.unwrap();
    let shim = running.state.shim.pid;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::Signal::SIGKILL).unwrap();
    until("the shim is gone", || match ProcessId::of(shim) {
        Ok(found) if found == running.state.shim && !is_zombie(shim) => Err("alive".into()),
        _ => Ok(()),
    })
    .await;
    let Found::Running(found) = node.sandboxes.find("shimless").await.unwrap() else { panic!("the pod is gone") };
    found.kill().unwrap();
    assert_eq!(found.wait().await.unwrap().exit.reason, "ContainerStatusUnknown");

    // One whose shim is gone, and that says itself how it ended.
    for (uid, words, code) in
        [("well", "Succeeded: the guest powered off", 0), ("badly", "Failed: the guest crashed", 1)]
    {
        let script = format!(
            "echo up; until [ -e /run/kubevirt/sockets/stop ]; do sleep 0.05; done; echo '{words}' > /dev/termination-log"
        );
        let plan = node.prepare(uid, &script).await;
        let running = node.sandboxes.start(&plan).await.unwrap();
        until("the pod is up", || if node.log(uid).contains("up") { Ok(()) } else { Err(node.log(uid)) }).await;
        let shim = running.state.shim.pid;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(shim), nix::sys::signal::Signal::SIGKILL).unwrap();
        fs::write(node.sandboxes.dir(uid).volume("kubernetes.io~empty-dir", "sockets").join("stop"), "").unwrap();
        let ended = running.wait().await.unwrap();
        assert_eq!(ended.exit.exit_code, code, "{:?}", ended.exit);
        assert_eq!(ended.exit.message.as_deref(), Some(format!("{words}\n").as_str()));
        let Found::Exited(again) = node.sandboxes.find(uid).await.unwrap() else { panic!("not ended") };
        assert_eq!(again.exit, ended.exit);
    }

    let mut state: StateRecord = records::read(&node.sandboxes.dir("shimless").state()).unwrap().unwrap();
    node.sandboxes.create_dir(&node.record("rebooted")).unwrap();
    state.process.boot_id = "another".into();
    records::write(&node.sandboxes.dir("rebooted").state(), &state).unwrap();
    let Found::Exited(ended) = node.sandboxes.find("rebooted").await.unwrap() else { panic!("not ended") };
    assert_eq!(ended.exit.reason, "NodeReboot");
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

#[tokio::test]
async fn pods_reach_the_outside_with_the_hosts_address() {
    let node = Node::new(6);
    let outside = node.config.run_dir.join("outside");
    ferrovirt_node_lite::netns::create(&outside).unwrap();
    let link = format!("fvo{}", node.config.instance);
    let ip = |arguments: String| {
        let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    };
    ip(format!("link add {link} type veth peer name eth0 netns {}", outside.display()));
    ip(format!("addr add 198.51.100.1/30 dev {link}"));
    ip(format!("link set {link} up"));
    // The far side knows no way back to pods: only a translated address gets an answer.
    let listener = ferrovirt_net::netns::enter(&outside, || {
        for arguments in ["addr add 198.51.100.2/30 dev eth0", "link set eth0 up"] {
            assert!(Command::new("ip").args(arguments.split(' ')).status()?.success(), "ip {arguments}");
        }
        std::net::TcpListener::bind("198.51.100.2:7000")
    })
    .unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        stream.write_all(b"welcome\n").unwrap();
        peer.ip().to_string()
    });
    let script = "exec timeout 15 bash -c 'exec 3<>/dev/tcp/198.51.100.2/7000 && cat <&3'";
    let plan = node.prepare("client", script).await;
    let ended = node.sandboxes.start(&plan).await.unwrap().wait().await.unwrap();
    assert_eq!((ended.exit.exit_code, node.log("client").as_str()), (0, "welcome\n"));
    assert_eq!(server.join().unwrap(), "198.51.100.1");
    ip(format!("link delete {link}"));
    ferrovirt_node_lite::netns::remove(&outside).unwrap();
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}

fn is_zombie(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

/// It waits for a word of the first container's, says who it is, and ends; the second time it stays.
const BESIDE: &str = r#"
word=/var/run/kubevirt/sockets/word
until [ -e $word ]; do sleep 0.05; done
echo "uid=$(id -u) host=$(uname -n) first=$(tr '\0' ' ' < /proc/1/cmdline | cut -c1-7) pod=$POD"
grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\t' | tr '\n' ' '; echo
[ -e /var/run/kubevirt/sockets/again ] && echo "again" && exec sleep 600
touch /var/run/kubevirt/sockets/again
"#;

#[tokio::test]
async fn a_second_container_shares_the_first_ones_world_and_goes_with_it() {
    let node = Node::new(9);
    let mut plan = node.prepare("beside", "touch /var/run/kubevirt/sockets/word; sleep 6; echo first").await;
    plan.sidecar = Some(SidecarPlan {
        container: "second".into(),
        command: vec!["/bin/sh".into(), "-c".into(), BESIDE.into()],
        uid: 107,
        gid: 107,
    });
    let running = node.sandboxes.start(&plan).await.unwrap();
    until("the second container", || {
        let log = node.log_of("beside", "second");
        log.contains("again\n").then_some(()).ok_or(log)
    })
    .await;
    let log = node.log_of("beside", "second");
    let seen = log.lines().next().unwrap();
    assert_eq!(seen, "uid=107 host=guest-host first=/bin/sh pod=beside", "{log}");
    assert!(log.contains("CapEff:0000000000000000 CapBnd:0000000000000000 NoNewPrivs:1 Seccomp:2"), "{log}");
    // It would go on for minutes. The pod ends with its first container, and says how that ended.
    let ended = tokio::time::timeout(Duration::from_secs(20), running.wait()).await.unwrap().unwrap();
    assert_eq!(ended.exit.exit_code, 0);
    assert_eq!(node.log("beside"), "first\n");
    node.sandboxes.remove("beside").await.unwrap();
    node.sandboxes.teardown().await.unwrap();
    assert_eq!(node.leftovers(), Vec::<String>::new());
}
