//go:build cuda

package cuda

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/opened"
)

// modules holds the loaded modules.
type modules struct {
	mu   sync.Mutex
	open map[*module]struct{}
}

type module struct {
	dev      *Device
	handle   C.uint64_t
	waits    bool // its kernels begin with a wait; see dependent.go
	once     sync.Once
	unloaded atomic.Bool
	holds    atomic.Int64 // number of graphs and captures with its kernels

	sharing sync.Mutex
	// The dynamic shared memory that functions may use, in bytes.
	shared map[C.uint64_t]uint32
}

// kernel is the Kernel of a launch.
type kernel struct {
	module *module
	handle C.uint64_t
	shared atomic.Uint32 // dynamic shared memory that is certainly permitted, in bytes
}

// LoadModule lets launches overlap if the GPU supports it and the kernels wait; see dependent.go.
func (d *Device) LoadModule(image []byte) (device.Module, error) {
	if err := d.enter("LoadModule"); err != nil {
		return nil, err
	}
	defer d.gate.Leave()
	if len(image) == 0 {
		return nil, d.self.Invalid("LoadModule", 0, "the image is empty")
	}
	m := &module{dev: d}
	if d.c.launch_ex != nil {
		if waiting := dependent(image); waiting != nil {
			code, _ := m.load(waiting)
			m.waits = code == codeSuccess
		}
	}
	if !m.waits {
		if code, log := m.load(image); code != codeSuccess {
			err := d.fail("LoadModule", int64(len(image)), int(code))
			if e, ok := err.(*device.Error); ok && e.Err != device.ErrSticky {
				e.Detail = d.loadDetail(int(code), log)
			}
			return nil, err
		}
	}
	if d.c.launch_ex != nil && !m.waits {
		_, code := m.find(waitsMark)
		m.waits = code == codeSuccess
	}
	d.modules.mu.Lock()
	defer d.modules.mu.Unlock()
	d.modules.open[m] = struct{}{}
	d.opened.Add(opened.Module, unsafe.Pointer(m))
	return m, nil
}

func (m *module) load(image []byte) (code C.int, log string) {
	text := C.CBytes(append(image[:len(image):len(image)], 0)) // PTX ends with a zero byte
	defer C.free(text)
	var messages [4096]C.char
	code = C.cistern_module_load(m.dev.c, text, &m.handle, &messages[0], C.int(len(messages)))
	return code, C.GoString(&messages[0])
}

// loadDetail describes a failed load.
func (d *Device) loadDetail(code int, log string) string {
	detail := nameOf(code)
	if log = strings.TrimSpace(log); log != "" {
		detail += ": " + log
	}
	minor, _ := cu.Device(d.ordinal).Attribute(cu.ComputeCapabilityMinor)
	version := cu.Version()
	return fmt.Sprintf("%s: the GPU has compute capability %d.%d, the driver is of CUDA %d.%d", detail, d.major, minor,
		version/1000, version%1000/10)
}

func (m *module) Kernel(name string) (any, error) {
	if err := m.dev.enter("Kernel"); err != nil {
		return nil, err
	}
	defer m.dev.gate.Leave()
	if m.unloaded.Load() {
		return nil, &device.Error{Op: "Kernel", Device: m.dev.name, Code: device.CodeDeinitialized,
			Detail: "the module is closed", Err: device.ErrClosed}
	}
	handle, code := m.find(name)
	if code == codeNotFound {
		return nil, m.dev.self.Invalid("Kernel", 0, "the module has no kernel %q", name)
	}
	if err := m.dev.check("Kernel", 0, code); err != nil {
		return nil, err
	}
	return &kernel{module: m, handle: handle}, nil
}

func (m *module) find(name string) (handle C.uint64_t, code C.int) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	code = C.cistern_module_kernel(m.dev.c, m.handle, c, &handle)
	return handle, code
}

func (m *module) Close() error {
	if !m.dev.gate.Enter() {
		return nil // the device's Close unloads it
	}
	defer m.dev.gate.Leave()
	if m.holds.Load() > 0 {
		return m.dev.self.Invalid("Close", 0, "a graph or a capture has kernels of the module; close the graph first")
	}
	return m.unload()
}

func (m *module) unload() (err error) {
	m.once.Do(func() {
		m.unloaded.Store(true)
		if err = m.dev.drain("Close"); err == nil {
			err = m.dev.check("Close", 0, C.cistern_module_unload(m.dev.c, m.handle))
		}
		t := &m.dev.modules
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, m)
		m.dev.opened.Remove(unsafe.Pointer(m))
	})
	return err
}

// close unloads the remaining modules. The device's gate is shut.
func (t *modules) close(d *Device) {
	t.mu.Lock()
	var left []*module
	for m := range t.open {
		left = append(left, m)
	}
	t.mu.Unlock()
	for _, m := range left {
		_ = m.unload() // if the context is lost, so is the module
	}
}

func (m *module) String() string { return "module of " + m.dev.name }
