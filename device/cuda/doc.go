// Package cuda implements devices on NVIDIA GPUs, with CUDA's driver. Programs import it for its
// side effect, and open "cuda:0":
//
//	import _ "github.com/cistern-ml/cistern/device/cuda"
//
// The package needs the build tag cuda, cgo, and the headers of CUDA 11.8 to 13; `make cuda`
// reports what is missing. In a program without the tag, opening a device returns an error that
// names the tag. A program with the tag starts on any machine, because it opens the driver, cuBLAS
// and NCCL at run time. On a machine without a GPU, opening one returns an error that wraps
// [device.ErrNoDevice] and gives the reason.
//
// # Devices
//
// A device uses the GPU's primary context, as CUDA's runtime and PyTorch do. Opening it again
// returns the same device, which must be closed as often as it was opened. The option
// cublas=/absolute/path names the library of matrix products, and cublas=none leaves it out; by
// default the dynamic linker looks for libcublas.so.13, .12 or .11.
//
// Besides [device.Device] a device implements [device.VirtualMemory], [device.ModuleLoader],
// [device.MatrixMultiplier] and [device.Collectives]. Its streams implement [device.BatchCopier]
// and [device.GraphCapturer].
//
// Every call binds its thread to the device's context, unless the thread is bound already. Other
// code that binds threads to its own contexts must also do so in every call.
//
// # Collectives
//
// Collectives need NCCL 2.18 or later: the option nccl=/absolute/path names the library, by default
// the dynamic linker looks for libnccl.so.2, and nccl=none leaves it out. A library stays open
// until the process ends, because it has threads. Each rank needs its own GPU.
//
// A communicator is first joined without blocking (ncclConfig_t), so that a rank's wait for the
// others has a deadline. It is then split into the communicator that is used (ncclCommSplit), whose
// calls block until the work is queued and cost the caller less. A rank's first operations wait in
// NCCL until the other ranks connect.
//
// Until it is closed each communicator has a goroutine, which checks, at most once per millisecond,
// the progress of the operations and NCCL's errors. If an operation that has begun does not end
// within the timeout, the goroutine ends the communicator (ncclCommAbort) and its kernels.
//
// NCCL does not compare the ranks' calls. This package compares those of ranks of one process when
// they are queued, so that calls that don't match fail at once. Between processes a mismatch leads
// to a timeout, whose error names the ranks in other processes, or goes unnoticed if the sizes
// happen to fit. Likewise, a rank that aborts or closes is known at once inside the process, and by
// NCCL's error or the timeout elsewhere. Operations in graphs are not compared; each replay is
// timed as a whole, and is refused once one of its communicators has ended.
//
// # Batches
//
// A kernel copies the ranges of a batch that have up to 64 KiB, up to 170 of them in a launch. It
// reads or writes the host's memory in place. So these ranges wait for multiprocessors while
// kernels of other streams fill the GPU; longer ranges and all other copies don't. Opening a device
// loads the kernel.
//
// # Waiting
//
// Free, FreePinned, Unregister and Unmap wait for everything that is queued on the device, because
// the driver does not track the memory that kernels use. Package memcache calls them as rarely as
// it can. They may be called while a stream is captured; then they wait for the work queued on it
// before the capture. Waiting for the whole context with the driver's own calls, as other libraries
// may, ends captures.
//
// After a sticky CUDA error, such as an illegal memory access in a kernel, every later call returns
// that error, on every stream. The process can no longer use the GPU, so Open returns the error,
// too, even after the device was closed. This is a CUDA limitation; only a new process can use the
// GPU again.
package cuda
