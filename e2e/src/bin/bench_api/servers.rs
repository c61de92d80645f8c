//! The two servers: how they are started, asked for their memory, and stopped.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use crate::http::Access;

/// The group of the user who makes the load.
pub const GROUP: &str = "benchers";
const USER: &str = "bench";

pub trait Target {
    fn start(&mut self) -> Result<()>;
    fn stop(&mut self) -> Result<()>;
    /// Its processes stand still while the other server is measured, or go on.
    fn stand_still(&self, still: bool) -> Result<()>;
    /// May do everything.
    fn admin(&self) -> Result<Access>;
    /// May do what the role of its group says.
    fn user(&self) -> Result<Access>;
    /// Resident, of all its processes, in KiB.
    fn memory(&self) -> Result<u64>;
    /// Where to look when it does not start.
    fn log(&self) -> String;
}

/// A process that does not outlive its handle.
struct Running {
    child: Child,
    name: &'static str,
}

impl Running {
    fn start(name: &'static str, command: &mut Command, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        let command = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self { child: command.spawn().with_context(|| format!("cannot start {name}"))?, name })
    }

    fn stop(&mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        if self.child.try_wait()?.is_none() {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
            self.stand_still(false)?;
        }
        self.child.wait()?;
        Ok(())
    }

    fn stand_still(&self, still: bool) -> Result<()> {
        let signal = if still { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
        Ok(rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)?)
    }

    fn memory(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(&path).with_context(|| format!("{} is gone", self.name))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

pub struct Ferrovirt {
    program: PathBuf,
    data_dir: PathBuf,
    log: PathBuf,
    port: u16,
    running: Option<Running>,
}

impl Ferrovirt {
    pub fn new(work: &Path) -> Result<Self> {
        let bin = std::env::var_os("FERROVIRT_BIN_DIR").context("set FERROVIRT_BIN_DIR, or use make bench-api")?;
        Self::of(Path::new(&bin), work)
    }

    /// The programs of a directory.
    pub fn of(bin: &Path, work: &Path) -> Result<Self> {
        fs::create_dir_all(work)?;
        let program = bin.join("ferrovirt");
        let (data_dir, log) = (work.join("ferrovirt"), work.join("ferrovirt.log"));
        Ok(Self { program, data_dir, log, port: free_port()?, running: None })
    }

    fn ferrovirt(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.program).args(arguments).arg("--data-dir").arg(&self.data_dir).output()?;
        ensure!(
            output.status.success(),
            "ferrovirt {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Target for Ferrovirt {
    fn start(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["up", "--listen", &format!("127.0.0.1:{}", self.port), "--data-dir"]).arg(&self.data_dir);
        self.running = Some(Running::start("ferrovirt", &mut command, &self.log)?);
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.running.take().map_or(Ok(()), |mut running| running.stop())
    }

    fn stand_still(&self, still: bool) -> Result<()> {
        self.running.iter().try_for_each(|running| running.stand_still(still))
    }

    fn admin(&self) -> Result<Access> {
        Access::from_kubeconfig(&fs::read_to_string(self.data_dir.join("kubeconfig"))?)
    }

    fn user(&self) -> Result<Access> {
        Access::from_kubeconfig(&self.ferrovirt(&["kubeconfig", "--user", USER, "--group", GROUP])?)
    }

    fn memory(&self) -> Result<u64> {
        self.running.as_ref().context("it does not run")?.memory()
    }

    fn log(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Ferrovirt {
    fn drop(&mut self) {
        let _ = self.stop();
        // Bridges, namespaces and what else it made on this machine.
        if let Err(error) = self.ferrovirt(&["down"]) {
            eprintln!("bench-api: {error:#}");
        }
    }
}

pub struct Kubernetes {
    programs: PathBuf,
    work: PathBuf,
    authority: (KeyPair, CertificateParams, String),
    admin: (String, String),
    user: (String, String),
    ports: [u16; 3],
    apiserver: Option<Running>,
    etcd: Option<Running>,
}

impl Kubernetes {
    pub fn new(programs: &Path, work: &Path) -> Result<Self> {
        let work = work.join("kubernetes");
        fs::create_dir_all(&work)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "bench-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key)?.pem();
        fs::write(work.join("ca.crt"), &certificate)?;
        let accounts = KeyPair::generate()?;
        fs::write(work.join("service-account.key"), accounts.serialize_pem())?;
        fs::write(work.join("service-account.pub"), accounts.public_key_pem())?;
        let empty = (String::new(), String::new());
        let mut made = Self {
            programs: programs.to_owned(),
            work,
            authority: (key, params, certificate),
            admin: empty.clone(),
            user: empty,
            ports: [free_port()?, free_port()?, free_port()?],
            apiserver: None,
            etcd: None,
        };
        made.admin = made.sign("admin", "system:masters", ExtendedKeyUsagePurpose::ClientAuth)?;
        made.user = made.sign(USER, GROUP, ExtendedKeyUsagePurpose::ClientAuth)?;
        let (certificate, key) = made.sign("kube-apiserver", "", ExtendedKeyUsagePurpose::ServerAuth)?;
        fs::write(made.work.join("serving.crt"), certificate)?;
        fs::write(made.work.join("serving.key"), key)?;
        Ok(made)
    }

    fn sign(&self, name: &str, group: &str, usage: ExtendedKeyUsagePurpose) -> Result<(String, String)> {
        let (authority_key, authority, _) = &self.authority;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if !group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![usage];
        params.subject_alt_names = vec![SanType::DnsName("localhost".try_into()?)];
        let certificate = params.signed_by(&key, &Issuer::from_params(authority, authority_key))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    fn access(&self, (certificate, key): &(String, String)) -> Result<Access> {
        Access::new(&format!("127.0.0.1:{}", self.ports[2]), &self.authority.2, certificate, key)
    }
}

impl Target for Kubernetes {
    /// With their defaults, but for what they cannot do without here.
    fn start(&mut self) -> Result<()> {
        let [client, peer, secure] = self.ports;
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let mut etcd = Command::new(self.programs.join("etcd"));
        etcd.arg("--data-dir").arg(self.work.join("etcd"));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}")]);
        self.etcd = Some(Running::start("etcd", &mut etcd, &self.work.join("etcd.log"))?);

        let file = |name: &str| self.work.join(name).display().to_string();
        let mut apiserver = Command::new(self.programs.join("kube-apiserver"));
        apiserver.args([
            format!("--etcd-servers={client}"),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={secure}"),
            format!("--tls-cert-file={}", file("serving.crt")),
            format!("--tls-private-key-file={}", file("serving.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            "--authorization-mode=RBAC".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            format!("--service-account-key-file={}", file("service-account.pub")),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
        ]);
        self.apiserver = Some(Running::start("kube-apiserver", &mut apiserver, &self.work.join("kube-apiserver.log"))?);
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        for mut running in self.apiserver.take().into_iter().chain(self.etcd.take()) {
            running.stop()?;
        }
        Ok(())
    }

    fn stand_still(&self, still: bool) -> Result<()> {
        self.apiserver.iter().chain(&self.etcd).try_for_each(|running| running.stand_still(still))
    }

    fn admin(&self) -> Result<Access> {
        self.access(&self.admin)
    }

    fn user(&self) -> Result<Access> {
        self.access(&self.user)
    }

    fn memory(&self) -> Result<u64> {
        let of = |running: &Option<Running>| running.as_ref().context("it does not run")?.memory();
        Ok(of(&self.apiserver)? + of(&self.etcd)?)
    }

    fn log(&self) -> String {
        tail(&self.work.join("kube-apiserver.log"))
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}
