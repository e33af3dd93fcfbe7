package trace

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
)

// member is a rank with memory for eight numbers, twice: the second half is for the other rank's.
type member struct {
	dev    device.Device
	stream device.Stream
	comm   device.Communicator
	mem    device.Ptr
}

// see waits for the rank, and returns its numbers.
func (r *member) see(t testing.TB) []byte {
	pinned, err := r.dev.AllocPinned(32)
	require.NoError(t, err)
	require.NoError(t, r.stream.CopyD2H(pinned, r.mem))
	require.NoError(t, r.stream.Synchronize(context.Background()))
	got := bytes.Clone(pinned)
	require.NoError(t, r.dev.FreePinned(pinned))
	return got
}

// pair makes two ranks that have met: the first one is traced, and its calls may fail.
func (m *failing) pair() (mine, theirs *member) {
	m.t.Helper()
	id, err := m.dev.(device.Collectives).NewCommunicatorID()
	require.NoError(m.t, err)
	other := cisterntest.Host(m.t, mib)
	ranks := []*member{{dev: m.dev, stream: m.stream}, {dev: other, stream: cisterntest.Stream(m.t, other)}}
	met := make(chan error, len(ranks))
	for n, r := range ranks {
		r.mem, err = r.dev.Alloc(64)
		require.NoError(m.t, err)
		for i := range 8 {
			require.NoError(m.t, r.stream.Memset(r.mem+device.Ptr(4*i), byte(n+1), 4))
		}
		go func() {
			var err error
			r.comm, err = r.dev.(device.Collectives).NewCommunicator(context.Background(), id, n, len(ranks), device.CommunicatorOptions{})
			met <- err
		}()
	}
	require.NoError(m.t, errors.Join(<-met, <-met))
	ctx, span := m.provider.Tracer("test").Start(context.Background(), "parent")
	ranks[0].comm, err = m.tracer().Communicator(ctx, ranks[0].comm)
	require.NoError(m.t, err)
	m.t.Cleanup(func() {
		span.End()
		for _, r := range ranks {
			_ = r.comm.Close() // a time that could not be taken
			assert.NoError(m.t, r.dev.Free(r.mem))
		}
		assert.NoError(m.t, errors.Join(ranks[1].stream.Close(), other.Close()))
	})
	return ranks[0], ranks[1]
}

// together is a trial of an operation of two ranks. The other rank does its part if this one has.
func together(mine, theirs func(r *member) error) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		one, two := m.pair()
		return failtest.Trial{
			Do: func(context.Context) error {
				if err := mine(one); err != nil {
					return err
				}
				return theirs(two)
			},
			See: func() any { return [][]byte{one.see(t), two.see(t)} },
		}
	}
}

// both is together for an operation that both ranks call.
func both(call func(r *member) error) func(testing.TB, *failing) failtest.Trial {
	return together(call, call)
}

func sum(r *member) error {
	return r.comm.AllReduce(r.stream, r.mem, r.mem, 2, device.Int32, device.ReduceSum)
}

func group(r *member) error {
	if err := r.comm.GroupStart(); err != nil {
		return err
	}
	err := errors.Join(sum(r), r.comm.Broadcast(r.stream, r.mem+16, r.mem+16, 2, device.Int32, 1))
	return errors.Join(err, r.comm.GroupEnd())
}

// collectivesSeen returns the times and places of the spans of the latest operations.
func (m *failing) collectivesSeen(latest int) (seen [][2]bool) {
	for _, s := range m.spans.Ended() {
		if a := attributes(s); a[KeyCollective] != nil {
			_, timed := a[KeyCollectiveBandwidth]
			_, placed := a[KeyCollectiveQueued]
			seen = append(seen, [2]bool{timed, placed})
		}
	}
	return seen[max(0, len(seen)-latest):]
}

// alone makes the only rank of a communicator.
func (m *failing) alone(tracer *Tracer) (*Communicator, error) {
	d := m.dev.(device.Collectives)
	id, err := d.NewCommunicatorID()
	if err != nil {
		return nil, err
	}
	inner, err := d.NewCommunicator(context.Background(), id, 0, 1, device.CommunicatorOptions{})
	if err != nil {
		return nil, err
	}
	return tracer.Communicator(context.Background(), inner)
}

// closes is a trial of a communicator from its beginning to its end, around some operations, all of
// which are timed if nothing fails.
func (m *failing) closes(operations int, use func(ctx context.Context, c *Communicator, p device.Ptr) error) failtest.Trial {
	mem, err := m.dev.Alloc(64)
	require.NoError(m.t, err)
	m.t.Cleanup(func() { assert.NoError(m.t, m.dev.Free(mem)) })
	config := m.config()
	config.Detail = All // without a parent
	tracer, err := New(config)
	require.NoError(m.t, err)
	var seen any
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			c, err := m.alone(tracer)
			if err != nil {
				return err
			}
			err = errors.Join(use(ctx, c, mem), c.Close())
			assert.NoError(m.t, c.Close(), "the second one")
			if err == nil {
				seen = m.collectivesSeen(operations)
			}
			return err
		},
		See:  func() any { return seen },
		Undo: tracer.Close,
	}
}

