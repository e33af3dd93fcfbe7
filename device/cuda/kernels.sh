#!/bin/sh
# Compiles every CUDA C file of the repository that has changed to PTX beside it, or with "check" fails if a PTX is not of its source.
# ptx.sum has a SHA-256 of each PTX with its source and the headers that this includes.
# The target is compute_70, or what the first line of the source names.
set -eu
cd "$(dirname "$0")/../.."
sources() {
	echo "$1"
	for header in $(sed -n 's/^#include "\(.*\)"$/\1/p' "$1"); do
		sources "$(dirname "$1")/$header"
	done
}
sum() {
	cat $(sources "$1.cu" | LC_ALL=C sort -u) "$1.ptx" 2>/dev/null | sha256sum | cut -d' ' -f1
}
sums=$(mktemp)
trap 'rm -f "$sums"' EXIT
for source in $(find . -name '*.cu' -not -path './dist/*' | LC_ALL=C sort); do
	at=${source%.cu}
	if ! grep -qx "$(sum "$at")  $at.ptx" ptx.sum 2>/dev/null; then
		if [ "${1:-}" = check ]; then
			echo "$at.ptx was not made of $source; run make kernels" >&2
			exit 1
		fi
		target=$(sed -n '1s/^\/\/ target \(compute_[0-9]*\)$/\1/p' "$source")
		nvcc -ptx -arch="${target:-compute_70}" -allow-unsupported-compiler -o "$at.ptx" "$source"
		echo "$at.ptx"
	fi
	echo "$(sum "$at")  $at.ptx" >>"$sums"
done
[ "${1:-}" = check ] || cp "$sums" ptx.sum
