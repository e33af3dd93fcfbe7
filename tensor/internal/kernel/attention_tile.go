package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/gemm"
	"github.com/cistern-ml/cistern/tensor/internal/spare"
)

// A tile of scores is computed by one goroutine. It is so small that its products are a few calls
// of the micro-kernel, which reads the left factor in place and the right one from a panel.
const (
	queryTile, keyTile = 32, 64
	panelElements      = 8 << 10
)

// attendSpace is the scratch memory of a goroutine that computes tiles.
type attendSpace[T Float] struct {
	kernel               gemm.Kernel[T]
	weights, slopes      [queryTile * keyTile]T
	panel                [panelElements]T
	scores, exponentials [keyTile]float64
}

var (
	attendSpaces32 spare.Pool[attendSpace[float32]]
	attendSpaces64 spare.Pool[attendSpace[float64]]
)

func attendSpacesOf[T Float]() *spare.Pool[attendSpace[T]] {
	return either[*spare.Pool[attendSpace[T]]](&attendSpaces32, &attendSpaces64)
}

func takeAttendSpace[T Float]() *attendSpace[T] {
	s := attendSpacesOf[T]().Take()
	s.kernel = gemm.KernelOf[T]()
	return s
}

func (s *attendSpace[T]) give() { attendSpacesOf[T]().Give(s) }

// factor is a factor of a small product: element k of an item is data[item*byItem + k*byInner].
type factor[T Float] struct {
	data            []T
	byItem, byInner int
}

// multiply sets c to the product of m items of a and n of b, of depth elements each, or adds it.
// The rows of c are crs elements apart.
func (s *attendSpace[T]) multiply(m, n, depth int, a, b factor[T], c []T, crs int, add bool) {
	if depth == 0 && !add {
		for i := range m {
			clear(c[i*crs:][:n])
		}
	}
	width, panels := s.kernel.Columns(), tilesOf(m, s.kernel.Rows())
	most := panelElements / width
	for j := 0; j < n; j += width {
		columns := min(width, n-j)
		for k := 0; k < depth; k += most {
			deep := min(most, depth-k)
			gemm.Panel(s.kernel.Level(), s.panel[:], width, b.data[j*b.byItem+k*b.byInner:], b.byItem, b.byInner, deep, columns)
			for i := range panels {
				row, next := i*m/panels, (i+1)*m/panels
				s.kernel.Tile(next-row, columns, c[row*crs+j:], crs, a.data[row*a.byItem+k*a.byInner:], a.byItem, a.byInner, s.panel[:], deep, add || k > 0)
			}
		}
	}
}

// scoreRow sets the scores of query i and the keys from key on, given their products. A score is
// -Inf if the query does not see the key. mask is where the mask of the element of the batch
// begins.
func scoreRow[T Float](p *plan.Attention, d *AttentionData[T], scores []float64, products []T, mask, i, key int) {
	for j, s := range products {
		scores[j] = float64(s) * p.Scale
	}
	mask += i*p.Mask.Row + key*p.MaskColumn
	switch p.Masking {
	case plan.FloatMask:
		for j := range scores {
			scores[j] += float64(d.FloatMask[mask+j*p.MaskColumn])
		}
	case plan.BoolMask:
		for j := range scores {
			if d.BoolMask[mask+j*p.MaskColumn] == 0 {
				scores[j] = math.Inf(-1)
			}
		}
	}
	if p.Causal {
		for j := max(0, i+1-key); j < len(scores); j++ {
			scores[j] = math.Inf(-1)
		}
	}
}
