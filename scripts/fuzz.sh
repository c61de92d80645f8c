#!/usr/bin/env bash
# Fuzzes every target of fuzz/ for a while (FUZZ_SECONDS each, 60 unless told; FUZZ_TARGETS="dhcp dns" for some of them).
# No nightly compiler: the counters that libFuzzer goes by are an option of every rustc, and safe code needs no sanitizer.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds="${FUZZ_SECONDS:-60}"
targets="${FUZZ_TARGETS:-image_header oci_unpack dhcp netlink dns guest_agent launcher_frames}"
cache="${FERROVIRT_CACHE:-$HOME/.cache/ferrovirt}/fuzz"
export CARGO_TARGET_DIR="$cache/target"
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cdebug-assertions -Coverflow-checks -Ccodegen-units=1"
host="$(rustc -vV | sed -n 's/^host: //p')"
features=()
case " $targets " in
*" dns "* | *" guest_agent "* | *" launcher_frames "*) ;;
*) features=(--no-default-features) ;;
esac
bins=()
for target in $targets; do bins+=(--bin "$target"); done
# With --target, build scripts and macros are built without the counters.
cargo build --release --target "$host" "${features[@]}" "${bins[@]}"
for target in $targets; do
  mkdir -p "$cache/corpus/$target" "$cache/artifacts/$target"
  echo "fuzzing $target for $seconds s"
  "$CARGO_TARGET_DIR/$host/release/$target" -max_total_time="$seconds" -max_len=65536 -timeout=20 -rss_limit_mb=2048 \
    -verbosity=0 -print_final_stats=1 -artifact_prefix="$cache/artifacts/$target/" "$cache/corpus/$target"
done