// communicatorRows are programs of a communicator. An operation whose time can't be measured
// succeeds all the same, and Close returns the reason.
var communicatorRows = []failtest.Row[*failing]{
	{Of: "Communicator.AllReduce", Make: both(sum)},
	{Of: "Communicator.Broadcast", Make: both(func(r *member) error {
		return r.comm.Broadcast(r.stream, r.mem, r.mem, 2, device.Int32, 1)
	})},
	{Of: "Communicator.AllGather", Make: both(func(r *member) error {
		return r.comm.AllGather(r.stream, r.mem, r.mem+device.Ptr(8*r.comm.Rank()), 2, device.Int32)
	})},
	{Of: "Communicator.ReduceScatter", Make: both(func(r *member) error {
		return r.comm.ReduceScatter(r.stream, r.mem+device.Ptr(8*r.comm.Rank()), r.mem, 2, device.Int32, device.ReduceSum)
	})},
	{Of: "Communicator.Send", Make: together(
		func(r *member) error { return r.comm.Send(r.stream, r.mem, 2, device.Int32, 1) },
		func(r *member) error { return r.comm.Recv(r.stream, r.mem, 2, device.Int32, 0) },
	)},
	{Of: "Communicator.Recv", Make: together(
		func(r *member) error { return r.comm.Recv(r.stream, r.mem, 2, device.Int32, 1) },
		func(r *member) error { return r.comm.Send(r.stream, r.mem, 2, device.Int32, 0) },
	)},
	{Of: "Communicator.Barrier", Make: both(func(r *member) error { return r.comm.Barrier(r.stream) })},
	{Of: "Communicator.GroupStart Communicator.GroupEnd", Make: both(group)},
	{Of: "Communicator.Abort", Make: func(_ testing.TB, m *failing) failtest.Trial {
		mine, _ := m.pair()
		return failtest.Trial{
			Do:  func(context.Context) error { return mine.comm.Abort() },
			See: func() any { return mine.comm.AsyncError() != nil },
		}
	}},
	{Of: "Tracer.Communicator Communicator.Close", Make: func(_ testing.TB, m *failing) failtest.Trial {
		return m.closes(3, func(_ context.Context, c *Communicator, p device.Ptr) (err error) {
			for range 3 {
				err = errors.Join(err, sum(&member{stream: m.stream, comm: c, mem: p}))
			}
			return err
		})
	}},
	{Of: "Communicator.Close with the operations of a step", Make: func(t testing.TB, m *failing) failtest.Trial {
		return m.closes(1, func(ctx context.Context, c *Communicator, p device.Ptr) error {
			profiler, err := NewProfiler(ProfilerConfig{Cache: m.cache, Stream: m.stream, Communicator: c})
			if err != nil {
				return err
			}
			begun(profiler)
			_, step := profiler.StartStep(context.Background(), 1)
			err = sum(&member{stream: m.stream, comm: c, mem: p})
			step.End()
			err = errors.Join(err, profiler.Flush(ctx), profiler.Close())
			if err == nil && len(step.Profile().Collectives) == 0 {
				return c.Close() // it returns the reason for a missing time
			}
			return err
		})
	}},
}

// TestGroupThatCouldNotBegin: after a GroupStart that failed each operation is observed by itself.
func TestGroupThatCouldNotBegin(t *testing.T) {
	faults := new(failtest.Faults)
	m := openFailing(t, faults)
	trial := m.closes(2, func(_ context.Context, c *Communicator, p device.Ptr) error {
		faults.Arm(failtest.Failed, 1)
		err := c.GroupStart()
		_, _ = faults.Disarm()
		require.ErrorIs(t, err, failtest.ErrFailed)
		r := &member{stream: m.stream, comm: c, mem: p}
		return errors.Join(sum(r), sum(r))
	})
	require.NoError(t, trial.Do(context.Background()))
	require.Equal(t, [][2]bool{{true, true}, {true, true}}, trial.See())
	require.NoError(t, trial.Undo())
}

// TestTimesThatFail: an operation that can't be placed on the host's clock succeeds, and the next
// one is placed. Close returns the first error, once.
func TestTimesThatFail(t *testing.T) {
	faults := new(failtest.Faults)
	m := openFailing(t, faults)
	trial := m.closes(3, func(_ context.Context, c *Communicator, p device.Ptr) error {
		r := &member{stream: m.stream, comm: c, mem: p}
		for k, want := range []string{"NewStream", "NewEvent"} {
			faults.Arm(failtest.Failed, k+1)
			require.NoError(t, sum(r))
			failed, _ := faults.Disarm()
			require.Equal(t, want, failed)
		}
		require.NoError(t, sum(r))
		err := c.Close()
		require.ErrorIs(t, err, failtest.ErrFailed)
		require.ErrorContains(t, err, "NewStream")
		require.NotContains(t, err.Error(), "NewEvent")
		return nil
	})
	require.NoError(t, trial.Do(context.Background()))
	require.Equal(t, [][2]bool{{true, false}, {true, false}, {true, true}}, trial.See())
	require.NoError(t, trial.Undo())
}

// TestOperationsWaitForTheirPlace: an operation is recorded when the event that places it is
// reached, although it is complete before.
func TestOperationsWaitForTheirPlace(t *testing.T) {
	m := openFailing(t, new(failtest.Faults))
	trial := m.closes(3, func(ctx context.Context, c *Communicator, p device.Ptr) error {
		r := &member{stream: m.stream, comm: c, mem: p}
		require.NoError(t, sum(r))
		require.NoError(t, renewed(&c.clock))
		require.NoError(t, errors.Join(m.stream.Synchronize(ctx), c.clock.stream.Synchronize(ctx)))
		release := cisterntest.Hold(t, c.clock.stream)
		for range 2 {
			require.NoError(t, sum(r))
			require.NoError(t, m.stream.Synchronize(ctx))
		}
		require.Len(t, m.collectivesSeen(3), 1)
		release()
		return nil
	})
	require.NoError(t, trial.Do(context.Background()))
	require.Equal(t, [][2]bool{{true, true}, {true, true}, {true, true}}, trial.See())
	require.NoError(t, trial.Undo())
}
