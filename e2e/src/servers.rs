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
}

/// Debian's docker-registry, without a login.
pub struct Registry {
    child: Child,
    pub port: u16,
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
        let config = directory.join("nginx.conf");
        fs::write(
            &config,
            format!(
                "daemon off; master_process off; pid {home}/nginx.pid; error_log {home}/error.log;\nevents {{}}\nhttp {{\n\
                 log_format size '$request_method $uri $status $body_bytes_sent'; access_log {home}/access.log size;\n\
                 client_body_temp_path {home}/tmp; proxy_temp_path {home}/tmp; fastcgi_temp_path {home}/tmp;\n\
                 uwsgi_temp_path {home}/tmp; scgi_temp_path {home}/tmp;\n\
                 server {{ listen {port}; root {home}/www; {limit} }}\n}}\n"
            ),
        )?;
        let child = Command::new("nginx")
            .args(["-c", &config.to_string_lossy(), "-p", &directory.to_string_lossy()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start nginx")?;
        let web = Self { child, directory: directory.to_owned(), port };
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
        let port = free_port()?;
        fs::create_dir_all(directory)?;
        let config = directory.join("registry.yaml");
        let storage = directory.join("storage");
        fs::write(
            &config,
            format!(
                "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }} }}\n\
                 http: {{ addr: '127.0.0.1:{port}' }}\n",
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
        let registry = Self { child, port };
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
        for part in layers.chain([&manifest["config"]]) {
            let digest = part["digest"].as_str().context("no digest")?;
            let headers =
                run(Command::new("curl").args(["-sSf", "-i", "-X", "POST", &format!("{base}/blobs/uploads/")]))?;
            let place = headers.lines().find_map(|line| line.strip_prefix("Location: ")).context("no location")?.trim();
            let separator = if place.contains('?') { '&' } else { '?' };
            let place = match place.starts_with('/') {
                true => format!("http://127.0.0.1:{}{place}", self.port),
                false => place.to_owned(),
            };
            let file = format!("@{}", blob(digest).display());
            run(Command::new("curl")
                .args(["-sSf", "-X", "PUT", "-H", "Content-Type: application/octet-stream", "--data-binary"])
                .arg(file)
                .arg(format!("{place}{separator}digest={digest}")))?;
        }
        let file = format!("@{}", blob(digest).display());
        let kind = "Content-Type: application/vnd.oci.image.manifest.v1+json";
        run(Command::new("curl")
            .args(["-sSf", "-X", "PUT", "-H", kind, "--data-binary"])
            .arg(file)
            .arg(format!("{base}/manifests/{tag}")))?;
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
