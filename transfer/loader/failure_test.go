package loader_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/transfer/loader"
)

// failing is a stack on a device whose calls may fail, and a loader on it.
type failing struct {
	*stacktest.Stack
	faults *failtest.Faults
	copy   device.Stream
	l      *loader.Loader
}

func openFailing(t testing.TB, f *failtest.Faults) *failing {
	t.Helper()
	dev, err := failtest.NewHost(f, host.Config{Capacity: 16 << 20})
	require.NoError(t, err)
	leaktest.Device(t, dev)
	m := &failing{Stack: stacktest.New(t, stacktest.Config{Device: dev}), faults: f}
	m.copy, err = dev.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.copy.Close()) })
	return m
}

// live returns the memory that is out of the pool and the cache after all queued work. Pinned
// memory that the driver refuses to free stays held, and the pool's next operation returns the
// error.
func (m *failing) live() any {
	ctx := context.Background()
	queued := m.Dev.Synchronize(ctx)
	emptied := m.Pool.EmptyCache(ctx)
	s := m.Pool.Stats()
	held := s.HeldBytes.Current
	if failed, _ := m.faults.Disarm(); failed == "FreePinned" {
		m.Faulted, held = true, s.AllocatedBytes.Current
		leaktest.Excuse(m.Dev)
		if errors.Is(emptied, failtest.ErrFailed) {
			emptied = nil
		}
	}
	if err := errors.Join(queued, emptied, m.Cache.PollFrees()); err != nil {
		return err
	}
	return [4]int64{s.ActiveRequests.Current, held, s.Pending, m.Cache.MemoryAllocated()}
}

// config returns a Config for a ring of ahead+1 slots.
func (m *failing) config(copy device.Stream, ahead int) loader.Config {
	return loader.Config{Cache: m.Cache, Compute: m.Stream, Copy: copy, Fields: []int64{imageBytes, labelBytes}, Ahead: ahead}
}

// open makes the loader before the trial.
func (m *failing) open(ahead int) (err error) {
	m.l, err = loader.New(context.Background(), m.Pool, m.config(m.copy, ahead))
	return err
}

// close closes the loader.
func (m *failing) close() error { return m.l.Close() }

// ready makes a loader with two batches uploaded and a source that has ended.
func (m *failing) ready(t testing.TB) {
	t.Helper()
	require.NoError(t, m.open(2))
	calls, ended := 0, make(chan struct{})
	require.NoError(t, m.l.Start(context.Background(), counter(2, func() {
		if calls++; calls == 3 {
			close(ended)
		}
	})))
	<-ended
}

// count launches a kernel that adds 1 to n if a batch has the bytes of counter.
func (m *failing) count(b *loader.Minibatch, n *int) error {
	launch := &device.Launch{Name: "count"}
	var fields [][]byte
	for i := range b.Fields() {
		mem, err := m.Dev.(device.HostVisible).Bytes(b.Field(i).Ptr(), b.Bytes(i))
		if err != nil {
			return err
		}
		fields = append(fields, mem)
		launch.Reads = append(launch.Reads, b.Field(i).Range(0, b.Bytes(i)))
	}
	want := byte(b.Index() + 1)
	launch.Func = func() {
		for _, mem := range fields {
			for _, have := range mem {
				if have != want {
					return
				}
			}
		}
		*n++
	}
	return m.Stream.Launch(launch)
}

// seen returns a number that kernels have counted.
func (m *failing) seen(n *int) any {
	if err := m.Stream.Synchronize(context.Background()); err != nil || n == nil {
		return err
	}
	return *n
}

// epoch takes all batches of counter and returns how many had the right bytes. After a failed
// Release the loader is unusable, so the program makes another.
func (m *failing) epoch(ctx context.Context, batches int) (right *int, err error) {
	right = new(int)
	if err := m.l.Start(ctx, counter(batches, nil)); err != nil {
		return nil, err
	}
	for {
		b, err := m.l.Next(ctx)
		if err == io.EOF {
			return right, nil
		}
		if err != nil {
			return nil, err
		}
		counted := m.count(b, right)
		if err := b.Release(); err != nil {
			return nil, errors.Join(err, m.close(), m.open(1))
		}
		if counted != nil {
			return nil, counted
		}
	}
}

// trains returns a trial of an epoch of the loader.
func (m *failing) trains(batches int) failtest.Trial {
	var right *int
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			n, err := m.epoch(ctx, batches)
			if err == nil {
				right = n
			}
			return err
		},
		See:  func() any { return m.seen(right) },
		Undo: m.close,
	}
}

// halves is a sample that fills half of the fields of counter's batches.
type halves struct {
	Image [imageBytes / 2]byte
	Label [labelBytes / 2]byte
}

