//! `ferrovirt vnc`: a guest's screen in a viewer, on a port, or as a picture.

use std::{net::IpAddr, path::PathBuf, process::Stdio};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use kube::Client;
use serde_json::json;
use tokio::net::TcpListener;

use crate::{
    client::ClientArgs,
    output, socket,
    target::{self, Kind},
};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct VncArgs {
    #[command(subcommand)]
    command: Option<VncCommand>,
    /// The machine
    #[arg(required = true)]
    name: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Only listen, and print the port as JSON; viewers connect by themselves
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    proxy_only: bool,
    /// Port to listen on [default: any]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
    /// The viewer's program [default: the first of remote-viewer and vncviewer in the PATH]
    #[arg(long)]
    vnc_path: Option<PathBuf>,
    /// Kind of viewer: remote-viewer, tiger or real
    #[arg(long)]
    vnc_type: Option<String>,
    /// Accepted for upstream's sake: viewers share the screen here, so nobody's session is dropped
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide = true)]
    preserve_session: Option<bool>,
}

#[derive(Subcommand)]
enum VncCommand {
    /// Save the screen as a PNG
    Screenshot(ScreenshotArgs),
}

#[derive(Args)]
struct ScreenshotArgs {
    /// The machine
    name: String,
    #[command(flatten)]
    client: ClientArgs,
    /// Where to save it, `-` for standard output
    #[arg(short, long)]
    file: String,
    /// Accepted for upstream's sake: a screen saver is not woken
    #[arg(short, long, hide = true)]
    move_cursor: bool,
}

pub async fn run(arguments: VncArgs) -> Result<()> {
    if let Some(VncCommand::Screenshot(arguments)) = arguments.command {
        return screenshot(arguments).await;
    }
    let named = target::path(arguments.name.as_deref().unwrap_or_default())?;
    let client = arguments.client.connect().await?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.client.namespace(&client).to_owned());
    let path = socket::path(&namespace, Kind::Instance.resource(), &named.name, "vnc");
    // Opened and dropped: whoever may not see the screen is told now, not by a viewer that closes.
    drop(socket::open(&client, &path).await?);
    let listener = TcpListener::bind((arguments.address, arguments.port))
        .await
        .with_context(|| format!("cannot listen on {}:{}", arguments.address, arguments.port))?;
    let port = listener.local_addr()?.port();
    if arguments.proxy_only {
        println!("{}", json!({ "port": port }));
        return serve(&client, &path, listener).await;
    }
    let Some((program, words)) = viewer(&arguments, port) else {
        eprintln!(
            "No viewer (remote-viewer, vncviewer) is in the PATH. Name one with --vnc-path, or connect one to {}:{port} now.",
            arguments.address
        );
        return serve(&client, &path, listener).await;
    };
    let mut child = tokio::process::Command::new(&program)
        .args(words)
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    tokio::select! {
        ended = child.wait() => match ended?.success() {
            true => Ok(()),
            false => bail!("{} failed", program.display()),
        },
        served = serve(&client, &path, listener) => served,
    }
}

async fn serve(client: &Client, path: &str, listener: TcpListener) -> Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        let (client, path) = (client.clone(), path.to_owned());
        tokio::spawn(async move {
            let joined = async {
                let socket = socket::open(&client, &path).await?;
                let (reader, writer) = stream.into_split();
                socket::join(socket, reader, writer).await
            };
            match joined.await {
                Ok(None) => {}
                Ok(Some(reason)) => eprintln!("the screen was closed: {reason}"),
                Err(error) => eprintln!("cannot show the screen: {}", crate::client::explain(&error)),
            }
        });
    }
}

fn viewer(arguments: &VncArgs, port: u16) -> Option<(PathBuf, Vec<String>)> {
    let in_path = |name: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).map(|directory| directory.join(name)).find(|file| file.is_file())
    };
    let words = |kind: &str| match kind {
        "remote-viewer" => vec![format!("vnc://{}:{port}", arguments.address)],
        // TigerVNC and RealVNC take a display number with one colon and a port with two.
        _ => vec![format!("{}::{port}", arguments.address)],
    };
    let kind = arguments.vnc_type.as_deref();
    if let Some(program) = &arguments.vnc_path {
        let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        return Some((program.clone(), words(kind.unwrap_or(name))));
    }
    let names: &[&str] = match kind {
        Some("remote-viewer") => &["remote-viewer"],
        Some(_) => &["vncviewer", "xtigervncviewer"],
        None => &["remote-viewer", "vncviewer", "xtigervncviewer"],
    };
    names.iter().find_map(|name| in_path(name).map(|program| (program, words(name))))
}

async fn screenshot(arguments: ScreenshotArgs) -> Result<()> {
    let named = target::path(&arguments.name)?;
    let client = arguments.client.connect().await?;
    let namespace = named.namespace.clone().unwrap_or_else(|| arguments.client.namespace(&client).to_owned());
    let path = socket::path(&namespace, Kind::Instance.resource(), &named.name, "vnc/screenshot");
    let response = client
        .send(http::Request::get(path).header("Accept", "application/json").body(kube::client::Body::empty())?)
        .await?;
    let code = response.status();
    let body = http_body_util::BodyExt::collect(response.into_body()).await?.to_bytes();
    if !code.is_success() {
        let status: kube::core::Status = serde_json::from_slice(&body).context("the server gave no picture")?;
        return Err(kube::Error::Api(Box::new(status)).into());
    }
    if arguments.file == "-" {
        output::bytes(&body);
    } else {
        std::fs::write(&arguments.file, &body).with_context(|| format!("cannot write {}", arguments.file))?;
        eprintln!("saved {} bytes to {}", body.len(), arguments.file);
    }
    Ok(())
}
