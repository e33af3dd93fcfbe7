package devicetest

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cistern-ml/cistern/device"
)

// CollectivesBackend describes a backend to the suite of collectives.
type CollectivesBackend struct {
	// Open opens the device of a rank: its own device, or one shared with another rank, which is
	// then opened once more. The suite closes it.
	Open func(t testing.TB, rank int) device.Device
	// MaxRanks is the largest number of ranks, up to 8.
	MaxRanks int
}

// RunCollectives runs the suite of [device.Collectives] as subtests of t.
func RunCollectives(t *testing.T, b CollectivesBackend) {
	t.Helper()
	if b.Open == nil {
		t.Fatal("devicetest: CollectivesBackend.Open is nil; the suite needs it")
	}
	for _, test := range []struct {
		name  string
		ranks int // minimum
		run   func(*testing.T, CollectivesBackend)
	}{
		{"random programs", 1, collectivePrograms},
		{"a stream's order", 2, collectiveOrder},
		{"groups", 2, collectiveGroups},
		{"graphs", 2, collectiveGraphs},
		{"arguments", 2, collectiveArguments},
		{"ranks that don't match", 2, collectiveMismatches},
		{"ranks that wait for each other", 3, collectiveCircles},
		{"ranks that don't come", 3, collectiveTimeouts},
		{"Abort", 2, collectiveAbort},
		{"Close", 2, collectiveClose},
		{"joining", 3, collectiveJoining},
	} {
		t.Run(test.name, func(t *testing.T) {
			if b.MaxRanks >= test.ranks {
				test.run(t, b)
			}
		})
	}
}

// rankGroup is a group of ranks, each with a device and a stream.
type rankGroup struct {
	*testing.T
	b     CollectivesBackend
	ranks []*testRank
}

// testRank is a rank. Only its goroutine calls its methods.
type testRank struct {
	t    *testing.T
	rank int
	dev  device.Device
	s    device.Stream
	comm device.Communicator // of all ranks
}

func newRankGroup(t *testing.T, b CollectivesBackend, ranks int, opts device.CommunicatorOptions) *rankGroup {
	before := goleak.IgnoreCurrent()
	p := &rankGroup{T: t, b: b}
	for r := range ranks {
		a := &testRank{t: t, rank: r, dev: b.Open(t, r)}
		p.ranks = append(p.ranks, a)
		var err error
		a.s, err = a.dev.NewStream(device.StreamOptions{})
		require.NoError(t, err)
	}
	all := make([]int, ranks)
	for r := range all {
		all[r] = r
	}
	comms := p.join(all, opts)
	for r, a := range p.ranks {
		a.comm = comms[r]
	}
	t.Cleanup(func() {
		p.each(func(a *testRank) {
			_ = a.comm.Close()
			require.NoError(t, a.s.Close())
		})
		for _, a := range p.ranks {
			require.NoError(t, a.dev.Close())
		}
		goleak.VerifyNone(t, before)
	})
	return p
}

// join makes a communicator of some ranks, in the given order.
func (p *rankGroup) join(ranks []int, opts device.CommunicatorOptions) []device.Communicator {
	id, err := p.ranks[ranks[0]].dev.(device.Collectives).NewCommunicatorID()
	require.NoError(p, err)
	comms := make([]device.Communicator, len(ranks))
	parallel(len(ranks), func(i int) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := p.ranks[ranks[i]].dev.(device.Collectives).NewCommunicator(ctx, id, i, len(ranks), opts)
		if err != nil {
			p.Errorf("rank %d of %d: %v", i, len(ranks), err)
			return
		}
		comms[i] = c
		if c.ID() != id {
			p.Errorf("rank %d of %d has another id than it was made with", i, len(ranks))
		}
		if c.Rank() != i || c.Size() != len(ranks) || c.Device() != p.ranks[ranks[i]].dev {
			p.Errorf("rank %d of %d says that it is %d of %d", i, len(ranks), c.Rank(), c.Size())
		}
	})
	if p.Failed() {
		p.FailNow()
	}
	return comms
}

