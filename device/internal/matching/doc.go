// Package matching checks that the calls of a communicator's ranks in this process match. A library
// such as NCCL does not check that: calls that don't match would hang or move wrong data. The
// package reports them when they are queued, before the library gets them. On a timeout it names
// the missing ranks.
//
// It has no information about ranks in other processes, and assumes that their calls match.
package matching
