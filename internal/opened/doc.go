// Package opened lets tests see which handles a device or a cache has handed out and not got back,
// with the call site that opened each of them.
//
// Nothing is recorded until [Watch], which only test programs call: [New] returns nil before, and
// the methods of a nil *Ledger do nothing. So a production build pays one comparison for each
// handle, and no handle is larger for it.
//
// In race builds nothing is ever recorded. There the race detector looks for missing events, and
// the lock of a ledger would order goroutines that nothing else orders; and package transfer leaves
// its events to the garbage collector.
package opened
