//go:build emulator

package emulator

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdint.h>
// #include <stdlib.h>
//
// static void *find(void *f, const char *name) { return ((void *(*)(const char *))f)(name); }
// typedef const char *(*launch)(void *, const uint32_t *, const uint32_t *, uint32_t,
//		const uint64_t *);
// static const char *run(void *f, void *kernel, const uint32_t *grid, const uint32_t *block,
//		uint32_t shared, const uint64_t *args) {
//	return ((launch)f)(kernel, grid, block, shared, args);
// }
import "C"

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// module is the shared object that build.sh made of a source. It stays loaded.
type module struct {
	name      string
	find, run unsafe.Pointer
}

// LoadModule finds the shared object for the source of a PTX or a fatbin, in the folder in
// CISTERN_EMULATOR.
func (d *emulated) LoadModule(image []byte) (device.Module, error) {
	name := fmt.Sprintf("%x", sha256.Sum256(image))
	path := C.CString(filepath.Join(os.Getenv("CISTERN_EMULATOR"), name+".so"))
	defer C.free(unsafe.Pointer(path))
	runtime.LockOSThread() // each system thread has its own dlerror
	defer runtime.UnlockOSThread()
	handle := C.dlopen(path, C.RTLD_NOW|C.RTLD_LOCAL)
	if handle == nil {
		detail := fmt.Sprintf("no shared object was made of this image by make emulate: %s", C.GoString(C.dlerror()))
		return nil, &device.Error{Op: "LoadModule", Device: "emulated", Detail: detail, Err: device.ErrInvalid}
	}
	m := &module{name: name}
	for name, to := range map[string]*unsafe.Pointer{"emulator_find": &m.find, "emulator_run": &m.run} {
		symbol := C.CString(name)
		*to = C.dlsym(handle, symbol)
		C.free(unsafe.Pointer(symbol))
		if *to == nil {
			return nil, fmt.Errorf("emulator: %s has no %s", m.name, name)
		}
	}
	return m, nil
}

func (m *module) Close() error { return nil }

// mostArgs is the most that a CUDA kernel takes, 4 KiB, in words.
const mostArgs = 512

type kernel struct {
	module  *module
	name    string
	pointer unsafe.Pointer
}

func (m *module) Kernel(name string) (any, error) {
	symbol := C.CString(name)
	defer C.free(unsafe.Pointer(symbol))
	p := C.find(m.find, symbol)
	if p == nil {
		return nil, &device.Error{Op: "Kernel", Device: "emulated", Detail: fmt.Sprintf("%s has no kernel %q", m.name, name), Err: device.ErrInvalid}
	}
	return &kernel{m, name, p}, nil
}

// prepare returns the launch as a function for the host device's stream.
func (k *kernel) prepare(l *device.Launch) func() {
	grid, block, shared := l.Grid, l.Block, l.SharedBytes
	// A kernel copies its whole last argument, a struct of which a launch may pass a part.
	args := make([]uint64, mostArgs)
	copy(args, l.Args)
	return func() {
		failed := C.run(k.module.run, k.pointer, (*C.uint32_t)(unsafe.Pointer(&grid)), (*C.uint32_t)(unsafe.Pointer(&block)),
			C.uint32_t(shared), (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(args))))
		if failed != nil {
			panic(fmt.Sprintf("%s: grid %v, block %v: %s", k.name, grid, block, C.GoString(failed)))
		}
	}
}
