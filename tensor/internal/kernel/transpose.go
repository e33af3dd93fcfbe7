package kernel

import "unsafe"

// Transpose sets dst, [cols,rows], to the transpose of src, [rows,cols]. They must not overlap.
func Transpose[T Float](dst, src []T, rows, cols int) {
	var v T
	// A tile is a cache line. With more, columns of a matrix with 2^n columns would evict each
	// other.
	tile := 64 / int(unsafe.Sizeof(v))
	split((rows+tile-1)/tile, max(1, grainCheap/2/max(1, cols*tile)), func(lo, hi int) {
		for i0 := lo * tile; i0 < min(hi*tile, rows); i0 += tile {
			i1 := min(i0+tile, rows)
			for j0 := 0; j0 < cols; j0 += tile {
				j1 := min(j0+tile, cols)
				for j := j0; j < j1; j++ {
					out := dst[j*rows+i0 : j*rows+i1]
					in := src[i0*cols+j:]
					for i := range out {
						out[i] = in[i*cols]
					}
				}
			}
		}
	})
}
