//! Real servers that images come from: a web server and an image registry, on ports of their own.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::wait::{self, Seen};

/// nginx over one directory.
pub struct Web {
    child: Child,
    directory: PathBuf,
    pub port: u16,
    /// With TLS, if [`certificate`] made a certificate in the directory before.
    pub secure_port: u16,
}

/// Who may read below `/login/` of a [`Web`], and from a [`Registry`] with a login.
pub const USER: &str = "somebody";
pub const PASSWORD: &str = "ferro";
/// The password as bcrypt has it, which is all that the registry takes.
const PASSWORD_HASH: &str = "$2b$04$iSXWMpFC6NL1kSndd/UwCeSz9YF/xW/CcCSzL5AnAgu43U1yVzOf6";

/// Makes a certificate for an address, signed by itself, and answers it as PEM.
pub fn certificate(directory: &Path, address: &str) -> Result<String> {
    fs::create_dir_all(directory)?;
    let (key, certificate) = (directory.join("server.key"), directory.join("server.pem"));
    run(Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=images", "-addext", &format!("subjectAltName=IP:{address}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(&certificate))?;
    Ok(fs::read_to_string(certificate)?)
}

/// Debian's docker-registry.
pub struct Registry {
    child: Child,
    pub port: u16,
    login: bool,
}

impl Web {
    /// Serves `directory/www`. Logs and the like stay in `directory`. `limit` is bytes in a second for each connection.
    pub fn start(directory: &Path, limit: Option<&str>) -> Result<Self> {
        Self::start_on(directory, free_port()?, limit)
    }

    pub fn start_on(directory: &Path, port: u16, limit: Option<&str>) -> Result<Self> {
        fs::create_dir_all(directory.join("www"))?;
        let home = directory.display();
        let limit = limit.map(|limit| format!("limit_rate {limit};")).unwrap_or_default();
        fs::write(directory.join("users"), format!("{USER}:{{PLAIN}}{PASSWORD}\n"))?;
        let secure_port = free_port()?;
        let secure = match directory.join("server.pem").exists() {
            true => format!(
                "server {{ listen {secure_port} ssl; root {home}/www; ssl_certificate {home}/server.pem; \
                 ssl_certificate_key {home}/server.key; }}"
            ),
            false => String::new(),
        };
        let config = directory.join("nginx.conf");
        fs::write(
            &config,
            format!(
                "daemon off; master_process off; pid {home}/nginx.pid; error_log {home}/error.log;\nevents {{}}\nhttp {{\n\
                 log_format size '$request_method $uri $status $body_bytes_sent'; access_log {home}/access.log size;\n\
                 client_body_temp_path {home}/tmp; proxy_temp_path {home}/tmp; fastcgi_temp_path {home}/tmp;\n\
                 uwsgi_temp_path {home}/tmp; scgi_temp_path {home}/tmp;\n\
                 server {{\n listen {port}; root {home}/www; {limit}\n\
                 location /login/ {{ auth_basic x; auth_basic_user_file {home}/users; alias {home}/www/; }}\n\
                 location /broken/ {{ return 500; }}\n }}\n{secure}\n}}\n"
            ),
        )?;
        let child = Command::new("nginx")
            .args(["-c", &config.to_string_lossy(), "-p", &directory.to_string_lossy()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start nginx")?;
        let web = Self { child, directory: directory.to_owned(), port, secure_port };
        answers(port)?;
        Ok(web)
    }

    /// Bytes that were sent for a path, over all requests.
    pub fn sent(&self, path: &str) -> Result<u64> {
        let log = fs::read_to_string(self.directory.join("access.log"))?;
        let lines = log.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        Ok(lines.filter(|line| line.get(1) == Some(&path)).filter_map(|line| line.get(3)?.parse::<u64>().ok()).sum())
    }
}

impl Registry {
    pub fn start(directory: &Path) -> Result<Self> {
        Self::start_with(directory, false)
    }

    /// One that only [`USER`] may read and write.
    pub fn start_with_login(directory: &Path) -> Result<Self> {
        Self::start_with(directory, true)
    }

    fn start_with(directory: &Path, login: bool) -> Result<Self> {
        let port = free_port()?;
        fs::create_dir_all(directory)?;
        let config = directory.join("registry.yaml");
        let storage = directory.join("storage");
        let users = directory.join("users");
        fs::write(&users, format!("{USER}:{PASSWORD_HASH}\n"))?;
        let auth = match login {
            true => format!("auth: {{ htpasswd: {{ realm: images, path: {} }} }}\n", users.display()),
            false => String::new(),
        };
        fs::write(
            &config,
            format!(
                "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\n\
                 http: {{ addr: '127.0.0.1:{port}' }}\n{auth}",
                storage.display()
            ),
        )?;
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start docker-registry")?;
        let registry = Self { child, port, login };
        answers(port)?;
        Ok(registry)
    }

    /// Puts the image of an OCI archive there, with curl, and answers its reference.
    pub fn push(&self, archive: &Path, name: &str, work: &Path) -> Result<String> {
        self.push_tagged(archive, name, "latest", work)
    }

    pub fn push_tagged(&self, archive: &Path, name: &str, tag: &str, work: &Path) -> Result<String> {
        fs::create_dir_all(work)?;
        run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(work))?;
        let index: serde_json::Value = serde_json::from_slice(&fs::read(work.join("index.json"))?)?;
        let digest = index["manifests"][0]["digest"].as_str().context("no manifest")?;
        let blob = |digest: &str| work.join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
        let manifest: serde_json::Value = serde_json::from_slice(&fs::read(blob(digest))?)?;
        let layers = manifest["layers"].as_array().context("no layers")?.iter();
        let base = format!("http://127.0.0.1:{}/v2/{name}", self.port);
        let login = if self.login { format!("{USER}:{PASSWORD}") } else { String::new() };
        let curl = || {
            let mut curl = Command::new("curl");
            curl.arg("-sSf");
            if !login.is_empty() {
                curl.args(["-u", &login]);
            }
            curl
        };
        for part in layers.chain([&manifest["config"]]) {
            let digest = part["digest"].as_str().context("no digest")?;
            let headers = run(curl().args(["-i", "-X", "POST", &format!("{base}/blobs/uploads/")]))?;
            let place = headers.lines().find_map(|line| line.strip_prefix("Location: ")).context("no location")?.trim();
            let separator = if place.contains('?') { '&' } else { '?' };
            let place = match place.starts_with('/') {
                true => format!("http://127.0.0.1:{}{place}", self.port),
                false => place.to_owned(),
            };
            let file = format!("@{}", blob(digest).display());
            run(curl()
                .args(["-X", "PUT", "-H", "Content-Type: application/octet-stream", "--data-binary"])
                .arg(file)
                .arg(format!("{place}{separator}digest={digest}")))?;
        }
        let file = format!("@{}", blob(digest).display());
        let kind = "Content-Type: application/vnd.oci.image.manifest.v1+json";
        run(curl().args(["-X", "PUT", "-H", kind, "--data-binary"]).arg(file).arg(format!("{base}/manifests/{tag}")))?;
        Ok(format!("127.0.0.1:{}/{name}:{tag}", self.port))
    }
}

fn run(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn answers(port: u16) -> Result<()> {
    wait::until("the server to answer", wait::SOON, || {
        Ok(match TcpStream::connect(("127.0.0.1", port)) {
            Ok(_) => Seen::Yes(()),
            Err(error) => Seen::Not(error.to_string()),
        })
    })
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
