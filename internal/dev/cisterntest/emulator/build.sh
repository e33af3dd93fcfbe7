#!/bin/sh
# Compiles every CUDA C file of the repository for this processor: build.sh FOLDER makes a
# FOLDER/HASH.so of each, unless a newer one than its sources exists. HASH is the SHA-256 of the PTX,
# by which a module is found. The fatbin's hash is a link to it.
set -eu
out=$1
mkdir -p "$out"
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../../.."
for source in $(find . -name '*.cu' -not -path './dist/*' | sort); do
	ptx=${source%.cu}.ptx
	hash=$(sha256sum "$ptx" | cut -d' ' -f1)
	made=$out/$hash.so
	ln -sf "$hash.so" "$out/$(sha256sum "${source%.cu}.fatbin" | cut -d' ' -f1).so"
	[ -e "$made" ] && [ -z "$(find "$source" "$(dirname "$source")"/*.h "$here/cuda.h" "$here/build.sh" -newer "$made" 2>/dev/null)" ] && continue
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
extern "C" const char *emulator_run(void *kernel, const uint32_t *grid, const uint32_t *block, uint32_t shared, const uint64_t *args) {
	return emulator::run((void (*)(const uint64_t *))kernel, grid, block, shared, args);
}
END
	} >"$out/$hash.cc"
	"${CXX:-g++}" -std=c++17 -O2 -ffp-contract=off -fPIC -shared -w -I"$(dirname "$source")" -o "$made.new" "$out/$hash.cc"
	mv "$made.new" "$made"
	echo "$source"
done
