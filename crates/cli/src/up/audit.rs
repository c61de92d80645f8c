//! What the audit log is told on the command line. The flags have kube-apiserver's names.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use ferrovirt_apiserver::{AuditPolicy, AuditRotation};

#[derive(Args, Clone)]
pub struct AuditArgs {
    /// Append API requests to this file, as audit.k8s.io/v1 events
    #[arg(id = "audit_log", long = "audit-log", alias = "audit-log-path", value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Size of the audit log in megabytes at which a new file is begun
    #[arg(long, value_name = "MEGABYTES", default_value = "100", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    audit_log_maxsize: u64,
    /// Old files of the audit log that are kept; 0 keeps all
    #[arg(long, value_name = "COUNT", default_value = "10")]
    audit_log_maxbackup: usize,
    /// Days after which old files of the audit log are removed; 0 is never
    #[arg(long, value_name = "DAYS", default_value = "0")]
    audit_log_maxage: u32,
    /// Which requests are logged, and how much of them: an audit.k8s.io/v1 Policy [default: all, without their content]
    #[arg(long, value_name = "FILE", requires = "audit_log")]
    audit_policy_file: Option<PathBuf>,
}

impl AuditArgs {
    pub fn rotation(&self) -> AuditRotation {
        AuditRotation {
            max_size: self.audit_log_maxsize << 20,
            max_backups: self.audit_log_maxbackup,
            max_age: (self.audit_log_maxage > 0)
                .then(|| Duration::from_secs(u64::from(self.audit_log_maxage) * 24 * 60 * 60)),
        }
    }

    pub fn policy(&self) -> Result<AuditPolicy> {
        let Some(path) = &self.audit_policy_file else { return Ok(AuditPolicy::default()) };
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        AuditPolicy::parse(&text).with_context(|| format!("cannot use the audit policy {}", path.display()))
    }
}
