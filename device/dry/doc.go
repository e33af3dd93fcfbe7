// Package dry is a device of addresses: it has no memory and computes nothing, and takes the same
// decisions as the device that it stands for. A training step on it allocates what the step on the
// real device would, in a fraction of the time and with no GPU in the machine.
//
//	import _ "github.com/cistern-ml/cistern/device/dry"
//
//	rt, err := tensor.Open("dry:host?capacity=64GiB") // the host device of this machine
//	rt, err := tensor.Open("dry:cuda?gpu=L4")         // a GPU
//
// Package autograd/forecast runs a step on it and returns what the step took.
//
// # What it takes
//
// Devices are "dry:host" and "dry:cuda". The option capacity is the device's memory, such as 80GiB.
// A dry GPU is an H100 unless the option gpu says otherwise: A100, A100-40GB, H100, H200, L4, T4 or
// RTX4090. The options capacity and capability, such as 9.0, replace the values of the table for
// others. With cublas=none it has no library of matrix products. The driver, its context and the
// libraries take some hundred MiB of a real GPU, which the capacity of a dry one does not leave
// out.
//
// # What it does
//
// Calls are checked as those of the host device: sizes, ranges, live memory, captures. Shapes of
// matrix products and of launches are not. A dry device is as late as a device can be: operations
// are over when the program waits for anything, the cache returns memory to the device, or a stream
// has 1,024 operations queued. So memory that several streams use, such as that of offloading, is
// free again when a device far behind the host would be done with it. Only the functions of
// [device.Stream].OnDone are called at once. Values that the program reads back are zeros, class
// labels and indices are not checked, and a communicator exchanges nothing and waits for no other
// rank, so that one rank of many runs alone. [device.Properties].Dry is set; a program that decides
// by values asks it. Package tensor logs a warning at the first value that is read, and package nn
// draws no first values.
//
// Go slices of the program are real memory, as are the pinned buffers that it fills, such as those
// of a loader. Pinned buffers that only the device copies to and from take none on Linux.
//
// It needs addresses of 64 bits.
package dry
