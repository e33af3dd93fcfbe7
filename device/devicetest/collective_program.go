package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// collectiveStep is one operation of a random program: its communicator, and the data of each rank.
type collectiveStep struct {
	circle  int // index of the communicator
	kind    int
	count   int
	t       device.DataType
	op      device.ReduceOp
	root    int
	in, out [][]float64 // by rank in the communicator; out is nil for ranks without a result
	inPlace []bool
	dst     []device.Ptr
}

const (
	stepAllReduce = iota
	stepBroadcast
	stepAllGather
	stepReduceScatter
	stepSendRecv // from root to the next rank
	stepShift    // a group: each rank to the next one
	stepBarrier
	stepKinds
)

// collectivePrograms runs random operations on random subsets of ranks, some concurrently, and
// compares their results with loops over float64. The values are small integers, so every type
// represents the sums in any order exactly.
func collectivePrograms(t *testing.T, b CollectivesBackend) {
	for ranks := 1; ranks <= b.MaxRanks; ranks++ {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(ranks), 18))
			p := newRankGroup(t, b, ranks, device.CommunicatorOptions{})
			circles := [][]int{r.Perm(ranks), r.Perm(ranks)[:1+r.IntN(ranks)], r.Perm(ranks)[:1+r.IntN(ranks)]}
			comms := make([][]device.Communicator, len(circles))
			streams := make([][]device.Stream, len(circles))
			for i, members := range circles {
				comms[i] = p.join(members, device.CommunicatorOptions{})
				for _, m := range members {
					s, err := p.ranks[m].dev.NewStream(device.StreamOptions{})
					require.NoError(t, err)
					streams[i] = append(streams[i], s)
				}
			}
			steps := make([]*collectiveStep, 40)
			for i := range steps {
				at := r.IntN(len(circles))
				steps[i] = randomStep(r, at, len(circles[at]))
			}
			p.each(func(a *testRank) {
				for _, step := range steps {
					if me := slices.Index(circles[step.circle], a.rank); me >= 0 {
						step.queue(a, comms[step.circle][me], streams[step.circle][me], me)
					}
				}
			})
			for i, members := range circles {
				parallel(len(members), func(me int) {
					a := p.ranks[members[me]]
					a.check(comms[i][me].Close()) // waits for queued operations
					a.check(comms[i][me].Close())
					a.check(streams[i][me].Close())
				})
			}
			for i, step := range steps {
				for me, want := range step.out {
					if want != nil {
						a := p.ranks[circles[step.circle][me]]
						got := decode(step.t, a.read(step.dst[me], int64(len(want))*step.t.Bytes()))
						require.True(t, step.agrees(want, got), "step %d, %+v: rank %d has\n%v", i, step, me, got)
					}
				}
			}
		})
	}
}

// randomStep returns a random step with its results, computed element by element.
func randomStep(r *rand.Rand, circle, size int) *collectiveStep {
	s := &collectiveStep{circle: circle, kind: r.IntN(stepKinds), t: device.DataType(r.IntN(5)), op: device.ReduceOp(r.IntN(4)), root: r.IntN(size), dst: make([]device.Ptr, size),
		count: []int{0, 1, r.IntN(20), r.IntN(3000)}[r.IntN(4)]}
	n := s.count
	s.in, s.out, s.inPlace = make([][]float64, size), make([][]float64, size), make([]bool, size)
	for me := range size {
		s.inPlace[me] = r.IntN(2) == 0
		s.in[me] = make([]float64, n)
		if s.kind == stepReduceScatter {
			s.in[me] = make([]float64, n*size)
		}
		for i := range s.in[me] {
			s.in[me][i] = float64(r.IntN(31) - 15)
		}
	}
	for me := range size {
		switch s.kind {
		case stepAllReduce:
			for i := range n {
				s.out[me] = append(s.out[me], s.reduced(i))
			}
		case stepReduceScatter:
			for i := range n {
				s.out[me] = append(s.out[me], s.reduced(me*n+i))
			}
		case stepBroadcast:
			s.out[me] = s.in[s.root]
		case stepAllGather:
			s.out[me] = slices.Concat(s.in...)
		case stepShift:
			s.out[me] = s.in[(me+size-1)%size]
		case stepSendRecv:
			if size > 1 && me == (s.root+1)%size {
				s.out[me] = s.in[s.root]
			}
		}
	}
	return s
}

func (s *collectiveStep) reduced(i int) float64 {
	x := s.in[0][i]
	for _, in := range s.in[1:] {
		switch s.op {
		case device.ReduceMax:
			x = math.Max(x, in[i])
		case device.ReduceMin:
			x = math.Min(x, in[i])
		default:
			x += in[i]
		}
	}
	if s.op == device.ReduceAvg {
		x /= float64(len(s.in))
		if s.t == device.Int32 || s.t == device.Int64 {
			x = math.Trunc(x)
		}
	}
	return x
}

// agrees compares bits, except for averages of floating point, which are rounded.
func (s *collectiveStep) agrees(want, got []float64) bool {
	if len(want) != len(got) {
		return false
	}
	near := 0.0
	if s.op == device.ReduceAvg {
		near = map[device.DataType]float64{device.Float32: 1e-6, device.Float64: 1e-15, device.BFloat16: 1.0 / 128}[s.t]
	}
	for i := range want {
		if math.Abs(want[i]-got[i]) > near*math.Abs(want[i]) {
			return false
		}
	}
	return true
}

// queue queues the step on one rank.
func (s *collectiveStep) queue(a *testRank, c device.Communicator, on device.Stream, me int) {
	size, n := c.Size(), int64(s.count)
	bytes := n * s.t.Bytes()
	in := encode(s.t, s.in[me])
	if s.kind == stepAllGather && s.inPlace[me] {
		s.dst[me] = a.memory(append(make([]byte, me*int(bytes)), append(in, make([]byte, (size-1-me)*int(bytes))...)...))
		a.check(c.AllGather(on, s.dst[me], s.dst[me]+device.Ptr(int64(me)*bytes), n, s.t))
		return
	}
	src := a.memory(in)
	dst := src
	if s.kind == stepReduceScatter {
		dst += device.Ptr(int64(me) * bytes)
	}
	if !s.inPlace[me] || s.kind == stepAllGather || s.kind == stepShift {
		dst = a.memory(make([]byte, max(int(bytes)*size, 1)))
	}
	s.dst[me] = dst
	next, previous := (me+1)%size, (me+size-1)%size
	switch s.kind {
	case stepAllReduce:
		a.check(c.AllReduce(on, dst, src, n, s.t, s.op))
	case stepReduceScatter:
		a.check(c.ReduceScatter(on, dst, src, n, s.t, s.op))
	case stepAllGather:
		a.check(c.AllGather(on, dst, src, n, s.t))
	case stepBroadcast:
		a.check(c.Broadcast(on, dst, src, n, s.t, s.root))
	case stepBarrier:
		a.check(c.Barrier(on))
	case stepSendRecv:
		switch {
		case size > 1 && me == s.root:
			a.check(c.Send(on, src, n, s.t, next))
		case size > 1 && previous == s.root:
			a.check(c.Recv(on, dst, n, s.t, previous))
		}
	case stepShift:
		a.check(c.GroupStart())
		a.check(c.Send(on, src, n, s.t, next))
		a.check(c.Recv(on, dst, n, s.t, previous))
		a.check(c.GroupEnd())
	}
}
