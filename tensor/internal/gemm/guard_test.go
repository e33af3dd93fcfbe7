//go:build unix

package gemm

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guarded returns memory for n elements between pages that can't be accessed. It is flush with one
// of them.
func guarded[T Float](n int, atEnd bool) (s []T, free func()) {
	if n == 0 {
		return []T{}, func() {}
	}
	var v T
	size, page := n*int(unsafe.Sizeof(v)), syscall.Getpagesize()
	pages := roundUp(size, page)
	all, err := unix.Mmap(-1, 0, pages+2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for _, guard := range [][]byte{all[:page], all[page+pages:]} {
		if err := unix.Mprotect(guard, unix.PROT_NONE); err != nil {
			panic(err)
		}
	}
	from := page
	if atEnd {
		from += pages - size
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&all[from])), n), func() {
		if err := unix.Munmap(all); err != nil {
			panic(err)
		}
	}
}
