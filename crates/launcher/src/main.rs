//! The launcher's command line. See the library for what is inside.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use ferrovirt_launcher::runtime::{self, LibvirtRuntime};
use ferrovirt_launcher::{ask, cgroups, confinement, console_log, probe, rootfs, run, selftest};
use ferrovirt_machine::protocol::GuestCall;

#[derive(Parser)]
#[command(name = "ferrovirt-launcher", version, about = "Runs one virtual machine")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one machine, as told over the socket
    Run {
        #[command(flatten)]
        libvirt: Libvirt,
        /// Directory of the launcher's socket
        #[arg(long, default_value = "/var/run/kubevirt/sockets")]
        socket_dir: PathBuf,
        /// Seconds to wait for a release after the machine has stopped
        #[arg(long, default_value_t = 60)]
        exit_timeout: u64,
        /// Milliseconds to wait for a client after the machine has stopped and nobody is connected
        #[arg(long, default_value_t = 2000)]
        linger: u64,
        /// Crash at once; KubeVirt's functional tests try start failures with it
        #[arg(long, hide = true)]
        simulate_crash: bool,
    },
    /// Print what the hypervisors of this image can do here, as JSON
    Probe {
        /// Directory of libvirt's sockets, state and caches
        #[arg(long, default_value = "/var/run/libvirt")]
        libvirt_dir: PathBuf,
        /// Hypervisor to ask
        #[arg(long, env = "FERROVIRT_HYPERVISOR", default_value = "qemu-kvm", value_parser = find_runtime)]
        hypervisor: &'static dyn LibvirtRuntime,
        /// Leave libvirt's cache files here, for --capabilities-cache
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Keep a user namespace open until standard input ends; for the launcher itself
    #[command(hide = true)]
    HoldUserNamespace,
    /// Wait until standard input ends; the only process of the selftest's container
    #[command(hide = true)]
    Idle,
    /// Ask the guest agent of the machine that runs here whether it answers
    GuestPing {
        /// Directory of the launcher's socket
        #[arg(long, default_value = "/var/run/kubevirt/sockets")]
        socket_dir: PathBuf,
    },
    /// Run a command in the guest of the machine that runs here, and end with its exit code
    GuestExec {
        /// Directory of the launcher's socket
        #[arg(long, default_value = "/var/run/kubevirt/sockets")]
        socket_dir: PathBuf,
        /// Seconds that the command may take
        #[arg(long, default_value_t = 1)]
        timeout: u64,
        /// The command and its arguments; no shell looks at them
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Copy a machine's console log to the output, and what is added to it; for the pod's container `guest-console-log`
    ConsoleLog {
        /// The file to which the hypervisor writes
        #[arg(long)]
        logfile: PathBuf,
    },
    /// Start and stop a tiny machine, and print how long each step took
    Selftest {
        #[command(flatten)]
        libvirt: Libvirt,
    },
}

#[derive(Args)]
struct Libvirt {
    /// Hypervisor of this launcher
    #[arg(long, env = "FERROVIRT_HYPERVISOR", default_value = "qemu-kvm", value_parser = find_runtime)]
    hypervisor: &'static dyn LibvirtRuntime,
    /// Directory of libvirt's sockets, state and caches
    #[arg(long, default_value = "/var/run/libvirt")]
    libvirt_dir: PathBuf,
    /// Directory that `probe --out` made; it need not exist
    #[arg(long, env = "FERROVIRT_CAPABILITIES_CACHE")]
    capabilities_cache: Option<PathBuf>,
    /// What libvirt's daemon logs beside warnings, such as `1:qemu 3:remote`
    #[arg(long, env = "FERROVIRT_LIBVIRT_LOG_FILTERS")]
    libvirt_log_filters: Option<String>,
}

impl Command {
    /// The hypervisor that it starts, if it does.
    fn hypervisor(&self) -> Option<&'static dyn LibvirtRuntime> {
        match self {
            Self::Run { libvirt, .. } | Self::Selftest { libvirt } => Some(libvirt.hypervisor),
            Self::Probe { hypervisor, .. } => Some(*hypervisor),
            Self::HoldUserNamespace
            | Self::Idle
            | Self::ConsoleLog { .. }
            | Self::GuestPing { .. }
            | Self::GuestExec { .. } => None,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A process with threads cannot enter another user namespace, so this comes before any.
    if matches!(cli.command, Command::HoldUserNamespace) {
        return rootfs::hold().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if matches!(cli.command, Command::Idle) {
        return std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
            .map_or(ExitCode::FAILURE, |_| ExitCode::SUCCESS);
    }
    if let Command::Run { simulate_crash: true, .. } = cli.command {
        eprintln!("Simulated virt-launcher crash");
        return ExitCode::FAILURE;
    }
    if let Command::ConsoleLog { logfile } = &cli.command {
        // One small process beside every machine: no runtime, no threads.
        return match confinement::hold().and_then(|()| console_log::follow(logfile)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("cannot follow {}: {error}", logfile.display());
                ExitCode::FAILURE
            }
        };
    }
    if let Err(error) = cgroups::settle() {
        eprintln!("cannot enter a cgroup namespace, so a driver that makes cgroups will not find its own: {error}");
    }
    // After the namespace, and before any thread: a filter is a thread's and that of what it starts.
    if let Some(runtime) = cli.command.hypervisor()
        && let Err(error) = confinement::settle(runtime)
    {
        eprintln!("cannot limit what the machine's processes may ask of the kernel: {error}");
        return ExitCode::FAILURE;
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level()).with_ansi(false).init();
    // One launcher per machine: a thread, a small pool for libvirt's blocking calls, and small stacks.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(256 * 1024)
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .context("cannot start the async runtime");
    let result = runtime.and_then(|runtime| {
        let code = runtime.block_on(execute(cli.command));
        // A call into a hung daemon must not keep us from exiting.
        runtime.shutdown_background();
        code
    });
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// As much as the pod says, in upstream's numbers: 2 is what is of interest when nothing is wrong.
fn level() -> tracing::Level {
    let verbosity = std::env::var("VIRT_LAUNCHER_LOG_VERBOSITY").ok().and_then(|text| text.parse::<u64>().ok());
    match verbosity.unwrap_or(2) {
        0..=2 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    }
}

async fn execute(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::Run { libvirt, socket_dir, exit_timeout, linger, simulate_crash: _ } => {
            run::run(run::Options {
                runtime: libvirt.hypervisor,
                socket_dir,
                libvirt_dir: libvirt.libvirt_dir,
                log_filters: libvirt.libvirt_log_filters,
                capabilities: libvirt.capabilities_cache,
                linger: Duration::from_millis(linger),
                exit_timeout: Duration::from_secs(exit_timeout),
            })
            .await
        }
        Command::HoldUserNamespace | Command::Idle | Command::ConsoleLog { .. } => Ok(0),
        Command::Probe { libvirt_dir, hypervisor, out } => {
            let report = probe::probe(hypervisor, &libvirt_dir, out.as_deref()).await?;
            println!("{}", serde_json::to_string_pretty(&report)?);
            Ok(0)
        }
        Command::GuestPing { socket_dir } => Ok(ask::probe(&socket_dir, GuestCall::Ping {}).await),
        Command::GuestExec { socket_dir, timeout, command } => {
            let mut words = command.into_iter();
            let command = words.next().unwrap_or_default();
            let call = GuestCall::Exec { command, args: words.collect(), timeout_seconds: timeout };
            Ok(ask::probe(&socket_dir, call).await)
        }
        Command::Selftest { libvirt } => {
            selftest::selftest(libvirt.hypervisor, &libvirt.libvirt_dir, libvirt.capabilities_cache.as_deref()).await?;
            Ok(0)
        }
    }
}

fn find_runtime(name: &str) -> Result<&'static dyn LibvirtRuntime, String> {
    runtime::by_name(name).ok_or_else(|| {
        let known: Vec<_> = runtime::all().iter().map(|runtime| runtime.name()).collect();
        format!("known hypervisors: {}", known.join(", "))
    })
}
