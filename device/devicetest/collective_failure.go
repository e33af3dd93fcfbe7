package devicetest

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// notInTime is a timeout that is too long for failures that are reported at once. It ends the test
// of a backend that does not report them.
const notInTime = 10 * time.Second

// collectiveMismatches: each pair of calls that don't match fails on both ranks at once, with an
// error that names both.
func collectiveMismatches(t *testing.T, b CollectivesBackend) {
	type calls = func(a *testRank, p device.Ptr)
	reduce := func(count int64, t device.DataType, op device.ReduceOp) calls {
		return func(a *testRank, p device.Ptr) { a.check(a.comm.AllReduce(a.s, p, p, count, t, op)) }
	}
	root := func(r int) calls {
		return func(a *testRank, p device.Ptr) { a.check(a.comm.Broadcast(a.s, p, p, 10, device.Float32, r)) }
	}
	sends := func(count int64, t device.DataType) calls {
		return func(a *testRank, p device.Ptr) { a.check(a.comm.Send(a.s, p, count, t, 1)) }
	}
	receives := func(a *testRank, p device.Ptr) { a.check(a.comm.Recv(a.s, p, 10, device.Float32, 0)) }
	barrier := func(a *testRank, _ device.Ptr) { a.check(a.comm.Barrier(a.s)) }
	like := reduce(10, device.Float32, device.ReduceSum)
	for name, c := range map[string]struct {
		first, second calls
		words         []string
	}{
		"count":               {like, reduce(11, device.Float32, device.ReduceSum), []string{"rank 0", "rank 1", "of 10 float32", "of 11 float32"}},
		"empty":               {like, reduce(0, device.Float32, device.ReduceSum), []string{"of 0 float32"}},
		"type":                {like, reduce(10, device.Int32, device.ReduceSum), []string{"of 10 float32", "of 10 int32"}},
		"reduction":           {like, reduce(10, device.Float32, device.ReduceMax), []string{"(sum)", "(max)"}},
		"root":                {root(0), root(1), []string{"from rank 0", "from rank 1"}},
		"operation":           {like, barrier, []string{"AllReduce number 1", "Barrier number 1"}},
		"count of a Send":     {sends(9, device.Float32), receives, []string{"Send number 1 of 9", "Recv number 1 of 10"}},
		"type of a Send":      {sends(10, device.BFloat16), receives, []string{"bfloat16", "float32"}},
		"collective and Recv": {like, receives, []string{"AllReduce number 1", "Recv number 1", "wait for each other"}},
		"collective and Send": {barrier, func(a *testRank, p device.Ptr) { a.check(a.comm.Send(a.s, p, 10, device.Float32, 0)) }, []string{"Barrier", "Send"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newRankGroup(t, b, 2, device.CommunicatorOptions{Timeout: notInTime})
			p.failing(device.ErrMismatch, append(c.words, "rank 0", "rank 1"), func(a *testRank) {
				memory := a.memory(make([]byte, 100))
				if a.rank == 0 {
					c.first(a, memory)
				} else {
					c.second(a, memory)
				}
			})
		})
	}
}

// collectiveCircles: ranks that wait for each other, directly or through others, fail at once
// instead of after the timeout.
func collectiveCircles(t *testing.T, b CollectivesBackend) {
	for _, ranks := range []int{2, 3} {
		p := newRankGroup(t, b, ranks, device.CommunicatorOptions{Timeout: notInTime})
		p.failing(device.ErrMismatch, []string{"wait for each other"}, func(a *testRank) {
			memory := a.memory(make([]byte, 100))
			next, previous := (a.rank+1)%ranks, (a.rank+ranks-1)%ranks
			a.check(a.comm.Send(a.s, memory, 10, device.Float32, next))
			if err := a.comm.Recv(a.s, memory, 10, device.Float32, previous); err != nil {
				require.ErrorIs(t, err, device.ErrMismatch) // it may have failed already
			}
		})
	}
}

// collectiveTimeouts: the error names the rank that is missing, without a rank that itself waits
// for that one.
func collectiveTimeouts(t *testing.T, b CollectivesBackend) {
	p := newRankGroup(t, b, 3, device.CommunicatorOptions{Timeout: 200 * time.Millisecond})
	p.failing(device.ErrTimeout, []string{"rank 1 is missing", "200ms"}, func(a *testRank) {
		memory := a.memory(make([]byte, 100))
		switch a.rank {
		case 0:
			a.check(a.comm.AllReduce(a.s, memory, memory, 10, device.Float32, device.ReduceSum))
		case 2:
			if err := a.comm.Recv(a.s, memory, 10, device.Float32, 1); err != nil {
				require.ErrorIs(t, err, device.ErrTimeout)
			}
		}
	})
	var e *device.CollectiveError
	require.ErrorAs(t, p.ranks[1].comm.AsyncError(), &e)
	require.Equal(t, []int{1}, e.Ranks)

	// A slow rank is not missing: the timeout limits one wait, not the program.
	p = newRankGroup(t, b, 2, device.CommunicatorOptions{Timeout: 20 * time.Second})
	p.each(func(a *testRank) {
		for i := range 3 {
			if i%2 == a.rank {
				time.Sleep(20 * time.Millisecond)
			}
			a.check(a.comm.Barrier(a.s))
			a.sync()
		}
		a.check(a.comm.AsyncError())
	})
}

