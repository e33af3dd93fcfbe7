package tensor

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// TestAttentionOfManyTiles compares attention of float32 and all its gradients with plain Go. It
// has several tiles of queries and keys, heads of any number of columns, heads that share keys and
// values, rows that begin anywhere, and masks of both kinds.
func TestAttentionOfManyTiles(t *testing.T) {
	r := newRig(t, 64<<20)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	trials := 24
	if testing.Short() {
		trials = 8
	}
	for i := range trials {
		columns := []int{32, 64, 128, 140}[i%4]
		testManyTiles(r.scoped(), random, []int{1 + random.IntN(200), 65 + random.IntN(200), 1 + random.IntN(columns), columns - random.IntN(columns/2)})
	}
}

// TestAttentionGradientsAreTheSame: blocks that add to the gradient of the same queries do so in a
// fixed order.
func TestAttentionGradientsAreTheSame(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	batch := 40
	if testing.Short() {
		batch = 4
	}
	numbers := func() *Tensor {
		data := make([]float32, batch*400*40)
		for i := range data {
			data[i] = float32(rand.NormFloat64())
		}
		return put(r, data, batch, 400, 40)
	}
	q, k, v, dy := numbers(), numbers(), numbers(), numbers()
	for _, cfg := range []AttentionConfig{{}, {Causal: true}} {
		y, sums, err := r.ScaledDotProductAttention(r.ctx, q, k, v, nil, cfg)
		require.NoError(t, err)
		var first AttentionGrads
		for i := range 5 {
			g, err := r.ScaledDotProductAttentionGrad(r.ctx, dy, y, sums, q, k, v, nil, cfg, false)
			require.NoError(t, err)
			if i == 0 {
				first = g
				continue
			}
			require.Equal(t, get[float32](r, first.Query, nil), get[float32](r, g.Query, nil), "the gradient of queries, run %d", i)
			require.Equal(t, get[float32](r, first.Key, nil), get[float32](r, g.Key, nil), "the gradient of keys, run %d", i)
			require.Equal(t, get[float32](r, first.Value, nil), get[float32](r, g.Value, nil), "the gradient of values, run %d", i)
		}
	}
}

// TestAttentionOfManyBlocks has more tiles than a launch has blocks, which wait for each other. All
// elements of the batch are the same.
func TestAttentionOfManyBlocks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a while where a GPU is emulated")
	}
	for _, sizes := range [][4]int{{2100, 33, 65, 3}, {130, 36, 34, 72}} {
		testManyBlocks(newRig(t, 256<<20).scoped(), sizes[0], sizes[1], sizes[2], sizes[3])
	}
}

// testManyBlocks: all elements of the batch are the same.
func testManyBlocks(r *rig, batch, l, s, e int) {
	t := r.t
	numbers := func(rows int) *Tensor {
		data := make([]float32, batch*rows*e)
		for i := range data {
			if data[i] = float32(rand.NormFloat64()); i >= rows*e {
				data[i] = data[i-rows*e]
			}
		}
		return put(r, data, batch, rows, e)
	}
	q, k, v, dy := numbers(l), numbers(s), numbers(s), numbers(l)
	y, sums, err := r.ScaledDotProductAttention(r.ctx, q, k, v, nil, AttentionConfig{})
	require.NoError(t, err)
	g, err := r.ScaledDotProductAttentionGrad(r.ctx, dy, y, sums, q, k, v, nil, AttentionConfig{}, false)
	require.NoError(t, err)
	for _, x := range []*Tensor{y, g.Query, g.Key, g.Value} {
		got := get[float32](r, x, nil)
		n := len(got) / batch
		for z := range batch {
			require.Equal(t, got[:n], got[z*n:(z+1)*n], "element %d of the batch", z)
		}
	}
}

// testManyTiles has a batch of (2, 3). Keys and values are shared by all three heads.
func testManyTiles(r *rig, random *rand.Rand, sizes []int) {
	random.Shuffle(2, func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	random.Shuffle(2, func(i, j int) { sizes[2+i], sizes[2+j] = sizes[2+j], sizes[2+i] })
	l, s, e, n := sizes[0], sizes[1], sizes[2], sizes[3]
	const batch, heads = 2, 3
	cfg := AttentionConfig{Causal: random.IntN(2) == 0}
	masking, ofMask := random.IntN(3), false // none, of float32, of uint8
	numbers := func(n int) []float32 {
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(random.NormFloat64())
		}
		return data
	}
	q, k, v, dy := numbers(batch*heads*l*e), numbers(batch*s*e), numbers(batch*s*n), numbers(batch*heads*l*n)
	var mask *Tensor
	add, seen := numbers(l*s), make([]uint8, l*s)
	for i := range add {
		if seen[i] = uint8(random.IntN(5)); seen[i] == 0 {
			add[i] = float32(math.Inf(-1))
		}
	}
	switch masking {
	case 1:
		mask, ofMask = put(r, add, l, s), random.IntN(2) == 0
	case 2:
		mask = put(r, seen, l, s)
	}
	qt, kt, vt, dyt := put(r, q, batch, heads, l, e), put(r, k, batch, 1, s, e), put(r, v, batch, 1, s, n), put(r, dy, batch, heads, l, n)
	y, sums, err := r.ScaledDotProductAttention(r.ctx, qt, kt, vt, mask, cfg)
	got := get[float32](r, y, err)
	g, err := r.ScaledDotProductAttentionGrad(r.ctx, dyt, y, sums, qt, kt, vt, mask, cfg, ofMask)
	dq, dk, dv := get[float32](r, g.Query, err), get[float32](r, g.Key, nil), get[float32](r, g.Value, nil)
	for z := range batch * heads {
		array := func(data []float32, z, rows, cols int) reference.Array {
			a := reference.Array{Shape: []int{rows, cols}, Data: make([]float64, rows*cols)}
			for i := range a.Data {
				a.Data[i] = float64(data[z*rows*cols+i])
			}
			return a
		}
		a := reference.Attending{Q: array(q, z, l, e), K: array(k, z/heads, s, e), V: array(v, z/heads, s, n), Scale: 1 / math.Sqrt(float64(e))}
		a.Add = reference.Array{Shape: []int{l, s}, Data: make([]float64, l*s)}
		for i := range a.Add.Data {
			switch {
			case cfg.Causal && i%s > i/s, masking == 2 && seen[i] == 0:
				a.Add.Data[i] = math.Inf(-1)
			case masking == 1:
				a.Add.Data[i] = float64(add[i])
			}
		}
		same := func(what string, want reference.Result, got []float32, delta float64) {
			at := z * len(want.Data)
			for i, w := range want.Data {
				require.InDelta(r.t, w, float64(got[at+i]), delta, "%s, element %d of head %d; L, S, E, V %v, %+v, mask %d", what, i, z, sizes, cfg, masking)
			}
		}
		same("the result", reference.Attention(a), got, 1e-5)
		wantQ, wantK, wantV, wantMask := reference.AttentionGrad(a, array(dy, z, l, n))
		same("the gradient of queries", wantQ, dq, 1e-4)
		same("the gradient of keys", wantK, dk, 1e-4)
		same("the gradient of values", wantV, dv, 1e-4)
		if ofMask {
			same("the gradient of the mask", wantMask, get[float32](r, g.Mask, nil), 1e-4)
		}
	}
}
