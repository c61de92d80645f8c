use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: CreateCommand,
}

fn made(line: &str) -> Result<Value> {
    let words = std::iter::once("create").chain(line.split_whitespace());
    let Line { command: CreateCommand::Vm(arguments) } = Line::try_parse_from(words)?;
    build(&arguments, Some("secret").filter(|_| arguments.password_file.is_some()), &mut || "abcde".into())
}

/// What the flags make of a VM whose other fields are the defaults.
fn check(line: &str, path: &str, expected: Value) {
    let vm = made(&format!("vm --name a {line}")).unwrap();
    assert_eq!(vm.pointer(path), Some(&expected).filter(|value| !value.is_null()), "{line}: {vm:#}");
}

#[test]
fn flags_become_fields() {
    let t = "/spec/template/spec";
    check("", "/spec/runStrategy", json!("Always"));
    check("", &format!("{t}/domain/memory/guest"), json!("512Mi"));
    check("", &format!("{t}/terminationGracePeriodSeconds"), json!(180));
    check("", &format!("{t}/volumes"), Value::Null);
    check("--run-strategy Halted", "/spec/runStrategy", json!("Halted"));
    check("--memory 2Gi", &format!("{t}/domain/memory/guest"), json!("2Gi"));
    check(
        "--volume-containerdisk src:reg/img:tag",
        &format!("{t}/volumes"),
        json!([{ "name": "a-containerdisk-0", "containerDisk": { "image": "reg/img:tag" } }]),
    );
    check(
        "--volume-containerdisk src:i,bootorder:2",
        &format!("{t}/domain/devices/disks"),
        json!([{ "name": "a-containerdisk-0", "bootOrder": 2 }]),
    );
    check(
        "--volume-pvc src:p",
        "/spec/preference",
        json!({ "inferFromVolume": "p", "inferFromVolumeFailurePolicy": "Ignore" }),
    );
    check("--volume-pvc p --infer-preference=false", "/spec/preference", Value::Null);
    check("--instancetype small", "/spec/instancetype", json!({ "name": "small" }));
    check("--instancetype small", &format!("{t}/domain/memory"), Value::Null);
    check(
        "--instancetype virtualmachineinstancetype/own",
        "/spec/instancetype",
        json!({ "kind": "virtualmachineinstancetype", "name": "own" }),
    );
    check(
        "--volume-import type:http,url:http://x:1/y,size:2Gi",
        "/spec/dataVolumeTemplates",
        json!([{ "metadata": { "name": "imported-volume-abcde" }, "spec": {
            "source": { "http": { "url": "http://x:1/y" } },
            "storage": { "resources": { "requests": { "storage": "2Gi" } } },
        } }]),
    );
    check(
        "--volume-import type:ds,src:n/d,name:root",
        "/spec/dataVolumeTemplates/0/spec",
        json!({ "sourceRef": { "kind": "DataSource", "namespace": "n", "name": "d" }, "storage": {} }),
    );
    check(
        "--user u --ssh-key k1 --ssh-key k2",
        &format!("{t}/volumes/0/cloudInitNoCloud/userData"),
        json!("#cloud-config\nuser: u\nssh_authorized_keys:\n  - k1\n  - k2"),
    );
    check(
        "--user u --password-file f --cloud-init configdrive",
        &format!("{t}/volumes/0/cloudInitConfigDrive/userData"),
        json!("#cloud-config\nuser: u\npassword: secret\nchpasswd: { expire: False }"),
    );
    check(
        "--access-cred type:ssh,src:keys,user:me",
        &format!("{t}/accessCredentials/0/sshPublicKey/propagationMethod"),
        json!({ "qemuGuestAgent": { "users": ["me"] } }),
    );
    check("--volume-sysprep src:cm", &format!("{t}/volumes/0/sysprep"), json!({ "configMap": { "name": "cm" } }));
}

#[test]
fn what_does_not_fit_is_refused_with_the_flag() {
    for (line, part) in [
        ("--run-strategy Sometimes", "RunStrategy"),
        ("--volume-containerdisk name:x", "src must be specified"),
        ("--volume-containerdisk size:1", "unknown param"),
        ("--volume-import type:floppy,size:1", "unknown type"),
        ("--volume-import type:blank", "needs a size"),
        ("--volume-pvc src:a,bootorder:1 --volume-pvc src:b,bootorder:1", "same bootorder"),
        ("--instancetype a --memory 1Gi", "exclude each other"),
        ("--cloud-init-user-data %%%", "not base64"),
        ("--access-cred type:ssh,src:k", "whose keys"),
        ("--infer-instancetype", "no boot disk"),
    ] {
        let error = format!("{:#}", made(&format!("vm --name a {line}")).unwrap_err());
        assert!(error.contains(part), "{line}: {error}");
    }
}
