// Package gemm computes matrix products on the host: C = op(A) op(B), or added to C, followed by an
// optional bias and ReLU. The caller fills a [Product] and calls [Product.Run].
//
// The algorithm is that of Goto and BLIS. A micro-kernel (tile) keeps a tile of C in registers
// while it moves along the inner dimension. The factors are first copied into panels, in the order
// in which the micro-kernel reads them, so that it reads from the caches without TLB misses,
// whatever the matrices' strides. The panels of A are in scratch memory of bounded size, one block
// of the product at a time. Each unit of work packs its own panels of B, as many as the
// second-level cache holds. Three kinds of factors are not copied but read in place: an A whose
// rows lie along the inner dimension, an A that meets few panels of B, and a B whose columns are
// adjacent if a unit has few panels of A. So most products are one phase, in which no goroutine
// waits for another. If the rows of an A in place collide in the first-level cache, each unit
// copies one panel of them at a time.
//
// The inner dimension is cut into blocks of a depth that depends only on its length. Within a
// block, an element of C is one accumulator, over k in ascending order, with fused multiply-adds if
// the level has them. The blocks are added in order. So an element's value depends only on the
// level and on the inner dimension, not on tiles, goroutines or the other dimensions. Products with
// a vector are limited by memory bandwidth. They have their own kernels, which add in another
// order.
package gemm