// parallel calls f in n goroutines.
func parallel(n int, f func(i int)) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { f(i) })
	}
	group.Wait()
}

// each calls f for each rank, on the rank's goroutine.
func (p *rankGroup) each(f func(a *testRank)) {
	parallel(len(p.ranks), func(i int) { f(p.ranks[i]) })
}

func (a *testRank) check(err error) {
	if err != nil {
		a.t.Errorf("rank %d: %v", a.rank, err)
	}
}

// sync waits for the rank's stream.
func (a *testRank) sync() { a.check(a.s.Synchronize(context.Background())) }

// memory returns device memory that contains data.
func (a *testRank) memory(data []byte) device.Ptr {
	p, err := a.dev.Alloc(int64(max(len(data), 1)))
	if err != nil {
		a.check(err)
		return 0
	}
	a.t.Cleanup(func() { a.check(a.dev.Free(p)) })
	if len(data) > 0 {
		host, err := a.dev.AllocPinned(int64(len(data)))
		a.check(err)
		copy(host, data)
		a.check(a.s.CopyH2D(p, host))
		a.sync()
		a.check(a.dev.FreePinned(host))
	}
	return p
}

func (a *testRank) read(p device.Ptr, bytes int64) []byte {
	if bytes == 0 {
		return nil
	}
	host, err := a.dev.AllocPinned(bytes)
	a.check(err)
	a.check(a.s.CopyD2H(host, p))
	a.sync()
	data := append([]byte(nil), host...)
	a.check(a.dev.FreePinned(host))
	return data
}

// encode returns values, which t represents exactly, as elements of type t.
func encode(t device.DataType, values []float64) (b []byte) {
	for _, v := range values {
		switch t {
		case device.Float32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		case device.Float64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		case device.BFloat16:
			b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(v))>>16))
		case device.Int32:
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(v)))
		case device.Int64:
			b = binary.LittleEndian.AppendUint64(b, uint64(int64(v)))
		}
	}
	return b
}

func decode(t device.DataType, b []byte) (values []float64) {
	for at := int64(0); at < int64(len(b)); at += t.Bytes() {
		switch x := b[at:]; t {
		case device.Float32:
			values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(x))))
		case device.Float64:
			values = append(values, math.Float64frombits(binary.LittleEndian.Uint64(x)))
		case device.BFloat16:
			values = append(values, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(x))<<16)))
		case device.Int32:
			values = append(values, float64(int32(binary.LittleEndian.Uint32(x))))
		case device.Int64:
			values = append(values, float64(int64(binary.LittleEndian.Uint64(x))))
		}
	}
	return values
}

// failing runs f on each rank and waits for its stream. All ranks' communicators must have failed
// with class within seconds, and every later call must return the failure.
func (p *rankGroup) failing(class error, words []string, f func(a *testRank)) {
	p.Helper()
	began := time.Now()
	p.each(func(a *testRank) {
		f(a)
		a.sync()
	})
	require.Less(p, time.Since(began), 30*time.Second)
	for _, a := range p.ranks {
		err := a.comm.AsyncError()
		require.ErrorIs(p, err, class, fmt.Sprint("rank ", a.rank))
		var e *device.CollectiveError
		require.ErrorAs(p, err, &e)
		require.Equal(p, len(p.ranks), e.Size)
		require.NotEmpty(p, e.Ranks)
		for _, w := range words {
			require.ErrorContains(p, err, w)
		}
		for range 2 {
			require.Equal(p, err, a.comm.Barrier(a.s), "every later call")
			require.Equal(p, err, a.comm.GroupStart())
			require.Equal(p, err, a.comm.AllReduce(a.s, 0, 0, 0, device.Float32, device.ReduceSum))
		}
		require.NoError(p, a.s.Synchronize(context.Background()), "the stream is usable")
	}
}
