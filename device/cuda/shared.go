//go:build cuda

package cuda

// #include "shim.h"
import "C"

// defaultShared is the dynamic shared memory of a block, in bytes, that needs no permission.
const defaultShared = 48 << 10

// allowShared permits launches with so many bytes of dynamic shared memory, and returns the
// driver's code. The permission is the function's, whatever kernels the module has returned of it,
// and only grows: a launch on another goroutine keeps its own.
func (k *kernel) allowShared(bytes uint32) int {
	if bytes <= max(defaultShared, k.shared.Load()) {
		return codeSuccess
	}
	m := k.module
	m.sharing.Lock()
	defer m.sharing.Unlock()
	if bytes > m.shared[k.handle] {
		if code := C.cistern_kernel_shared(m.dev.c, k.handle, C.uint32_t(bytes)); code != codeSuccess {
			return int(code)
		}
		if m.shared == nil {
			m.shared = make(map[C.uint64_t]uint32)
		}
		m.shared[k.handle] = bytes
	}
	k.shared.Store(m.shared[k.handle])
	return codeSuccess
}
