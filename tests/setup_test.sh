#!/usr/bin/env bash
# Tests tools/setup on machines that lack packages. Stand-ins for dpkg and apt record their arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
machine=$(mktemp -d)
trap 'rm -rf "$machine"' EXIT
mkdir -p "$machine/bin" "$machine/torch/include"
printf '#!/bin/sh\n[ -s "%s/installed" ] && sed "s/^/ii  /" "%s/installed"\nexit 1\n' "$machine" "$machine" >"$machine/bin/dpkg-query"
printf '#!/bin/sh\necho "$*" >>"%s/asked"\n' "$machine" >"$machine/bin/apt-get"
printf '#!/bin/sh\necho 0\n' >"$machine/bin/id"
chmod +x "$machine"/bin/*

# asks INSTALLED OPTIONS...: prints what apt-get install is called with if the packages INSTALLED are there.
asks() {
  : >"$machine/asked"
  tr ' ' '\n' <<<"$1" | sed '/^$/d' >"$machine/installed"
  PATH=$machine/bin:$PATH TORCH_ROOT=$machine/torch tools/setup "${@:2}" >"$machine/log" 2>&1 ||
    { cat "$machine/log"; echo "tools/setup ${*:2} failed where '$1' is installed"; exit 1; } >&2
  grep '^install' "$machine/asked" || true
}
expect() { [[ $1 == *"$2"* ]] || { echo "no '$2' in: $1"; exit 1; }; }
refute() { [[ $1 != *"$2"* ]] || { echo "'$2' in: $1"; exit 1; }; }

nothing=$(asks "")
expect "$nothing" " g++ "
expect "$nothing" " ninja-build "
refute "$nothing" " clang-tidy"
some=$(asks "g++ cmake" --lint)
refute "$some" " g++ "
expect "$some" " ninja-build "
expect "$some" " clang-tidy"
all=$(asks "${nothing##*--no-install-recommends }")
[ -z "$all" ] || { echo "asked though all is there: $all"; exit 1; }
echo "tools/setup asks for what is missing"
