package loader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// numbered is a data set whose sample i is the result of at(i).
type numbered[T any] struct {
	n  int
	at func(i int) (T, error)
}

func (d numbered[T]) Len() int            { return d.n }
func (d numbered[T]) At(i int) (T, error) { return d.at(i) }

// labels is a data set whose sample i is the number i.
func labels(n int) numbered[int32] {
	return numbered[int32]{n, func(i int) (int32, error) { return int32(i), nil }}
}

// open makes a batcher, and a loader for it.
func open[T any](t testing.TB, r *rig, data loader.Dataset[T], config loader.BatcherConfig[T]) (*loader.Batcher[T], *loader.Loader) {
	t.Helper()
	b, err := loader.NewBatcher(data, config)
	require.NoError(t, err)
	l, err := loader.New(t.Context(), r.pool, loader.Config{Cache: r.cache, Compute: r.a, Copy: r.b, Fields: b.Capacities()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return b, l
}

// read downloads a field of a batch.
func read[T transfer.Number](t testing.TB, r *rig, batch *loader.Minibatch, field int) []T {
	t.Helper()
	mem := make([]byte, batch.Bytes(field))
	require.NoError(t, r.pool.Download(t.Context(), r.a, mem, batch.Field(field), 0))
	v, err := transfer.View[T](mem)
	require.NoError(t, err)
	return v
}

// epoch returns field 0 of the batches from a position on.
func epoch[N transfer.Number, T any](t testing.TB, r *rig, b *loader.Batcher[T], l *loader.Loader, at loader.Position) (batches [][]N) {
	t.Helper()
	for batch, err := range b.From(t.Context(), l, at) {
		require.NoError(t, err)
		batches = append(batches, read[N](t, r, batch, 0))
	}
	return batches
}

// TestBatcherOrder: batches are the sampler's on every rank, with any number of workers, and
// independent of their speeds.
func TestBatcherOrder(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for range 30 {
		s := loader.Sampler{Batch: 1 + rand.IntN(9), Shuffle: rand.IntN(2) > 0, Seed: rand.Uint64(), DropLast: rand.IntN(2) > 0, Ranks: rand.IntN(4)}
		s.Rank = rand.IntN(max(s.Ranks, 1))
		n := s.Batch*max(s.Ranks, 1) + rand.IntN(60)
		workers := 1 + rand.IntN(9)
		b, l := open(t, r, numbered[int32]{n, func(i int) (int32, error) {
			if i%7 == 0 {
				time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
			}
			return int32(i), nil
		}}, loader.BatcherConfig[int32]{Sampler: s, Workers: workers})
		s.Samples = n
		for number := range 2 {
			var want [][]int32
			for part := range slices.Chunk(s.Order(number), s.Batch) {
				var of []int32
				for _, i := range part {
					of = append(of, int32(i))
				}
				want = append(want, of)
			}
			require.Equal(t, want, epoch[int32](t, r, b, l, loader.Position{Epoch: number}), "%+v, %d workers", s, workers)
		}
		require.NoError(t, l.Close())
	}
}

// TestBatcherTransforms: the randomness of a sample depends on seed, epoch and number alone, so
// that any number of workers, batches of another size and a resumed training see the same samples.
func TestBatcherTransforms(t *testing.T) {
	const n = 23
	r := newRig(t, transfer.Config{})
	run := func(workers, batch int, seed uint64, resume bool) map[string]bool {
		b, l := open(t, r, numbered[[2]uint64]{n, func(i int) ([2]uint64, error) { return [2]uint64{uint64(i)}, nil }}, loader.BatcherConfig[[2]uint64]{
			Sampler: loader.Sampler{Batch: batch, Shuffle: true, Seed: seed}, Workers: workers,
			Transform: func(sample [2]uint64, r *rand.Rand) ([2]uint64, error) {
				sample[1] = r.Uint64()
				return sample, nil
			},
		})
		seen := map[string]bool{}
		for at := (loader.Position{}); at.Epoch < 3; {
			for batch, err := range b.From(t.Context(), l, at) {
				require.NoError(t, err)
				for v := range slices.Chunk(read[uint64](t, r, batch, 0), 2) {
					seen[fmt.Sprint(at.Epoch, v)] = true
				}
				if at = b.Next(at); resume {
					break
				}
			}
		}
		require.NoError(t, l.Close())
		return seen
	}
	want := run(1, 4, 9, false)
	require.Len(t, want, 3*n)
	values := map[string]bool{}
	for key := range want {
		var number, sample, value uint64
		_, err := fmt.Sscanf(key, "%d [%d %d]", &number, &sample, &value)
		require.NoError(t, err)
		values[fmt.Sprint(value)] = true
	}
	require.Len(t, values, 3*n, "another number for each sample in each epoch")
	require.Equal(t, want, run(5, 4, 9, false))
	require.Equal(t, want, run(3, 7, 9, false))
	require.Equal(t, want, run(2, 4, 9, true))
	for key := range run(1, 4, 10, false) {
		require.NotContains(t, want, key)
	}
}

// TestBatcherFailures: an error or a panic of a data set is returned with the sample's number
// instead of its batch, and the loader can be used again.
func TestBatcherFailures(t *testing.T) {
	bad := errors.New("bad")
	const n, wrong, batch = 40, 22, 4
	for name, c := range map[string]struct {
		at   func() (int32, error)
		want string
		is   error
	}{
		"an error":     {func() (int32, error) { return 0, bad }, "sample 22: bad", bad},
		"an end":       {func() (int32, error) { return 0, io.EOF }, "sample 22: EOF", io.ErrUnexpectedEOF},
		"a panic":      {func() (int32, error) { panic(bad) }, "sample 22: panic: bad", bad},
		"a nil panic":  {func() (int32, error) { panic(nil) }, "sample 22: panic: panic called with nil", nil},
		"a Goexit":     {func() (int32, error) { runtime.Goexit(); return 0, nil }, "sample 22: runtime.Goexit", nil},
		"no transform": {func() (int32, error) { return -1, nil }, "sample 22: bad", bad},
	} {
		for _, workers := range []int{1, 3, 16} {
			r := newRig(t, transfer.Config{})
			var heal atomic.Bool
			b, l := open(t, r, numbered[int32]{n, func(i int) (int32, error) {
				if i == wrong && !heal.Load() {
					return c.at()
				}
				return int32(i), nil
			}}, loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: batch}, Workers: workers, Transform: func(v int32, _ *rand.Rand) (int32, error) {
				if v < 0 {
					return 0, bad
				}
				return v, nil
			}})
			got := 0
			var end error
			for batch, err := range b.From(t.Context(), l, loader.Position{}) {
				if end = err; err == nil {
					require.EqualValues(t, 4*got, read[int32](t, r, batch, 0)[0])
					got++
				}
			}
			require.Equal(t, wrong/batch, got, "%s: the batches before", name)
			require.ErrorContains(t, end, c.want, name)
			if c.is != nil {
				require.ErrorIs(t, end, c.is, name)
			}
			heal.Store(true)
			require.Len(t, epoch[int32](t, r, b, l, loader.Position{}), n/batch)
		}
	}
}

