package device

import (
	"context"
	"time"
)

// Ptr is a device address. It is a number, never a Go pointer: only the device's own operations
// access the memory, and [HostVisible] on devices whose memory the host can access. It has 64 bits
// on every platform. The null address is 0.
type Ptr uint64

// Device is one accelerator, or the host acting as one.
//
// A Device is safe for concurrent use. After Close every method except Close, Name, ID and
// Properties returns an error that wraps [ErrClosed].
type Device interface {
	// Name returns the name that opened the device, without options: "host", "cuda:0".
	Name() string
	// ID returns a number that is unique among all devices that this process ever opens.
	ID() uint64
	// Properties describes the device. The properties never change.
	Properties() Properties

	Memory
	PinnedMemory

	// NewStream makes a stream. It must be closed.
	NewStream(StreamOptions) (Stream, error)
	// NewEvent makes an event that is not yet recorded. It must be closed. Both are cheap, because
	// driver events are pooled: only one small Go handle is allocated, a new one for each event. A
	// handle that is used after Close is therefore refused and never touches another owner's event.
	// [EventPool] saves the handle, too.
	NewEvent(EventOptions) (Event, error)
	// Elapsed returns the device's time between the last records of two timed events
	// (cuEventElapsedTime). Events that are untimed, never recorded or not complete are an error.
	Elapsed(start, end Event) (time.Duration, error)
	// Synchronize waits until everything queued on every stream of the device is done, and returns
	// the device's sticky error, if any. Cancelling ctx ends the waiting, not the work. A nil ctx
	// is an error that wraps ErrInvalid.
	Synchronize(ctx context.Context) error

	// Close waits for all streams, closes them, and frees all remaining resources. It is idempotent
	// and leaves no goroutine. Memory that is still allocated is freed and then reported as an
	// error. A device that was opened several times closes with its last Close.
	Close() error
}

// Memory is a device's raw memory, uncached: each call reaches the driver. Programs that allocate
// often should use package memcache.
type Memory interface {
	// Alloc returns the address of bytes bytes of device memory, aligned to at least 256 bytes
	// (cuMemAlloc). The contents are undefined. Zero or negative sizes are an error; too little
	// free memory is an error that wraps [ErrOutOfMemory] and is not sticky.
	Alloc(bytes int64) (Ptr, error)
	// Free returns an allocation to the driver (cuMemFree). It waits until queued operations that
	// use the allocation are done. p must be what Alloc returned.
	Free(p Ptr) error
	// MemInfo returns the device's free and total memory in bytes (cuMemGetInfo).
	MemInfo() (free, total int64, err error)
}

// PinnedMemory is page-locked host memory, which the device can copy from and to asynchronously.
type PinnedMemory interface {
	// AllocPinned returns bytes bytes of pinned, portable, mapped host memory (cuMemHostAlloc). All
	// open devices of the backend can use it; only this device frees it. The caller owns it until
	// FreePinned, and must not access it while a queued copy writes it, nor write it while one
	// reads it.
	AllocPinned(bytes int64) ([]byte, error)
	// FreePinned frees memory from AllocPinned; b must start where that slice started. It waits
	// until queued copies that use the memory are done, on all devices.
	FreePinned(b []byte) error
	// Register pins an existing Go slice in place (cuMemHostRegister). The device keeps b alive
	// until Unregister. A slice that overlaps pinned or registered memory is an error.
	Register(b []byte) error
	// Unregister undoes Register; b must start where the registered slice started. It waits until
	// queued copies that use it are done.
	Unregister(b []byte) error
	// MappedPtr returns the device address at which kernels can read and write pinned or registered
	// memory in place (cuMemHostGetDevicePointer).
	MappedPtr(b []byte) (Ptr, error)
}

// Properties describes a device.
type Properties struct {
	// Backend is the name of the backend: "host", "cuda".
	Backend string
	// Model is the device's own name, such as "NVIDIA H200".
	Model string
	// UUID is unique among the devices of all machines, in the form that the vendor's tools show:
	// "GPU-8a30c4e2-…". It is empty if the device has none.
	UUID string
	// PCIAddress is the device's address on the machine's bus: "0000:18:00.0". It is empty if the
	// device is on none.
	PCIAddress string
	// TotalMemory is the device's memory in bytes.
	TotalMemory int64
	// Alignment is the alignment in bytes of addresses that Alloc returns.
	Alignment int64
	// Accessible means that Go code can access device memory at its address while no queued work
	// uses it.
	Accessible bool
	// Peers means that copies may also name memory of the backend's other open devices.
	Peers bool
	// Dry means that the device has no memory and computes nothing, so that values read back are
	// zeros (package device/dry).
	Dry bool
}

// StreamOptions are the options of a new stream.
type StreamOptions struct {
	// Priority is a hint; lower numbers run first on hardware that has priorities
	// (cuStreamCreateWithPriority).
	Priority int
	// Launching, if not nil, is called for each kernel of the stream and each product of a
	// MatrixMultiplier ("matmul"), for timelines. It runs on the goroutine that makes the call,
	// without locks, before the kernel is queued; the function that it returns runs after that,
	// with the call's error. Work that the two queue on the stream, such as timed events, comes
	// before and after the kernel, unless other goroutines queue on the stream meanwhile. They must
	// not launch. A captured launch does not run and is not reported; each Replay of its graph on
	// the stream is reported as one kernel, "graph". LaunchingHooks combines several hooks. A
	// stream without a hook pays nothing.
	Launching func(s Stream, name string) (launched func(error))
}

// EventOptions are the options of a new event.
type EventOptions struct {
	// Timed events carry the device's clock, for [Device.Elapsed], and cost more.
	Timed bool
}

// HostVisible is implemented by devices whose kernels are Go functions.
type HostVisible interface {
	// Bytes returns the memory at [p, p+bytes) as a slice; the range must lie inside one live
	// allocation. Access the slice in a launch that names the range: outside of launches nothing
	// orders the access with the streams.
	Bytes(p Ptr, bytes int64) ([]byte, error)
}
