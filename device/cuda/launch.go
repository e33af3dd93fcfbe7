//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// maxArgs is the limit of a kernel's arguments, 4 KiB.
const maxArgs = 512

// Launch queues l.Kernel with one call to C and without an allocation, because the driver copies
// the arguments.
func (s *stream) Launch(l *device.Launch) error {
	if s.launching != nil && !s.Capturing() {
		return s.launching.Launch(s, l, s.queueKernel)
	}
	return s.queueKernel(l)
}

func (s *stream) queueKernel(l *device.Launch) error {
	if err := s.enter("Launch"); err != nil {
		return err
	}
	defer s.leaveQueued()
	k, err := s.dev.launchable(l)
	if err != nil {
		return err
	}
	if c := s.capture.Load(); c != nil {
		c.holdKernel(s.dev, k, l)
	}
	if code := k.allowShared(l.SharedBytes); code != codeSuccess {
		return s.dev.launchError(l, code)
	}
	config := s.configOf(k, l)
	if code := C.cistern_launch(s.dev.c, &config, arguments(l)); code != codeSuccess {
		return s.dev.launchError(l, int(code))
	}
	return nil
}

// configOf and arguments return the parameters for C. The configuration is on the stack and the
// arguments stay in the launch's slice, so that a launch allocates nothing.
func (s *stream) configOf(k *kernel, l *device.Launch) C.cistern_launch_config {
	config := C.cistern_launch_config{kernel: k.handle, stream: s.handle, shared: C.uint32_t(l.SharedBytes), n: C.uint32_t(len(l.Args)), dependent: C.bool(k.module.waits)}
	for i := range 3 {
		config.grid[i], config.block[i] = C.uint32_t(l.Grid[i]), C.uint32_t(l.Block[i])
	}
	return config
}

func arguments(l *device.Launch) *C.uint64_t {
	return (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(l.Args)))
}

// launchable checks everything that can be checked without the driver.
func (d *Device) launchable(l *device.Launch) (*kernel, error) {
	if l == nil {
		return nil, d.self.Invalid("Launch", 0, "the launch is nil")
	}
	k, ok := l.Kernel.(*kernel)
	switch {
	case !ok || k == nil:
		return nil, d.self.Invalid("Launch", 0, "%s: Kernel is %T; use what Module.Kernel of this device returned", l.Name, l.Kernel)
	case k.module.dev != d:
		return nil, d.self.Invalid("Launch", 0, "%s: the kernel was loaded on %s", l.Name, k.module.dev.name)
	case k.module.unloaded.Load():
		return nil, d.self.Invalid("Launch", 0, "%s: the kernel's module is closed", l.Name)
	case len(l.Args) > maxArgs:
		return nil, d.self.Invalid("Launch", 0, "%s: %d arguments; at most %d", l.Name, len(l.Args), maxArgs)
	}
	for i := range 3 {
		if l.Grid[i] == 0 || l.Block[i] == 0 {
			return nil, d.self.Invalid("Launch", 0, "%s: grid %v, block %v: each must be at least 1", l.Name, l.Grid, l.Block)
		}
	}
	for _, ranges := range [2][]device.Range{l.Reads, l.Writes} {
		for _, r := range ranges {
			if err := d.named("Launch", uint64(r.Ptr), r.Bytes, false); err != nil {
				return nil, err
			}
		}
	}
	return k, nil
}

func (d *Device) launchError(l *device.Launch, code int) error {
	err := d.fail("Launch", 0, code)
	if e, ok := err.(*device.Error); ok && e.Err != device.ErrSticky {
		e.Detail = d.self.Invalid("Launch", 0, "%s: %s: grid %v, block %v, %d bytes of shared memory, %d arguments", l.Name,
			nameOf(code), l.Grid, l.Block, l.SharedBytes, len(l.Args)).(*device.Error).Detail
	}
	return err
}