// collectiveAbort: waiting ranks and later calls get an error that names the rank that aborted.
func collectiveAbort(t *testing.T, b CollectivesBackend) {
	ranks := min(b.MaxRanks, 4)
	p := newRankGroup(t, b, ranks, device.CommunicatorOptions{})
	p.failing(device.ErrAborted, []string{"rank 1 has aborted"}, func(a *testRank) {
		if a.rank == 1 {
			time.Sleep(20 * time.Millisecond)
			a.check(a.comm.Abort())
			a.check(a.comm.Abort())
			return
		}
		memory := a.memory(make([]byte, 100))
		for range 3 { // the second waits in the queue
			if err := a.comm.AllReduce(a.s, memory, memory, 10, device.Float32, device.ReduceSum); err != nil {
				require.ErrorIs(t, err, device.ErrAborted)
			}
		}
	})
	for _, a := range p.ranks {
		require.ErrorIs(t, a.comm.Close(), device.ErrAborted)
		require.NoError(t, a.comm.Close())
		require.ErrorIs(t, a.comm.AsyncError(), device.ErrAborted)
		require.ErrorIs(t, a.comm.Barrier(a.s), device.ErrClosed)
	}
}

// collectiveClose: Close waits for queued operations. Waiting ranks and later calls get an error
// that names the rank that closed.
func collectiveClose(t *testing.T, b CollectivesBackend) {
	t.Run("after work", func(t *testing.T) {
		p := newRankGroup(t, b, 2, device.CommunicatorOptions{})
		p.each(func(a *testRank) {
			memory := a.memory(encode(device.Int32, []float64{float64(a.rank + 1)}))
			if a.rank == 1 {
				time.Sleep(20 * time.Millisecond)
			}
			a.check(a.comm.AllReduce(a.s, memory, memory, 1, device.Int32, device.ReduceSum))
			a.check(a.comm.Close())
			if done, err := a.s.Query(); !done || err != nil {
				t.Errorf("rank %d: Close did not wait: %v", a.rank, err)
			}
			if got := decode(device.Int32, a.read(memory, 4)); got[0] != 3 {
				t.Errorf("rank %d has %v", a.rank, got)
			}
			for _, err := range []error{a.comm.Barrier(a.s), a.comm.GroupStart(), a.comm.GroupEnd(), a.comm.Send(a.s, memory, 1, device.Int32, 0)} {
				require.ErrorIs(t, err, device.ErrClosed)
			}
			a.check(a.comm.AsyncError())
		})
	})
	for name, order := range map[string][2]time.Duration{"others come": {30 * time.Millisecond, 0}, "others wait": {0, 30 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			p := newRankGroup(t, b, 2, device.CommunicatorOptions{Timeout: notInTime})
			p.each(func(a *testRank) {
				time.Sleep(order[a.rank])
				if a.rank == 1 {
					if err := a.comm.Close(); err != nil { // the other may wait already
						require.ErrorIs(t, err, device.ErrAborted)
					}
					return
				}
				a.check(a.comm.Barrier(a.s))
				a.sync()
				err := a.comm.AsyncError()
				if err == nil {
					t.Error("a rank has closed, and the other one does not know")
					return
				}
				require.ErrorIs(t, err, device.ErrAborted)
				require.ErrorContains(t, err, "rank 1 has closed")
			})
		})
	}
}

// collectiveJoining: a rank joins twice, joins with another size, or is missing.
func collectiveJoining(t *testing.T, b CollectivesBackend) {
	p := newRankGroup(t, b, 3, device.CommunicatorOptions{})
	dev := func(r int) device.Collectives { return p.ranks[r].dev.(device.Collectives) }
	id, err := dev(0).NewCommunicatorID()
	require.NoError(t, err)
	other, err := dev(0).NewCommunicatorID()
	require.NoError(t, err)
	require.NotEqual(t, id, other)
	soon := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		t.Cleanup(cancel)
		return ctx
	}
	for _, wrong := range []func() (device.Communicator, error){
		func() (device.Communicator, error) {
			var none context.Context
			return dev(0).NewCommunicator(none, id, 0, 1, device.CommunicatorOptions{})
		},
		func() (device.Communicator, error) {
			return dev(0).NewCommunicator(soon(time.Second), device.CommunicatorID{}, 0, 1, device.CommunicatorOptions{})
		},
		func() (device.Communicator, error) {
			return dev(0).NewCommunicator(soon(time.Second), id, 0, 0, device.CommunicatorOptions{})
		},
		func() (device.Communicator, error) {
			return dev(0).NewCommunicator(soon(time.Second), id, 0, math.MaxInt, device.CommunicatorOptions{})
		},
		func() (device.Communicator, error) {
			return dev(0).NewCommunicator(soon(time.Second), id, -1, 2, device.CommunicatorOptions{})
		},
		func() (device.Communicator, error) {
			return dev(0).NewCommunicator(soon(time.Second), id, 2, 2, device.CommunicatorOptions{})
		},
		func() (device.Communicator, error) {
			return dev(0).NewCommunicator(soon(time.Second), id, 0, 1, device.CommunicatorOptions{Timeout: -1})
		},
	} {
		c, err := wrong()
		require.ErrorIs(t, err, device.ErrInvalid)
		require.Nil(t, c)
	}
	errs := make([]error, 3)
	parallel(2, func(r int) {
		_, errs[r] = dev(r).NewCommunicator(soon(100*time.Millisecond), id, r*2, 3, device.CommunicatorOptions{})
	})
	for _, err := range errs[:2] {
		require.ErrorIs(t, err, device.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var e *device.CollectiveError
		require.ErrorAs(t, err, &e)
		require.Contains(t, e.Ranks, 1)
	}

	parallel(2, func(r int) {
		_, errs[r] = dev(r).NewCommunicator(soon(20*time.Second), other, r, 2+r, device.CommunicatorOptions{})
	})
	for _, err := range errs[:2] {
		require.ErrorIs(t, err, device.ErrMismatch)
		require.ErrorContains(t, err, "size of")
	}
}
