# Plain `make` lists the targets.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME ?= 10s
SOAK ?= 10s
LIMIT ?= 10m

# The header of CUDA 13 needs help; see device/cuda/include.
CUDA = CGO_ENABLED=1 CGO_CFLAGS="-O2 -I$(CURDIR)/device/cuda/include -I/usr/local/cuda/include"
HEADERS = echo '\#include <cuda.h>' | $$(go env CC) -I/usr/local/cuda/include -E - >/dev/null 2>&1
GPU ?= cuda:0

.PHONY: help mnist test full fmt vet lint race-short invariants-short platforms cuda nightly vet-builds lint-builds vet-platforms race invariants bits32 nocgo purego simd-levels qemu generate emulate outside kernels-check cuda-test sanitizer soak long fuzz fuzz-changed mutants mutants-sample mutants-check operators gremlins scripts tidy vuln release-check install bench benchmarks compare test-cuda bundle kernels

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

mnist: ## train on the real MNIST digits, on the host device
	go run ./examples/mnist

# One more package than processors, because some packages mostly wait.
test: ## all tests in their short form; needs only Go
	go test -short -p $$(($$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) + 1)) ./...
	@go run ./internal/dev/mutants -stale

full: ## all tests in their long form (PKG=./memcache for one package)
	go test -timeout 20m $(or $(PKG),./...)

nightly: ## everything, on the current commit; PART=2/4 runs a part, and a stopped run continues
	@.ci/night

# Checks of every change.

fmt: ## fail if gofmt would change a file
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi

vet: ## go vet of the host build
	go vet ./...

lint: ## staticcheck of the host build; staticcheck.conf asks for comments on exported names
	go run $(STATICCHECK) ./...

# The packages in which goroutines share memory. On the host device the race detector is the stream sanitizer.
CONCURRENT = ./device/... ./memcache/... ./transfer/... ./tensor ./tensor/backendtest ./autograd/... ./trace ./trace/live ./trace/record ./internal/peaks ./internal/race

race-short: ## the packages with concurrency under the race detector, in the short form
	CGO_ENABLED=1 go test -race -short $(CONCURRENT)

invariants-short: ## memcache and transfer with their structures checked after each operation, in the short form
	go test -short -tags invariants ./memcache/... ./transfer/...

# go vet compiles all that it reads: for five systems it takes 20 processor minutes, this takes one.
platforms: ## type-check everything, tests too, for the other systems
	go run ./internal/dev/platforms $(PLATFORMS)

# Other builds and systems.

# The folders in which a build tag changes files. The host build has checked all others.
TAGGED = "invariants ./internal/invariants ./memcache/... ./transfer/..." "sanitizer ./internal/dev/sanitizer/..." "emulator ./internal/dev/cisterntest/... ./tensor/... ./autograd/..." "purego ./tensor/..."
PLATFORMS = linux/arm64 darwin/arm64 windows/amd64 freebsd/amd64 linux/386

vet-builds: vet ## go vet of each build
	@set -e; for line in $(TAGGED); do echo "go vet -tags $$line"; go vet -tags $$line; done
	CGO_ENABLED=1 go vet -race ./...
	@if $(HEADERS); then $(CUDA) go vet -tags cuda ./...; else echo "NOT VETTED with the tag cuda: cuda.h is missing"; fi

lint-builds: lint ## staticcheck of each build
	@set -e; for line in $(TAGGED); do echo "staticcheck -tags $$line"; go run $(STATICCHECK) -tags $$line; done
	@if $(HEADERS); then echo "staticcheck -tags cuda"; $(CUDA) go run $(STATICCHECK) -tags cuda ./device/... ./examples/...; else echo "NOT LINTED with the tag cuda: cuda.h is missing"; fi

vet-platforms: ## go vet for the other systems; bits32 builds and tests linux/386
	@set -e; for p in $(filter-out linux/386,$(PLATFORMS)); do \
		echo "vet for $$p"; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} go vet ./...; \
	done

bits32: ## the tests on 32 bits, where the machine runs them
	@case $$(go env GOHOSTOS)/$$(go env GOHOSTARCH) in \
	linux/amd64 | linux/386) CGO_ENABLED=0 GOARCH=386 go test -short -timeout 30m ./... ;; \
	*) echo "NOT TESTED on 32 bits: this machine runs no linux/386" ;; esac

