//! `spec.accessCredentials`: what goes through the guest agent, and which keys go into cloud-init's metadata.

use ferrovirt_api::v1::VirtualMachineInstance;

use super::Conversion;
use crate::spec::Credential;

/// Name of the launcher's volume with a secret of credentials.
pub fn volume_name(secret: &str) -> String {
    format!("{secret}-access-cred")
}

/// The secrets that the launcher needs, each once.
pub fn secrets(vmi: &VirtualMachineInstance) -> Vec<&str> {
    let mut names: Vec<&str> = vec![];
    for credential in &vmi.spec.access_credentials {
        let keys = credential.ssh_public_key.as_ref().and_then(|keys| keys.source.secret.as_ref());
        let password = credential.user_password.as_ref().and_then(|password| password.source.secret.as_ref());
        for secret in keys.into_iter().chain(password) {
            if !names.contains(&secret.secret_name.as_str()) {
                names.push(&secret.secret_name);
            }
        }
    }
    names
}

pub(super) fn convert(c: &mut Conversion<'_>) -> Vec<Credential> {
    let mut found = vec![];
    for (index, credential) in c.vmi.spec.access_credentials.iter().enumerate() {
        let field = format!("spec.accessCredentials[{index}]");
        if let Some(keys) = &credential.ssh_public_key {
            let method = &keys.propagation_method;
            let Some(secret) = &keys.source.secret else {
                c.refuse(format!("{field}.sshPublicKey.source"), "needs a secret");
                continue;
            };
            if let Some(agent) = &method.qemu_guest_agent {
                found.push(Credential::SshKeys { users: agent.users.clone(), dir: directory(c, &secret.secret_name) });
            } else if method.no_cloud.is_none() && method.config_drive.is_none() {
                c.refuse(format!("{field}.sshPublicKey.propagationMethod"), "needs a method");
            }
        }
        if let Some(password) = &credential.user_password {
            match &password.source.secret {
                Some(secret) => found.push(Credential::Passwords { dir: directory(c, &secret.secret_name) }),
                None => c.refuse(format!("{field}.userPassword.source"), "needs a secret"),
            }
        }
    }
    found
}

/// Directories with the keys that cloud-init hands to the default user.
pub(super) fn cloud_init_keys(c: &Conversion<'_>, config_drive: bool) -> Vec<String> {
    let keys = c.vmi.spec.access_credentials.iter().filter_map(|credential| credential.ssh_public_key.as_ref());
    let wanted = keys.filter(|keys| match config_drive {
        true => keys.propagation_method.config_drive.is_some(),
        false => keys.propagation_method.no_cloud.is_some(),
    });
    wanted.filter_map(|keys| Some(directory(c, &keys.source.secret.as_ref()?.secret_name))).collect()
}

fn directory(c: &Conversion<'_>, secret: &str) -> String {
    format!("{}/secret/{}", c.ctx.layout.private, volume_name(secret))
}
