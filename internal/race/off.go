//go:build !race

package race

import "unsafe"

// Enabled reports whether the program was built with -race.
const Enabled = false

// Disable stops the handling of synchronisation in this goroutine, until Enable. Calls nest.
func Disable() {}

// Enable undoes one Disable.
func Enable() {}

// Acquire makes everything before earlier ReleaseMerges of addr happen before what follows.
func Acquire(unsafe.Pointer) {}

// ReleaseMerge makes what came before happen before what follows later Acquires of addr.
func ReleaseMerge(unsafe.Pointer) {}

// Read declares a read of b.
func Read([]byte) {}

// Write declares a write of b.
func Write([]byte) {}
