package memcache

import (
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// where calls f in many ways, except through C.
var where = map[string]func(f func()){
	"here":     func(f func()) { f() },
	"deferred": func(f func()) { defer f() },
	"in a panic": func(f func()) {
		defer func() { _ = recover() }()
		defer f()
		panic("on purpose")
	},
	"after a panic": func(f func()) {
		func() {
			defer func() { _ = recover() }()
			panic("on purpose")
		}()
		f()
	},
	"reflected": func(f func()) { reflect.ValueOf(f).Call(nil) },
	"made": func(f func()) {
		g := reflect.MakeFunc(reflect.TypeFor[func()](), func([]reflect.Value) []reflect.Value { f(); return nil })
		g.Interface().(func())()
	},
	"sorting":   func(f func()) { slices.SortFunc([]int{2, 1}, func(a, b int) int { f(); return a - b }) },
	"goroutine": func(f func()) { done := make(chan struct{}); go func() { defer close(done); f() }(); <-done },
	"deep":      func(f func()) { recurse(50, f) },
	"too deep":  func(f func()) { recurse(200, f) },
	"a grown stack": func(f func()) {
		done := make(chan struct{})
		go func() { defer close(done); growStack(100, f) }()
		<-done
	},
}

func recurse(n int, f func()) int {
	if n == 0 {
		f()
		return 0
	}
	return 1 + recurse(n-1, f)
}

func growStack(n int, f func()) (sum byte) {
	var large [4096]byte
	large[n] = byte(n)
	if n > 0 {
		sum = growStack(n-1, func() {})
	} else {
		return sum
	}
	f()
	return sum + large[n/2]
}

// TestCallSitesAreThoseOfTheRuntime, for the first and later calls, and for every way to reach a
// call site.
func TestCallSitesAreThoseOfTheRuntime(t *testing.T) {
	var sites callSites
	b := func() []uintptr { return sites.caller() }
	a := func() []uintptr { return b() }
	wholes := 0
	for range 3 {
		for name, run := range where {
			run(func() {
				var buffer, frames [mostFrames]uintptr
				want := buffer[:runtime.Callers(2, buffer[:])]
				got := a()[1:]
				require.Equal(t, want[:min(len(want), len(got))], got, name)
				require.GreaterOrEqual(t, len(got), min(len(want), mostFrames-1), name)
				if _, whole := framePCs(&frames[0], len(frames)); whole {
					wholes++
				}
			})
		}
	}
	if runtime.GOARCH == "amd64" {
		require.Greater(t, wholes, 3*len(where)/2, "frame pointers are of use")
	}
}

func TestCallSites(t *testing.T) {
	var sites callSites
	one := func() []uintptr { return func() []uintptr { return sites.caller() }() }
	var list [][]uintptr
	for range 3 {
		list = append(list, one())
	}
	require.Same(t, &list[0][0], &list[2][0], "one copy")
	other := one()
	require.NotEqual(t, list[0], other)
	sites.n.Store(mostCallSites)
	for range 2 {
		list = append(list, one())
	}
	require.NotSame(t, &list[3][0], &list[4][0], "the table is full")
	require.Equal(t, list[3], list[4])
}

// BenchmarkCallSite takes the stack of a known call site, 30 calls deep.
func BenchmarkCallSite(b *testing.B) {
	var sites callSites
	recurse(30, func() {
		b.ReportAllocs()
		for b.Loop() {
			sites.caller()
		}
	})
}
