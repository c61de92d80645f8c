//! `ferrovirt credentials`: keys and passwords that the guest agent sets in a guest, kept in Secrets.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use ferrovirt_api::fnv::fnv1a;
use ferrovirt_api::v1::{AccessCredential, VirtualMachine};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{client::ClientArgs, persona, shell};

/// How often a change that met another one is tried.
const ATTEMPTS: u32 = 10;

#[derive(Subcommand)]
pub enum CredentialsCommand {
    /// Let a key log in
    AddSshKey(AddKeyArgs),
    /// Let a key no longer log in
    RemoveSshKey(KeyArgs),
    /// Give a user a password
    SetPassword(PasswordArgs),
}

#[derive(Args)]
pub struct KeyArgs {
    #[command(flatten)]
    common: Common,
    /// File with the public key [default: the key of `ferrovirt shell`]
    #[arg(short, long, conflicts_with = "value")]
    file: Option<String>,
    /// The public key itself
    #[arg(long)]
    value: Option<String>,
}

#[derive(Args)]
pub struct AddKeyArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Keep the key in a new Secret; a running guest gets it with its next start
    #[arg(long, conflicts_with = "update_secret")]
    create_secret: bool,
    /// Add the key to a Secret that exists
    #[arg(long)]
    update_secret: bool,
}

#[derive(Args)]
pub struct PasswordArgs {
    #[command(flatten)]
    common: Common,
    /// The password; other users of this machine can see it while the command runs
    #[arg(short, long)]
    password: String,
}

#[derive(Args)]
struct Common {
    /// The VM
    name: String,
    #[command(flatten)]
    client: ClientArgs,
    /// User in the guest
    #[arg(short, long)]
    user: String,
    /// The Secret [default: the VM's only one for this user]
    #[arg(long)]
    secret: Option<String>,
    /// Change the Secret even if it is not the VM's own
    #[arg(long)]
    force: bool,
}

pub async fn run(command: CredentialsCommand) -> Result<()> {
    match command {
        CredentialsCommand::AddSshKey(arguments) => {
            let key = arguments.key.read()?;
            let (vm, secrets) = arguments.key.common.connect().await?;
            let found = arguments.key.common.secret(&vm, ssh_secret)?;
            match found {
                Some(name) if !arguments.create_secret => {
                    let secret = arguments.key.common.owned(&secrets, &vm, &name).await?;
                    if keys(&secret).any(|(_, known)| same(&known, &key)) {
                        println!("secret/{name} already has this key");
                        return Ok(());
                    }
                    let entry = format!("ssh-key-{}", digest(&key));
                    let patch = json!({ "stringData": { entry: key } });
                    secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
                    println!("the key was added to secret/{name}");
                }
                _ if arguments.update_secret => {
                    bail!("the VM has no Secret with keys for this user; use --create-secret")
                }
                _ => create(&arguments, &vm, &secrets, &key).await?,
            }
        }
        CredentialsCommand::RemoveSshKey(arguments) => {
            let key = arguments.read()?;
            let (vm, secrets) = arguments.common.connect().await?;
            let name = arguments.common.secret(&vm, ssh_secret)?;
            let Some(name) = name else { bail!("No secrets associated with user {}", arguments.common.user) };
            let secret = arguments.common.owned(&secrets, &vm, &name).await?;
            let gone: BTreeMap<String, Option<String>> =
                keys(&secret).filter(|(_, known)| same(known, &key)).map(|(entry, _)| (entry, None)).collect();
            if gone.is_empty() {
                bail!("secret/{name} does not have this key");
            }
            secrets.patch(&name, &PatchParams::default(), &Patch::Merge(json!({ "data": gone }))).await?;
            println!("the key was removed from secret/{name}");
        }
        CredentialsCommand::SetPassword(arguments) => {
            let (vm, secrets) = arguments.common.connect().await?;
            let Some(name) = arguments.common.secret(&vm, password_secret)? else {
                bail!(
                    "the VM takes no passwords from a Secret: add one to spec.template.spec.accessCredentials with userPassword"
                );
            };
            arguments.common.owned(&secrets, &vm, &name).await?;
            let patch = json!({ "stringData": { arguments.common.user: arguments.password } });
            secrets.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            println!("the password was set in secret/{name}");
        }
    }
    Ok(())
}

async fn create(arguments: &AddKeyArgs, vm: &VirtualMachine, secrets: &Api<Secret>, key: &str) -> Result<()> {
    let common = &arguments.key.common;
    if vm.status.created && !common.force {
        bail!("the VM runs; a new Secret reaches it with its next start. Say --force if that is well");
    }
    let name = common.secret.clone().unwrap_or_else(|| format!("{}-ssh-key-{}", common.name, digest(key)));
    let secret: Secret = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": name, "ownerReferences": [{
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": common.name, "uid": vm.uid(),
        }] },
        "stringData": { format!("ssh-key-{}", digest(key)): key },
    }))?;
    secrets.create(&PostParams::default(), &secret).await?;
    let added = serde_json::from_value(json!({ "sshPublicKey": {
        "source": { "secret": { "secretName": name } },
        "propagationMethod": { "qemuGuestAgent": { "users": [common.user] } },
    } }))?;
    add_credential(&common.machines().await?, vm, added).await?;
    println!("the key was put into the new secret/{name}, which the VM reads with its next start");
    Ok(())
}

