// Package dry implements devices without memory and without computation, to find out what a program
// would allocate on a real device. A dry device makes the same decisions as the device that it
// stands for. So a training step on it allocates what the step on the real device would, in a
// fraction of the time and without a GPU.
//
//	import _ "github.com/cistern-ml/cistern/device/dry"
//
//	rt, err := tensor.Open("dry:host?capacity=64GiB") // the host device of this machine
//	rt, err := tensor.Open("dry:cuda?gpu=L4")         // a GPU
//
// Package autograd/forecast runs a step on a dry device and returns its memory use.
//
// # Options
//
// Devices are "dry:host" and "dry:cuda". The option capacity is the device's memory, such as 80GiB.
// A dry GPU is an H100 unless the option gpu selects another: A100, A100-40GB, H100, H200, L4, T4
// or RTX4090. For other GPUs the options capacity and capability, such as 9.0, replace the values
// of the table. With cublas=none it has no library of matrix products. On a real GPU the driver,
// its context and the libraries take some hundred MiB, which a dry GPU does not subtract from its
// capacity.
//
// # Behavior
//
// A dry device checks calls as the host device does: sizes, ranges, live memory, captures. It does
// not check the shapes of matrix products and launches. It completes operations as late as any
// device can: when the program waits for anything, when the cache returns memory to the device, or
// when a stream has 1,024 operations queued. So memory that several streams use, such as that of
// offloading, becomes free when it would on a device far behind the host. Only functions of
// [device.Stream].OnDone are called at once.
//
// Values that the program reads back are zeros. Class labels and indices are not checked. A
// communicator exchanges nothing and does not wait for other ranks, so that one rank of many can
// run alone. [device.Properties].Dry is set; a program whose control flow depends on values should
// check it. Package tensor logs a warning at the first value that is read, and package nn draws no
// initial values.
//
// The program's Go slices are real memory, and so are the pinned buffers that it fills, such as
// those of a loader. On Linux, pinned buffers that only the device copies to and from take no
// memory.
//
// A dry device needs a 64-bit machine.
package dry
