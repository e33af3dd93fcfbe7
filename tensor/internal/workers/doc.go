// Package workers spreads the work of a kernel over goroutines that last: between two kernels they are parked, not made again.
//
// The goroutine that brings a job takes part, and never waits for one that has not begun: if all workers are busy with other
// streams' jobs it does every unit itself. So streams neither starve nor block each other. Workers stop when there was nothing
// to do for a while.
//
// In race builds a job has goroutines of its own: through workers that last, and the locks around them, the race detector
// would see one stream's work happen before another's that no event orders.
package workers
