// Package backend holds the common parts of the backends of package device: the errors that all of
// them return for the same mistake, with the same texts, and the accounting of calls, driver
// handles and leftover memory.
//
// The tables of memory are not common: host looks memory up where the race detector sees nothing,
// null under one lock, and cuda without any lock.
package backend
