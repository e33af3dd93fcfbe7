package kernel

import "math"

// Attention is softmax(Q Kᵀ scale + mask) V without the matrix of scores: a tile of queries meets one tile of keys after
// the other, and keeps the greatest score and the sum of exponentials so far; what was added up before a greater score came
// is scaled down. The logarithm of each query's sum is kept, from which the backward step finds every weight again. The
// gradient of a score is weight (dOut·v - dOut·out), and a query's dOut·out is the same for all keys.

// Layout is where an array of matrices lies: strides of the batch, and between two rows, in elements.
type Layout struct {
	Batch []int
	Row   int
}

// The kinds of masks.
const (
	NoMask    = iota
	FloatMask // is added to the scores
	BoolMask  // is 0 where a key is not seen
)

// Attention is the plan of attentions for every element of Dims. The queries are (L, E), keys (S, E), values (S, V), the
// result (L, V), and the mask (L, S). The sums' logarithms and the mask's gradient follow each other in memory.
type Attention struct {
	Dims                                         []int
	L, S, E, V                                   int
	Query, Key, Value, Out, DQuery, DKey, DValue Layout
	Masking                                      int
	Mask                                         Layout
	MaskColumn                                   int // stride
	Causal                                       bool
	Scale                                        float64
}

// Count is the number of elements of the batch.
func (p *Attention) Count() int { return (&Placement{Dims: p.Dims}).Count() }

// at is where an element of the batch starts.
func (p *Attention) at(z int, l Layout) (from int) {
	for i := len(p.Dims) - 1; i >= 0; i-- {
		from += z % p.Dims[i] * l.Batch[i]
		z /= p.Dims[i]
	}
	return from
}

// A tile of scores is for the stack, and one goroutine's.
const queryTile, keyTile = 32, 64

// AttentionData are the arrays of an attention; those of the gradient are nil otherwise. The mask is T, or uint8.
type AttentionData[T Float] struct {
	Q, K, V, Out            []T
	LogSum                  []float64
	FloatMask               []T
	BoolMask                []uint8
	DOut, DQ, DK, DV, DMask []T
}

// score is that of query i and key j of element z, whose product is s; -Inf if the query does not see the key.
func score[T Float](p *Attention, d *AttentionData[T], s T, mask, i, j int) float64 {
	if p.Causal && j > i {
		return math.Inf(-1)
	}
	v := float64(s) * p.Scale
	switch mask += i*p.Mask.Row + j*p.MaskColumn; {
	case p.Masking == FloatMask:
		return v + float64(d.FloatMask[mask])
	case p.Masking == BoolMask && d.BoolMask[mask] == 0:
		return math.Inf(-1)
	}
	return v
}

// Attend sets Out and LogSum. A query that sees no key gets 0.
func Attend[T Float](p *Attention, d *AttentionData[T]) {
	tiles := (p.L + queryTile - 1) / queryTile
	work := max(1, queryTile*p.S*(p.E+p.V))
	split(p.Count()*tiles, max(1, grainFlops/work), func(lo, hi int) {
		for t := lo; t < hi; t++ {
			attendTile(p, d, t/tiles, t%tiles*queryTile)
		}
	})
}

// attendTile is for the queries of element z from row on.
func attendTile[T Float](p *Attention, d *AttentionData[T], z, row int) {
	var scores [queryTile * keyTile]T
	var top, sum [queryTile]float64
	m := min(queryTile, p.L-row)
	q, k, v, mask := d.Q[p.at(z, p.Query)+row*p.Query.Row:], d.K[p.at(z, p.Key):], d.V[p.at(z, p.Value):], p.at(z, p.Mask)
	out := d.Out[p.at(z, p.Out)+row*p.Out.Row:]
	for i := range m {
		top[i] = math.Inf(-1)
		clear(out[i*p.Out.Row:][:p.V])
	}
	for key := 0; key < p.S && !(p.Causal && key >= row+m); key += keyTile {
		n := min(keyTile, p.S-key)
		product(m, n, p.E, q, p.Query.Row, k[key*p.Key.Row:], p.Key.Row, false, scores[:], keyTile)
		for i := range m {
			line, greatest := scores[i*keyTile:][:n], top[i]
			var all [keyTile]float64
			for j, s := range line {
				all[j] = score(p, d, s, mask, row+i, key+j)
				if all[j] > greatest {
					greatest = all[j]
				}
			}
			base := seen(greatest)
			if shrink := math.Exp(top[i] - base); shrink != 1 {
				sum[i] *= shrink
				scaleRow(out[i*p.Out.Row:][:p.V], shrink)
			}
			top[i] = greatest
			for j := range line {
				e := math.Exp(all[j] - base)
				sum[i] += e
				line[j] = T(e)
			}
		}
		plainProduct(m, p.V, n, scores[:], keyTile, v[key*p.Value.Row:], p.Value.Row, true, out, p.Out.Row)
	}
	for i := range m {
		d.LogSum[z*p.L+row+i] = seen(top[i]) + math.Log(sum[i])
		if sum[i] != 0 {
			scaleRow(out[i*p.Out.Row:][:p.V], 1/sum[i])
		}
	}
}

