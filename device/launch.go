package device

// Launch is one launch of a kernel.
//
// On a device whose memory the host can access ([HostVisible]) the kernel is Func, a Go function
// that runs on the stream. On other devices it is Kernel, a function of a loaded module, with its
// grid and arguments.
type Launch struct {
	// Name appears in errors and traces.
	Name string

	// Func is the kernel of a host-visible device. It runs once, on the stream, and must access
	// only the memory named in Reads and Writes. It must not queue work or wait for a stream. A
	// panic in it becomes a sticky error of the device.
	Func func()

	// Brief promises that Func takes at most about as long as a call of Launch, and waits for
	// nothing. Launch may then run Func itself, if everything queued on the stream before is done.
	// Other devices ignore Brief.
	Brief bool

	// Captured, if not nil, is set to true if the launch is captured, before Func can run. The
	// graph then runs Func at each replay. Devices that don't run Go functions ignore Captured.
	Captured *bool

	// Kernel is a function of a loaded module; its type is the backend's.
	Kernel any
	// Grid and Block are the numbers of blocks and of threads per block.
	Grid, Block [3]uint32
	// SharedBytes is the dynamic shared memory in bytes.
	SharedBytes uint32
	// Args are the kernel's arguments, each in the low bits of one word. The last one may be a
	// struct of 8-byte fields, which takes as many words as fields.
	Args []uint64

	// Reads and Writes name the memory that the kernel reads and writes. Each range must lie inside
	// one live allocation or inside mapped host memory. Memory both read and written is named in
	// both.
	Reads, Writes []Range
}

// Range is a range of device memory.
type Range struct {
	Ptr   Ptr
	Bytes int64
}
