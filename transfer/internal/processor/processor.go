// Package processor says which of Go's processors runs the caller: which of several locks it should take, so that
// goroutines that run at the same time take different ones.
package processor

import _ "unsafe" // for linkname

// procPin and procUnpin are the runtime's, which keeps them as they are for packages that do this (go.dev/issue/67401).
//
//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// Number is the number of the processor that the caller runs on, from 0, less than GOMAXPROCS. It may have changed when the
// caller looks at it: it is a hint. It costs 5 ns; a sync.Pool, which has a part for each processor, 18 for getting a hint
// and putting it back.
func Number() int {
	n := procPin()
	procUnpin()
	return n
}