// seen is the greatest score, and any number if no key was seen: exponentials of -Inf are 0 beside it.
func seen(greatest float64) float64 {
	if math.IsInf(greatest, -1) {
		return 0
	}
	return greatest
}

func scaleRow[T Float](row []T, by float64) {
	for i, v := range row {
		row[i] = T(float64(v) * by)
	}
}

// AttendGrad sets DQ, DK and DV, and DMask if there is one. An element of the batch is one goroutine's.
func AttendGrad[T Float](p *Attention, d *AttentionData[T]) {
	split(p.Count(), max(1, grainFlops/max(1, p.L*p.S*(p.E+p.V))), func(lo, hi int) {
		for z := lo; z < hi; z++ {
			attendGrad(p, d, z)
		}
	})
}

func attendGrad[T Float](p *Attention, d *AttentionData[T], z int) {
	dq, dk, dv := d.DQ[p.at(z, p.DQuery):], d.DK[p.at(z, p.DKey):], d.DV[p.at(z, p.DValue):]
	for i := range p.L {
		clear(dq[i*p.DQuery.Row:][:p.E])
	}
	for j := range p.S {
		clear(dk[j*p.DKey.Row:][:p.E])
		clear(dv[j*p.DValue.Row:][:p.V])
	}
	for key := 0; key < p.S; key += keyTile {
		for row := 0; row < p.L; row += queryTile {
			if m := min(queryTile, p.L-row); !p.Causal || key < row+m {
				attendGradTile(p, d, z, row, m, key, min(keyTile, p.S-key))
			}
		}
	}
}

// attendGradTile adds what m queries from row on and n keys from key on have to do with each other.
func attendGradTile[T Float](p *Attention, d *AttentionData[T], z, row, m, key, n int) {
	var weights, slopes [keyTile * queryTile]T // of keys and queries
	var turned [queryTile * keyTile]T
	q, k, v := d.Q[p.at(z, p.Query)+row*p.Query.Row:], d.K[p.at(z, p.Key)+key*p.Key.Row:], d.V[p.at(z, p.Value)+key*p.Value.Row:]
	out, dout := d.Out[p.at(z, p.Out)+row*p.Out.Row:], d.DOut[p.at(z, p.Out)+row*p.Out.Row:]
	mask := p.at(z, p.Mask)
	product(n, m, p.E, k, p.Key.Row, q, p.Query.Row, false, weights[:], queryTile)
	product(n, m, p.V, v, p.Value.Row, dout, p.Out.Row, false, slopes[:], queryTile)
	for i := range m {
		own := dot(dout[i*p.Out.Row:][:p.V], out[i*p.Out.Row:][:p.V])
		log := d.LogSum[z*p.L+row+i]
		for j := range n {
			at := j*queryTile + i
			var w, slope float64
			if s := score(p, d, weights[at], mask, row+i, key+j); !math.IsInf(s, -1) {
				w = math.Exp(s - log)
				slope = w * (float64(slopes[at]) - own)
			}
			if d.DMask != nil {
				d.DMask[(z*p.L+row+i)*p.S+key+j] = T(slope)
			}
			weights[at], slopes[at] = T(w), T(slope*p.Scale)
			turned[i*keyTile+j] = slopes[at]
		}
	}
	plainProduct(n, p.V, m, weights[:], queryTile, dout, p.Out.Row, true, d.DV[p.at(z, p.DValue)+key*p.DValue.Row:], p.DValue.Row)
	plainProduct(n, p.E, m, slopes[:], queryTile, q, p.Query.Row, true, d.DK[p.at(z, p.DKey)+key*p.DKey.Row:], p.DKey.Row)
	plainProduct(m, p.E, n, turned[:], keyTile, k, p.Key.Row, true, d.DQ[p.at(z, p.DQuery)+row*p.DQuery.Row:], p.DQuery.Row)
}
