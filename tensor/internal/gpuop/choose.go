package gpuop

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Way is a method of computing a product.
type Way uint8

const (
	Nowhere     Way = iota // several ways, or none: see backend.Op.Base
	OwnNarrow              // product.cu, with the following operation in the same launch
	OwnWide                // product_wide.cu, likewise
	LibraryBias            // the library, which adds the bias
	Library                // the library, and a launch for the following operation
	Multiply               // matrix.cu, with a bias and ReLU in the same launch
)

// product holds the properties on which the choice depends.
type product struct {
	plan.Product
	op      backend.Op
	dtype   backend.Dtype
	batch   bool
	aligned bool // the result's memory starts at a multiple of 16 bytes
}

func productOf(c *backend.Call) product {
	return product{*backend.ParamsOf[plan.Product](c.Params()), c.Op, c.Dtype, c.Plan != nil, c.Args[0].Ptr%16 == 0}
}

// libraries lists for each dtype whether the library multiplies it, whether it adds a bias, and the
// [device.Gemm] that selects the dtype.
var libraries = [backend.Dtypes]struct {
	products, bias bool
	gemm           device.Gemm
}{
	backend.Float32:  {products: true, bias: true},
	backend.Float64:  {products: true, gemm: device.Gemm{Float64: true}},
	backend.BFloat16: {products: true, bias: true, gemm: device.Gemm{BFloat16: true}},
}

// choose returns the way to compute a product, and the reason.
func (b *Backend) choose(p product) (Way, string) {
	relu := p.op == backend.MatMulAddBiasReLU
	if w, why := b.own(p); w != Nowhere || p.op == backend.MatMulSums || p.op == backend.MatMulMasked {
		return w, why
	}
	switch {
	case b.blas == nil || !libraries[p.dtype].products:
		return Multiply, "there is no library of products"
	case p.op == backend.MatMul:
		return Library, "nothing follows the product"
	case !b.fused || !libraries[p.dtype].bias:
		return Library, "the library adds no bias"
	case relu && p.dtype.Wide() == backend.NoDtype:
		return Library, "the library's ReLU makes 0 of NaN, and bias and ReLU are one launch"
	case p.batch || p.K == 0:
		return Library, "the library adds no bias to a batch or to nothing"
	}
	return LibraryBias, "the library adds the bias"
}

// own returns the kernel of our own for a product, or Nowhere if the library or matrix.cu is
// better. The measurements are in docs/decisions/planned-products.md.
func (b *Backend) own(p product) (Way, string) {
	switch {
	case !tilings[OwnNarrow].nn.has(p.dtype):
		return Nowhere, "there are no tiles for the dtype"
	case p.batch || p.K == 0 || p.TransA && p.TransB:
		return Nowhere, "a batch, an empty product or two transposes"
	case !p.aligned:
		return Nowhere, "the result is not aligned to 16 bytes"
	case b.env.TF32():
		return Nowhere, "the library may use TF32"
	case p.op == backend.MatMulMasked:
		sums := product{Product: plan.Product{M: p.N, N: p.FanIn, K: p.M, TransA: true}, op: backend.MatMulSums}
		if w, _ := ownTiling(sums); w == Nowhere {
			return Nowhere, "the sums that follow a masked gradient are not a launch of our own"
		}
	}
	return ownTiling(p)
}

// ownTiling is a variable so that [Force] can replace it.
var ownTiling = func(p product) (Way, string) {
	all := tilings[OwnNarrow].tiles(p.M, p.N)
	steps := all * tilings[OwnNarrow].steps(p.K)
	if all <= 64 && steps <= 256 || p.TransA && p.K >= leastRows && steps <= 512 {
		return OwnNarrow, "few tiles and steps"
	}
	all = tilings[OwnWide].tiles(p.M, p.N)
	blocks := all * productParts(OwnWide, all, tilings[OwnWide].steps(p.K))
	if blocks < wideBlocks*3/4 || blocks > wideBlocks {
		return Nowhere, "the tiles are not one wave of blocks"
	}
	if p.TransA && p.K >= leastRows || p.TransB && (p.op == backend.MatMulAddBiasReLU || p.K >= 512 && p.K <= 1024) || p.op == backend.MatMulMasked {
		return OwnWide, "one wave of blocks, of a shape that was measured"
	}
	return Nowhere, "the library is faster, or it was not measured"
}

const (
	// leastRows is the smallest number of rows for which gradients of weights were measured. The
	// library computes those with fewer.
	leastRows = 128
	// wideBlocks is one wave of the blocks of product_wide.cu: one per multiprocessor.
	wideBlocks = 128
)

// productParts returns the number of parts into which the inner dimension is cut. With few steps it
// returns 1, because combining the parts takes longer than the steps.
var productParts = func(w Way, tiles, steps int) int {
	most, least := enough/tiles, 1
	if w == OwnWide {
		most, least = wideBlocks/tiles, 3
	}
	if tiles > partTickets || steps < 3 {
		return 1
	}
	return max(1, min(steps/least, 8, most))
}

// Force makes kernels of way w compute every product that they can; with Nowhere, no kernel of our
// own computes any. The inner dimension is cut into as many parts as parts returns, or into the
// usual number if parts is nil. Force is for tests and benchmarks, which call restore afterwards.
func Force(w Way, parts func(tiles, steps int) int) (restore func()) {
	own, cut := ownTiling, productParts
	ownTiling = func(product) (Way, string) { return w, "forced" }
	if parts != nil {
		productParts = func(_ Way, tiles, steps int) int { return parts(tiles, steps) }
	}
	return func() { ownTiling, productParts = own, cut }
}

// Tiles returns the number of tiles of a result by kernels of our own, and Steps the number of
// steps of its inner dimension.
func (w Way) Tiles(m, n int) int { return tilings[w].tiles(m, n) }
func (w Way) Steps(k int) int    { return tilings[w].steps(k) }

// MaxCut is the largest number of tiles for which the inner dimension is cut.
const MaxCut = partTickets