// reads returns a trial of an epoch of a batcher. After an error the program makes another loader,
// because a Release may have failed.
func (m *failing) reads(t testing.TB) failtest.Trial {
	require.NoError(t, m.open(1))
	b, err := loader.NewBatcher(numbered[halves]{9, func(i int) (h halves, _ error) {
		for _, part := range [][]byte{h.Image[:], h.Label[:]} {
			for k := range part {
				part[k] = byte(i/2 + 1)
			}
		}
		return h, nil
	}}, loader.BatcherConfig[halves]{Sampler: loader.Sampler{Batch: 2}, Workers: 3})
	require.NoError(t, err)
	var right *int
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			n := new(int)
			for batch, err := range b.From(ctx, m.l, loader.Position{}) {
				if err == nil {
					err = m.count(batch, n)
				}
				if err != nil {
					return errors.Join(err, m.close(), m.open(1))
				}
			}
			right = n
			return nil
		},
		See:  func() any { return m.seen(right) },
		Undo: m.close,
	}
}

// lost is the reason why a Release may be partly done.
const lost = "the batch is released, and Next returns the error from then on"

// failureRows are programs of loaders.
var failureRows = []failtest.Row[*failing]{
	{Of: "New", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return failtest.Trial{
			Do: func(ctx context.Context) (err error) {
				if m.l, err = loader.New(ctx, m.Pool, m.config(nil, 1)); err != nil && m.l != nil {
					return errors.New("there is a loader beside the error")
				}
				return err
			},
			See:  func() any { return []any{m.Pool.Stats().ActiveRequests.Current, m.Cache.MemoryAllocated(), m.l != nil} },
			Undo: m.close,
		}
	}},
	{Of: "Loader.Start Loader.Next Minibatch.Release", Make: func(t testing.TB, m *failing) failtest.Trial {
		require.NoError(t, m.open(1))
		return m.trains(5)
	}},
	{Of: "Batcher.From", Make: func(t testing.TB, m *failing) failtest.Trial { return m.reads(t) }},
	{Of: "Loader.Start over another epoch", Make: func(t testing.TB, m *failing) failtest.Trial {
		require.NoError(t, m.open(1))
		require.NoError(t, m.l.Start(context.Background(), func(ctx context.Context, _ [][]byte) error {
			<-ctx.Done()
			return ctx.Err()
		}))
		return m.trains(1)
	}},
	{Of: "Loader.Start after an upload whose end is not recorded", Make: func(t testing.TB, m *failing) failtest.Trial {
		require.NoError(t, m.open(1))
		for k, failed := 1, ""; failed != "Record"; k++ {
			_, err := m.epoch(m.faults.Arm(failtest.Failed, k), 1)
			require.ErrorIs(t, err, failtest.ErrFailed)
			failed, _ = m.faults.Disarm()
		}
		return m.trains(5)
	}},
	{Of: "Loader.Next", Make: func(t testing.TB, m *failing) failtest.Trial {
		m.ready(t)
		var b *loader.Minibatch
		return failtest.Trial{
			Do: func(ctx context.Context) (err error) {
				if b, err = m.l.Next(ctx); err != nil && b != nil {
					return errors.New("there is a batch beside the error")
				}
				return err
			},
			See: func() any {
				right := new(int)
				if b != nil {
					require.NoError(t, m.count(b, right))
				}
				return []any{m.seen(right), m.l.String(), m.l.Stats().Batches}
			},
			Undo: func() error { return errors.Join(b.Release(), m.close()) },
		}
	}},
	{Of: "Minibatch.Release", Partly: map[failtest.Kind]string{failtest.Failed: lost}, Make: func(t testing.TB, m *failing) failtest.Trial {
		m.ready(t)
		b, err := m.l.Next(context.Background())
		require.NoError(t, err)
		return failtest.Trial{
			Do:  func(context.Context) error { return b.Release() },
			See: func() any { return m.l.String() },
			Left: func(_ any, err error) error {
				if _, next := m.l.Next(context.Background()); !errors.Is(next, failtest.ErrFailed) {
					return fmt.Errorf("Next returns another error (%w) after %w", next, err)
				}
				return nil
			},
			Undo: m.close,
		}
	}},
	{Of: "Loader.Close", Make: func(t testing.TB, m *failing) failtest.Trial {
		require.NoError(t, m.open(1))
		_, err := m.epoch(context.Background(), 3)
		require.NoError(t, err)
		return failtest.Trial{Do: func(context.Context) error { return m.close() }, See: m.live}
	}},
}

// TestEveryFailure: whichever driver call or check of a context fails, an operation of a loader has
// done everything or nothing, and succeeds afterwards.
func TestEveryFailure(t *testing.T) {
	failtest.Suite[*failing]{Open: openFailing, Live: (*failing).live, Rows: failureRows}.Run(t)
}
