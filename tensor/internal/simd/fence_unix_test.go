//go:build unix

package simd

import (
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// fence is memory between two pages that nobody may touch: a function that reads or writes one element too much is killed.
type fence struct{ inside []byte }

func newFence(t testing.TB, bytes int) *fence {
	page := os.Getpagesize()
	size := (bytes + page - 1) / page * page
	all, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
	require.NoError(t, syscall.Mprotect(all[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(all[page+size:], syscall.PROT_NONE))
	return &fence{all[page : page+size]}
}

// slice is n elements, flush with the end or with the start of the memory, and all else there set to a pattern.
func slice[T any](f *fence, n int, end bool) []T {
	for i := range f.inside {
		f.inside[i] = 0xa5
	}
	var v T
	at := 0
	if end {
		at = len(f.inside) - n*int(unsafe.Sizeof(v))
	}
	return unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(f.inside)), at)), n)
}

// intact is whether all but the slice has the pattern still.
func intact[T any](f *fence, s []T) bool {
	var v T
	from := 0
	if len(s) > 0 {
		from = int(uintptr(unsafe.Pointer(&s[0])) - uintptr(unsafe.Pointer(&f.inside[0])))
	}
	to := from + len(s)*int(unsafe.Sizeof(v))
	for i, b := range f.inside {
		if b != 0xa5 && (i < from || i >= to) {
			return false
		}
	}
	return true
}
