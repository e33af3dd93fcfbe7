// Package processor returns the number of the Go processor (P) that runs the caller. It chooses one
// of several locks, so that goroutines that run at the same time take different ones.
package processor

import _ "unsafe" // for linkname

// procPin and procUnpin belong to the runtime, which keeps them stable for packages that link to
// them (go.dev/issue/67401).
//
//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// Number returns the number of the processor that the caller runs on, from 0 to GOMAXPROCS-1. It is
// a hint, because the caller may have moved when it uses the number. It costs 5 ns; getting a hint
// from a sync.Pool and putting it back costs 18 ns.
func Number() int {
	n := procPin()
	procUnpin()
	return n
}
