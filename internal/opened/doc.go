// Package opened lets tests see which handles a device or a cache has handed out and not got back, with the call site
// that opened each of them.
//
// Nothing is recorded until [Watch], which only test programs call: [New] returns nil before, and the methods of a nil
// *Ledger do nothing. So a production build pays one comparison for each handle, and no handle is larger for it.
//
// The lock of a ledger is hidden from the race detector, which on the host device looks for missing events: opening and
// closing handles orders nothing. Functions that touch what it guards are marked go:norace, see internal/race.
package opened
