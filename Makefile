# Plain `make` lists the targets.

STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME ?= 10s
SOAK ?= 10s

# The header of CUDA 13 needs help; see device/cuda/include.
CUDA = CGO_ENABLED=1 CGO_CFLAGS="-O2 -I$(CURDIR)/device/cuda/include -I/usr/local/cuda/include"
HEADERS = echo '\#include <cuda.h>' | $$(go env CC) -I/usr/local/cuda/include -E - >/dev/null 2>&1
GPU ?= cuda:0

.PHONY: help mnist test check fmt vet lint vuln tidy install race sanitizer long soak invariants nocgo platforms fuzz mutants gremlins bench compare cuda test-cuda bundle kernels kernels-check emulate simd

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

mnist: ## train on the real MNIST digits, on the host device
	go run ./examples/mnist

test: ## run all tests; needs Go alone
	go test ./...

check: fmt vet lint vuln tidy install kernels-check nocgo platforms invariants race long soak sanitizer fuzz ## everything else that must hold; needs a C compiler

fmt: ## fail if gofmt would change a file
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi

# The tags of all builds but cuda's, which needs headers; "make cuda" says how to get them.
TAGS = none invariants sanitizer emulator

vet: ## go vet, in each build
	@set -e; for tags in $(TAGS); do echo "go vet -tags $$tags"; go vet -tags $$tags ./...; done
	CGO_ENABLED=1 go vet -race ./...
	@if $(HEADERS); then $(CUDA) go vet -tags cuda ./...; else echo "NOT VETTED with the tag cuda: cuda.h is missing"; fi

lint: ## staticcheck, in each build; staticcheck.conf asks for comments on exported names; mutants that are no programs
	@set -e; for tags in $(TAGS); do echo "staticcheck -tags $$tags"; go run $(STATICCHECK) -tags $$tags ./...; done
	@if $(HEADERS); then echo "staticcheck -tags cuda"; $(CUDA) go run $(STATICCHECK) -tags cuda ./...; else echo "NOT LINTED with the tag cuda: cuda.h is missing"; fi
	go run ./internal/mutants -check

vuln: ## known vulnerabilities in what is imported, where their database can be reached
	.ci/vulncheck

install: ## install memreplay as a user would, from a module proxy made of TAG (or of the last commit), and run it
	.ci/install $(TAG)

tidy: ## fail if go mod tidy would change go.mod or go.sum
	go mod tidy -diff

race: ## all tests under the race detector, which is the stream sanitizer
	CGO_ENABLED=1 go test -race ./...

sanitizer: ## the two stream mistakes as programs: all reported; their corrected twins: all clean
	CGO_ENABLED=1 go test -tags sanitizer -count=1 -v -timeout 20m ./internal/sanitizer

long: ## what make test does a part of: all 100 steps of training against the losses of PyTorch, a training that is killed 100 times, more and longer recordings, training on every picture
	go test ./autograd -count=1 -run TestMNISTAsPyTorch -mnist.steps 100
	go test ./autograd -count=1 -run TestKilledTraining -checkpoint.kills 100
	go test -timeout 30m ./internal/recording ./internal/replay -long
	go test ./examples/mnist -count=1 -run 'TestRun$$' -full

soak: ## random programs against models for SOAK (10s) each, with faults injected; failures are printed as short programs
	go test -count=1 -timeout 0 -run Soak ./memcache -soak $(SOAK)
	go test -count=1 -timeout 0 -run Soak ./transfer -soak $(SOAK)
	go test -count=1 -timeout 0 -run Soak ./autograd -soak $(SOAK)

invariants: ## the tests of the allocator and of what uses it, with its structures checked
	go test -tags invariants ./device/... ./memcache/... ./transfer/... ./tensor/... ./autograd/...

nocgo: ## build and test without cgo
	CGO_ENABLED=0 go build ./...
	CGO_ENABLED=0 go test ./...

platforms: ## go vet for other systems; the tests on 32 bits, where the machine runs them
	@set -e; for p in linux/arm64 darwin/arm64 windows/amd64 freebsd/amd64 linux/386; do \
		echo "vet for $$p"; \
		CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} go vet ./...; \
	done
	@case $$(go env GOHOSTOS)/$$(go env GOHOSTARCH) in linux/amd64 | linux/386) CGO_ENABLED=0 GOARCH=386 go test -short -timeout 30m ./... ;; esac

