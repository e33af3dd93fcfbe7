#!/bin/sh
# Compiles every CUDA C file of the repository to PTX beside it, or with "check" fails if one is not of its source.
# The first line of the PTX names the source, and the headers beside it, by their SHA-256.
# The target is compute_70, or what the first line of the source names.
set -eu
cd "$(dirname "$0")/../.."
for source in $(find . -name '*.cu' -not -path './dist/*' | sort); do
	ptx=${source%.cu}.ptx
	mark="// of $(basename "$source"), sha256 $(cat "$source" "$(dirname "$source")"/*.h 2>/dev/null | sha256sum | cut -d' ' -f1)"
	if [ "${1:-}" = check ]; then
		if [ "$(head -n 1 "$ptx")" != "$mark" ]; then
			echo "$ptx was not made of $source; run make kernels" >&2
			exit 1
		fi
		continue
	fi
	made=$(mktemp)
	target=$(sed -n '1s/^\/\/ target \(compute_[0-9]*\)$/\1/p' "$source")
	nvcc -ptx -arch="${target:-compute_70}" -allow-unsupported-compiler -o "$made" "$source"
	{ echo "$mark"; cat "$made"; } >"$ptx"
	rm "$made"
	echo "$ptx"
done
