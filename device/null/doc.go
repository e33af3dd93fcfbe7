// Package null is a device that hands out addresses and no memory, for replays of recordings, benchmarks of
// allocators and fuzzing.
//
//	dev, err := device.Open("null?capacity=140GiB") // or null.New(null.Config{Capacity: 140 << 30})
//
// Its calls are checked as those of any device: sizes, ranges, what is live. Copies, launches and Memset are
// accepted and touch nothing; Launch runs no Func. Pinned memory is ordinary Go memory. Nothing takes any
// time: what is queued on a stream is done at once, so an event is complete when it is recorded.
//
// # Scripts
//
// A test or a replay says what else happens. [Stream.Hold] keeps a stream from going on until it is
// released: events recorded meanwhile are not complete. [Device.SetScript] sees every call that would reach
// a driver; it chooses addresses, makes the call fail, blocks it, or keeps a log. [Device.NewStreamWithID] makes a
// stream with a chosen ID.
//
// A stream has no bound on what it queues while it is held. Record and Query allocate nothing on the Go heap and, on
// streams that are not held, take no lock. Everything may be used from any goroutine.
package null
