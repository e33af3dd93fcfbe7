package devicetest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// collectiveOrder: an operation sees the results of work queued before it, and work queued after it
// sees its result, also on another stream by an event.
func collectiveOrder(t *testing.T, b CollectivesBackend) {
	p := newRankGroup(t, b, b.MaxRanks, device.CommunicatorOptions{})
	size := b.MaxRanks
	p.each(func(a *testRank) {
		const rounds = 50
		const bytes = 4 * 100
		x, y := a.memory(make([]byte, bytes)), a.memory(make([]byte, bytes))
		other, err := a.dev.NewStream(device.StreamOptions{})
		a.check(err)
		e, err := a.dev.NewEvent(device.EventOptions{})
		a.check(err)
		streams := [2]device.Stream{a.s, other}
		for i := range rounds {
			s := streams[i%2]
			if i > 0 {
				a.check(s.Wait(e))
			}
			a.check(s.Memset(x, byte(i), bytes))
			a.check(a.comm.AllReduce(s, y, x, 100, device.Int32, device.ReduceSum))
			a.check(s.Memset(x, 0xff, bytes))
			a.check(s.CopyD2D(x, y, bytes))
			a.check(s.Record(e))
		}
		a.check(other.Close())
		got := decode(device.Int32, a.read(x, bytes))
		want := float64(int32(rounds-1) * 0x01010101 * int32(size))
		for _, v := range got {
			if v != want {
				t.Errorf("rank %d has %v instead of %v", a.rank, v, want)
				break
			}
		}
		a.check(e.Close())
		a.check(a.comm.AsyncError())
	})
}

// collectiveGroups: all ranks exchange data with all. A refused call keeps its group from being
// queued.
func collectiveGroups(t *testing.T, b CollectivesBackend) {
	size := b.MaxRanks
	p := newRankGroup(t, b, size, device.CommunicatorOptions{})
	p.each(func(a *testRank) {
		var send, want []float64
		for r := range size {
			send, want = append(send, float64(100*a.rank+r)), append(want, float64(100*r+a.rank))
		}
		from, to, sum := a.memory(encode(device.Float32, send)), a.memory(make([]byte, 4*size)), a.memory(encode(device.Float32, []float64{float64(a.rank)}))
		a.check(a.comm.GroupStart())
		if a.rank%2 == 0 {
			a.check(a.comm.AllReduce(a.s, sum, sum, 1, device.Float32, device.ReduceMax))
		}
		for r := range size { // including itself
			a.check(a.comm.Send(a.s, from+device.Ptr(4*r), 1, device.Float32, r))
			a.check(a.comm.Recv(a.s, to+device.Ptr(4*r), 1, device.Float32, r))
		}
		if a.rank%2 == 1 { // the order of unlike calls in a group does not matter
			a.check(a.comm.AllReduce(a.s, sum, sum, 1, device.Float32, device.ReduceMax))
		}
		a.check(a.comm.GroupEnd())
		if got := decode(device.Float32, a.read(to, int64(4*size))); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("rank %d has %v instead of %v", a.rank, got, want)
		}
		if got := decode(device.Float32, a.read(sum, 4)); got[0] != float64(size-1) {
			t.Errorf("rank %d has a maximum of %v", a.rank, got)
		}

		require.ErrorIs(t, a.comm.GroupEnd(), device.ErrInvalid)
		a.check(a.comm.GroupStart())
		require.ErrorIs(t, a.comm.GroupStart(), device.ErrInvalid)
		a.check(a.comm.GroupEnd()) // empty
		a.check(a.comm.GroupStart())
		a.check(a.comm.Barrier(a.s))
		wrong := a.comm.AllReduce(a.s, sum, sum, -1, device.Float32, device.ReduceSum)
		require.ErrorIs(t, wrong, device.ErrInvalid)
		require.ErrorIs(t, a.comm.AllReduce(a.s, sum, sum, -2, device.Float32, device.ReduceSum), device.ErrInvalid)
		require.Equal(t, wrong, a.comm.GroupEnd(), "the first one")
		other, err := a.dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
		a.check(a.comm.GroupStart())
		a.check(a.comm.Barrier(a.s))
		wrong = a.comm.Barrier(other)
		require.ErrorIs(t, wrong, device.ErrInvalid)
		require.Equal(t, wrong, a.comm.GroupEnd())
		require.NoError(t, other.Close())
		// The barrier of the refused group was not queued; else the next operation of the other
		// ranks would not match.
		if a.rank == 0 {
			a.check(a.comm.Broadcast(a.s, sum, sum, 1, device.Float32, 0))
		} else {
			a.check(a.comm.Broadcast(a.s, sum, 0, 1, device.Float32, 0))
		}
		a.sync()
		a.check(a.comm.AsyncError())
	})
}

