//! Numbers on the command line that make no sense are refused there, with the flag that has them.

use ferrovirt_api::Quantity;

/// More than any machine has; who types it has mistaken the unit.
const MOST_MEMORY: u64 = 64 << 40;
const MOST_DISK: u64 = 16 << 50;
/// Less than any guest starts with.
const LEAST_MEMORY: u64 = 1 << 20;
const LEAST_DISK: u64 = 512;

/// An amount of memory, such as 2Gi.
pub fn memory(text: &str) -> Result<String, String> {
    amount(text, LEAST_MEMORY, MOST_MEMORY)
}

/// The size of a disk, such as 10Gi.
pub fn disk(text: &str) -> Result<String, String> {
    amount(text, LEAST_DISK, MOST_DISK)
}

/// CPUs of a guest.
pub fn cpus() -> clap::builder::RangedI64ValueParser<u32> {
    // What QEMU and KVM are built for.
    clap::value_parser!(u32).range(1..=4096)
}

fn amount(text: &str, least: u64, most: u64) -> Result<String, String> {
    let Ok(quantity) = Quantity::parse(text) else {
        return Err(match meant(text) {
            Some(meant) => format!("{text:?} is not an amount; {meant}"),
            None => format!("{text:?} is not an amount such as 512Mi or 2Gi"),
        });
    };
    if quantity.is_negative() || quantity.is_zero() {
        return Err("it has to be more than nothing, such as 2Gi".into());
    }
    let bytes = quantity.as_bytes();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if text.ends_with('m') {
        return Err(format!("{text} is thousandths of a byte; write {number}Mi for mebibytes"));
    }
    if bytes < least {
        return Err(match text.parse::<u64>() {
            Ok(_) => format!("that is {bytes} bytes; write {text}Mi or {text}Gi"),
            Err(_) => format!("{text} is less than any guest can use"),
        });
    }
    if bytes > most {
        return Err(format!("{text} is more than any machine has; look at the unit"));
    }
    Ok(text.to_owned())
}

/// What somebody who wrote `4GB`, `4g` or `4 GiB` wants to write.
fn meant(text: &str) -> Option<String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at_checked(split)?;
    number.parse::<f64>().ok()?;
    let letter = match unit.trim().to_lowercase().as_str() {
        "k" | "kb" | "kib" | "ki" => "Ki",
        "m" | "mb" | "mib" | "mi" => "Mi",
        "g" | "gb" | "gib" | "gi" => "Gi",
        "t" | "tb" | "tib" | "ti" => "Ti",
        _ => return None,
    };
    Some(format!("write {number}{letter}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_that_make_no_sense_are_refused() {
        for good in ["1Gi", "512Mi", "1G", "1.5Gi", "134217728", "1e9"] {
            assert_eq!(memory(good).as_deref(), Ok(good));
            assert_eq!(disk(good).as_deref(), Ok(good));
        }
        for (bad, words) in [
            ("0", "more than nothing"),
            ("-1Gi", "more than nothing"),
            ("512", "write 512Mi or 512Gi"),
            ("512m", "write 512Mi"),
            ("4GB", "write 4Gi"),
            ("4 GiB", "write 4Gi"),
            ("2g", "write 2Gi"),
            ("1.5tb", "write 1.5Ti"),
            ("much", "such as 512Mi"),
            ("", "such as 512Mi"),
            ("100Pi", "look at the unit"),
            ("9Ei", "look at the unit"),
        ] {
            let said = memory(bad).expect_err(bad);
            assert!(said.contains(words), "{bad}: {said}");
        }
        assert!(disk("511").is_err() && disk("512").is_ok() && disk("100Pi").is_err());
    }

    #[test]
    fn the_flag_is_named() {
        use clap::CommandFactory as _;
        for (line, flag) in [
            ("ferrovirt run x --cpus 0", "--cpus"),
            ("ferrovirt run x --cpus -1", "--cpus"),
            ("ferrovirt run x --cpus 1.5", "--cpus"),
            ("ferrovirt run x --cpus 99999", "--cpus"),
            ("ferrovirt run x --memory 4GB", "--memory"),
            ("ferrovirt run x --memory -1Gi", "--memory"),
            ("ferrovirt run x --disk-size 0", "--disk-size"),
            ("ferrovirt create vm --memory 0", "--memory"),
            ("ferrovirt create vm --termination-grace-period -3", "--termination-grace-period"),
            ("ferrovirt image-upload dv x --image-path y --size 10GB", "--size"),
            ("ferrovirt expose vm x --port 0", "--port"),
        ] {
            let refused = crate::Cli::command().try_get_matches_from(line.split(' ')).expect_err(line);
            assert!(refused.to_string().contains(flag), "{line}: {refused}");
        }
    }
}
