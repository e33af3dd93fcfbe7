package tensor

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
)

// consistent checks that the young handles are the first of the list, and their number.
func (l *handles) consistent(t *testing.T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	var oldest *handle
	aged := false
	for h := l.first; h != nil; h = h.next {
		if h.young == nil {
			aged = true
			continue
		}
		require.False(t, aged, "a young handle behind an aged one")
		oldest, n = h, n+1
	}
	require.Equal(t, n, l.young)
	require.Same(t, oldest, l.oldest)
	require.LessOrEqual(t, n, youngMost)
}

// TestTensorsAge if there are too many young ones, and after a garbage collection. Released ones
// are no longer held.
func TestTensorsAge(t *testing.T) {
	r := newRig(t, 64<<20)
	random := rand.New(rand.NewPCG(3, 1))
	var live []*Tensor
	for i := range 3 * youngMost {
		live = append(live, r.zeros(r.ctx, 1))
		if i%64 == 0 {
			r.live.consistent(t)
		}
		if i%500 == 499 {
			r.live.ageAll()
			r.live.consistent(t)
			require.Zero(t, r.live.young)
		}
		for range random.IntN(3) {
			k := random.IntN(len(live))
			x := live[k]
			require.NoError(t, x.Release())
			require.Nil(t, x.handle.young)
			live[k], live = live[len(live)-1], live[:len(live)-1]
			if len(live) == 0 {
				break
			}
		}
	}
	for range youngMost + 5 {
		live = append(live, r.zeros(r.ctx, 1))
	}
	r.live.consistent(t)
	oldest := live[len(live)-youngMost-1]
	require.Eventually(t, func() bool {
		runtime.GC()
		r.live.mu.Lock()
		defer r.live.mu.Unlock()
		return r.live.young == 0
	}, 20*time.Second, time.Millisecond)
	require.Same(t, oldest, oldest.handle.tensor.Value())
	require.False(t, r.live.watched)
	for _, x := range live {
		require.NoError(t, x.Release())
	}
	n, bytes := r.Live()
	require.Zero(t, n)
	require.Zero(t, bytes)
	require.Nil(t, r.live.first)
}

// TestDroppedYoungTensorsAreFound without memory pressure, and without a tensor that is made later.
func TestDroppedYoungTensorsAreFound(t *testing.T) {
	r := newRig(t, 64<<20)
	for range 3 {
		leak(r, 10)
		require.Eventually(t, func() bool {
			runtime.GC()
			n, _ := r.Live()
			return n == 0
		}, 20*time.Second, time.Millisecond)
	}
}

// TestSmallOperationsMakeLittleGarbage: an operation allocates the new tensor and the kernel's
// function on Go's heap, whatever the number of earlier tensors.
func TestSmallOperationsMakeLittleGarbage(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("a GPU's launches are its driver's")
	if race.Enabled || invariants.Enabled {
		t.Skip("what is reused would have edges; to check the cache makes garbage")
	}
	x := put(r, make([]float32, 16))
	const operations = 1000
	allocations := testing.AllocsPerRun(20, func() {
		for range operations {
			y, err := r.Add(r.ctx, x, x)
			require.NoError(t, err)
			require.NoError(t, y.Release())
		}
		require.NoError(t, r.Synchronize(r.ctx))
	})
	require.Less(t, allocations/operations, 4.5)
	inPlace := testing.AllocsPerRun(20, func() {
		for range operations {
			require.NoError(t, r.AddInPlace(r.ctx, x, x))
		}
		require.NoError(t, r.Synchronize(r.ctx))
	})
	require.Less(t, inPlace/operations, 3.5)
	require.NoError(t, x.Release())
}

// TestReleasedTensorsHaveNoCleanup: a tensor that aged and was released is not found later.
func TestReleasedTensorsHaveNoCleanup(t *testing.T) {
	r := newRig(t, 64<<20)
	found := make(chan struct{})
	h := func() *handle {
		x := r.zeros(r.ctx, 1)
		r.live.ageAll()
		h := x.handle
		require.NoError(t, x.Release())
		h.own.borrowed = true // a second release by a cleanup would do nothing else
		h.own.refs.Store(1)
		h.released.Store(false)
		runtime.AddCleanup(x, func(found chan struct{}) { close(found) }, found)
		return h
	}()
	for collected := false; !collected; {
		runtime.GC()
		select {
		case <-found:
			collected = true
		case <-time.After(time.Millisecond):
		}
	}
	time.Sleep(time.Millisecond)
	require.False(t, h.released.Load())
}

// TestPlansOfManySizes: operands of equal shapes meet element for element, even if many sizes share
// a set.
func TestPlansOfManySizes(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, n := range []int{1, 2, 65, 129, 1, 64, 128, 192, 2, 66} {
		data, want := make([]float32, n), make([]float32, n)
		for i := range data {
			data[i], want[i] = float32(i), float32(2*i)
		}
		x := put(r, data)
		y, err := r.Add(r.ctx, x, x)
		require.NoError(t, err)
		require.Equal(t, want, get[float32](r, y, nil))
		one := put(r, []float32{1}, 1)
		for i := range want {
			want[i] = float32(i) + 1
		}
		y, err = r.Add(r.ctx, x, one)
		require.NoError(t, err)
		require.Equal(t, want, get[float32](r, y, nil))
	}
}
