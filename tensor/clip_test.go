package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// TestClipNormOfMany has more tensors than a launch takes, of both dtypes, and of sizes from 0 to
// several blocks.
func TestClipNormOfMany(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	var ts []*Tensor
	want := 0.0
	for i := range 450 {
		n := i % 5
		if i%100 == 7 {
			n = 5000
		}
		for k := range n {
			want += float64((i+k)%3) * float64((i+k)%3)
		}
		if i%7 < 3 {
			data := make([]float32, n)
			for k := range data {
				data[k] = float32((i + k) % 3)
			}
			ts = append(ts, put(r, data))
			continue
		}
		data := make([]float64, n)
		for k := range data {
			data[k] = float64((i + k) % 3)
		}
		ts = append(ts, put(r, data))
	}
	want = math.Sqrt(want)
	total, err := r.ClipNorm(r.ctx, 1, 2, ts...)
	require.NoError(t, err)
	require.InDelta(t, want, get[float64](r, total, nil)[0], 1e-9*want, "it is float64, as some of them are")
	again, err := r.ClipNorm(r.ctx, math.Inf(1), 2, ts...)
	require.NoError(t, err)
	require.InDelta(t, 1, get[float64](r, again, nil)[0], 1e-5)
}

// TestScratchIsWorkspace: histories distinguish an operation's scratch memory from its result.
func TestScratchIsWorkspace(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, make([]float32, 1000))
	require.NoError(t, r.Cache().RecordHistory(memcache.HistoryOptions{Entries: 100}))
	ctx := memcache.WithCategory(memcache.WithModule(r.ctx, "head"), memcache.CategoryGradient)
	norm, err := r.ClipNorm(ctx, 2, 1, x)
	require.NoError(t, err)
	require.NoError(t, norm.Release())
	var labels []memcache.Label
	for _, e := range r.Cache().History() {
		if e.Action == memcache.ActionAlloc {
			labels = append(labels, e.Label)
		}
	}
	assert.ElementsMatch(t, []memcache.Label{{Module: "head", Category: memcache.CategoryGradient}, {Module: "head", Category: memcache.CategoryWorkspace}}, labels)
}
