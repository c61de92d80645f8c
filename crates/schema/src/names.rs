//! Kubernetes' rules for names, in the words in which Kubernetes tells them. Every function lists what is wrong with a text;
//! nothing is a good sign.

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

/// One part of a DNS name.
pub fn dns_label(text: &str) -> Vec<String> {
    rule(text, LABEL_MAX, is_dns_label(text), LABEL)
}

/// One part of a DNS name that begins with a letter.
pub fn dns_label_1035(text: &str) -> Vec<String> {
    let good = is_dns_label(text) && !text.starts_with(|c: char| c.is_ascii_digit());
    rule(text, LABEL_MAX, good, LABEL_1035)
}

pub fn dns_subdomain(text: &str) -> Vec<String> {
    rule(text, SUBDOMAIN_MAX, is_dns_subdomain(text), SUBDOMAIN)
}

/// What can stand in a URL's path.
pub fn path_segment(text: &str) -> Vec<String> {
    match text {
        "." | ".." => vec![format!("may not be '{text}'")],
        _ => ['/', '%'].iter().filter(|c| text.contains(**c)).map(|c| format!("may not contain '{c}'")).collect(),
    }
}

/// The key of a label or an annotation: a name, perhaps behind a domain.
pub fn label_key(text: &str) -> Vec<String> {
    let mut problems = vec![];
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                problems.extend(too_many_bytes("prefix part ", prefix, SUBDOMAIN_MAX));
                problems.extend((!is_dns_subdomain(prefix)).then(|| format!("prefix part {SUBDOMAIN}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {QUALIFIED} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    }
    problems.extend(too_many_bytes("name part ", name, LABEL_MAX));
    if !is_qualified(name) {
        problems.push(format!("name part {QUALIFIED}"));
    }
    problems
}

pub fn label_value(text: &str) -> Vec<String> {
    let mut problems: Vec<String> = too_many_bytes("", text, LABEL_MAX).into_iter().collect();
    if !text.is_empty() && !is_qualified(text) {
        problems.push(VALUE.to_owned());
    }
    problems
}

/// The key of an entry in a ConfigMap or a Secret: a file's name.
pub fn config_key(text: &str) -> Vec<String> {
    let good = !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let mut problems = rule(text, SUBDOMAIN_MAX, good, CONFIG_KEY);
    match text {
        "." | ".." => problems.push(format!("must not be '{text}'")),
        _ if text.starts_with("..") => problems.push("must not start with '..'".to_owned()),
        _ => {}
    }
    problems
}

/// What a port can be called in a service.
pub fn is_port_name(text: &str) -> bool {
    text.len() <= 15 && is_dns_label(text) && text.bytes().any(|b| b.is_ascii_lowercase()) && !text.contains("--")
}

fn rule(text: &str, most: usize, good: bool, otherwise: &str) -> Vec<String> {
    let long = (text.len() > most).then(|| format!("must be no more than {most} characters"));
    long.into_iter().chain((!good).then(|| otherwise.to_owned())).collect()
}

// Kubernetes counts characters in its older rules and bytes in its newer ones, and means bytes.
fn too_many_bytes(what: &str, text: &str, most: usize) -> Option<String> {
    (text.len() > most).then(|| format!("{what}must be no more than {most} bytes"))
}

fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn is_dns_label(text: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    surrounded(text, edge) && text.bytes().all(|b| edge(&b) || b == b'-')
}

fn is_qualified(text: &str) -> bool {
    surrounded(text, u8::is_ascii_alphanumeric)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn surrounded(text: &str, edge: impl Fn(&u8) -> bool) -> bool {
    text.as_bytes().first().is_some_and(&edge) && text.as_bytes().last().is_some_and(&edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_their_rule() {
        type Rule = fn(&str) -> Vec<String>;
        let long = "a".repeat(64);
        let longer = "a.".repeat(127);
        let cases: [(Rule, &str, &[&str]); 27] = [
            (dns_subdomain, "a.b-c", &[]),
            (dns_subdomain, "A", &["a lowercase RFC 1123 subdomain"]),
            (dns_subdomain, "a..b", &["a lowercase RFC 1123 subdomain"]),
            (dns_subdomain, &longer, &["must be no more than 253 characters", "a lowercase RFC 1123 subdomain"]),
            (dns_label, "a.b", &["a lowercase RFC 1123 label"]),
            (dns_label, "0a", &[]),
            (dns_label, "", &["a lowercase RFC 1123 label"]),
            (dns_label, &long, &["must be no more than 63 characters"]),
            (dns_label_1035, "0a", &["a DNS-1035 label"]),
            (dns_label_1035, "a0", &[]),
            (path_segment, "system:x", &[]),
            (path_segment, "a/b%", &["may not contain '/'", "may not contain '%'"]),
            (path_segment, "..", &["may not be '..'"]),
            (label_key, "a.b/C_d", &[]),
            (label_key, "/b", &["prefix part must be non-empty"]),
            (label_key, "a/", &["name part must be non-empty", "name part must consist of"]),
            (label_key, "a/b/c", &["a valid label key must consist of"]),
            (label_key, "A/b", &["prefix part a lowercase RFC 1123 subdomain"]),
            (label_key, &long, &["name part must be no more than 63 bytes"]),
            (label_value, "", &[]),
            (label_value, "a b", &["a valid label must be an empty string"]),
            (label_value, &long, &["must be no more than 63 bytes"]),
            (config_key, "KEY_a.b", &[]),
            (config_key, "", &["a valid config key"]),
            (config_key, "..", &["must not be '..'"]),
            (config_key, "..a", &["must not start with '..'"]),
            (config_key, "a/b", &["a valid config key"]),
        ];
        for (rule, text, wanted) in cases {
            let found = rule(text);
            let agree = found.len() == wanted.len() && found.iter().zip(wanted).all(|(f, w)| f.starts_with(w));
            assert!(agree, "{text}: {found:?}, not {wanted:?}");
        }
        for (name, good) in [("http", true), ("80", false), ("a--b", false), ("-a", false), ("abcdefghijklmnop", false)]
        {
            assert_eq!(is_port_name(name), good, "{name}");
        }
    }
}
