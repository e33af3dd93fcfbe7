// Package null implements a device that has addresses but no memory, for replays of recordings,
// benchmarks of allocators and fuzzing.
//
//	dev, err := device.Open("null?capacity=140GiB") // or null.New(null.Config{Capacity: 140 << 30})
//
// It checks calls like any device: sizes, ranges, live memory. Copies, launches and Memset access
// nothing; Launch runs no Func. Pinned memory is ordinary Go memory. Operations take no time: they
// are complete as soon as they are queued, so an event is complete when it is recorded.
//
// # Scripts
//
// Tests and replays can change that behavior. [Stream.Hold] stops a stream until it is released;
// events recorded meanwhile are not complete. A script, set by [Device.SetScript], sees every call
// that would reach a driver. It can choose addresses, make the call fail, block it, or keep a log.
// [Device.NewStreamWithID] makes a stream with a chosen ID.
//
// The queue of a held stream has no limit. Record and Query allocate nothing on the Go heap and,
// unless the stream is held, take no lock. Everything may be used from any goroutine.
package null
