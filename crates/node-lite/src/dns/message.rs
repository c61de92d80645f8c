//! DNS messages, as far as a server of one small zone needs them. Pure, and safe on any bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

pub(crate) const A: u16 = 1;
pub(crate) const CNAME: u16 = 5;
pub(crate) const SOA: u16 = 6;
pub(crate) const PTR: u16 = 12;
pub(crate) const AAAA: u16 = 28;
pub(crate) const SRV: u16 = 33;
const OPT: u16 = 41;
pub(crate) const ANY: u16 = 255;
const INTERNET: u16 = 1;

pub(crate) const NO_ERROR: u8 = 0;
pub(crate) const SERVER_FAILURE: u8 = 2;
pub(crate) const NO_SUCH_NAME: u8 = 3;
pub(crate) const NOT_IMPLEMENTED: u8 = 4;

const HEADER: usize = 12;
/// What an answer over UDP may be long when the client says nothing.
const SMALL: usize = 512;
/// And when it says that it can take more: no more than passes every network whole.
const LARGE: usize = 1232;
const TTL: u32 = 5;

/// The one question of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Question {
    pub id: u16,
    /// In lower case, without the last dot.
    pub name: String,
    pub kind: u16,
    recursion_desired: bool,
    /// The question as it was written; clients compare the case of letters.
    raw: Vec<u8>,
    /// What the client can take, if it says so.
    size: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Data {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Cname(String),
    Ptr(String),
    Srv { port: u16, target: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub name: String,
    pub data: Data,
}

/// What is wrong with a query that is not answered in the ordinary way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// Not a query at all: silence.
    Ignore,
    /// A query of a kind that nobody here knows: the answer to send.
    Refuse(Vec<u8>),
}

impl Question {
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let header = bytes.get(..HEADER).ok_or(Malformed::Ignore)?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let (id, flags) = (number(0), number(2));
        if flags & 0x8000 != 0 {
            return Err(Malformed::Ignore);
        }
        let refuse = || {
            let mut answer = header.to_vec();
            answer[2] = 0x80 | (answer[2] & 0x79);
            answer[3] = NOT_IMPLEMENTED;
            answer[4..].fill(0);
            Malformed::Refuse(answer)
        };
        if flags & 0x7800 != 0 || number(4) != 1 {
            return Err(refuse());
        }
        let (name, after) = read_name(bytes, HEADER).ok_or_else(refuse)?;
        let fixed = bytes.get(after..after + 4).ok_or_else(refuse)?;
        let kind = u16::from_be_bytes([fixed[0], fixed[1]]);
        Ok(Self {
            id,
            name,
            kind,
            recursion_desired: flags & 0x0100 != 0,
            raw: bytes.get(HEADER..after + 4).unwrap_or_default().to_vec(),
            size: announced_size(bytes, after + 4, number(6).saturating_add(number(8)), number(10)),
        })
    }

    /// An answer from our own zone. Over UDP, one that does not fit is cut and says so.
    pub fn answer(&self, code: u8, records: &[Record], udp: bool) -> Vec<u8> {
        let limit = match (udp, self.size) {
            (false, _) => usize::from(u16::MAX),
            (true, None) => SMALL,
            (true, Some(size)) => size.clamp(SMALL, LARGE),
        };
        let mut out = self.head(code, true);
        let mut written: u16 = 0;
        let room = limit - 11;
        for record in records {
            let before = out.len();
            self.write_record(&mut out, record);
            if out.len() > room {
                out.truncate(before);
                out[2] |= 0x02;
                break;
            }
            written += 1;
        }
        out[6..8].copy_from_slice(&written.to_be_bytes());
        if records.is_empty() {
            // How long "no" may be remembered.
            self.write_authority(&mut out);
            out[9] = 1;
        }
        if self.size.is_some() {
            out.extend_from_slice(&[0]);
            out.extend_from_slice(&OPT.to_be_bytes());
            out.extend_from_slice(&(LARGE as u16).to_be_bytes());
            out.extend_from_slice(&[0; 6]);
            out[11] = 1;
        }
        out
    }

    /// An answer without records.
    pub fn failure(&self, code: u8) -> Vec<u8> {
        self.head(code, false)
    }

    fn head(&self, code: u8, authoritative: bool) -> Vec<u8> {
        let mut out = self.id.to_be_bytes().to_vec();
        out.push(0x80 | if authoritative { 0x04 } else { 0 } | u8::from(self.recursion_desired));
        out.push(0x80 | code);
        out.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.raw);
        out
    }

    fn write_record(&self, out: &mut Vec<u8>, record: &Record) {
        if record.name == self.name {
            // The question's name, which begins right after the header.
            out.extend_from_slice(&[0xc0, HEADER as u8]);
        } else {
            write_name(out, &record.name);
        }
        let (kind, data) = match &record.data {
            Data::A(address) => (A, address.octets().to_vec()),
            Data::Aaaa(address) => (AAAA, address.octets().to_vec()),
            Data::Cname(name) => (CNAME, name_bytes(name)),
            Data::Ptr(name) => (PTR, name_bytes(name)),
            Data::Srv { port, target } => {
                let mut data = vec![0, 0, 0, 100];
                data.extend_from_slice(&port.to_be_bytes());
                write_name(&mut data, target);
                (SRV, data)
            }
        };
        write_fixed(out, kind, &data);
    }

    fn write_authority(&self, out: &mut Vec<u8>) {
        write_name(out, super::DOMAIN);
        let mut data = name_bytes(&format!("ns.dns.{}", super::DOMAIN));
        write_name(&mut data, &format!("hostmaster.{}", super::DOMAIN));
        for number in [1, 7200, 1800, 86400, TTL] {
            data.extend_from_slice(&number.to_be_bytes());
        }
        write_fixed(out, SOA, &data);
    }
}

