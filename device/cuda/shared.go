//go:build cuda

package cuda

// #include "shim.h"
import "C"

// allowShared permits launches with that many bytes of dynamic shared memory, and returns the
// driver's code. Without a permission, this memory and the shared memory that the kernel declares
// are at most 48 KiB together. The permission belongs to the function, not to a kernel value of the
// module, and only grows, so that concurrent launches keep theirs.
func (k *kernel) allowShared(bytes uint32) int {
	if bytes <= k.shared.Load() {
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
