//! The `ferrovirt` binary: user commands, `up`, and every server role.

#![allow(clippy::print_stdout, clippy::print_stderr)]

// First: its macros stand in for the standard library's in every module below.
#[macro_use]
mod output;

mod age;
mod amounts;
mod apply;
mod catalog;
mod client;
mod completion;
mod console;
mod console_log;
mod create;
mod credentials;
mod data;
mod delete;
mod domain_xml;
mod down;
mod each;
mod exit;
mod expose;
mod get;
mod guest;
mod help;
mod hypervisors;
mod image;
mod info;
mod install;
mod kubeconfig;
mod logging;
mod machines;
mod next;
mod persona;
mod port_forward;
mod power;
mod roles;
mod root;
mod run;
mod shell;
mod socket;
mod source;
mod ssh;
mod status;
mod table;
mod target;
mod top;
mod up;
mod upload;
mod vnc;
mod wait;
mod why;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Virtual machines as Kubernetes objects.
#[derive(Parser)]
#[command(name = "ferrovirt", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Turn this machine into a VM host
    Up(up::UpArgs),
    /// Stop all VMs in order, then the host
    Down(down::DownArgs),
    /// Say what runs, where, and how to connect
    Status(HostArgs),
    /// Check the stored objects of a host
    Fsck(HostArgs),
    /// Save the objects and keys of a host (not the disks of its VMs)
    Backup(data::BackupArgs),
    /// Bring back what a backup has
    Restore(data::RestoreArgs),
    /// Make credentials for someone
    Kubeconfig(kubeconfig::KubeconfigArgs),
    /// Create or change objects from a file
    Apply(apply::ApplyArgs),
    /// List objects
    Get(get::GetArgs),
    /// Delete objects
    Delete(delete::DeleteArgs),
    /// Say why a VM is not as it should be, and what to do
    Why(why::WhyArgs),
    /// What the VMs use, live
    Top(top::TopArgs),
    /// Connect to a VM's serial console (leave with ^])
    Console(console::ConsoleArgs),
    /// Start a VM
    Start(power::StartArgs),
    /// Stop a VM
    Stop(power::StopArgs),
    /// Restart a VM
    Restart(power::RestartArgs),
    /// Stop a guest's CPUs; its memory stays
    Pause(guest::PauseArgs),
    /// Let a paused guest go on
    Unpause(guest::PauseArgs),
    /// Press the reset button
    Reset(guest::GuestArgs),
    /// Ask a guest to reboot
    SoftReboot(guest::GuestArgs),
    /// Show a guest's screen in a viewer, or save it as a picture
    Vnc(vnc::VncArgs),
    /// Log in to a guest
    Shell(shell::ShellArgs),
    /// Run a command in a guest
    Exec(shell::ExecArgs),
    /// Copy files to or from a guest
    Cp(shell::CpArgs),
    /// What ssh talks through (started by `shell`, `exec` and `cp`)
    #[command(hide = true)]
    SshProxy(shell::ProxyArgs),
    /// Log in to a guest with ssh and your own keys, as virtctl does
    Ssh(ssh::SshArgs),
    /// Copy files to or from a guest with your own keys, as virtctl does
    Scp(ssh::ScpArgs),
    /// Bring ports of a guest to this machine
    PortForward(port_forward::PortForwardArgs),
    /// Make a Service for a VM
    Expose(expose::ExposeArgs),
    /// What the guest agent says of the guest
    Guestosinfo(guest::InfoArgs),
    /// Who is logged in to a guest
    Userlist(guest::InfoArgs),
    /// The file systems of a guest
    Fslist(guest::InfoArgs),
    /// Print manifests made from flags
    #[command(subcommand)]
    Create(create::CreateCommand),
    /// Keys and passwords in guests
    #[command(subcommand)]
    Credentials(credentials::CredentialsCommand),
    /// Print a VM with its instance type and preference filled in
    Expand(info::ExpandArgs),
    /// Devices of hosts that VMs may have
    PermittedDevices(info::DevicesArgs),
    /// Settings of the installation
    #[command(subcommand)]
    Adm(info::AdmCommand),
    /// Versions of this program and of the cluster
    Version(info::VersionArgs),
    /// Print a script that completes commands in your shell
    Completion(completion::CompletionArgs),
    /// What a half-typed command line may go on with (asked by the scripts of `completion`)
    #[command(name = "__complete", hide = true)]
    Complete(completion::CompleteArgs),
    /// Make and start a VM from an image
    Run(run::RunArgs),
    /// List the images that `run` knows by name
    Images(catalog::ImagesArgs),
    /// Bring a disk image from this machine into a volume
    ImageUpload(upload::ImageUploadArgs),
    /// Images on this host
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// List hypervisors, what they can do, and which nodes run them
    Hypervisors(hypervisors::HypervisorsArgs),
    /// Print the domain XML that a manifest would get, without a cluster
    DomainXml(domain_xml::DomainXmlArgs),
    /// Say whether a Kubernetes cluster has what Ferrovirt needs
    Preflight(install::PreflightArgs),
    /// Install Ferrovirt on a Kubernetes cluster
    Install(install::InstallArgs),
    /// Bring an installation on a Kubernetes cluster to this version; running VMs stay as they are
    Upgrade(install::UpgradeArgs),
    /// Remove Ferrovirt from a Kubernetes cluster
    Uninstall(install::UninstallArgs),
    /// What Helm cannot do by itself (runs in a job of the chart)
    #[command(hide = true)]
    ChartHook(install::HookArgs),
    /// Serve webhooks and subresources (runs in a pod)
    #[command(hide = true)]
    VirtApi(roles::virt_api::VirtApiArgs),
    /// Run the cluster's controllers (runs in a pod)
    #[command(hide = true)]
    VirtController(roles::virt_controller::VirtControllerArgs),
    /// Fill a volume (runs in a pod)
    #[command(hide = true)]
    Importer,
    /// Copy the files of an image (runs in a pod)
    #[command(hide = true)]
    CopyTree(roles::copy_tree::CopyTreeArgs),
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
        Some("pod-exec") => return exit_code(ferrovirt_node_lite::exec_main(arguments.into_iter().skip(2))),
        Some("pod-session") => return exit_code(ferrovirt_node_lite::session_main(arguments.into_iter().skip(2))),
        Some("pod-sidecar") => return exit_code(ferrovirt_node_lite::sidecar_main(arguments.into_iter().skip(2))),
        Some("pod-users") => return exit_code(ferrovirt_node_lite::users_main()),
        Some("pod-init") => return exit_code(ferrovirt_node_lite::init_main(arguments.into_iter().skip(2))),
        // Shuts itself in, which a process can only do for itself as long as it has one thread.
        Some(ferrovirt_disks::unpacker::SUBCOMMAND) => return exit_code(ferrovirt_disks::unpacker::main()),
        _ => {}
    }
    ferrovirt_store::heap::share();
    persona::set(persona::of(arguments.first()));
    let command = persona::lenient(help::dressed(Cli::command()));
    let matches = command.get_matches_from(persona::reorder(arguments));
    next::remember(&matches);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Whether a command takes connections of others.