nocgo: ## build and vet without cgo; without the tag cuda no package imports "C", so the tests would not differ
	CGO_ENABLED=0 go build ./...
	CGO_ENABLED=0 go vet ./...

cuda: ## build with GPUs; needs a C compiler and CUDA's headers
	@echo '#include <stdlib.h>' | $$(go env CC) -E - >/dev/null 2>&1 || { \
		echo "there is no C compiler, $$(go env CC), with its headers: on Debian install gcc and libc6-dev"; exit 1; }
	@$(HEADERS) || { \
		echo "cuda.h is missing: install CUDA's toolkit, or on Debian nvidia-cuda-dev, of the components contrib and non-free"; exit 1; }
	$(CUDA) go build -tags cuda ./...

cuda-test: cuda ## vet and test the code that only the build with GPUs has, and start the example without a driver
	$(CUDA) go vet -tags cuda ./...
	$(CUDA) go test -tags cuda ./device/cuda ./internal/dev/cisterntest/leaktest ./internal/dev/structure
	.ci/cuda-start

# The race detector and self-checking structures.

race: ## all tests under the race detector
	CGO_ENABLED=1 go test -race -timeout 30m ./...

sanitizer: ## programs with two stream mistakes, which must all be reported; their corrected twins must be clean
	CGO_ENABLED=1 go test -tags sanitizer -count=1 -v -timeout 20m ./internal/dev/sanitizer

invariants: ## the allocator and its users, with structures checked after each operation
	go test -timeout 20m -tags invariants ./device/... ./memcache/... ./transfer/... ./tensor/... ./autograd/...

# Longer tests.

long: ## full lengths that no other stage runs: PyTorch's losses for 100 steps, 10,000 composed trainings, 100 kills, long recordings, MNIST
	go test ./autograd -count=1 -run TestMNISTAsPyTorch -mnist.steps 100
	go test ./autograd/internal/compose -count=1 -timeout 1h -run Compose -compose.programs 10000
	go test ./autograd/checkpoint -count=1 -run TestKilledTraining -checkpoint.kills 100
	go test -timeout 30m ./internal/cli ./internal/recording ./internal/replay -long
	go test ./examples/mnist -count=1 -run 'TestRun$$' -full

soak: ## random programs against models for SOAK (10s) each, with faults injected; failures are printed as short programs
	go test -count=1 -timeout 0 -run Soak ./memcache -soak $(SOAK)
	go test -count=1 -timeout 0 -run Soak ./transfer -soak $(SOAK)
	go test -count=1 -timeout 0 -run Soak ./autograd -soak $(SOAK)

fuzz: ## run each fuzz target for FUZZTIME (10s)
	@FUZZTIME=$(FUZZTIME) .ci/fuzz

fuzz-changed: ## the fuzz targets of the packages PKG
	@FUZZTIME=$(FUZZTIME) .ci/fuzz $(PKG)

# Tests of the tests.

mutants: ## break the code on purpose and check that the tests notice (PKG=./memcache; all lists without it)
	CGO_ENABLED=1 go run ./internal/dev/mutants $(PKG)

mutants-sample: ## 30 mutants, drawn by the commit
	CGO_ENABLED=1 go run ./internal/dev/mutants -sample 30 -seed "$$(git rev-parse HEAD)"

mutants-check: ## fail if a mutant is stale or does not compile
	go run ./internal/dev/mutants -check

operators: ## measure how many of 200 wrong operators in each PKG (./memcache ./transfer) the tests notice, drawn with SEED (1)
	go run ./internal/dev/operators -seed "$${SEED:-1}" $(PKG)

gremlins: ## break every operator that a change touches (BASE=origin/main), for LIMIT (10m), and print the surviving mutants
	LIMIT=$(LIMIT) .ci/gremlins

scripts: ## the tests of the scripts in .ci
	.ci/fuzz-test
	.ci/debian-components-test

tidy: ## fail if go mod tidy would change go.mod or go.sum
	go mod tidy -diff
	cd examples/backend && go mod tidy -diff

vuln: ## known vulnerabilities in imported modules, if their database can be reached
	.ci/vulncheck