/// A merge replaces the whole list, so it must be the latest one; the controllers write to the VM at the same time.
async fn add_credential(machines: &Api<VirtualMachine>, vm: &VirtualMachine, added: AccessCredential) -> Result<()> {
    let (mut latest, mut attempts) = (vm.clone(), ATTEMPTS);
    loop {
        let mut credentials =
            latest.spec.template.as_ref().map(|t| t.spec.access_credentials.clone()).unwrap_or_default();
        credentials.push(added.clone());
        let patch = json!({
            "metadata": { "resourceVersion": latest.resource_version() },
            "spec": { "template": { "spec": { "accessCredentials": credentials } } },
        });
        match machines.patch(&vm.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if status.is_conflict() && attempts > 1 => {
                latest = machines.get(&vm.name_any()).await?;
                attempts -= 1;
            }
            done => return Ok(done.map(drop)?),
        }
    }
}

impl Common {
    async fn machines(&self) -> Result<Api<VirtualMachine>> {
        let client = self.client.connect().await?;
        let namespace = self.client.namespace(&client).to_owned();
        Ok(Api::namespaced(client, &namespace))
    }

    async fn connect(&self) -> Result<(VirtualMachine, Api<Secret>)> {
        let client = self.client.connect().await?;
        let namespace = self.client.namespace(&client).to_owned();
        let vm = Api::<VirtualMachine>::namespaced(client.clone(), &namespace).get(&self.name).await?;
        Ok((vm, Api::namespaced(client, &namespace)))
    }

    /// The Secret to change: the one that was named, or the VM's only one for the user.
    fn secret(
        &self,
        vm: &VirtualMachine,
        of: impl Fn(&AccessCredential, &str) -> Option<String>,
    ) -> Result<Option<String>> {
        let credentials = vm.spec.template.as_ref().map(|t| t.spec.access_credentials.as_slice()).unwrap_or_default();
        let mut found: Vec<String> = credentials.iter().filter_map(|credential| of(credential, &self.user)).collect();
        found.dedup();
        match (&self.secret, found.as_slice()) {
            (Some(name), found) if found.contains(name) => Ok(Some(name.clone())),
            (Some(name), _) => bail!("the VM does not use secret/{name} for the user {}", self.user),
            (None, []) => Ok(None),
            (None, [name]) => Ok(Some(name.clone())),
            (None, several) => {
                bail!("the VM has several Secrets for this user: choose one of {} with --secret", several.join(", "))
            }
        }
    }

    async fn owned(&self, secrets: &Api<Secret>, vm: &VirtualMachine, name: &str) -> Result<Secret> {
        let secret = secrets.get(name).await?;
        let own = secret.owner_references().iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref());
        if !own && !self.force {
            bail!("secret/{name} is not this VM's own, others may use it; say --force to change it");
        }
        Ok(secret)
    }
}

impl KeyArgs {
    fn read(&self) -> Result<String> {
        let key = match (&self.value, &self.file) {
            (Some(value), _) => value.clone(),
            (None, Some(file)) => fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?,
            (None, None) if persona::is_virtctl() => bail!("which key? Give --file or --value"),
            (None, None) => shell::public_key()?,
        };
        let key = key.trim().to_owned();
        if key.split_whitespace().count() < 2 {
            bail!("this is not a public ssh key: it begins with its type, such as ssh-ed25519");
        }
        Ok(key)
    }
}

fn ssh_secret(credential: &AccessCredential, user: &str) -> Option<String> {
    let key = credential.ssh_public_key.as_ref()?;
    let users = &key.propagation_method.qemu_guest_agent.as_ref()?.users;
    users.iter().any(|known| known == user).then(|| key.source.secret.as_ref().map(|s| s.secret_name.clone()))?
}

fn password_secret(credential: &AccessCredential, _user: &str) -> Option<String> {
    credential.user_password.as_ref()?.source.secret.as_ref().map(|secret| secret.secret_name.clone())
}

fn keys(secret: &Secret) -> impl Iterator<Item = (String, String)> {
    secret
        .data
        .iter()
        .flatten()
        .map(|(entry, ByteString(bytes))| (entry.clone(), String::from_utf8_lossy(bytes).into()))
}

/// Comments at the end of a key do not make it another.
fn same(a: &str, b: &str) -> bool {
    a.split_whitespace().take(2).eq(b.split_whitespace().take(2))
}

/// A short name that follows from the key, so that adding it twice adds it once.
fn digest(key: &str) -> String {
    let material: String = key.split_whitespace().take(2).collect();
    format!("{:08x}", fnv1a(material.bytes()) >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_of_a_user_is_found() {
        let credential = |user: &str, secret: &str| {
            json!({ "sshPublicKey": {
                "source": { "secret": { "secretName": secret } },
                "propagationMethod": { "qemuGuestAgent": { "users": [user] } },
            } })
        };
        let vm: VirtualMachine = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "a" },
            "spec": { "template": { "spec": { "domain": { "devices": {} }, "accessCredentials": [
                credential("me", "mine"), credential("you", "yours"), credential("both", "one"), credential("both", "two"),
            ] } } },
        }))
        .unwrap();
        let find = |user: &str, secret: Option<&str>| {
            let common = Common {
                name: "a".into(),
                client: ClientArgs::default(),
                user: user.into(),
                secret: secret.map(Into::into),
                force: false,
            };
            common.secret(&vm, ssh_secret).map_err(|error| error.to_string())
        };
        assert_eq!(find("me", None), Ok(Some("mine".into())));
        assert_eq!(find("nobody", None), Ok(None));
        assert_eq!(find("both", Some("two")), Ok(Some("two".into())));
        assert!(find("both", None).unwrap_err().contains("one, two"));
        assert!(find("me", Some("yours")).is_err());
    }

    #[test]
    fn keys_are_compared_without_their_comments() {
        assert!(same("ssh-ed25519 AAA me@here", "ssh-ed25519 AAA"));
        assert!(!same("ssh-ed25519 AAA", "ssh-ed25519 AAB"));
        assert_eq!(digest("ssh-ed25519 AAA a"), digest("ssh-ed25519 AAA b"));
    }
}
