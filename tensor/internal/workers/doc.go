// Package workers spreads the work of a kernel over long-lived goroutines, so that a kernel does
// not create goroutines. Between two kernels they poll for a while and then sleep.
//
// There are at most GOMAXPROCS-1 workers. The goroutine that calls [Do] takes part in its job, and
// never waits for a worker that has not begun. If all workers are busy with other streams' jobs, it
// begins alone, and workers join it when they become idle, unless there are 16 other jobs. So streams
// neither starve nor block each other. Workers stop after a while without work. A caller takes the
// pool's lock only if too few workers poll.
//
// In race builds each job has its own goroutines. With long-lived workers and the atomic variables
// around them, the race detector would see a happens-before order between the work of two streams
// that no event orders.
package workers
