//! Whether a pattern is a regular expression as kube-apiserver reads it.
//!
//! Ours is another engine, which refuses patterns that Go takes (`{x}`, `[[]`, `\Q..\E`) and takes some that Go refuses.
//! So the syntax is checked here, and the words are the ones Go's parser has for each fault.

/// Go repeats nothing more often than this.
const MAX_REPEAT: u32 = 1000;
const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "word",
    "xdigit",
];

/// The fault in a pattern, if it has one.
pub fn fault(pattern: &str) -> Option<String> {
    check(pattern).err().map(|fault| format!("error parsing regexp: {fault}"))
}

fn check(pattern: &str) -> Result<(), String> {
    let mut rest = pattern;
    let mut open = 0usize;
    // Whether there is something to repeat, and the text of the repetition that came just before.
    let mut repeatable = false;
    let mut repeated: Option<&str> = None;
    while let Some(next) = rest.chars().next() {
        let before = rest;
        let previous = repeated.take();
        match next {
            '(' if rest.starts_with("(?") => {
                let (tail, opens) = flags(rest)?;
                rest = tail;
                if opens {
                    open += 1;
                    repeatable = false;
                }
            }
            '(' | '|' => {
                open += usize::from(next == '(');
                repeatable = false;
                rest = &rest[1..];
            }
            ')' => {
                open = open.checked_sub(1).ok_or_else(|| format!("unexpected ): `{pattern}`"))?;
                repeatable = true;
                rest = &rest[1..];
            }
            '*' | '+' | '?' | '{' => {
                let Some(tail) = repetition(rest)? else {
                    rest = &rest[1..];
                    repeatable = true;
                    continue;
                };
                rest = tail.strip_prefix('?').unwrap_or(tail);
                let start = previous.unwrap_or(before);
                let shown = &start[..start.len() - rest.len()];
                if previous.is_some() {
                    return Err(format!("invalid nested repetition operator: `{shown}`"));
                }
                if !repeatable {
                    return Err(format!("missing argument to repetition operator: `{shown}`"));
                }
                repeated = Some(before);
            }
            '[' => {
                rest = class(rest)?;
                repeatable = true;
            }
            '\\' => {
                rest = match rest.strip_prefix("\\Q") {
                    Some(quoted) => quoted.split_once("\\E").map_or("", |(_, tail)| tail),
                    None if rest[1..].starts_with(['A', 'b', 'B', 'z']) => &rest[2..],
                    None => match shorthand(rest)? {
                        Some(tail) => tail,
                        None => escape(rest)?.1,
                    },
                };
                repeatable = true;
            }
            other => {
                rest = &rest[other.len_utf8()..];
                repeatable = true;
            }
        }
    }
    if open > 0 { Err(format!("missing closing ): `{pattern}`")) } else { Ok(()) }
}

/// What follows `(?`: a named group, flags, or flags and a group. Also whether a group was opened.
fn flags(text: &str) -> Result<(&str, bool), String> {
    if let Some(named) = text.strip_prefix("(?P<").or_else(|| text.strip_prefix("(?<")) {
        let Some((name, tail)) = named.split_once('>') else {
            return Err(format!("invalid named capture: `{text}`"));
        };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(format!("invalid named capture: `{}`", &text[..text.len() - tail.len()]));
        }
        return Ok((tail, true));
    }
    let mut rest = &text[2..];
    let (mut negative, mut some) = (false, false);
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match next {
            'i' | 'm' | 's' | 'U' => some = true,
            '-' if !negative => (negative, some) = (true, false),
            ':' | ')' if some || !negative => return Ok((rest, next == ':')),
            _ => return Err(format!("invalid or unsupported Perl syntax: `{}`", &text[..text.len() - rest.len()])),
        }
    }
    Err(format!("invalid or unsupported Perl syntax: `{text}`"))
}

/// What follows a repetition. None if the brace is only a brace.
fn repetition(text: &str) -> Result<Option<&str>, String> {
    let Some(braced) = text.strip_prefix('{') else {
        return Ok(Some(&text[1..]));
    };
    let Some((inside, tail)) = braced.split_once('}') else {
        return Ok(None);
    };
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        // More digits than fit are certainly too many.
        (plain && (digits == "0" || !digits.starts_with('0'))).then(|| digits.parse::<u32>().unwrap_or(u32::MAX))
    };
    let (min, max) = match inside.split_once(',') {
        Some((min, "")) => (number(min), Some(MAX_REPEAT)),
        Some((min, max)) => (number(min), number(max)),
        None => (number(inside), number(inside)),
    };
    let (Some(min), Some(max)) = (min, max) else {
        return Ok(None);
    };
    if min > MAX_REPEAT || max > MAX_REPEAT || min > max {
        return Err(format!("invalid repeat count: `{{{inside}}}`"));
    }
    Ok(Some(tail))
}

/// What follows a bracketed class.
fn class(text: &str) -> Result<&str, String> {
    let unclosed = || format!("missing closing ]: `{text}`");
    let mut rest = &text[1..];
    rest = rest.strip_prefix('^').unwrap_or(rest);
    let mut first = true;
    loop {
        if rest.is_empty() {
            return Err(unclosed());
        }
        if let Some(tail) = rest.strip_prefix(']').filter(|_| !first) {
            return Ok(tail);
        }
        first = false;
        if let Some((name, tail)) = rest.strip_prefix("[:").and_then(|named| named.split_once(":]")) {
            if !CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
                return Err(format!("invalid character class range: `[:{name}:]`"));
            }
            rest = tail;
        } else if let Some(tail) = shorthand(rest)? {
            rest = tail;
        } else {
            let start = rest;
            let (low, tail) = member(rest)?;
            rest = tail;
            if let Some(tail) = rest.strip_prefix('-').filter(|tail| !tail.is_empty() && !tail.starts_with(']')) {
                let (high, tail) = member(tail)?;
                rest = tail;
                if high < low {
                    let shown = &start[..start.len() - rest.len()];
                    return Err(format!("invalid character class range: `{shown}`"));
                }
            }
        }
    }
}

