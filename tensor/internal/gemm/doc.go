// Package gemm is matrix products on the host: C = op(A) op(B), or added to C, and what is done to an element when it is
// complete.
//
// The work is that of Goto and BLIS. A micro-kernel (tile) keeps a tile of C in registers while it goes along the inner
// dimension; the factors are copied first into panels, in the order in which it reads them, so that they come from the caches
// without misses of address translation, whatever the matrices' strides. Panels of A lie in scratch memory of bounded size, for
// a block of the product after the other; those of B every unit of work packs for itself, as many as the second cache holds.
// A factor that only a panel or two of the other meets is not copied, nor is an A whose rows lie along the inner dimension: the
// same micro-kernel reads it where it is. So most products are one phase, in which no goroutine waits for another.
//
// The inner dimension is cut into blocks of a depth that depends on its length alone. Within one, an element of C is one
// accumulator, over k in ascending order and with fused multiply-adds where the level has them; blocks are added in order. So an element's value depends on the
// level and on the inner dimension, and on nothing else: not on tiles, goroutines or the other dimensions. Products with a vector,
// which are bound by memory, have kernels and an order of their own.
package gemm
