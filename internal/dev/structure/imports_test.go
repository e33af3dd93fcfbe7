package structure

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// layers, from the lowest: a package imports its own layer and those below. Packages below a folder
// belong to the folder's layer.
var layers = []string{"device", "memcache", "transfer", "tensor", "autograd", "examples"}

// beside lists packages outside of the layers, with their allowed imports.
var beside = map[string][]string{
	"trace":               {"device", "memcache", "transfer", "internal/race", "internal/budget", "internal/callframe", "internal/hosts", "internal/opened", "internal/output", "internal/recording", "internal/replay", "internal/sizes"},
	"internal/cli":        {"trace", "internal/budget", "internal/output", "internal/recording", "internal/replay"},
	"internal/accounting": nil,
	"internal/callframe":  nil,
	"internal/output":     nil,
	"internal/hosts":      nil,
	"internal/budget":     nil,
	"internal/race":       nil,
	"internal/bfloat16":   nil,
	"internal/float16":    nil,
	"internal/invariants": nil,
	"internal/shortage":   {"internal/sizes"},
	"internal/sizes":      nil,
	"internal/peaks":      nil,
	"internal/observe":    nil,
	"internal/ptxfiles":   nil,
	"internal/headstart":  {"device"},
	"internal/opened":     {"internal/race"},
	"internal/restore":    {"device"},
	"internal/recording":  {"device", "internal/budget", "internal/sizes"},
	"internal/replay":     {"device", "memcache", "internal/budget", "internal/recording", "internal/restore", "internal/sizes"},
}

// command is the module's root.
const command = ""

// in reports whether the package is the folder or below it.
func in(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

func layer(pkg string) int {
	return slices.IndexFunc(layers, func(l string) bool { return in(pkg, l) })
}

// mayImport reports whether a package may import another one of the module, outside of tests.
func mayImport(from, to string) bool {
	for pkg, allowed := range beside {
		if in(from, pkg) {
			return in(to, pkg) || slices.ContainsFunc(allowed, func(a string) bool { return in(to, a) })
		}
	}
	switch f, t := layer(from), layer(to); {
	case from == command:
		return to == "internal/cli"
	case f < 0: // tools and tests
		return in(from, "internal")
	case t >= 0:
		return t <= f
	case (in(from, "examples") || in(from, "autograd/forecast")) && in(to, "trace"):
		return true
	default: // programs contain what imports nothing, such packages, or devices alone
		imports, known := beside[to]
		return known && !slices.ContainsFunc(imports, func(i string) bool {
			its, known := beside[i]
			return !(known && its == nil) && !(i == "device" && f > layer("device"))
		})
	}
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range ours(t) {
		for _, path := range p.Imports {
			to, ok := strings.CutPrefix(path, module+"/")
			if ok && !mayImport(p.short(), to) {
				t.Errorf("%s imports %s", p.short(), to)
			}
		}
	}
	for _, wrong := range [][2]string{
		{"device", "memcache"}, {"device/host", "transfer"}, {"memcache", "transfer"}, {"internal/replay", "tensor"}, {"memcache", "internal/replay"}, {"transfer", "trace"},
		{command, "memcache"}, {"tensor", "autograd"}, {"autograd", "examples/mnist"}, {"trace", "tensor"}, {"internal/race", "device"}, {"tensor", "internal/dev/structure"},
	} {
		require.False(t, mayImport(wrong[0], wrong[1]), wrong)
	}
}

// TestImportsOfOthers limits the packages that may import a library, directly or indirectly.
func TestImportsOfOthers(t *testing.T) {
	all, err := list()
	require.NoError(t, err)
	packages := map[string]*listed{}
	for _, p := range all {
		packages[p.ImportPath] = p
	}
	var reach func(from *listed, seen map[string]bool)
	reach = func(from *listed, seen map[string]bool) {
		for _, path := range from.Imports {
			if p := packages[path]; p != nil && !seen[path] {
				seen[path] = true
				reach(p, seen)
			}
		}
	}
	rules := []struct {
		prefix  string
		allowed []string
	}{
		{"go.opentelemetry.io/otel", []string{"trace", "autograd/forecast", "internal/dev/cisterntest/forecasttest", "examples", "internal/cli", command, "internal/dev/sanitizer/program"}},
		{"go.opentelemetry.io/otel/sdk", []string{"trace/telemetry", "examples", "internal/dev/sanitizer/program"}},
		{"go.opentelemetry.io/otel/exporters", []string{"trace/telemetry", "examples"}},
		{"go.opentelemetry.io/contrib", []string{"trace/telemetry", "examples"}},
		{"github.com/prometheus", []string{"trace/telemetry", "examples"}},
		{"google.golang.org/grpc", []string{"trace/telemetry", "examples"}},
		{"testing", []string{"memcache/memtest", "tensor/backendtest", "device/devicetest", "internal/dev"}},
		{module + "/memcache/memtest", []string{"internal/dev"}},
		{"gorgonia.org/tensor", []string{"tensor/gorgonia"}},
		// Only programs that ask for forecasts of memory contain them.
		{module + "/device/dry", []string{"device/dry", "autograd/forecast", "internal/dev/cisterntest/forecasttest", "examples"}},
		{module + "/autograd/forecast", []string{"autograd/forecast", "internal/dev/cisterntest/forecasttest", "examples"}},
		{"gorgonia.org/cu", []string{"device/cuda", "examples"}}, // examples through device/cuda
	}
	for _, p := range ours(t) {
		seen := map[string]bool{}
		reach(p, seen)
		for _, r := range rules {
			if slices.ContainsFunc(r.allowed, func(a string) bool { return in(p.short(), a) }) {
				continue
			}
			for path := range seen {
				if in(path, r.prefix) {
					t.Errorf("%s imports %s, directly or not", p.short(), path)
				}
			}
		}
		if slices.Contains(p.Imports, "C") {
			require.Equal(t, "device/cuda", p.short(), "cgo is for device/cuda alone")
		}
	}
}

// TestExamplesImportNoGorgonia: the examples show this module's own API.
func TestExamplesImportNoGorgonia(t *testing.T) {
	for _, p := range ours(t) {
		for _, path := range p.Imports {
			require.False(t, in(p.short(), "examples") && in(path, "gorgonia.org"), "%s imports %s", p.short(), path)
		}
	}
}

// TestKernelsNeedATag: a program that can't load GPU kernels does not carry them.
func TestKernelsNeedATag(t *testing.T) {
	for _, p := range ours(t) {
		if !in(p.short(), "tensor") {
			continue
		}
		kernels := slices.ContainsFunc(p.EmbedFiles, func(file string) bool { return path.Ext(file) == ".ptx" || path.Ext(file) == ".fatbin" })
		has := p.short() == "tensor/internal/ptx" || p.short() == "tensor/gorgonia/internal/strided"
		require.Equal(t, has && tags == "cuda", kernels, "%s with the tags %q", p.short(), tags)
	}
}
