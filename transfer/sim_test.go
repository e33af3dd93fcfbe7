package transfer_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// sim is a device that runs queued work only when a program requests it or a caller waits for it,
// and then only the work that is needed. So a program does the same each time, and work that no
// event orders is found to run too late. It fails on demand, and records its calls for pinned
// memory.
type sim struct {
	*simWorld
	id    uint64
	peers bool

	log        []pinnedCall
	allocCalls int64
	freeCalls  int64
	held, peak int64 // bytes of pinned memory
	given      int64 // all bytes that it ever allocated
	refused    int64 // bytes that it refused to free
	refusals   int
}

// simWorld is the common part of devices that reach each other's memory.
type simWorld struct {
	mu         sync.Mutex
	spans      []*simSpan // by address
	streams    []*simStream
	left       [simFaults]int  // calls until one fails; 0: none
	fired      [simFaults]bool // since begin
	enabled    bool
	logs       bool // it records calls in log
	slow       bool // calls for pinned memory let other goroutines run first
	stuck      error
	cancel     func() // called instead of the next wait
	parts      int    // copies, fills and kernels that were queued since begin
	operations int64
	began      time.Duration // operations that were done at begin
	events     int           // not closed
	registered int64
}

// pinnedCall is a call for pinned memory: of AllocPinned if bytes is positive.
type pinnedCall struct {
	bytes  int64
	failed bool
	flawed bool          // it reported success and failed
	at     time.Duration // of the device, after it
}

type simFault int

const (
	failPinned   simFault = iota // AllocPinned: out of memory
	shortPinned                  // AllocPinned returns less than requested
	nilPinned                    // AllocPinned returns no memory
	failFree                     // FreePinned refuses, and keeps the memory
	failRegister                 // Register refuses
	failUnregister
	failEvent  // NewEvent
	failRecord // Record
	failWait   // Wait
	refuseCopy // a copy, fill or kernel is not queued
	breakCopy  // it is queued, and breaks the device when it runs
	simFaults
)

var errSim = errors.New("the simulated device refuses")

type simSpan struct {
	at    uintptr
	mem   []byte
	kind  spanKind
	owner *sim
	uses  int // number of queued operations that use it
}

type spanKind uint8

const (
	spanDevice spanKind = iota
	spanPinned
	spanRegistered
)

func newSim() *sim { return &sim{simWorld: &simWorld{}, id: device.NewID()} }

// peer is another device that reaches this one's memory.
func (d *sim) peer() *sim {
	d.peers = true
	return &sim{simWorld: d.simWorld, id: device.NewID(), peers: true}
}

func (d *sim) Name() string { return "sim" }
func (d *sim) ID() uint64   { return d.id }
func (d *sim) Properties() device.Properties {
	return device.Properties{Backend: "sim", Model: "sim", TotalMemory: 1 << 40, Alignment: 512, Peers: d.peers}
}

// fails counts a call, and reports whether it is the one that fails.
func (w *simWorld) fails(f simFault) bool {
	if !w.enabled || w.left[f] == 0 {
		return false
	}
	if w.left[f]--; w.left[f] > 0 {
		return false
	}
	w.fired[f] = true
	return true
}

// begin is called before a call whose effects the program checks.
func (w *simWorld) begin() {
	w.mu.Lock()
	w.enabled, w.parts, w.fired, w.began = true, 0, [simFaults]bool{}, time.Duration(w.operations)
	w.mu.Unlock()
}

// end disables the faults until the next begin.
func (w *simWorld) end() (parts int, fired [simFaults]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enabled = false
	return w.parts, w.fired
}

func (w *simWorld) find(p uintptr) (int, bool) {
	return slices.BinarySearchFunc(w.spans, p, func(s *simSpan, p uintptr) int {
		switch {
		case s.at+uintptr(len(s.mem)) <= p:
			return -1
		case s.at > p:
			return 1
		}
		return 0
	})
}

// inside returns the span that contains [p, p+bytes), or nil.
func (w *simWorld) inside(p uintptr, bytes int) *simSpan {
	i, ok := w.find(p)
	if !ok || bytes > len(w.spans[i].mem)-int(p-w.spans[i].at) {
		return nil
	}
	return w.spans[i]
}

