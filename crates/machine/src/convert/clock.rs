//! The guest's clock and timers.

use super::Conversion;
use crate::spec::{Clock, ClockOffset, Timer};

pub(super) fn convert(c: &Conversion<'_>) -> Option<Clock> {
    let mut clock = from_spec(c);
    let hint = c.vmi.status.topology_hints.as_ref().and_then(|hints| hints.tsc_frequency);
    let hint = hint.and_then(|hint| u64::try_from(hint).ok());
    if let Some(frequency) = hint.filter(|_| needs_tsc_frequency(c)) {
        let timer = Timer { name: "tsc".into(), frequency: Some(frequency), ..Timer::default() };
        clock.get_or_insert_default().timers.push(timer);
    }
    clock
}

/// Guests that rely on the time stamp counter must find it as fast wherever they go.
fn needs_tsc_frequency(c: &Conversion<'_>) -> bool {
    let domain = &c.vmi.spec.domain;
    let invariant = domain
        .cpu
        .iter()
        .flat_map(|cpu| &cpu.features)
        .any(|feature| feature.name == "invtsc" && matches!(feature.policy.as_str(), "require" | "force"));
    let hyperv = domain.features.as_ref().and_then(|features| features.hyperv.as_ref());
    let reenlightenment = hyperv.and_then(|hyperv| hyperv.reenlightenment.as_ref());
    invariant || reenlightenment.is_some_and(|feature| feature.enabled != Some(false))
}

fn from_spec(c: &Conversion<'_>) -> Option<Clock> {
    let source = c.vmi.spec.domain.clock.as_ref()?;
    let mut clock = Clock::default();
    if let Some(utc) = &source.utc {
        clock.offset = Some(ClockOffset::Utc);
        clock.adjustment = Some(utc.offset_seconds.map_or_else(|| "reset".into(), |seconds| seconds.to_string()));
    } else if let Some(timezone) = &source.timezone {
        clock.offset = Some(ClockOffset::Timezone);
        clock.timezone = Some(timezone.clone());
    }
    let Some(timers) = &source.timer else {
        return Some(clock);
    };

    let mut add = |name: &str, present: Option<bool>, tick_policy: &str, track: &str| {
        clock.timers.push(Timer {
            name: name.into(),
            present: Some(present.unwrap_or(true)),
            tick_policy: set(tick_policy),
            track: set(track),
            frequency: None,
        });
    };
    if let Some(rtc) = &timers.rtc {
        add("rtc", rtc.present, &rtc.tick_policy, &rtc.track);
    }
    if let Some(pit) = &timers.pit {
        add("pit", pit.present, &pit.tick_policy, "");
    }
    if let Some(kvm) = &timers.kvm {
        add("kvmclock", kvm.present, "", "");
    }
    if let Some(hpet) = &timers.hpet {
        add("hpet", hpet.present, &hpet.tick_policy, "");
    }
    if let Some(hyperv) = &timers.hyperv {
        add("hypervclock", hyperv.present, "", "");
    }
    Some(clock)
}

fn set(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}
