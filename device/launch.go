package device

// Launch is one launch of a kernel.
//
// On a device whose memory the host can touch ([HostVisible]) the kernel is Func, a Go function that runs on
// the stream. On other devices it is Kernel, a function of a module that the device loaded, with the grid
// and the arguments that it takes.
type Launch struct {
	// Name appears in errors and traces.
	Name string

	// Func is the kernel of a host-visible device. It runs once, on the stream, and must touch only the
	// memory named in Reads and Writes. It must not queue work or wait for a stream. A panic in it is a
	// sticky error of the device.
	Func func()

	// Brief says that Func takes about as long as a call of Launch, or less, and waits for nobody: then Launch may run it itself,
	// if everything that was queued on the stream before is done. Other devices don't look at it.
	Brief bool

	// Captured, if not nil, is set to true before Func can run, if the launch is captured: the
	// graph runs Func at each replay. Devices that run no Go functions leave it alone.
	Captured *bool

	// Kernel is a function of a loaded module; its type is the backend's.
	Kernel any
	// Grid and Block are the numbers of blocks and of threads per block.
	Grid, Block [3]uint32
	// SharedBytes is the dynamic shared memory in bytes.
	SharedBytes uint32
	// Args are the kernel's arguments, each in the low bits of one word. The last one may be a struct of 8-byte
	// fields: as many words.
	Args []uint64

	// Reads and Writes name the memory that the kernel reads and writes. Each range must lie inside one
	// live allocation or inside mapped host memory. Memory both read and written is named in both.
	Reads, Writes []Range
}

// Range is a range of device memory.
type Range struct {
	Ptr   Ptr
	Bytes int64
}
