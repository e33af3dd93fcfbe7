package kernel

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// Attention equals plain loops, also with rows that are further apart than they are long. It reads
// and writes nothing outside of its arrays, and the number of goroutines does not change a bit.
func TestAttention(t *testing.T) {
	eachLevel(t, testAttention[float32], testAttention[float64])
}

func testAttention[T Float](t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	n := func(most int) int { return 1 + r.IntN(most) }
	for trial := range rounds(12, 6) { // each mask twice or once, causal or not
		p := plan.Attention{Dims: []int{n(3)}, L: n(70), S: n(140), E: n(40), V: n(40), Scale: 0.3}
		p.Causal, p.Masking, p.MaskColumn = trial%2 == 0, trial/2%3, 1
		t.Logf("seed %d, trial %d: %+v", seed, trial, p)
		batch := p.Dims[0]
		// Rows and elements of the batch may be apart. The last row ends the array.
		array := func(rows, columns int) ([]T, plan.Layout) {
			l := plan.Layout{Row: columns + r.IntN(3)}
			l.Batch = []int{rows*l.Row + r.IntN(5)}
			s, free := guarded[T]((batch-1)*l.Batch[0]+(rows-1)*l.Row+columns, r.IntN(2) == 0)
			t.Cleanup(free)
			for i := range s {
				s[i] = T(r.NormFloat64())
			}
			return s, l
		}
		d := &AttentionData[T]{Sums: make([]float64, 2*batch*p.L)}
		d.Q, p.Query = array(p.L, p.E)
		d.K, p.Key = array(p.S, p.E)
		d.V, p.Value = array(p.S, p.V)
		d.Out, p.Out = array(p.L, p.V)
		d.DQ, p.DQuery = array(p.L, p.E)
		d.DK, p.DKey = array(p.S, p.E)
		d.DV, p.DValue = array(p.S, p.V)
		d.DOut = append([]T(nil), d.Out...)
		p.Mask = plan.Layout{Batch: []int{p.L * p.S}, Row: p.S}
		switch p.Masking {
		case plan.FloatMask:
			d.FloatMask, p.Mask = array(p.L, p.S)
		case plan.BoolMask:
			d.BoolMask = make([]uint8, batch*p.L*p.S)
			for i := range d.BoolMask {
				d.BoolMask[i] = uint8(r.IntN(2))
			}
		}
		var first [][]T
		for _, procs := range []int{1, 4} {
			runtime.GOMAXPROCS(procs)
			Attend(&p, d)
			AttendGrad(&p, d)
			got := [][]T{append([]T(nil), d.Out...), append([]T(nil), d.DQ...), append([]T(nil), d.DK...), append([]T(nil), d.DV...)}
			if first != nil {
				require.Equal(t, first, got)
			}
			first = got
		}
		for z := range batch {
			checkAttention(t, &p, d, z)
		}
	}
}

// checkAttention checks an element of the batch.
func checkAttention[T Float](t *testing.T, p *plan.Attention, d *AttentionData[T], z int) {
	matrix := func(s []T, l plan.Layout, rows, columns int) (m reference.Array, elements []T) {
		for i := range rows {
			elements = append(elements, s[p.Start(z, l)+i*l.Row:][:columns]...)
		}
		m = arrayOf(elements)
		m.Shape = []int{rows, columns}
		return m, elements
	}
	a := reference.Attending{Scale: p.Scale, Add: reference.Array{Shape: []int{p.L, p.S}}}
	a.Q, _ = matrix(d.Q, p.Query, p.L, p.E)
	a.K, _ = matrix(d.K, p.Key, p.S, p.E)
	a.V, _ = matrix(d.V, p.Value, p.S, p.V)
	for i := range p.L {
		for j := range p.S {
			v := 0.0
			switch at := p.Start(z, p.Mask) + i*p.Mask.Row + j; {
			case p.Causal && j > i, p.Masking == plan.BoolMask && d.BoolMask[at] == 0:
				v = math.Inf(-1)
			case p.Masking == plan.FloatMask:
				v = float64(d.FloatMask[at])
			}
			a.Add.Data = append(a.Add.Data, v)
		}
	}
	terms := 4 * (p.E + p.S + p.V + p.L)
	dout, _ := matrix(d.DOut, p.Out, p.L, p.V)
	_, out := matrix(d.Out, p.Out, p.L, p.V)
	near(t, "out", out, reference.Attention(a), terms)
	dq, dk, dv, _ := reference.AttentionGrad(a, dout)
	for i, got := range [][]T{d.DQ, d.DK, d.DV} {
		l, rows, columns, want := p.DQuery, p.L, p.E, dq
		switch i {
		case 1:
			l, rows, want = p.DKey, p.S, dk
		case 2:
			l, rows, columns, want = p.DValue, p.S, p.V, dv
		}
		_, elements := matrix(got, l, rows, columns)
		near(t, []string{"dq", "dk", "dv"}[i], elements, want, terms)
	}
}