fn serves(command: &Command) -> bool {
    matches!(command, Command::Up(_) | Command::VirtApi(_) | Command::VirtController(_) | Command::VirtHandler(_))
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
    if serves(&command) {
        ferrovirt_serve::raise_descriptor_limit();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Up(arguments) => up::run(arguments).await,
            Command::Down(arguments) => down::run(arguments).await,
            Command::Status(arguments) => status::run(arguments).await,
            Command::Fsck(arguments) => data::fsck(&arguments),
            Command::Backup(arguments) => data::backup(arguments).await,
            Command::Restore(arguments) => data::restore(arguments).await,
            Command::Kubeconfig(arguments) => kubeconfig::run(&arguments).await,
            Command::Apply(arguments) => apply::run(arguments).await,
            Command::Get(arguments) => get::run(arguments).await,
            Command::Delete(arguments) => delete::run(arguments).await,
            Command::Why(arguments) => why::run(arguments).await,
            Command::Top(arguments) => top::run(arguments).await,
            Command::Console(arguments) => console::run(arguments).await,
            Command::Start(arguments) => power::start(arguments).await,
            Command::Stop(arguments) => power::stop(arguments).await,
            Command::Restart(arguments) => power::restart(arguments).await,
            Command::Pause(arguments) => guest::pause("pause", arguments).await,
            Command::Unpause(arguments) => guest::pause("unpause", arguments).await,
            Command::Reset(arguments) => guest::ask("reset", arguments).await,
            Command::SoftReboot(arguments) => guest::ask("soft-reboot", arguments).await,
            Command::Vnc(arguments) => vnc::run(arguments).await,
            Command::Shell(arguments) => shell::shell(arguments).await,
            Command::Exec(arguments) => shell::exec(arguments).await,
            Command::Cp(arguments) => shell::cp(arguments).await,
            Command::SshProxy(arguments) => shell::proxy(arguments).await,
            Command::Ssh(arguments) => ssh::ssh(arguments).await,
            Command::Scp(arguments) => ssh::scp(arguments).await,
            Command::PortForward(arguments) => port_forward::run(arguments).await,
            Command::Expose(arguments) => expose::run(arguments).await,
            Command::Guestosinfo(arguments) => guest::info("guestosinfo", arguments).await,
            Command::Userlist(arguments) => guest::info("userlist", arguments).await,
            Command::Fslist(arguments) => guest::info("filesystemlist", arguments).await,
            Command::Create(command) => create::run(command),
            Command::Credentials(command) => credentials::run(command).await,
            Command::Expand(arguments) => info::expand(arguments).await,
            Command::PermittedDevices(arguments) => info::permitted_devices(arguments).await,
            Command::Adm(command) => info::adm(command).await,
            Command::Version(arguments) => info::version(arguments).await,
            Command::Completion(arguments) => {
                completion::script::<Cli>(&arguments);
                Ok(())
            }
            Command::Complete(arguments) => completion::complete::<Cli>(arguments).await,
            Command::Run(arguments) => run::run(arguments).await,
            Command::Images(arguments) => catalog::run(&arguments),
            Command::ImageUpload(arguments) => upload::run(arguments).await,
            Command::Image(command) => image::run(command),
            Command::Hypervisors(arguments) => hypervisors::run(arguments).await,
            Command::DomainXml(arguments) => domain_xml::run(&arguments),
            Command::Preflight(arguments) => install::preflight(arguments).await,
            Command::Install(arguments) => install::install(arguments).await,
            Command::Upgrade(arguments) => install::upgrade(arguments).await,
            Command::ChartHook(arguments) => install::hook(arguments).await,
            Command::Uninstall(arguments) => install::uninstall(arguments).await,
            Command::VirtApi(arguments) => roles::virt_api::run(arguments).await,
            Command::CopyTree(arguments) => roles::copy_tree::run(&arguments),
            Command::Importer => roles::importer::run().await,
            Command::VirtController(arguments) => roles::virt_controller::run(arguments).await,
            Command::VirtHandler(arguments) => roles::virt_handler::run(arguments).await,
        }
    });
    // A reader that waits for the terminal cannot be interrupted; the process ends anyway.
    runtime.shutdown_background();
    outcome
}
