package host

import (
	"os"
	"syscall"
	"unsafe"
)

// A dry device allocates pinned memory by pages. Pages that are never accessed take no memory, and
// a copy, which writes zeros, gives its pages back instead.

func newPages(bytes int64) ([]byte, error) {
	return syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
}

func freePages(b []byte) { _ = syscall.Munmap(b) }

// clearPages fills b, which lies in pages of newPages, with zeros.
func clearPages(b []byte) {
	page := uintptr(os.Getpagesize())
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (page - 1))
	if len(b) < head+64<<10 {
		clear(b)
		return
	}
	clear(b[:head])
	n := (len(b) - head) &^ int(page-1)
	if syscall.Madvise(b[head:head+n:head+n], syscall.MADV_DONTNEED) != nil {
		clear(b[head : head+n])
	}
	clear(b[head+n:])
}
