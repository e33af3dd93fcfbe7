//go:build cuda

package cuda

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// Device is a GPU. The driver in driver.go opens it once, and counts its Opens in refs.
//
// Every call that reaches the driver is inside the device's, a stream's or an event's gate, so that
// Close destroys nothing that a call still uses. stuck is the first error that lost the context; it
// is never reset.
type Device struct {
	name    string
	self    backend.Self // the same, for errors
	ordinal int
	id      uint64
	props   device.Properties
	unit    int64 // granularity of virtual memory in bytes
	major   int   // of the compute capability
	c       *C.cistern_device

	gate      backend.Gate
	stuck     atomic.Pointer[device.Error]
	table     table
	virtual   virtual
	streams   streams
	events    [2]pool // untimed, timed
	callbacks callbacks
	modules   modules
	graphs    backend.Open[*graph]
	captured  atomic.Bool // a capture has begun at some time
	gather    C.uint64_t  // the kernel of batches, or 0
	blas      blas
	nccl      string                      // the library's path, with values like blas.path
	comms     backend.Open[*communicator] // not released yet
	opened    *opened.Ledger              // nil if open resources are not recorded

	refs int           // number of Opens; guarded by drivers
	gone chan struct{} // closed once the context is released
}

var (
	_ device.Device           = (*Device)(nil)
	_ device.VirtualMemory    = (*Device)(nil)
	_ device.ModuleLoader     = (*Device)(nil)
	_ device.MatrixMultiplier = (*Device)(nil)
	_ device.Collectives      = (*Device)(nil)
)

// newDevice retains the primary context of a GPU.
func newDevice(ordinal int, paths libraries) (*Device, error) {
	name := fmt.Sprintf("cuda:%d", ordinal)
	d := &Device{name: name, self: backend.Self(name), ordinal: ordinal, id: device.NewID(), refs: 1,
		gone: make(chan struct{})}
	d.streams.open = make(map[*stream]struct{})
	d.modules.open = make(map[*module]struct{})
	d.events[1].timed = true
	d.callbacks.init(d)
	d.virtual.init()
	d.blas.path, d.nccl = paths.blas, paths.nccl
	failed := func(err error) error {
		return &device.Error{Op: "Open", Device: d.name, Err: err}
	}
	gpu := cu.Device(ordinal)
	model, err := gpu.Name()
	if err != nil {
		return nil, failed(err)
	}
	total, err := gpu.TotalMem()
	if err != nil {
		return nil, failed(err)
	}
	if d.major, err = gpu.Attribute(cu.ComputeCapabilityMajor); err != nil {
		return nil, failed(err)
	}
	context, err := gpu.RetainPrimaryCtx()
	if err != nil {
		return nil, failed(err)
	}
	d.c = (*C.cistern_device)(C.malloc(C.size_t(unsafe.Sizeof(C.cistern_device{}))))
	d.c.context = *(*C.CUcontext)(unsafe.Pointer(&context)) // the handle is its only field
	d.c.serial = C.uint64_t(d.id)
	d.c.launch_ex = nil
	if d.major >= 9 {
		name := C.CString("cuLaunchKernelEx")
		d.c.launch_ex = C.cistern_symbol(name)
		C.free(unsafe.Pointer(name))
	}
	d.props = device.Properties{Backend: "cuda", Model: model, TotalMemory: total, Alignment: 256, Peers: true}
	d.props.UUID, d.props.PCIAddress = identity(gpu)
	var unit C.size_t
	if err := d.check("Open", 0, C.cistern_granularity(d.c, C.int(ordinal), &unit)); err != nil {
		return nil, errors.Join(err, d.dropContext())
	}
	d.unit = int64(unit)
	d.loadGather()
	// After loadGather, to leave the device's own module out.
	d.opened = opened.New("cuda device", d.id)
	d.table.opened = d.opened
	return d, nil
}

