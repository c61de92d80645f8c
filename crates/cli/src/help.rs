//! How the commands are presented: by topic instead of in one long list, and with examples.

use clap::Command;

/// Every command that people see, under one heading each.
const TOPICS: &[(&str, &[&str])] = &[
    ("This machine as a VM host", &["up", "down", "status", "kubeconfig", "fsck", "backup", "restore"]),
    ("Make and change VMs", &["run", "create", "apply", "get", "delete", "expand"]),
    ("Power", &["start", "stop", "restart", "pause", "unpause", "reset", "soft-reboot"]),
    ("Reach a guest", &["shell", "exec", "cp", "console", "vnc", "ssh", "scp", "port-forward", "expose"]),
    ("Look into it", &["why", "top", "guestosinfo", "userlist", "fslist", "credentials"]),
    ("Disks and images", &["images", "image-upload", "image"]),
    ("Hypervisors and devices", &["hypervisors", "permitted-devices", "domain-xml"]),
    ("A Kubernetes cluster", &["preflight", "install", "upgrade", "uninstall", "adm"]),
    ("This program", &["version", "completion", "help"]),
];

const EXAMPLES: &[(&str, &str)] = &[
    (
        "up",
        "  ferrovirt up --detach                        the host goes on in the background
  ferrovirt up --hypervisors lxc               system containers beside virtual machines",
    ),
    (
        "run",
        "  ferrovirt run debian:12
  ferrovirt run quay.io/containerdisks/debian:12
  ferrovirt run https://example.com/disk.qcow2 --name db --memory 4Gi --disk-size 40Gi
  ferrovirt run ./disk.qcow2 --detach",
    ),
    (
        "apply",
        "  ferrovirt apply -f vm.yaml --wait
  ferrovirt create vm --name web | ferrovirt apply -f -",
    ),
    (
        "get",
        "  ferrovirt get vms -A -o wide
  ferrovirt get vms -w                          goes on, and prints what changes
  ferrovirt get vm/demo pod/web -o yaml",
    ),
    (
        "delete",
        "  ferrovirt delete vm demo web
  ferrovirt delete vm/demo --force              as if the plug was pulled
  ferrovirt delete -f vm.yaml",
    ),
    (
        "stop",
        "  ferrovirt stop demo web
  ferrovirt stop demo --force --grace-period 0    as if the plug was pulled",
    ),
    (
        "shell",
        "  ferrovirt shell web
  ferrovirt shell root@vm/web/shop --port 2222",
    ),
    (
        "exec",
        "  ferrovirt exec web -- systemctl status nginx
  ferrovirt exec web -- tar -cf - /etc > etc.tar
  ferrovirt exec -t web -- top",
    ),
    (
        "cp",
        "  ferrovirt cp notes.txt web:
  ferrovirt cp -r web:/var/log logs",
    ),
    (
        "images",
        "  ferrovirt images
  ferrovirt images debian:12",
    ),
    (
        "ssh",
        "  ferrovirt ssh demo@demo
  ferrovirt ssh debian@vm/web/shop -i ~/.ssh/shop -c 'uptime'",
    ),
    (
        "scp",
        "  ferrovirt scp notes.txt demo@vm/demo:
  ferrovirt scp -r demo@vm/demo:/var/log logs",
    ),
    (
        "port-forward",
        "  ferrovirt port-forward demo 8080:80            http://127.0.0.1:8080 is the guest's port 80
  ferrovirt port-forward vm/dns udp/5353:53",
    ),
    (
        "expose",
        "  ferrovirt expose vm demo --name demo-ssh --port 22
  ferrovirt expose vm web --name web --port 80 --type nodeport",
    ),
    (
        "vnc",
        "  ferrovirt vnc demo
  ferrovirt vnc screenshot demo --file demo.png",
    ),
    ("why", "  ferrovirt why demo"),
    (
        "image-upload",
        "  ferrovirt image-upload dv debian --size 10Gi --image-path debian.qcow2
  ferrovirt image-upload pvc data --no-create --image-path data.raw.xz",
    ),
    (
        "kubeconfig",
        "  ferrovirt kubeconfig --user ana --group developers > ana.kubeconfig
  ferrovirt kubeconfig --user ana --server vmhost.example --output ana.kubeconfig
  ferrovirt kubeconfig --revoke ana",
    ),
    (
        "completion",
        "  ferrovirt completion bash > /etc/bash_completion.d/ferrovirt
  ferrovirt completion zsh > /usr/local/share/zsh/site-functions/_ferrovirt
  ferrovirt completion fish > ~/.config/fish/completions/ferrovirt.fish",
    ),
    (
        "domain-xml",
        "  ferrovirt domain-xml -f vm.yaml
  ferrovirt domain-xml -f vm.yaml --hypervisor cloud-hypervisor --arch arm64",
    ),
    ("install", "  ferrovirt preflight && ferrovirt install"),
];

/// The command line with its topics and examples.
pub fn dressed(command: Command) -> Command {
    let topics = topics(&command);
    let template = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{topics}Options:\n{{options}}");
    let command = command.help_template(template);
    EXAMPLES.iter().fold(command, |command, (name, examples)| {
        command.mut_subcommand(name, |command| command.after_help(format!("Examples:\n{examples}")))
    })
}

fn topics(command: &Command) -> String {
    let mut text = String::new();
    for (topic, names) in TOPICS {
        text += &format!("{topic}:\n");
        for name in *names {
            let about = match command.find_subcommand(name).and_then(Command::get_about) {
                Some(about) => about.to_string(),
                // Made by the parser itself.
                None => "Print this, or the help of a command".to_owned(),
            };
            text += &format!("  {name:<18} {about}\n");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn every_command_has_a_topic_and_every_option_a_text() {
        let command = crate::Cli::command();
        let listed: Vec<&str> = TOPICS.iter().flat_map(|(_, names)| *names).copied().collect();
        let known: BTreeSet<&str> =
            command.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name).collect();
        let unique: BTreeSet<&str> = listed.iter().copied().filter(|name| *name != "help").collect();
        assert_eq!(unique, known);
        assert_eq!(listed.len(), known.len() + 1, "one is listed twice");
        let mut silent = vec![];
        collect(&command, &mut silent);
        assert_eq!(silent, Vec::<String>::new(), "these options have no text");
    }

    fn collect(command: &Command, silent: &mut Vec<String>) {
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            if argument.get_help().is_none_or(|help| help.to_string().is_empty()) {
                silent.push(format!("{} {}", command.get_name(), argument.get_id()));
            }
        }
        for inner in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            collect(inner, silent);
        }
    }

    #[test]
    fn examples_can_be_parsed() {
        for (name, examples) in EXAMPLES {
            for line in examples.lines() {
                for part in line.split(['|', '&', '>']).map(str::trim).filter(|part| part.starts_with("ferrovirt")) {
                    // What follows two spaces is a remark.
                    let words = part.split("  ").next().unwrap_or_default().replace('\'', "");
                    let parsed = dressed(crate::Cli::command()).try_get_matches_from(words.split(' '));
                    assert!(
                        parsed.is_ok(),
                        "{name}: {words}: {}",
                        parsed.err().map_or(String::new(), |e| e.to_string())
                    );
                }
            }
        }
        let mut command = dressed(crate::Cli::command());
        let help = command.render_help().to_string();
        assert!(help.contains("Power:\n  start              Start a VM\n"), "{help}");
        assert!(!help.contains('{'), "{help}");
    }
}
