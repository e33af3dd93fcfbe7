// Package gorgonia gives tensors of gorgonia.org/tensor memory from Cistern's cache.
//
// An [Engine] is for memory that the host can touch. It computes as gtensor.StdEng does, and the results of all
// operations have memory from the cache too.
//
// gorgonia.org/tensor itself never frees. What an engine allocated goes back with Release, with the [Lifetime] in
// which it was made, or with the engine, whose Close reports what nobody released.
package gorgonia
