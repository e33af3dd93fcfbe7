package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// Place copies n elements from src to dst, which must not overlap.
func Place[T any](dst, src []T, n int, p *plan.Placement) {
	cols, sd, ss := p.Row()
	split(n/cols, max(1, grainCheap/cols), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			od, os := p.Offsets(row)
			if sd == 1 && ss == 1 {
				copy(dst[od:od+cols], src[os:os+cols])
				continue
			}
			for i := range cols {
				dst[od+i*sd] = src[os+i*ss]
			}
		}
	})
}
