#!/bin/sh
# Compiles every CUDA C file of the repository for this processor: build.sh FOLDER makes FOLDER/NAME.so of NAME.cu, unless it is
# there and newer. A module is found by its name and the hash in its PTX.
set -eu
out=$1
mkdir -p "$out"
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
for source in $(find . -name '*.cu' -not -path './dist/*' | sort); do
	ptx=${source%.cu}.ptx
	hash=$(head -n 1 "$ptx" | sed 's/.*sha256 //')
	made=$out/$hash.so
	[ -e "$made" ] && [ "$made" -nt "$here/cuda.h" ] && continue
	{
		echo "#include \"$here/cuda.h\""
		echo "#include \"$PWD/$source\""
		echo 'static struct { const char *name; void (*call)(const uint64_t *); } kernels[] = {'
		sed -n 's/^\.visible \.entry \([A-Za-z0-9_]*\)(.*/\t{"\1", [](const uint64_t *words) { emulator::call(\1, words); }},/p' "$ptx"
		echo '};'
		cat <<'END'
extern "C" void *emulator_find(const char *name) {
	for (auto &k : kernels)
		if (!strcmp(k.name, name))
			return (void *)k.call;
	return 0;
}
extern "C" const char *emulator_run(void *kernel, const uint32_t *grid, const uint32_t *block, const uint64_t *args) {
	return emulator::run((void (*)(const uint64_t *))kernel, grid, block, args);
}
END
	} >"$out/$hash.cc"
	"${CXX:-g++}" -std=c++17 -O2 -ffp-contract=off -fPIC -shared -w -I"$(dirname "$source")" -o "$made.new" "$out/$hash.cc"
	mv "$made.new" "$made"
	echo "$source"
done