// identity returns the GPU's identity for other programs of the machine; values that the driver
// does not report are empty.
func identity(gpu cu.Device) (uuid, address string) {
	if id, err := gpu.UUID(); err == nil {
		uuid = fmt.Sprintf("GPU-%v", id)
	}
	domain, err1 := gpu.Attribute(cu.PciDomainID)
	bus, err2 := gpu.Attribute(cu.PciBusID)
	slot, err3 := gpu.Attribute(cu.PciDeviceID)
	if errors.Join(err1, err2, err3) == nil {
		address = fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, slot)
	}
	return uuid, address
}

func (d *Device) Name() string                  { return d.name }
func (d *Device) ID() uint64                    { return d.id }
func (d *Device) Properties() device.Properties { return d.props }

// enablePeers lets kernels and copies of each device access the other's memory, if the machine
// supports it.
func (d *Device) enablePeers(peer *Device) {
	if C.cistern_enable_peer(d.c, peer.c) == codeSuccess {
		d.virtual.addPeer(peer.ordinal)
	}
	if C.cistern_enable_peer(peer.c, d.c) == codeSuccess {
		peer.virtual.addPeer(d.ordinal)
	}
}

func (d *Device) Synchronize(ctx context.Context) error {
	if err := d.enter("Synchronize"); err != nil {
		return err
	}
	streams := d.streams.all()
	for _, s := range streams {
		if ctx != nil && s.Capturing() {
			d.gate.Leave()
			return d.self.DeviceCapturing("Synchronize", s.id)
		}
	}
	idle := func() (bool, error) {
		// A query of a stream that has just been captured would end its capture.
		if d.captured.Load() {
			return false, nil
		}
		for _, s := range streams {
			if !s.gate.Enter() { // Close destroys the handle after its wait
				if !s.closed.Load() {
					return false, nil
				}
				continue
			}
			done, err := s.query()
			s.gate.Leave()
			if !done || err != nil {
				return done, err
			}
		}
		return true, nil
	}
	wait := func() error { return d.drain("Synchronize") }
	return d.await(ctx, "Synchronize", d.gate.Leave, idle, wait)
}

// Close closes the device if this is the last Close for its Opens.
func (d *Device) Close() error {
	if !drivers.release(d) {
		return nil
	}
	defer drivers.forget(d)
	var errs []error
	errs = append(errs, d.closeStreams())
	d.gate.ShutAndWait()
	d.opened.Close(d.stuck.Load() != nil) // before the device closes leftover resources
	d.streams.end()
	errs = append(errs, d.closeStreams()) // streams that were made meanwhile
	d.callbacks.close()
	for _, g := range d.graphs.End() {
		_ = g.end() // Close returns the sticky error
	}
	for _, c := range d.comms.End() { // those that are open, and those whose graphs are closed now
		_ = c.Close()
		c.giveBack()
	}
	errs = append(errs, d.leftover())
	d.blas.close(d)
	d.modules.close(d)
	for i := range d.events {
		d.events[i].close(d)
	}
	errs = append(errs, d.dropContext())
	if err := d.stuckError(); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// closeStreams closes the open streams, and ends their captures without a graph.
func (d *Device) closeStreams() error {
	all := d.streams.all()
	for _, s := range all {
		s.abandon()
	}
	var errs []error
	for _, s := range all {
		errs = append(errs, s.finish())
	}
	return errors.Join(errs...)
}

// dropContext releases the primary context.
func (d *Device) dropContext() error {
	err := cu.Device(d.ordinal).ReleasePrimaryCtx()
	C.free(unsafe.Pointer(d.c))
	d.c = nil
	if err != nil {
		return &device.Error{Op: "Close", Device: d.name, Err: err}
	}
	return nil
}

// streams holds the open streams.
type streams struct {
	mu    sync.Mutex
	open  map[*stream]struct{}
	ended bool
}

func (t *streams) add(s *stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.open[s] = struct{}{}
	}
	return !t.ended
}

func (t *streams) remove(s *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, s)
}

func (t *streams) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
}

func (t *streams) all() []*stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*stream, 0, len(t.open))
	for s := range t.open {
		all = append(all, s)
	}
	return all
}

// String returns the device's name and model.
func (d *Device) String() string { return d.name + ": " + d.props.Model }