// TestBatcherWorkers: all workers read at once, samples of several batches, and they stay within
// the bound of samples that are read ahead.
func TestBatcherWorkers(t *testing.T) {
	const workers, batch, ahead = 6, 2, 2
	r := newRig(t, transfer.Config{})
	var reading, most, reads atomic.Int32
	together := make(chan struct{}) // closed when all workers read
	var once sync.Once
	b, l := open(t, r, numbered[int32]{1000, func(i int) (int32, error) {
		defer reading.Add(-1)
		for n, m := reading.Add(1), most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if reads.Add(1); i < workers {
			if reading.Load() == workers {
				once.Do(func() { close(together) })
			}
			select {
			case <-together:
			case <-time.After(5 * time.Second): // fewer workers than that: the test fails
			}
		}
		return int32(i), nil
	}}, loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: batch, Fields: []int64{4}}, Workers: workers})
	for _, err := range b.From(t.Context(), l, loader.Position{}) {
		require.NoError(t, err)
		// The ring is full; beyond it a batch is read, and two samples for each worker.
		want := int32((ahead+1)*batch + batch + 2*workers)
		require.Eventually(t, func() bool { return reads.Load() == want }, 10*time.Second, time.Millisecond, "%d", want)
		time.Sleep(5 * time.Millisecond)
		require.Equal(t, want, reads.Load())
		break
	}
	require.EqualValues(t, workers, most.Load())
}