fn write_fixed(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&INTERNET.to_be_bytes());
    out.extend_from_slice(&TTL.to_be_bytes());
    out.extend_from_slice(&(data.len() as u16).to_be_bytes());
    out.extend_from_slice(data);
}

fn name_bytes(name: &str) -> Vec<u8> {
    let mut out = vec![];
    write_name(&mut out, name);
    out
}

fn write_name(out: &mut Vec<u8>, name: &str) {
    for label in name.split('.').filter(|label| !label.is_empty() && label.len() < 64) {
        out.push(label.len() as u8);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
}

/// A name without compression, as questions have it, and where it ends.
fn read_name(bytes: &[u8], mut at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            return Some((name, at));
        }
        if length > 63 || name.len() + length > 254 {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        let label = bytes.get(at..at + length)?;
        name.extend(label.iter().map(|byte| char::from(*byte).to_ascii_lowercase()));
        at += length;
    }
}

/// The size in the OPT record, which is the first additional record of every client we know.
fn announced_size(bytes: &[u8], at: usize, before: u16, additional: u16) -> Option<usize> {
    if before != 0 || additional == 0 {
        return None;
    }
    let record = bytes.get(at..at + 5)?;
    let kind = u16::from_be_bytes([record[1], record[2]]);
    (record[0] == 0 && kind == OPT).then(|| usize::from(u16::from_be_bytes([record[3], record[4]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_question_breaks_the_server() {
        // Counts of records whose sum is more than a count can be.
        let mut bytes = query("a.b", 1, Some(1232));
        bytes[6..10].fill(0xff);
        assert!(Question::parse(&bytes).unwrap().answer(0, &[], true).len() >= HEADER);
        for (at, noise) in (0..bytes.len()).flat_map(|at| [0, 1, 63, 64, 0x80, 0xc0, 0xff].map(|noise| (at, noise))) {
            let mut bytes = query("a.b", 1, Some(1232));
            bytes[at] = noise;
            for length in 0..=bytes.len() {
                if let Ok(question) = Question::parse(&bytes[..length]) {
                    question.answer(0, &[], true);
                }
            }
        }
    }

    fn query(name: &str, kind: u16, size: Option<u16>) -> Vec<u8> {
        let mut out = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(size.is_some())];
        write_name(&mut out, name);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&[0, 1]);
        if let Some(size) = size {
            out.push(0);
            out.extend_from_slice(&OPT.to_be_bytes());
            out.extend_from_slice(&size.to_be_bytes());
            out.extend_from_slice(&[0; 6]);
        }
        out
    }

    #[test]
    fn a_question_is_read_and_answered() {
        let question = Question::parse(&query("Web.Default.svc.cluster.local", A, None)).unwrap();
        assert_eq!((question.name.as_str(), question.kind), ("web.default.svc.cluster.local", A));
        let record = Record { name: question.name.clone(), data: Data::A(Ipv4Addr::new(10, 43, 0, 9)) };
        let answer = question.answer(NO_ERROR, &[record], true);
        assert_eq!(answer[..8], [0x12, 0x34, 0x85, 0x80, 0, 1, 0, 1]);
        assert_eq!(answer[12..17], *b"\x03Web\x07", "the question keeps its letters");
        assert_eq!(answer[answer.len() - 4..], [10, 43, 0, 9]);
    }

    #[test]
    fn a_long_answer_is_cut() {
        let records: Vec<Record> = (0..100)
            .map(|n| Record { name: "x.cluster.local".into(), data: Data::A(Ipv4Addr::new(10, 0, 0, n)) })
            .collect();
        for (size, most) in [(None, SMALL), (Some(900), 900), (Some(60000), LARGE)] {
            let question = Question::parse(&query("x.cluster.local", A, size)).unwrap();
            let answer = question.answer(NO_ERROR, &records, true);
            assert!(answer.len() <= most, "{size:?}: {}", answer.len());
            assert_eq!(answer[2] & 2, 2, "says that it is cut");
            let whole = question.answer(NO_ERROR, &records, false);
            assert_eq!((whole[2] & 2, whole[7]), (0, 100));
        }
    }

    #[test]
    fn no_bytes_of_a_guest_end_the_server() {
        // Counts that do not fit into a number when they are added up.
        let mut counts = query("a", A, Some(4096));
        counts[6..12].fill(0xff);
        let _ = Question::parse(&counts);
        let records: Vec<Record> = (0..200)
            .map(|n| Record {
                name: format!("n{n}.cluster.local"),
                data: Data::Srv { port: n, target: "t".repeat(70) },
            })
            .collect();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        for _ in 0..20_000 {
            let mut bytes = query("web.default.svc.cluster.local", SRV, Some(1232));
            for _ in 0..=next(6) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            bytes.truncate(1 + next(bytes.len()));
            if let Ok(question) = Question::parse(&bytes) {
                for (udp, most) in [(true, LARGE), (false, usize::from(u16::MAX))] {
                    for records in [&records[..], &[]] {
                        assert!(question.answer(NO_ERROR, records, udp).len() <= most.max(SMALL), "{bytes:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused_or_ignored() {
        assert_eq!(Question::parse(&[1, 2, 3]), Err(Malformed::Ignore));
        let mut answer = query("a", A, None);
        answer[2] |= 0x80;
        assert_eq!(Question::parse(&answer), Err(Malformed::Ignore));
        let mut update = query("a", A, None);
        update[2] |= 0x28;
        assert!(matches!(Question::parse(&update), Err(Malformed::Refuse(_))));
        for cut in HEADER..query("abc.def", A, None).len() {
            assert!(Question::parse(&query("abc.def", A, None)[..cut]).is_err(), "{cut}");
        }
        let mut loops = query("a", A, None);
        loops[12] = 0xc0;
        loops[13] = 12;
        assert!(matches!(Question::parse(&loops), Err(Malformed::Refuse(_))));
    }
}
