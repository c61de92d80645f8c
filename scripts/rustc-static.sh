#!/usr/bin/env bash
# Stands between cargo and rustc (RUSTC_WORKSPACE_WRAPPER, see build.sh): links the programs that must run on any Linux
# without shared libraries, and passes everything else on as it is.
set -euo pipefail

case " $* " in
*" --crate-name ferrovirt "*" --crate-type bin "* | *" --crate-name ferrovirt_shim "*" --crate-type bin "*)
    exec "$@" -C target-feature=+crt-static
    ;;
*)
    exec "$@"
    ;;
esac
