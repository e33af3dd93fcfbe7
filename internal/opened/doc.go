// Package opened lets tests list the open handles of a device or a cache, with the call site that
// opened each of them.
//
// Nothing is recorded until [Watch], which only test programs call: before it [New] returns nil,
// and the methods of a nil *Ledger do nothing. So a production build pays one comparison per
// handle, and handles do not grow.
//
// Race builds never record anything, for two reasons: the race detector looks for missing events
// there, and the lock of a ledger would order goroutines that nothing else orders; and package
// transfer leaves its events to the garbage collector.
package opened
