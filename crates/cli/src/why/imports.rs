//! What the words of importers and image pulls mean: whether another try can help, and what to do.
//!
//! Embedded the words are ours (crates `fetch` and `disks`); on a cluster those of containerd and CRI-O for images, in the same pod.

use super::explain::Outlook;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Judged {
    pub outlook: Outlook,
    pub next: Option<&'static str>,
}

/// Words, what they mean, what to do. The first row that fits counts: those that say most are first.
const WORDS: &[(&[&str], Outlook, &str)] = &[
    (
        &["127.0.0.1", "localhost", "[::1]"],
        Outlook::Stuck,
        "that address is the importer's own machine, not yours: name one that the host can reach, or use a file of this machine with `ferrovirt run ./FILE`",
    ),
    (
        &["belongs to this host or its link"],
        Outlook::Stuck,
        "importers do not reach the host itself: serve the image elsewhere, or bring it with `ferrovirt image-upload`",
    ),
    (
        &["temporary failure in name resolution", "try again", "server misbehaving"],
        Outlook::Doubtful,
        "the host's name server does not answer: see /etc/resolv.conf; it is tried again by itself",
    ),
    (
        &["failed to lookup address", "no such host", "name does not resolve", "name or service not known"],
        Outlook::Stuck,
        "no server has this name: correct it in the source, or see that the host's name server knows it",
    ),
    (
        &["certificate", "x509", "unknownissuer", "invalid peer", "tls: "],
        Outlook::Stuck,
        "the server is not trusted: give its authority in the source's certConfigMap, or use an address with a valid certificate",
    ),
    (
        &[
            "answered 401",
            "answered 403",
            "unauthorized",
            "authentication required",
            "access denied",
            "not for you",
            "denied:",
        ],
        Outlook::Stuck,
        "check the name, and give a login: secretRef of the source, or an imagePullSecret of the namespace's service account",
    ),
    (
        &["answered 404", "answered 410", "404 not found"],
        Outlook::Stuck,
        "there is nothing at that address: correct the URL in the source",
    ),
    (
        &["has nothing for", "no match for platform", "no matching manifest", "no image found in image index"],
        Outlook::Stuck,
        "use an image that is made for the architecture of the nodes",
    ),
    (
        &["has no such image", "manifest unknown", "name unknown", "repository does not exist", ": not found"],
        Outlook::Stuck,
        "check the image's name and tag; embedded, `ferrovirt image list` shows what is here",
    ),
    (
        &["invalidimagename", "invalid reference format", "couldn't parse image"],
        Outlook::Stuck,
        "correct the image's name",
    ),
    (&["checksum"], Outlook::Stuck, "correct the checksum in the source, or get a whole image"),
    (
        &["ask for a larger disk", "larger than the reported available"],
        Outlook::Stuck,
        "ask for a larger disk: spec.storage.resources.requests.storage of the data volume, or `ferrovirt run --disk-size`",
    ),
    (
        &[
            "is not supported",
            "builds on another file",
            "keeps its data in another file",
            "is encrypted",
            "is damaged",
            "the content is",
        ],
        Outlook::Stuck,
        "use another image: raw or qcow2 (also compressed), whole and not encrypted",
    ),
    (
        &["no directory /disk", "no file in /disk", "more than one file in /disk"],
        Outlook::Stuck,
        "use an image that is a containerDisk: one disk in /disk",
    ),
    (
        &["no space left", "disk is full", "bytes are free where images are kept"],
        Outlook::Doubtful,
        "make room on the host's disk; then it goes on by itself",
    ),
    (
        &[
            "connection refused",
            "no route to host",
            "network is unreachable",
            "did not answer in time",
            "timed out",
            "i/o timeout",
            "cannot connect to",
            "broke off",
            "answered 5",
            "answered 429",
        ],
        Outlook::Doubtful,
        "see that the server runs and that the host reaches it; it is tried again by itself",
    ),
];

/// What a message of an importer or of an image pull means.
pub(super) fn judge(message: &str) -> Judged {
    let message = message.to_lowercase();
    let row = WORDS.iter().find(|(words, _, _)| words.iter().any(|word| message.contains(word)));
    match row {
        Some((_, outlook, next)) => Judged { outlook: *outlook, next: Some(next) },
        // Pulls and imports are repeated, and nothing says that this one is in vain.
        None => Judged { outlook: Outlook::Doubtful, next: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_importers_and_runtimes_are_understood() {
        use Outlook::{Doubtful, Stuck};
        let rows = [
            // Ours, as crates fetch and disks say them.
            ("http://h/x answered 404 Not Found", Stuck, "correct the URL"),
            ("http://h/x answered 403 Forbidden", Stuck, "login"),
            ("http://h/x answered 503 Service Unavailable", Doubtful, "tried again"),
            (
                "cannot connect to h:443: failed to lookup address information: Name does not resolve",
                Stuck,
                "no server has this name",
            ),
            (
                "cannot connect to h:80: failed to lookup address information: Temporary failure in name resolution",
                Doubtful,
                "name server does not answer",
            ),
            ("cannot connect to h:80: Connection refused (os error 111)", Doubtful, "the server runs"),
            ("cannot connect to 127.0.0.1:8000: Connection refused (os error 111)", Stuck, "importer's own"),
            ("cannot connect to h:443: invalid peer certificate: UnknownIssuer", Stuck, "certConfigMap"),
            ("the image has the sha256 checksum aa, not bb", Stuck, "checksum"),
            ("the image is a disk of 9 bytes and the target has 3; ask for a larger disk", Stuck, "--disk-size"),
            ("the image needs vmdk, which is not supported", Stuck, "qcow2"),
            ("the content is a web page", Stuck, "qcow2"),
            ("the image cannot be used: the image has no directory /disk", Stuck, "containerDisk"),
            ("quay.io says that there is no such image, or that it is not for you; check", Stuck, "login"),
            ("quay.io/x:1 has no such image", Stuck, "name and tag"),
            ("the image has nothing for linux/amd64", Stuck, "architecture"),
            ("h is 10.0.0.1, which belongs to this host or its link; an administrator", Stuck, "host itself"),
            // containerd's and CRI-O's.
            ("failed to resolve reference \"x/y:1\": x/y:1: not found", Stuck, "name and tag"),
            ("pull access denied, repository does not exist or may require authorization", Stuck, "login"),
            ("failed to do request: Head \"https://r/v2\": dial tcp: lookup r: no such host", Stuck, "name"),
            ("dial tcp 10.0.0.1:443: connect: connection refused", Doubtful, "the server runs"),
            ("tls: failed to verify certificate: x509: certificate signed by unknown authority", Stuck, "trusted"),
            ("no match for platform in manifest: not found", Stuck, "architecture"),
        ];
        for (message, outlook, next) in rows {
            let judged = judge(message);
            assert_eq!(judged.outlook, outlook, "{message}");
            assert!(judged.next.unwrap_or_default().contains(next), "{message}: {judged:?}");
        }
        assert_eq!(judge("something else"), Judged { outlook: Doubtful, next: None });
    }
}
