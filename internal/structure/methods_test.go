package structure

import (
	"go/types"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// most is how many methods a type may have, promoted and unexported ones included. Beyond it nobody can tell what belongs together.
const most = 40

// wide are the types that may have more: what users call operations on, and what implements them.
var wide = []string{
	"autograd.Initializer", // one for each layer
	"autograd.Tape",
	"tensor.Runtime",
	"tensor.gpuKernels", // one for each operation
	"tensor.hostKernels",
	"tensor.wideKernels",
	// as many methods as gorgonia.org/tensor asks for
	"tensor/gorgonia.Engine",
	"tensor/gorgonia.DeviceEngine",
	// rigs of tests
	"device/devicetest.fixture",
	"device/devicetest.party",
	"memcache/internal/model.Model",
}

// TestMethods counts with go/types. Implementations of device.Device have as many methods as that interface asks for.
func TestMethods(t *testing.T) {
	packages := ours(t)
	at := slices.IndexFunc(packages, func(p *listed) bool { return p.short() == "device" })
	dev := checked(t, packages[at]).Scope().Lookup("Device").Type().Underlying().(*types.Interface)
	require.Greater(t, dev.NumMethods(), 10)
	seen := map[string]int{}
	for _, p := range packages {
		pkg := checked(t, p)
		for _, name := range pkg.Scope().Names() {
			named, ok := pkg.Scope().Lookup(name).(*types.TypeName)
			if !ok || named.IsAlias() {
				continue
			}
			pointer := types.NewPointer(named.Type())
			n := types.NewMethodSet(pointer).Len()
			if i, ok := named.Type().Underlying().(*types.Interface); ok {
				n = i.NumMethods()
			}
			full := p.short() + "." + name
			seen[full] = n
			if n <= most || slices.Contains(wide, full) || implements(pointer, dev) {
				continue
			}
			t.Errorf("%s has %d methods, more than %d", full, n, most)
		}
	}
	for _, name := range wide {
		require.Contains(t, seen, name)
	}
	byCount := slices.SortedFunc(maps.Keys(seen), func(a, b string) int { return seen[b] - seen[a] })
	for _, name := range byCount[:12] {
		t.Logf("%-28s %d", name, seen[name])
	}
}

// implements compares names: the interface comes of another type check, so that its types are not these.
func implements(t types.Type, i *types.Interface) bool {
	set := types.NewMethodSet(t)
	for m := range i.Methods() {
		if set.Lookup(m.Pkg(), m.Name()) == nil {
			return false
		}
	}
	return true
}
