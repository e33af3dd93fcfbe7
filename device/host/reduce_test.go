package host

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/bfloat16"
)

// ranksOf returns n ranks on one device, each with a stream.
func ranksOf(t *testing.T, n int) (d *Device, comms []device.Communicator, streams []device.Stream) {
	d, err := New(Config{Capacity: 16 << 20})
	require.NoError(t, err)
	id, err := d.NewCommunicatorID()
	require.NoError(t, err)
	comms, streams = make([]device.Communicator, n), make([]device.Stream, n)
	var wait sync.WaitGroup
	for r := range n {
		streams[r] = streamOf(t, d)
		wait.Go(func() {
			c, err := d.NewCommunicator(context.Background(), id, r, n, device.CommunicatorOptions{})
			if err != nil {
				t.Error(err)
			}
			comms[r] = c
		})
	}
	wait.Wait()
	return d, comms, streams
}

// TestCollectiveSumsAreInTheOrderOfRanks: on every rank the result is bit-identical to a loop over
// ranks, in whatever order the ranks arrive.
func TestCollectiveSumsAreInTheOrderOfRanks(t *testing.T) {
	const ranks, count = 5, 3001
	r := rand.New(rand.NewPCG(1, 2))
	values := make([][]float32, ranks)
	want := make([]byte, 4*count)
	for i := range values {
		values[i] = make([]float32, count)
		for j := range values[i] {
			values[i][j] = float32(r.NormFloat64() * math.Exp(6*r.NormFloat64()))
		}
	}
	other := 0
	for j := range count {
		sum, backward := values[0][j], values[ranks-1][j]
		for i := 1; i < ranks; i++ {
			sum += values[i][j]
			backward += values[ranks-1-i][j]
		}
		if sum != backward {
			other++
		}
		binary.LittleEndian.PutUint32(want[4*j:], math.Float32bits(sum))
	}
	require.Greater(t, other, count/10, "the order matters")
	for range 5 {
		d, comms, streams := ranksOf(t, ranks)
		ptrs := make([]device.Ptr, ranks)
		for _, i := range r.Perm(ranks) {
			var err error
			ptrs[i], err = d.Alloc(4 * count)
			require.NoError(t, err)
			b, err := d.Bytes(ptrs[i], 4*count)
			require.NoError(t, err)
			for j, v := range values[i] {
				binary.LittleEndian.PutUint32(b[4*j:], math.Float32bits(v))
			}
			require.NoError(t, comms[i].AllReduce(streams[i], ptrs[i], ptrs[i], count, device.Float32, device.ReduceSum))
		}
		for i, c := range comms {
			require.NoError(t, streams[i].Synchronize(t.Context()))
			b, err := d.Bytes(ptrs[i], 4*count)
			require.NoError(t, err)
			require.Equal(t, want, b)
			require.NoError(t, d.Free(ptrs[i]))
			require.NoError(t, c.Close())
		}
		require.NoError(t, d.Close())
	}
}

// TestCollectiveSumsOfBFloat16: sums are rounded once. 256 and four times 0.5 is 258, whereas
// rounding after each addition would give 256.
func TestCollectiveSumsOfBFloat16(t *testing.T) {
	bits := func(x float32) []byte { return binary.LittleEndian.AppendUint16(nil, uint16(bfloat16.Round(x))) }
	dst := make([]byte, 2)
	reduce(device.BFloat16, device.ReduceSum, [][]byte{dst}, [][]byte{bits(256), bits(0.5), bits(0.5), bits(0.5), bits(0.5)})
	require.Equal(t, bits(258), dst)
	for _, c := range []struct {
		x    float32
		want bfloat16.Number
	}{
		{1, 0x3f80}, {1 + 1.0/256, 0x3f80}, {1 + 3.0/256, 0x3f82}, {1 + 1.0/256 + 1.0/65536, 0x3f81}, {-1, 0xbf80},
		{math.MaxFloat32, 0x7f80}, {float32(math.Inf(-1)), 0xff80}, {math.Float32frombits(0x7f800001), 0x7fc0}, {math.Float32frombits(1), 0},
	} {
		require.Equal(t, c.want, bfloat16.Round(c.x), c.x)
	}
	for b := range 1 << 16 {
		if x := bfloat16.Number(b).Float32(); x == x {
			require.Equal(t, bfloat16.Number(b), bfloat16.Round(x))
		}
	}
}

// TestCollectivesOnUnorderedStreams: if a rank's operations run in another order than they were
// queued in, it gets an error, and so do the other ranks.
func TestCollectivesOnUnorderedStreams(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		d, comms, streams := ranksOf(t, 2)
		second := streamOf(t, d)
		hold := make(chan struct{})
		require.NoError(t, streams[0].Launch(&device.Launch{Func: func() { <-hold }}))
		require.NoError(t, comms[0].Barrier(streams[0]))
		if ordered {
			e, err := d.NewEvent(device.EventOptions{})
			require.NoError(t, err)
			require.NoError(t, streams[0].Record(e))
			require.NoError(t, second.Wait(e))
		}
		require.NoError(t, comms[0].Barrier(second))
		require.NoError(t, comms[1].Barrier(streams[1]))
		if !ordered { // the second has run, as well as the first
			require.NoError(t, streams[1].Synchronize(t.Context()))
		}
		require.NoError(t, comms[1].Barrier(streams[1]))
		close(hold)
		require.NoError(t, d.Synchronize(t.Context()))
		for _, c := range comms {
			if ordered {
				require.NoError(t, c.AsyncError())
			} else {
				require.ErrorIs(t, c.AsyncError(), device.ErrInvalid)
				require.ErrorContains(t, c.AsyncError(), "order its streams by events")
			}
			_ = c.Close()
		}
		require.NoError(t, d.Close())
	}
}

// TestCollectivesOfADeviceThatCloses: the other ranks get an error.
func TestCollectivesOfADeviceThatCloses(t *testing.T) {
	devices := [2]*Device{}
	comms := [2]device.Communicator{}
	for i := range devices {
		var err error
		devices[i], err = New(Config{Capacity: 1 << 20})
		require.NoError(t, err)
	}
	id, err := devices[0].NewCommunicatorID()
	require.NoError(t, err)
	var wait sync.WaitGroup
	for i, d := range devices {
		wait.Go(func() {
			comms[i], _ = d.NewCommunicator(context.Background(), id, i, 2, device.CommunicatorOptions{})
		})
	}
	wait.Wait()
	s := streamOf(t, devices[0])
	require.NoError(t, comms[0].Barrier(s))
	require.NoError(t, devices[1].Close())
	require.NoError(t, s.Synchronize(t.Context()))
	require.ErrorIs(t, comms[0].AsyncError(), device.ErrAborted)
	require.ErrorContains(t, comms[0].AsyncError(), "rank 1 has closed")
	require.ErrorIs(t, comms[1].Barrier(s), device.ErrClosed)
	require.NoError(t, devices[0].Close())
}
