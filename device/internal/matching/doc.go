// Package matching knows what the ranks of one communicator in this process have called, where a library such as NCCL does not say: calls that don't match would
// hang there, or move what they should not. It finds them when they are queued, before the library sees them, and names the ranks that are missing when time is up.
//
// Of ranks in other processes nothing is known: they are taken to match.
package matching
