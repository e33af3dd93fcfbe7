package device

import (
	"context"
	"time"
)

// Ptr is a device address. It is a number, never a Go pointer: only the device's own operations and, where
// the host can touch the memory, [HostVisible] turn it into memory. It has 64 bits wherever the program runs.
// The null address is 0.
type Ptr uint64

// Device is one accelerator, or the host acting as one.
//
// A Device is safe for concurrent use. After Close every method but Close, Name, ID and Properties returns
// an error that wraps [ErrClosed].
type Device interface {
	// Name is the name that opened the device, without options: "host", "cuda:0".
	Name() string
	// ID is unique among all devices that this process ever opens.
	ID() uint64
	// Properties describes the device. They never change.
	Properties() Properties

	Memory
	PinnedMemory

	// NewStream makes a stream. It must be closed.
	NewStream(StreamOptions) (Stream, error)
	// NewEvent makes an event that is not yet recorded. It must be closed. Both are cheap: what the driver makes is
	// pooled below, and what is left is one small Go allocation, a handle that is new each time. So a handle that is
	// used after Close is refused, and never touches the event of another owner. [EventPool] saves the handle, too.
	NewEvent(EventOptions) (Event, error)
	// Elapsed is the device's time between the two last records of timed events, both complete
	// (cuEventElapsedTime). Events that are untimed, never recorded or not complete are an error.
	Elapsed(start, end Event) (time.Duration, error)
	// Synchronize waits until everything queued on every stream of the device is done, and returns the
	// device's sticky error, if any. Cancelling ctx ends the waiting, not the work; a nil ctx wraps ErrInvalid.
	Synchronize(ctx context.Context) error

	// Close waits for all streams, closes them, and frees what is left. It is idempotent and leaves no
	// goroutine. Memory still allocated is reported as an error after everything was freed. A device that
	// was opened several times closes with its last Close.
	Close() error
}

// Memory is a device's raw memory, uncached: each call reaches the driver. Use memcache for anything that
// allocates often.
type Memory interface {
	// Alloc returns the address of bytes bytes of device memory, aligned to at least 256 bytes
	// (cuMemAlloc). The contents are undefined. Zero or negative sizes are an error; too little free
	// memory is an error that wraps [ErrOutOfMemory] and is not sticky.
	Alloc(bytes int64) (Ptr, error)
	// Free returns an allocation to the driver (cuMemFree). It waits until queued operations that use the
	// allocation are done. p must be what Alloc returned.
	Free(p Ptr) error
	// MemInfo returns the device's free and total memory in bytes (cuMemGetInfo).
	MemInfo() (free, total int64, err error)
}

// PinnedMemory is page-locked host memory, which the device can copy from and to asynchronously.
type PinnedMemory interface {
	// AllocPinned returns bytes bytes of pinned, portable, mapped host memory (cuMemHostAlloc): all open
	// devices of the backend can use it, and this one frees it. The caller owns it until FreePinned, and
	// must not touch it while a queued copy writes it, nor write it while one reads it.
	AllocPinned(bytes int64) ([]byte, error)
	// FreePinned frees memory from AllocPinned; b must start where that slice started. It waits until
	// queued copies that use it are done, on whichever device.
	FreePinned(b []byte) error
	// Register pins an existing Go slice in place (cuMemHostRegister). The device keeps b alive until
	// Unregister. A slice that overlaps pinned or registered memory is an error.
	Register(b []byte) error
	// Unregister undoes Register; b must start where the registered slice started. It waits until queued
	// copies that use it are done.
	Unregister(b []byte) error
	// MappedPtr is the device address at which kernels can read and write pinned or registered memory in
	// place (cuMemHostGetDevicePointer).
	MappedPtr(b []byte) (Ptr, error)
}

// Properties describes a device.
type Properties struct {
	// Backend is the name of the backend: "host", "cuda".
	Backend string
	// Model is the device's own name, such as "NVIDIA H200".
	Model string
	// UUID is unique among the machines' devices, as the vendor's tools show it: "GPU-8a30c4e2-…". Empty: there is none.
	UUID string
	// PCIAddress is where it is on the machine's bus, "0000:18:00.0". Empty: it is on none.
	PCIAddress string
	// TotalMemory is the device's memory in bytes.
	TotalMemory int64
	// Alignment is the alignment in bytes of what Alloc returns.
	Alignment int64
	// Accessible says that Go code can touch device memory where its address is, when no queued work uses it.
	Accessible bool
	// Peers says that copies may name memory of the other open devices of the backend, too.
	Peers bool
	// Dry says that the device has no memory and computes nothing, so that values which are read
	// back are zeros (package device/dry).
	Dry bool
}

// StreamOptions are the options of a new stream.
type StreamOptions struct {
	// Priority is a hint; lower numbers run first on hardware that has priorities
	// (cuStreamCreateWithPriority).
	Priority int
	// Launching sees each kernel of the stream, and each product of a MatrixMultiplier ("matmul"), for timelines; nil: nobody does, at no
	// cost. It is called on the goroutine of the call, without locks, before the kernel is queued, and the function that it returns
	// afterwards, with the call's error. What they queue on the stream, such as timed events, comes before and after the kernel, unless
	// other goroutines queue on it meanwhile. They must not launch. LaunchingHooks makes one of several. A launch that is captured
	// does not run, and is not seen; each Replay of its graph on the stream is seen as one kernel, "graph".
	Launching func(s Stream, name string) (launched func(error))
}

// EventOptions are the options of a new event.
type EventOptions struct {
	// Timed events carry the device's clock, for [Device.Elapsed], and cost more.
	Timed bool
}

// HostVisible is implemented by devices whose kernels are Go functions.
type HostVisible interface {
	// Bytes is the memory at [p, p+bytes), which must lie inside one live allocation. Work on the slice
	// belongs in a launch that names the range: outside of one nothing orders it with the streams.
	Bytes(p Ptr, bytes int64) ([]byte, error)
}
