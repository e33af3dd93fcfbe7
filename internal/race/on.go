//go:build race

package race

import (
	"runtime"
	"unsafe"
)

// Enabled reports whether the program was built with -race.
const Enabled = true

// Disable stops the handling of synchronisation in this goroutine, until Enable. Calls nest.
func Disable() { runtime.RaceDisable() }

// Enable undoes one Disable.
func Enable() { runtime.RaceEnable() }

// Acquire makes everything before earlier ReleaseMerges of addr happen before what follows.
func Acquire(addr unsafe.Pointer) { runtime.RaceAcquire(addr) }

// ReleaseMerge makes what came before happen before what follows later Acquires of addr.
func ReleaseMerge(addr unsafe.Pointer) { runtime.RaceReleaseMerge(addr) }

// Read declares a read of b.
func Read(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(&b[0]), len(b))
	}
}

// Write declares a write of b.
func Write(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(&b[0]), len(b))
	}
}
