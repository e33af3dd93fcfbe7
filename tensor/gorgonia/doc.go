// Package gorgonia gives tensors of gorgonia.org/tensor memory from Cistern's cache.
//
// An [Engine] is for memory that the host can touch, that of the host device. It computes as gtensor.StdEng does, on the
// caller's goroutine, and everything that gorgonia.org/tensor can do works.
//
// A [DeviceEngine] is for memory that only the device can touch, a GPU's. It computes there, on its runtime's stream. It has the
// operations that there are kernels for; the others are errors. Its tensors come from the host and go back with
// [DeviceEngine.FromHost] and [DeviceEngine.ToHost], and share memory with tensors of package tensor.
//
// gorgonia.org/tensor itself never frees. What an engine allocated goes back with Release, with the [Lifetime] in
// which it was made, or with the engine, whose Close reports what nobody released:
//
//	lifetime := engine.NewLifetime()
//	defer lifetime.Close()
//	...
//	err := lifetime.Keep(result)
//
// "host?accessible=false" opens a host device whose addresses fault when they are touched, as a GPU's do: programs for a
// DeviceEngine are tested on it without a GPU.
package gorgonia