fuzz: ## run each fuzz target for FUZZTIME (10s)
	@FUZZTIME=$(FUZZTIME) .ci/fuzz

mutants: ## break the code on purpose and see that tests notice (PKG=./memcache; all lists without it)
	CGO_ENABLED=1 go run ./internal/mutants $(PKG)

gremlins: ## break every operator that a change touches (BASE=origin/main), and print what the tests let pass
	.ci/gremlins

bench: ## the benchmarks, 5 times each
	go test -run '^$$' -bench . -benchmem -count 5 ./...

compare: ## benchmarks of PKG beside those of the commit BASE (HEAD), 20 pairs of runs that alternate: make compare PKG=./memcache BENCH=AllocFree
	.ci/compare $(PKG) '$(or $(BENCH),.)'

cuda: ## build and vet with GPUs; needs a C compiler and CUDA's headers
	@echo '#include <stdlib.h>' | $$(go env CC) -E - >/dev/null 2>&1 || { \
		echo "there is no C compiler, $$(go env CC), with its headers: on Debian install gcc and libc6-dev"; exit 1; }
	@$(HEADERS) || { \
		echo "cuda.h is missing: install CUDA's toolkit, or on Debian nvidia-cuda-dev, of the components contrib and non-free"; exit 1; }
	$(CUDA) go build -tags cuda ./...
	$(CUDA) go vet -tags cuda ./...

test-cuda: cuda ## run the tests on a GPU (GPU=cuda:0)
	CISTERN_TEST_DEVICE=$(GPU) $(CUDA) go test -count=1 -tags cuda ./device/... ./memcache ./transfer ./transfer/loader ./tensor/... ./autograd ./trace

bundle: ## write dist/: tests and example for a machine with a GPU and without Go
	$(CUDA) sh device/cuda/bundle.sh

# The epoch of MNIST would take an hour.
emulate: ## the tests of tensors with the kernels for GPUs, run by this processor; needs a C++ compiler, amd64 and Linux
	sh internal/cisterntest/emulator/build.sh $(CURDIR)/dist/emulator
	CISTERN_EMULATOR=$(CURDIR)/dist/emulator CGO_ENABLED=1 go test -count=1 -tags emulator ./internal/cisterntest/emulator
	CISTERN_EMULATOR=$(CURDIR)/dist/emulator CISTERN_TEST_DEVICE=emulated CGO_ENABLED=1 go test -count=1 -short -tags emulator -skip TestAnEpochAsPyTorch ./tensor/... ./autograd

kernels: ## compile every .cu to PTX; needs nvcc
	sh device/cuda/kernels.sh

kernels-check: ## fail if a PTX was not made of its source
	sh device/cuda/kernels.sh check

# The suites whose code has versions for instruction sets. The environment is read before the tests begin, so their results are
# not to be taken from go's cache.
SIMD_PACKAGES = ./tensor/internal/simd ./tensor/internal/workers ./tensor/internal/gemm ./tensor/internal/kernel ./tensor

simd: ## the host's kernels at each level of instructions: this processor's, plain Go, and arm64's under qemu-user; generated files are those of their programs
	@set -e; for level in generic avx2 avx512 neon; do \
		if CISTERN_SIMD=$$level go test -count=1 -run TestForcedLevel ./tensor/internal/simd >/dev/null 2>&1; then \
			echo "CISTERN_SIMD=$$level"; CISTERN_SIMD=$$level go test -count=1 -timeout 20m $(SIMD_PACKAGES); \
		else echo "NOT TESTED with CISTERN_SIMD=$$level: this processor does not run it"; fi; \
	done
	go test -short -tags purego $(SIMD_PACKAGES)
	go vet -tags purego ./tensor/...
	@if command -v qemu-aarch64 >/dev/null; then \
		echo "arm64 under qemu-aarch64"; GOARCH=arm64 CGO_ENABLED=0 go test -short -timeout 60m -exec qemu-aarch64 $(SIMD_PACKAGES); \
	else echo "NOT TESTED for arm64: qemu-aarch64 is missing; on Debian install qemu-user"; fi
	go generate ./tensor/internal/gemm ./tensor/internal/simd
	git diff --exit-code -- tensor/internal