// collectiveGraphs: a captured operation runs at each replay.
func collectiveGraphs(t *testing.T, b CollectivesBackend) {
	p := newRankGroup(t, b, 2, device.CommunicatorOptions{})
	if _, ok := p.ranks[0].s.(device.GraphCapturer); !ok {
		return
	}
	p.each(func(a *testRank) {
		x := a.memory(encode(device.Int64, []float64{1, 2, 3}))
		c := a.s.(device.GraphCapturer)
		a.check(c.BeginCapture())
		a.check(a.comm.AllReduce(a.s, x, x, 3, device.Int64, device.ReduceSum))
		g, err := c.EndCapture()
		a.check(err)
		for range 10 {
			a.check(g.Replay(a.s))
			a.check(a.comm.AllReduce(a.s, x, x, 3, device.Int64, device.ReduceMax))
		}
		if got := decode(device.Int64, a.read(x, 24)); got[0] != 1024 || got[2] != 3072 {
			t.Errorf("rank %d has %v", a.rank, got)
		}
		a.check(g.Close())
		a.check(a.comm.AsyncError())
	})
}

// collectiveArguments: invalid arguments are refused before anything is queued, and the
// communicator stays usable.
func collectiveArguments(t *testing.T, b CollectivesBackend) {
	p := newRankGroup(t, b, 2, device.CommunicatorOptions{})
	p.each(func(a *testRank) {
		c := a.comm
		x, y := a.memory(make([]byte, 1024)), a.memory(make([]byte, 1024))
		freed, err := a.dev.Alloc(1024)
		a.check(err)
		a.check(a.dev.Free(freed))
		const f32, sum = device.Float32, device.ReduceSum
		part := device.Ptr(256)
		for i, err := range []error{
			c.AllReduce(nil, x, y, 1, f32, sum),
			c.AllReduce(a.s, x, y, -1, f32, sum),
			c.AllReduce(a.s, x, y, 257, f32, sum),
			c.AllReduce(a.s, x, y, 1<<62, f32, sum),
			c.AllReduce(a.s, x, y, 1, f32+100, sum),
			c.AllReduce(a.s, x, y, 1, f32, sum+100),
			c.AllReduce(a.s, x, 0, 1, f32, sum),
			c.AllReduce(a.s, 0, y, 1, f32, sum),
			c.AllReduce(a.s, x, freed, 1, f32, sum),
			c.AllReduce(a.s, x+1, y, 1, f32, sum),
			c.AllReduce(a.s, x, y+2, 1, f32, sum),
			c.AllReduce(a.s, x, x+4, 10, f32, sum),
			c.AllReduce(a.s, x+4, x, 10, f32, sum),
			c.AllGather(a.s, x, y, 200, f32),
			c.AllGather(a.s, x, x+part*device.Ptr(1-a.rank), 64, f32), // the other rank's part
			c.ReduceScatter(a.s, y, x, 200, f32, sum),
			c.ReduceScatter(a.s, x+part*device.Ptr(1-a.rank), x, 64, f32, sum),
			c.Broadcast(a.s, x, y, 1, f32, -1),
			c.Broadcast(a.s, x, y, 1, f32, 2),
			c.Send(a.s, x, 1, f32, 2),
			c.Send(a.s, x, 257, f32, 1-a.rank),
			c.Recv(a.s, x, 1, f32, -1),
			c.Recv(a.s, freed, 1, f32, 1-a.rank),
		} {
			var e *device.Error
			if err == nil {
				t.Errorf("call %d was not refused", i)
				continue
			}
			require.ErrorIs(t, err, device.ErrInvalid, i)
			require.ErrorAs(t, err, &e)
			require.Contains(t, []string{"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"}, e.Op)
		}
		a.check(c.AllReduce(a.s, 0, 0, 0, f32, sum)) // no elements need no address
		a.check(c.AllReduce(a.s, x, y, 256, f32, sum))
		a.check(c.AllGather(a.s, x, x+512*device.Ptr(a.rank), 128, f32))
		a.check(c.ReduceScatter(a.s, x+512*device.Ptr(a.rank), x, 128, f32, sum))
		a.sync()
		a.check(c.AsyncError())
		done, err := a.s.Query()
		a.check(err)
		if !done {
			t.Error("the stream is not done")
		}
	})
}
