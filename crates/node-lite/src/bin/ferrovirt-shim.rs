//! `pod-shim`, `pod-init`, `pod-users`, `pod-sidecar` and `pod-exec` alone. One shim stays in memory for each VM, and the relocations of the full `ferrovirt`
//! binary would cost each of them megabytes, so `up` prefers this small program when it is installed beside it.

fn main() {
    let mut args = std::env::args_os().skip(1);
    let code = match args.next().as_deref().and_then(std::ffi::OsStr::to_str) {
        Some("pod-shim") => ferrovirt_node_lite::shim_main(args),
        Some("pod-init") => ferrovirt_node_lite::init_main(args),
        Some("pod-users") => ferrovirt_node_lite::users_main(),
        Some("pod-sidecar") => ferrovirt_node_lite::sidecar_main(args),
        Some("pod-exec") => ferrovirt_node_lite::exec_main(args),
        Some("pod-session") => ferrovirt_node_lite::session_main(args),
        _ => {
            eprintln!(
                "this program is started by ferrovirt up: pod-shim DIR ATTEMPT | pod-init DIR | pod-exec DIR COMMAND"
            );
            2
        }
    };
    std::process::exit(code);
}
