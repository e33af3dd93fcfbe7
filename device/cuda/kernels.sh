#!/bin/sh
# Compiles every CUDA C file of the repository that has changed to a PTX and a fatbin beside it. With
# "check" it fails instead if a file has changed.
# ptx.sum has a SHA-256 of each PTX with its fatbin, its source and the headers that the source includes.
# The target is compute_70, or the one in the first line of the source. The fatbin has code for 8.x and
# for 9.0. The kernels for 9.0 begin with a wait, as device/cuda/dependent.go describes.
# nvcc may be of CUDA 11. ptxas must be of CUDA 12: the code of ptxas 11.8 makes steps 2 % slower.
set -eu
cd "$(dirname "$0")/../.."
sources() {
	echo "$1"
	for header in $(sed -n 's/^#include "\(.*\)"$/\1/p' "$1"); do
		sources "$(dirname "$1")/$header"
	done
}
sum() {
	cat $(sources "$1.cu" | LC_ALL=C sort -u) "$1.ptx" "$1.fatbin" 2>/dev/null | sha256sum | cut -d' ' -f1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sums=$work/sums
for source in $(find . -name '*.cu' -not -path './dist/*' | LC_ALL=C sort); do
	at=${source%.cu}
	if ! grep -qx "$(sum "$at")  $at.ptx" ptx.sum 2>/dev/null; then
		if [ "${1:-}" = check ]; then
			echo "$at.ptx and $at.fatbin were not made of $source; run make kernels" >&2
			exit 1
		fi
		if ! ptxas --version | grep -q 'release 12\.'; then
			echo "ptxas ($(command -v ptxas || echo none)) is not of CUDA 12; Dockerfile.dev has commands that install one" >&2
			exit 1
		fi
		target=$(sed -n '1s/^\/\/ target \(compute_[0-9]*\)$/\1/p' "$source")
		nvcc -ptx -arch="${target:-compute_70}" -allow-unsupported-compiler -o "$at.ptx" "$source"
		sed -e 's/^\.target .*/.target sm_90/' \
			-e '/^\.visible \.entry /,/^{$/s/^{$/{\n\tgriddepcontrol.wait;/' "$at.ptx" >"$work/waits.ptx"
		printf '.visible .entry cistern_waits()\n{\n\tret;\n}\n' >>"$work/waits.ptx"
		ptxas -arch=sm_80 -o "$work/80.cubin" "$at.ptx"
		ptxas -arch=sm_90 -o "$work/90.cubin" "$work/waits.ptx"
		fatbinary -64 --compress-all --create="$at.fatbin" \
			--image3=kind=elf,sm=80,file="$work/80.cubin" --image3=kind=elf,sm=90,file="$work/90.cubin"
		echo "$at"
	fi
	echo "$(sum "$at")  $at.ptx" >>"$sums"
done
[ "${1:-}" = check ] || cp "$sums" ptx.sum