fn member(text: &str) -> Result<(u32, &str), String> {
    match text.chars().next() {
        Some('\\') => escape(text),
        Some(plain) => Ok((u32::from(plain), &text[plain.len_utf8()..])),
        None => Ok((0, text)),
    }
}

/// What follows `\d`, `\pL`, `\p{Greek}` and the like; None if this is something else. Any name of a script will do.
fn shorthand(text: &str) -> Result<Option<&str>, String> {
    let Some(rest) = text.strip_prefix('\\') else {
        return Ok(None);
    };
    if rest.starts_with(['d', 'D', 's', 'S', 'w', 'W']) {
        return Ok(Some(&rest[1..]));
    }
    let Some(name) = rest.strip_prefix(['p', 'P']) else {
        return Ok(None);
    };
    let tail = match name.strip_prefix('{') {
        Some(braced) => braced.split_once('}').map(|(_, tail)| tail),
        None => name.chars().next().map(|c| &name[c.len_utf8()..]),
    };
    tail.map(Some).ok_or_else(|| format!("invalid character class range: `{text}`"))
}

/// The character that an escape stands for, and what follows it.
fn escape(text: &str) -> Result<(u32, &str), String> {
    let mut rest = &text[1..];
    let Some(next) = rest.chars().next() else {
        return Err("trailing backslash at end of expression: ``".to_owned());
    };
    rest = &rest[next.len_utf8()..];
    let invalid = |rest: &str| format!("invalid escape sequence: `{}`", &text[..text.len() - rest.len()]);
    let digits = |text: &str, radix, most| text.chars().take(most).take_while(|c| c.is_digit(radix)).count();
    let value = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().filter(|n| *n <= 0x10_FFFF);
    match next {
        // One digit alone would refer to a group, which Go does not do.
        '1'..='7' if digits(rest, 8, 1) == 0 => Err(invalid(rest)),
        '0'..='7' => {
            let (octal, tail) = rest.split_at(digits(rest, 8, 2));
            let number = value(&format!("{next}{octal}"), 8).unwrap_or_default();
            Ok((number, tail))
        }
        'x' => {
            let (hex, tail) = match rest.strip_prefix('{') {
                Some(braced) => braced.split_once('}').ok_or_else(|| invalid(""))?,
                None => rest.split_at(digits(rest, 16, 2)),
            };
            let whole = rest.starts_with('{') || hex.len() == 2;
            value(hex, 16).filter(|_| whole).map(|number| (number, tail)).ok_or_else(|| invalid(tail))
        }
        'a' => Ok((7, rest)),
        'f' => Ok((12, rest)),
        'n' => Ok((10, rest)),
        'r' => Ok((13, rest)),
        't' => Ok((9, rest)),
        'v' => Ok((11, rest)),
        plain if plain.is_ascii() && !plain.is_ascii_alphanumeric() => Ok((u32::from(plain), rest)),
        _ => Err(invalid(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_go_reads_them() {
        let good = [
            "",
            "^[a-z]+$",
            "a{2}b{1,}c{1,3}",
            "{x}",
            "a{",
            "a{,3}",
            "[[]",
            "[]a]",
            "[^]a-]",
            "[a-]",
            r"\Q(\E",
            r"\Q(",
            r"\d\pL\p{Greek}[\w-]",
            "(?i)a|b",
            "(?:a)(?P<n>b)(?<m>c)(?s-i:d)",
            r"\x41\x{1F600}\101\.\/\_",
            "[[:alpha:]]",
            "a*",
            "(|a)*",
            "()*",
            r"^(\d+)(\.\d+)?$",
            "é+[à-ü]",
            r"\bword\b\z",
            "a??",
        ];
        for pattern in good {
            assert_eq!(fault(pattern), None, "{pattern}");
        }
        let bad = [
            ("(", "missing closing ): `(`"),
            ("a)", "unexpected ): `a)`"),
            ("[a", "missing closing ]: `[a`"),
            ("x[", "missing closing ]: `[`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:nope:]]", "invalid character class range: `[:nope:]`"),
            ("*a", "missing argument to repetition operator: `*`"),
            ("a|+", "missing argument to repetition operator: `+`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a{3,2}", "invalid repeat count: `{3,2}`"),
            ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?!a)", "invalid or unsupported Perl syntax: `(?!`"),
            ("(?P<a", "invalid named capture: `(?P<a`"),
            ("(?P<a-b>x)", "invalid named capture: `(?P<a-b>`"),
            (r"\1", r"invalid escape sequence: `\1`"),
            (r"\y", r"invalid escape sequence: `\y`"),
            (r"\C", r"invalid escape sequence: `\C`"),
            ("a\\", "trailing backslash at end of expression: ``"),
        ];
        for (pattern, expected) in bad {
            assert_eq!(fault(pattern), Some(format!("error parsing regexp: {expected}")), "{pattern}");
        }
    }
}
