// Package gorgonia provides engines for gorgonia.org/tensor, so that its tensors have memory from
// Cistern's cache:
//
//	engine, err := gorgonia.NewEngine(cache, stream)
//	weights, err := engine.New(tensor.WithShape(3, 2), tensor.WithBacking(numbers))
//	x := tensor.New(tensor.WithEngine(engine), tensor.Of(tensor.Float32), tensor.WithShape(2, 3))
//	y, err := tensor.MatMul(x, weights) // in the cache's memory
//	err = errors.Join(engine.Release(y), engine.Release(x), engine.Release(weights))
//
// An [Engine] is for memory that the host can access, which is the host device's. It computes like
// gtensor.StdEng, on the caller's goroutine, and supports everything that gorgonia.org/tensor does.
//
// A [DeviceEngine] is for memory that only the device can access, such as a GPU's. It computes on
// the device, on its runtime's stream. Operations without a kernel return errors.
// [DeviceEngine.FromHost] and [DeviceEngine.ToHost] copy tensors from and to the host. Its tensors
// can share memory with tensors of package tensor.
//
// gorgonia.org/tensor itself never frees memory. An engine's memory is freed by Release, by closing
// the [Lifetime] in which it was allocated, or by closing the engine, which reports the tensors
// that were not released:
//
//	lifetime := engine.NewLifetime()
//	defer lifetime.Close()
//	...
//	err := lifetime.Keep(result)
//
// To test programs for a DeviceEngine without a GPU, open the device "host?accessible=false". Its
// addresses fault when the host accesses them, like a GPU's.
package gorgonia
