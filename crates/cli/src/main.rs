//! The `ferrovirt` binary: user commands, `up`, and every server role.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod apply;
mod client;
mod console;
mod delete;
mod domain_xml;
mod down;
mod get;
mod image;
mod install;
mod kubeconfig;
mod logging;
mod power;
mod roles;
mod status;
mod table;
mod up;
mod wait;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

/// Virtual machines as Kubernetes objects.
#[derive(Parser)]
#[command(name = "ferrovirt", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Turn this machine into a VM host
    Up(up::UpArgs),
    /// Stop all VMs in order, then the host
    Down(HostArgs),
    /// Say what runs, where, and how to connect
    Status(HostArgs),
    /// Make credentials for someone
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// Create or change objects from a file
    Apply(apply::ApplyArgs),
    /// List objects
    Get(get::GetArgs),
    /// Delete objects
    Delete(delete::DeleteArgs),
    /// Connect to a VM's serial console (leave with ^])
    Console(console::ConsoleArgs),
    /// Start a VM
    Start(power::PowerArgs),
    /// Stop a VM
    Stop(power::PowerArgs),
    /// Restart a VM
    Restart(power::PowerArgs),
    /// Images on this host
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Print the domain XML that a manifest would get, without a cluster
    DomainXml(domain_xml::DomainXmlArgs),
    /// Install Ferrovirt on a Kubernetes cluster
    Install(install::InstallArgs),
    /// Remove Ferrovirt from a Kubernetes cluster
    Uninstall(install::UninstallArgs),
    /// Serve webhooks and subresources (runs in a pod)
    #[command(hide = true)]
    VirtApi(roles::virt_api::VirtApiArgs),
    /// Run the cluster's controllers (runs in a pod)
    #[command(hide = true)]
    VirtController(roles::virt_controller::VirtControllerArgs),
    /// Care for the VMs of a node (runs in a pod)
    #[command(hide = true)]
    VirtHandler(roles::virt_handler::VirtHandlerArgs),
}

/// Which host of this machine is meant.
#[derive(Args, Clone)]
pub struct HostArgs {
    /// Where the host keeps its data
    #[arg(long, env = "FERROVIRT_DATA_DIR", default_value = up::paths::DEFAULT_DATA_DIR)]
    pub data_dir: PathBuf,
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // The per-pod processes come first: they must stay tiny, so nothing else may run before them.
    match arguments.get(1).and_then(|a| a.to_str()) {
        Some("pod-shim") => return exit_code(ferrovirt_node_lite::shim_main(arguments.into_iter().skip(2))),
        Some("pod-init") => return exit_code(ferrovirt_node_lite::init_main(arguments.into_iter().skip(2))),
        _ => {}
    }
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", client::explain(&error));
            ExitCode::FAILURE
        }
    }
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn run(command: Command) -> anyhow::Result<()> {
    let threads = match &command {
        Command::Up(_) => 2,
        _ => 1,
    };
    if let Command::Up(arguments) = &command
        && let Some(done) = up::before_runtime(arguments)?
    {
        return done;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Up(arguments) => up::run(arguments).await,
            Command::Down(arguments) => down::run(arguments).await,
            Command::Status(arguments) => status::run(arguments).await,
            Command::Kubeconfig(arguments) => kubeconfig::run(&arguments),
            Command::Apply(arguments) => apply::run(arguments).await,
            Command::Get(arguments) => get::run(arguments).await,
            Command::Delete(arguments) => delete::run(arguments).await,
            Command::Console(arguments) => console::run(arguments).await,
            Command::Start(arguments) => power::run("start", arguments).await,
            Command::Stop(arguments) => power::run("stop", arguments).await,
            Command::Restart(arguments) => power::run("restart", arguments).await,
            Command::Image(command) => image::run(command),
            Command::DomainXml(arguments) => domain_xml::run(&arguments),
            Command::Install(arguments) => install::install(arguments).await,
            Command::Uninstall(arguments) => install::uninstall(arguments).await,
            Command::VirtApi(arguments) => roles::virt_api::run(arguments).await,
            Command::VirtController(arguments) => roles::virt_controller::run(arguments).await,
            Command::VirtHandler(arguments) => roles::virt_handler::run(arguments).await,
        }
    });
    // A reader that waits for the terminal cannot be interrupted; the process ends anyway.
    runtime.shutdown_background();
    outcome
}