release-check: ## check that the last commit can be released: install, docs, licences, changes of exported names; tags nothing
	.ci/release

install: ## install cistern as a user would, from a module proxy made of TAG (or of the last commit), and run it
	.ci/install $(TAG)

# Measurements.

bench: ## the benchmarks, 5 times each
	go test -run '^$$' -bench . -benchmem -count 5 ./...

compare: ## benchmarks of PKG beside those of the commit BASE (HEAD), 20 pairs of alternating runs: make compare PKG=./memcache BENCH=AllocFree
	.ci/compare $(PKG) '$(or $(BENCH),.)'

# GPUs.

test-cuda: cuda bundle ## run the tests on a GPU (GPU=cuda:0), and list the skipped ones
	CISTERN_TEST_DEVICE=$(GPU) dist/run-tests

benchmarks: cuda bundle ## training steps on this machine's GPU beside PyTorch's and JAX's; needs Python with them
	python3 dist/benchmarks/benchmarks.py

bundle: ## write dist/: tests and example for a machine with a GPU and without Go
	$(CUDA) sh device/cuda/bundle.sh

# The skipped epoch of MNIST would take an hour.
emulate: ## the tests of tensors with the kernels for GPUs, run on this processor; needs a C++ compiler, amd64 and Linux
	sh internal/dev/cisterntest/emulator/build.sh $(CURDIR)/dist/emulator
	CISTERN_EMULATOR=$(CURDIR)/dist/emulator CGO_ENABLED=1 go test -count=1 -tags emulator ./internal/dev/cisterntest/emulator
	CISTERN_EMULATOR=$(CURDIR)/dist/emulator CISTERN_TEST_DEVICE=emulated CGO_ENABLED=1 go test -count=1 -short -tags emulator -skip TestAnEpochAsPyTorch ./tensor/... ./autograd/...

outside: ## test the backend of examples/backend, a module of its own
	cd examples/backend && go vet ./... && go test ./...

kernels: ## compile every .cu to PTX and a fatbin; needs nvcc, and ptxas of CUDA 12
	sh device/cuda/kernels.sh

kernels-check: ## fail if a PTX or a fatbin was not made of its source
	sh device/cuda/kernels.sh check

# The suites of code with versions for instruction sets. The environment is read before the tests
# begin, which the go command's cache does not see, so the tests need -count=1.
SIMD_PACKAGES = ./tensor/internal/simd ./tensor/internal/workers ./tensor/internal/gemm ./tensor/internal/kernel ./tensor ./tensor/backendtest

# Plain Go, the level generic, has a stage of its own: purego.
simd-levels: ## the host's kernels at each level of instructions that this processor runs besides its default
	@set -e; chosen=$$(go test -count=1 -v -run TestForcedLevel ./tensor/internal/simd | sed -n 's/.*the level is //p'); \
	test -n "$$chosen"; echo "the other tests ran CISTERN_SIMD=$$chosen, which this processor chooses"; \
	for level in avx2 avx512 neon; do \
		if [ "$$level" = "$$chosen" ]; then continue; fi; \
		if CISTERN_SIMD=$$level go test -count=1 -run TestForcedLevel ./tensor/internal/simd >/dev/null 2>&1; then \
			echo "CISTERN_SIMD=$$level"; CISTERN_SIMD=$$level go test -count=1 -timeout 20m $(SIMD_PACKAGES); \
		else echo "NOT TESTED with CISTERN_SIMD=$$level: this processor does not run it"; fi; \
	done

purego: ## the host's kernels in plain Go
	CISTERN_SIMD=generic go test -count=1 -run TestForcedLevel ./tensor/internal/simd
	go test -tags purego $(SIMD_PACKAGES)

qemu: ## the host's kernels for arm64, under qemu-user
	@if command -v qemu-aarch64 >/dev/null; then \
		GOARCH=arm64 CGO_ENABLED=0 go test -short -timeout 60m -exec qemu-aarch64 $(SIMD_PACKAGES); \
	else echo "NOT TESTED for arm64: qemu-aarch64 is missing; on Debian install qemu-user"; fi

generate: ## fail if a generated file differs from its program's output
	go generate ./tensor/internal/gemm ./tensor/internal/simd
	git diff --exit-code -- tensor/internal
