//! Decisions about system calls as a program for the kernel's packet filter.
//!
//! Numbers are looked up by halving, so that a call costs some seven comparisons; and where the answer for a number does
//! not depend on arguments, the kernel (5.11) remembers it and runs nothing at all.

use std::collections::BTreeMap;

/// One instruction, as the kernel's `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// A whole filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program(pub(crate) Vec<Instruction>);

/// What a call meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Allow,
    Errno(u16),
}

/// Arguments are compared in their lower 32 bits: all that is compared here are `int`s, of which the kernel reads no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rule {
    Always(Answer),
    /// Allowed if the argument has none of these bits.
    Without {
        argument: u32,
        bits: u32,
        or: u16,
    },
    /// Allowed if the argument is in one of these ranges, ends included.
    Among {
        argument: u32,
        ranges: &'static [(u32, u32)],
        or: u16,
    },
}

/// The calls of one architecture. Numbers beyond `newest` are unknown here and answered as by a kernel without them.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub architecture: u32,
    pub rules: BTreeMap<u32, Rule>,
    pub otherwise: Rule,
    pub newest: u32,
}

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_NOT_LESS: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
pub(crate) const ENOSYS: u16 = 38;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

const fn test(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn give(answer: Answer) -> Instruction {
    plain(
        RETURN,
        match answer {
            Answer::Allow => ALLOW,
            Answer::Errno(errno) => ERRNO | u32::from(errno),
        },
    )
}

/// A call of an architecture that no table is for ends the process.
pub(crate) fn compile(tables: &[Table]) -> Program {
    let mut out = vec![plain(LOAD, ARCHITECTURE)];
    for table in tables {
        let mut part = vec![plain(LOAD, NUMBER)];
        part.extend(search(&segments(table)));
        // Only conditional jumps are short.
        out.push(test(JUMP_EQUAL, table.architecture, 1, 0));
        out.push(plain(JUMP, length(&part)));
        out.extend(part);
    }
    out.push(plain(RETURN, KILL_PROCESS));
    Program(out)
}

/// The first number of each run of equal rules. The first run begins with 0.
fn segments(table: &Table) -> Vec<(u32, Rule)> {
    let mut out: Vec<(u32, Rule)> = vec![(0, table.otherwise.clone())];
    let mut put = |first: u32, rule: Rule| match out.last_mut() {
        Some(last) if last.0 == first => last.1 = rule,
        Some(last) if last.1 == rule => {}
        _ => out.push((first, rule)),
    };
    for (number, rule) in &table.rules {
        put(*number, rule.clone());
        put(number + 1, table.otherwise.clone());
    }
    put(table.newest + 1, Rule::Always(Answer::Errno(ENOSYS)));
    // A run that was begun and replaced at once may equal the one before it.
    out.dedup_by(|later, earlier| later.1 == earlier.1);
    out
}

fn search(segments: &[(u32, Rule)]) -> Vec<Instruction> {
    let (low, high) = segments.split_at(segments.len() / 2);
    let (Some((first, _)), false) = (high.first(), low.is_empty()) else {
        return segments.first().map(|(_, rule)| decide(rule)).unwrap_or_default();
    };
    let (low, high) = (search(low), search(high));
    let mut out = match u8::try_from(low.len()) {
        Ok(short) => vec![test(JUMP_NOT_LESS, *first, short, 0)],
        Err(_) => vec![test(JUMP_NOT_LESS, *first, 0, 1), plain(JUMP, length(&low))],
    };
    out.extend(low);
    out.extend(high);
    out
}

fn decide(rule: &Rule) -> Vec<Instruction> {
    match rule {
        Rule::Always(answer) => vec![give(*answer)],
        Rule::Without { argument, bits, or } => vec![
            plain(LOAD, ARGUMENTS + 8 * argument),
            test(JUMP_ANY_BIT, *bits, 1, 0),
            give(Answer::Allow),
            give(Answer::Errno(*or)),
        ],
        Rule::Among { argument, ranges, or } => {
            let mut out = vec![plain(LOAD, ARGUMENTS + 8 * argument)];
            for (first, last) in *ranges {
                out.push(test(JUMP_NOT_LESS, *first, 0, 2));
                out.push(test(JUMP_GREATER, *last, 1, 0));
                out.push(give(Answer::Allow));
            }
            out.push(give(Answer::Errno(*or)));
            out
        }
    }
}

fn length(part: &[Instruction]) -> u32 {
    u32::try_from(part.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the kernel would do, and in how many steps.
    pub(crate) fn run(program: &Program, architecture: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let (mut at, mut held, mut steps) = (0_usize, 0_u32, 0);
        loop {
            let Instruction { code, jt, jf, k } = program.0[at];
            steps += 1;
            at += 1;
            let mut jump = |yes: bool| at += usize::from(if yes { jt } else { jf });
            match code {
                LOAD if k == NUMBER => held = number,
                LOAD if k == ARCHITECTURE => held = architecture,
                LOAD => held = arguments[((k - ARGUMENTS) / 8) as usize] as u32,
                JUMP => at += k as usize,
                JUMP_EQUAL => jump(held == k),
                JUMP_GREATER => jump(held > k),
                JUMP_NOT_LESS => jump(held >= k),
                JUMP_ANY_BIT => jump(held & k != 0),
                RETURN => return (k, steps),
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    pub(crate) const ALLOWED: u32 = ALLOW;

    pub(crate) fn refused(errno: u16) -> u32 {
        ERRNO | u32::from(errno)
    }

    #[test]
    fn every_number_meets_the_rule_that_was_written_for_it() {
        let mut rules = BTreeMap::new();
        for number in 0..600 {
            if number % 3 != 0 {
                rules.insert(number, Rule::Always(Answer::Allow));
            }
        }
        rules.insert(7, Rule::Without { argument: 0, bits: 0x80, or: 1 });
        rules.insert(8, Rule::Among { argument: 1, ranges: &[(0, 3), (5, 5), (9, 12)], or: 2 });
        let otherwise = Rule::Always(Answer::Errno(1));
        let table = |architecture, rules| Table { architecture, rules, otherwise: otherwise.clone(), newest: 650 };
        let program = compile(&[table(62, rules), table(40, BTreeMap::from([(5, Rule::Always(Answer::Allow))]))]);
        for number in 0..1000 {
            let expected = match number {
                7 | 8 => ALLOWED,
                651.. => refused(ENOSYS),
                600.. => refused(1),
                _ if number % 3 == 0 => refused(1),
                _ => ALLOWED,
            };
            let (answer, steps) = run(&program, 62, number, [0; 6]);
            assert_eq!(answer, expected, "{number}");
            assert!(steps < 24, "{number} takes {steps} steps");
        }
        assert_eq!(run(&program, 62, 7, [0x81, 0, 0, 0, 0, 0]).0, refused(1));
        for (value, expected) in [(4, refused(2)), (5, ALLOWED), (6, refused(2)), (12, ALLOWED), (13, refused(2))] {
            assert_eq!(run(&program, 62, 8, [0, value, 0, 0, 0, 0]).0, expected, "{value}");
        }
        assert_eq!(run(&program, 40, 5, [0; 6]).0, ALLOWED);
        assert_eq!(run(&program, 40, 7, [0; 6]).0, refused(1));
        assert_eq!(run(&program, 41, 5, [0; 6]).0, KILL_PROCESS);
        assert_eq!(run(&program, 62, u32::MAX, [0; 6]).0, refused(ENOSYS));
    }
}