// TestBatcherEnds: workers begin no read after their context has ended. The loop ends at once, and
// Close waits for reads that have begun.
func TestBatcherEnds(t *testing.T) {
	const workers = 3
	r := newRig(t, transfer.Config{})
	var reads, reading atomic.Int32
	gate := make(chan struct{})
	b, l := open(t, r, numbered[int32]{1000, func(i int) (int32, error) {
		reads.Add(1)
		reading.Add(1)
		defer reading.Add(-1)
		<-gate
		return int32(i), nil
	}}, loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 8, Fields: []int64{4}}, Workers: workers})
	stuck := func() bool { return reading.Load() == workers }

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() {
		for _, err := range b.From(ctx, l, loader.Position{}) {
			ended <- err
		}
	}()
	require.Eventually(t, stuck, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, ctx.Err(), "without waiting for the reads")
	require.True(t, stuck())

	go func() { ended <- l.Close() }()
	select {
	case <-ended:
		require.Fail(t, "Close did not wait for the reads")
	case <-time.After(20 * time.Millisecond):
	}
	close(gate)
	require.NoError(t, <-ended)
	require.Zero(t, reading.Load())
	require.EqualValues(t, workers, reads.Load())
	for _, err := range b.From(t.Context(), l, loader.Position{}) {
		require.ErrorIs(t, err, transfer.ErrClosed)
	}
}

// TestBatcherFailsAtOnce: the error of a sample does not wait for slow reads of later ones, and
// workers begin no read after it.
func TestBatcherFailsAtOnce(t *testing.T) {
	r := newRig(t, transfer.Config{})
	bad, begun, gate := errors.New("bad"), make(chan struct{}), make(chan struct{})
	slow := sync.OnceFunc(func() { close(gate) })
	var reads atomic.Int32
	b, l := open(t, r, numbered[int32]{9, func(i int) (int32, error) {
		reads.Add(1)
		if i == 0 {
			<-begun
			return 0, bad
		}
		if i == 1 {
			close(begun)
		}
		<-gate
		return 0, nil
	}}, loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 3, Fields: []int64{4}}, Workers: 2})
	late := time.AfterFunc(10*time.Second, slow)
	for _, err := range b.From(t.Context(), l, loader.Position{}) {
		require.ErrorIs(t, err, bad)
	}
	require.True(t, late.Stop(), "the error waited for the slow read")
	slow()
	time.Sleep(5 * time.Millisecond)
	require.NoError(t, l.Close())
	require.LessOrEqual(t, reads.Load(), int32(3), "the two samples, and one by the worker that failed")
}

// lengthless is a dataset whose Len panics on a nil pointer.
type lengthless struct{ samples []int32 }

func (d *lengthless) Len() int                { return len(d.samples) }
func (d *lengthless) At(i int) (int32, error) { return d.samples[i], nil }

// TestBatcherOfNil: a nil pointer in a Dataset is an error.
func TestBatcherOfNil(t *testing.T) {
	_, err := loader.NewBatcher((*lengthless)(nil), loader.BatcherConfig[int32]{Sampler: loader.Sampler{Batch: 3}})
	require.ErrorIs(t, err, transfer.ErrInvalid)
	require.ErrorContains(t, err, "nil pointer")
}