func (w *simWorld) bytes(p device.Ptr, n int64) ([]byte, *simSpan) {
	s := w.inside(uintptr(p), int(n))
	if s == nil {
		return nil, nil
	}
	at := uintptr(p) - s.at
	return s.mem[at : at+uintptr(n) : at+uintptr(n)], s
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (d *sim) add(mem []byte, kind spanKind) error {
	s := &simSpan{at: addressOf(mem), mem: mem, kind: kind, owner: d}
	i, ok := d.find(s.at)
	if ok || i < len(d.spans) && d.spans[i].at < s.at+uintptr(len(mem)) {
		return &device.Error{Op: "Register", Device: "sim", Err: device.ErrInvalid, Detail: "it overlaps"}
	}
	d.spans = slices.Insert(d.spans, i, s)
	return nil
}

// remove waits for the operations that use the span at p, and removes it.
func (d *sim) remove(p uintptr, kind spanKind) ([]byte, error) {
	i, ok := d.find(p)
	if !ok || d.spans[i].at != p || d.spans[i].kind != kind || d.spans[i].owner != d {
		return nil, &device.Error{Op: "Free", Device: "sim", Err: device.ErrInvalid, Detail: "there is no such memory"}
	}
	s := d.spans[i]
	if s.uses > 0 {
		d.runAll()
	}
	i, _ = d.find(p)
	d.spans = slices.Delete(d.spans, i, i+1)
	return s.mem, nil
}

// segments are used again: clearing them would take longer than a program does.
var segments = sync.Pool{New: func() any { return new([2 << 20]byte) }}

func (d *sim) Alloc(bytes int64) (device.Ptr, error) {
	var mem []byte
	if bytes == 2<<20 {
		mem = segments.Get().(*[2 << 20]byte)[:]
	} else {
		mem = make([]byte, bytes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return device.Ptr(addressOf(mem)), d.add(mem, spanDevice)
}

func (d *sim) Free(p device.Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	mem, err := d.remove(uintptr(p), spanDevice)
	if err == nil && len(mem) == 2<<20 {
		segments.Put((*[2 << 20]byte)(mem))
	}
	return err
}

func (d *sim) MemInfo() (free, total int64, err error) { return 1 << 39, 1 << 40, nil }

// Bytes makes the device [device.HostVisible].
func (d *sim) Bytes(p device.Ptr, bytes int64) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	mem, s := d.bytes(p, bytes)
	if s == nil {
		return nil, &device.Error{Op: "Bytes", Device: "sim", Err: device.ErrInvalid}
	}
	return mem, nil
}

func (d *sim) note(c pinnedCall) {
	if c.at = time.Duration(d.operations); d.logs {
		d.log = append(d.log, c)
	}
}

// pause lets other goroutines run first in a call for pinned memory.
func (d *sim) pause() {
	if d.slow {
		for range 3 {
			runtime.Gosched()
		}
	}
}

func (d *sim) AllocPinned(bytes int64) ([]byte, error) {
	d.pause()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.allocCalls++
	if d.stuck != nil {
		d.note(pinnedCall{bytes: bytes, failed: true})
		return nil, d.stuck
	}
	if d.fails(failPinned) {
		d.note(pinnedCall{bytes: bytes, failed: true})
		return nil, &device.Error{Op: "AllocPinned", Device: "sim", Bytes: bytes, Err: device.ErrOutOfMemory}
	}
	if d.fails(nilPinned) {
		d.note(pinnedCall{bytes: bytes, flawed: true})
		return nil, nil
	}
	if d.fails(shortPinned) {
		d.note(pinnedCall{bytes: bytes, flawed: true})
		return d.give(bytes - 1)
	}
	d.note(pinnedCall{bytes: bytes})
	return d.give(bytes)
}

func (d *sim) give(bytes int64) ([]byte, error) {
	mem := make([]byte, bytes)
	for i := range min(len(mem), 256) {
		mem[i] = 0xee
	}
	d.held += bytes
	d.given += bytes
	d.peak = max(d.peak, d.held)
	return mem, d.add(mem, spanPinned)
}

func (d *sim) FreePinned(b []byte) error {
	d.pause()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.freeCalls++
	if d.fails(failFree) {
		d.note(pinnedCall{bytes: -int64(len(b)), failed: true})
		d.refused += int64(len(b))
		d.refusals++
		return errSim
	}
	mem, err := d.remove(addressOf(b), spanPinned)
	if err != nil {
		return err
	}
	for i := range min(len(mem), 256) {
		mem[i] = 0xdd
	}
	d.note(pinnedCall{bytes: -int64(len(b))})
	d.held -= int64(len(mem))
	return nil
}

func (d *sim) Register(b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stuck != nil {
		return d.stuck
	}
	if d.fails(failRegister) {
		return errSim
	}
	err := d.add(b[:len(b):len(b)], spanRegistered)
	if err == nil {
		d.registered += int64(len(b))
	}
	return err
}

func (d *sim) Unregister(b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	mem, err := d.remove(addressOf(b), spanRegistered)
	if err == nil {
		d.registered -= int64(len(mem))
	}
	if err == nil && d.fails(failUnregister) {
		return errSim
	}
	return err
}

func (d *sim) MappedPtr(b []byte) (device.Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside(addressOf(b), len(b)) == nil {
		return 0, &device.Error{Op: "MappedPtr", Device: "sim", Err: device.ErrInvalid}
	}
	return device.Ptr(addressOf(b)), nil
}

func (d *sim) Elapsed(start, end device.Event) (time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(0, end.(*simEvent).last.at-start.(*simEvent).last.at), nil
}

func (d *sim) Synchronize(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runAll()
	return d.stuck
}

func (d *sim) Close() error { return nil }

// inUse reports whether a queued operation uses the pinned memory that contains b.
func (d *sim) inUse(b []byte) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.inside(addressOf(b), len(b))
	return s == nil || s.uses > 0
}
