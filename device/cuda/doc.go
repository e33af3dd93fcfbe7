// Package cuda runs devices on NVIDIA GPUs, through CUDA's driver. Programs import it for its side effect, and
// open "cuda:0":
//
//	import _ "github.com/cistern-ml/cistern/device/cuda"
//
// It is compiled with the build tag cuda, which needs cgo and the headers of CUDA 11.8 to 13; `make cuda` says
// what is missing. Without the tag, opening a device is an error that says so. A program built with the tag
// starts on any machine: driver and cuBLAS are opened when it runs, and where there is no GPU, opening one is an
// error that wraps [device.ErrNoDevice] and says why.
//
// # Devices
//
// A device uses the GPU's primary context, as CUDA's runtime and PyTorch do. Opening it twice gives the same
// device, to be closed as often. The option cublas=/absolute/path names the library of matrix products, and
// cublas=none does without; otherwise libcublas.so.13, .12 or .11 is looked for where the dynamic linker looks. Besides [device.Device] it
// implements [device.VirtualMemory], [device.ModuleLoader] and [device.MatrixMultiplier]; its streams implement
// [device.BatchCopier] and [device.GraphCapturer].
//
// Every call binds the thread that it runs on to the device's context, if another device's call was the last
// there. Code that binds threads to contexts of its own must do it in every call too.
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
