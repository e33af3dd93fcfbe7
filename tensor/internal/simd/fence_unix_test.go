//go:build unix

package simd

import (
	"bytes"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fence is memory between two pages that can't be accessed. A function that reads or writes one
// element too much crashes.
type fence struct{ inside, pattern []byte }

func newFence(t testing.TB, room int) *fence {
	page := os.Getpagesize()
	size := (room + page - 1) / page * page
	all, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(all)) })
	require.NoError(t, unix.Mprotect(all[:page], unix.PROT_NONE))
	require.NoError(t, unix.Mprotect(all[page+size:], unix.PROT_NONE))
	return &fence{all[page : page+size], bytes.Repeat([]byte{0xa5}, size)}
}

// slice returns n elements, flush with the end or the start of the memory. The rest of the memory
// is set to a pattern.
func slice[T any](f *fence, n int, end bool) []T {
	copy(f.inside, f.pattern)
	var v T
	at := 0
	if end {
		at = len(f.inside) - n*int(unsafe.Sizeof(v))
	}
	return unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(f.inside)), at)), n)
}

// intact reports whether everything outside of the slice still has the pattern.
func intact[T any](f *fence, s []T) bool {
	var v T
	from := 0
	if len(s) > 0 {
		from = int(uintptr(unsafe.Pointer(&s[0])) - uintptr(unsafe.Pointer(&f.inside[0])))
	}
	to := from + len(s)*int(unsafe.Sizeof(v))
	before, behind := f.pattern[:from], f.pattern[to:]
	return bytes.Equal(f.inside[:from], before) && bytes.Equal(f.inside[to:], behind)
}
