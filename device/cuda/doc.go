// Package cuda runs devices on NVIDIA GPUs, through CUDA's driver. Programs import it for its side effect, and
// open "cuda:0":
//
//	import _ "github.com/cistern-ml/cistern/device/cuda"
//
// It is compiled with the build tag cuda, which needs cgo and the headers of CUDA 11.8 to 13; `make cuda` says
// what is missing. Without the tag, opening a device is an error that says so. A program built with the tag
// starts on any machine: driver, cuBLAS and NCCL are opened when it runs, and where there is no GPU, opening one is an
// error that wraps [device.ErrNoDevice] and says why.
//
// # Devices
//
// A device uses the GPU's primary context, as CUDA's runtime and PyTorch do. Opening it twice gives the same
// device, to be closed as often. The option cublas=/absolute/path names the library of matrix products, and
// cublas=none does without; otherwise libcublas.so.13, .12 or .11 is looked for where the dynamic linker looks. Besides [device.Device] it
// implements [device.VirtualMemory], [device.ModuleLoader], [device.MatrixMultiplier] and [device.Collectives]; its streams implement
// [device.BatchCopier] and [device.GraphCapturer].
//
// Every call binds the thread that it runs on to the device's context, if another device's call was the last
// there. Code that binds threads to contexts of its own must do it in every call too.
//
// # Collectives
//
// They are NCCL's, version 2.18 or later: libnccl.so.2 where the dynamic linker looks, or what the option nccl=/absolute/path names; nccl=none does without. A
// library stays open until the process ends, since it has threads. Each rank has a GPU of its own.
//
// A communicator is joined without blocking (ncclConfig_t), so that a rank that waits for the
// others has a deadline, and is then split into the one that is used (ncclCommSplit), whose calls
// block until the work is queued, and cost the caller less. A rank's first operations wait in NCCL
// until the others connect. Each communicator has a goroutine until it is closed, which looks at
// most every millisecond how far the operations are, and whether NCCL has met an error; one that
// has begun and not ended within the timeout ends the communicator (ncclCommAbort), and the kernels
// with it. NCCL does not compare what ranks call. Ranks of one process are compared when they
// queue, so that calls that don't match are an error at once; between processes they are found by
// the timeout, or not at all if the sizes happen to fit, and the error names the ranks elsewhere. A
// rank that aborts or closes is likewise known at once inside the process, and by NCCL's error or
// the timeout elsewhere. A graph with operations is not compared; each of its replays is timed as a
// whole, and refused once a communicator in it has ended.
//
// # Batches
//
// The ranges of a batch that have up to 64 KiB are copied by a kernel, up to 170 of them in a launch: it reads or writes
// the host's memory in place. So they wait for multiprocessors, where kernels of other streams fill the GPU; longer ranges
// and all other copies don't. Opening a device loads the kernel.
//
// # Waiting
//
// Free, FreePinned, Unregister and Unmap wait for everything that is queued on the device: the driver does not
// know which kernels use what. memcache calls them as rarely as it can. They may be called while a stream is captured, and then wait for
// what was queued on it before. To wait for the whole context by the driver's own calls, as other libraries may, ends captures.
//
// An error that the driver calls sticky, such as an illegal address in a kernel, makes every later call return
// it, on every stream. It outlives the device: the driver lets the process use the GPU no more, so Open returns it,
// too. Only a new process helps.
package cuda
