// Package race gives the race detector the happens-before edges of a device, and hides the others.
//
// With the build tag race the functions are those of package runtime; in other builds they do
// nothing and [Enabled] is false, so that the compiler removes what it guards.
//
// Code between Disable and Enable makes no edge visible to the detector, whatever locks and
// channels it uses. Its memory accesses are still checked, so functions that share memory there are
// marked go:norace, and touch no map and grow no slice.
package race
