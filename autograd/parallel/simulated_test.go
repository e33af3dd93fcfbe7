package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// A simulation of ranks on GPUs that are not available: a program queues the same work as on GPUs,
// and nothing runs. Each stream has a clock, in microseconds. Kernels and collective operations
// advance it by their durations, and events carry it from stream to stream. The host is always
// ahead. The simulation shows how well a Parallel overlaps the exchange with the backward pass, not
// how fast a GPU is.

// speeds are those of a GPU and of the links between ranks.
type speeds struct {
	launch float64 // microseconds of a kernel, at least
	memory float64 // bytes per microsecond
	flops  float64 // of products, per microsecond
	start  float64 // microseconds of a collective operation
	bus    float64 // bytes per microsecond on each rank's link
}

// measured is an H200 with float32 products, and NVLink between two: collective operations of 16
// MiB take 76 µs and of 256 MiB 903 (NCCL).
var measured = speeds{launch: 2, memory: 4.0e6, flops: 46e6, start: 21, bus: 304e3}

// network is a link of 400 Gbit/s for each rank, without measurements.
func (s speeds) network() speeds {
	s.bus = 50e3
	return s
}

// simulated is a group of simulated ranks.
type simulated struct {
	speeds
	mu   sync.Mutex
	met  *sync.Cond
	size int
	ops  map[int]*meeting // by number
}

// meeting is one collective operation.
type meeting struct {
	there int
	at    float64 // time of the last rank's call
}

func newSimulated(s speeds, size int) *simulated {
	w := &simulated{speeds: s, size: size, ops: map[int]*meeting{}}
	w.met = sync.NewCond(&w.mu)
	return w
}

// meet returns the time when all ranks have called an operation.
func (w *simulated) meet(number int, at float64) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.ops[number]
	if m == nil {
		m = &meeting{}
		w.ops[number] = m
	}
	m.there++
	m.at = max(m.at, at)
	w.met.Broadcast()
	for m.there < w.size {
		w.met.Wait()
	}
	return m.at
}

// simulatedGPU is one rank's device.
type simulatedGPU struct {
	tapetest.IdleGPU
	world *simulated

	mu     sync.Mutex // several goroutines upload
	pauses []device.Stream
	events map[device.Event]float64 // times of their records
}

type simulatedStream struct {
	tapetest.IdleStream
	gpu *simulatedGPU
	now float64 // under gpu.mu
}

// move runs an operation of a duration on the stream, from a time on, and returns its end.
func (s *simulatedStream) move(from, took float64) float64 {
	s.gpu.mu.Lock()
	defer s.gpu.mu.Unlock()
	s.now = max(s.now, from) + took
	return s.now
}

func (d *simulatedGPU) NewStream(o device.StreamOptions) (device.Stream, error) {
	s, err := d.Device.NewStream(o)
	return &simulatedStream{IdleStream: tapetest.IdleStream{Stream: s, Dev: &d.IdleGPU}, gpu: d}, err
}

func (s *simulatedStream) Device() device.Device { return s.gpu }

func (s *simulatedStream) Record(e device.Event) error {
	s.gpu.mu.Lock()
	s.gpu.events[e] = s.now
	s.gpu.mu.Unlock()
	return s.Stream.Record(e)
}

func (s *simulatedStream) Wait(e device.Event) error {
	s.gpu.mu.Lock()
	recorded := s.gpu.events[e]
	s.gpu.mu.Unlock()
	s.move(recorded, 0)
	return s.Stream.Wait(e)
}

func (s *simulatedStream) Launch(l *device.Launch) error {
	var bytes int64
	for _, r := range append(l.Reads[:len(l.Reads):len(l.Reads)], l.Writes...) {
		bytes += r.Bytes
	}
	took := max(s.gpu.world.launch, float64(bytes)/s.gpu.world.memory)
	if l.Name == "delay" {
		took += float64(l.Args[0]) / 1e3
		s.gpu.mu.Lock()
		s.gpu.pauses = append(s.gpu.pauses, s)
		s.gpu.mu.Unlock()
	}
	s.move(0, took)
	return s.IdleStream.Launch(l)
}

func (d *simulatedGPU) MatMul(s device.Stream, g *device.Gemm) error {
	s.(*simulatedStream).move(0, max(d.world.launch, 2*float64(g.M)*float64(g.N)*float64(g.K)*float64(max(g.Batch, 1))/d.world.flops))
	return d.IdleGPU.MatMul(s, g)
}

// simulatedComm is one rank's communicator. A group is one operation of all its bytes.
type simulatedComm struct {
	device.Communicator // none of its methods is called
	gpu                 *simulatedGPU
	rank, number        int
	grouped             bool
	stream              *simulatedStream
	wire, exchanged     float64 // bytes on the rank's link: of the group, and of all operations
	alone               float64 // microseconds of all operations, without waits
}

// queue queues an operation that sends bytes on the rank's link.
func (c *simulatedComm) queue(s device.Stream, wire float64) error {
	c.stream = s.(*simulatedStream)
	c.wire += wire
	if c.grouped {
		return nil
	}
	took := c.gpu.world.start + c.wire/c.gpu.world.bus
	c.stream.move(c.gpu.world.meet(c.number, c.stream.move(0, 0)), took)
	c.number++
	c.alone += took
	c.exchanged += c.wire
	c.wire = 0
	return nil
}

// ring returns the bytes that a ring of ranks sends on each link in a number of rounds.
func (c *simulatedComm) ring(count int64, t device.DataType, rounds int) float64 {
	n := float64(c.Size())
	return float64(count*t.Bytes()) * float64(rounds) * (n - 1) / n
}

func (c *simulatedComm) Device() device.Device     { return c.gpu }
func (c *simulatedComm) Rank() int                 { return c.rank }
func (c *simulatedComm) Size() int                 { return c.gpu.world.size }
func (c *simulatedComm) ID() device.CommunicatorID { return device.CommunicatorID{1} }
func (c *simulatedComm) AsyncError() error         { return nil }
func (c *simulatedComm) Abort() error              { return errors.New("a simulation does not fail") }

func (c *simulatedComm) AllReduce(s device.Stream, _, _ device.Ptr, count int64, t device.DataType, _ device.ReduceOp) error {
	return c.queue(s, c.ring(count, t, 2))
}

func (c *simulatedComm) Broadcast(s device.Stream, _, _ device.Ptr, count int64, t device.DataType, _ int) error {
	return c.queue(s, c.ring(count, t, 1))
}

func (c *simulatedComm) AllGather(s device.Stream, _, _ device.Ptr, count int64, t device.DataType) error {
	return c.queue(s, c.ring(count*int64(c.Size()), t, 1))
}

func (c *simulatedComm) ReduceScatter(s device.Stream, _, _ device.Ptr, count int64, t device.DataType, _ device.ReduceOp) error {
	return c.queue(s, c.ring(count*int64(c.Size()), t, 1))
}

func (c *simulatedComm) GroupStart() error {
	c.grouped = true
	return nil
}

func (c *simulatedComm) GroupEnd() error {
	c.grouped = false
	return c.queue(c.stream, 0)
}

// simulation is a simulated training.
type simulation struct {
	speeds
	width, batch int
	cfg          parallel.Config
}

// simulatedStep is the time of one rank's step, in microseconds, and its peak of bytes.
type simulatedStep struct {
	time      float64
	exchange  float64 // all collective operations of the step, without waits
	allocated int64
	pauses    int // of the Parallel's stream before buckets, in all steps
	buckets   int
}

// run simulates some steps on a number of ranks. A single rank has no Parallel.
func (c simulation) run(t testing.TB, ranks int) simulatedStep {
	t.Helper()
	world := newSimulated(c.speeds, ranks)
	steps := make([]simulatedStep, ranks)
	errs := make([]error, ranks)
	stacks := make([]*stacktest.Stack, ranks)
	for n := range stacks {
		below, err := null.New(null.Config{})
		require.NoError(t, err)
		stacks[n] = stacktest.New(t, stacktest.Config{Device: &simulatedGPU{IdleGPU: tapetest.IdleGPU{Device: below}, world: world, events: map[device.Event]float64{}}})
	}
	var wait sync.WaitGroup
	for n, s := range stacks {
		wait.Go(func() { steps[n], errs[n] = c.rank(s, n) })
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
	for n := range steps {
		assert.InDelta(t, steps[0].time, steps[n].time, 1e-6, "all ranks' steps take the same time")
	}
	return steps[0]
}

func (c simulation) rank(s *stacktest.Stack, n int) (step simulatedStep, err error) {
	ctx := context.Background()
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	if err != nil {
		return step, err
	}
	defer func() { err = errors.Join(err, rt.Close()) }()
	in := nn.Init(ctx, rt, nn.Seed(1))
	defer func() { err = errors.Join(err, in.Close()) }()
	// The simulated device computes nothing.
	model := nn.Sequential{tapetest.BlankLinear(in, 784, c.width), nn.ReLU{}, tapetest.BlankLinear(in, c.width, c.width), nn.ReLU{}, tapetest.BlankLinear(in, c.width, 10)}
	comm := &simulatedComm{gpu: s.Dev.(*simulatedGPU), rank: n}
	var dp *parallel.Parallel
	if comm.Size() > 1 {
		if dp, err = parallel.New(ctx, comm, model, c.cfg); err != nil {
			return step, err
		}
		parallel.SetLearned(dp) // the ranks can't exchange the order; the first one is right
		defer func() { err = errors.Join(err, dp.Close()) }()
	}
	opt := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(1e-3)}))
	if in.Err() != nil {
		return step, in.Err()
	}
	x, err := rt.Zeros(ctx, tensor.Float32, c.batch, 784)
	if err != nil {
		return step, err
	}
	defer func() { err = errors.Join(err, x.Release()) }()
	y, err := rt.Zeros(ctx, tensor.Int32, c.batch)
	if err != nil {
		return step, err
	}
	defer func() { err = errors.Join(err, y.Release()) }()
	const warm, timed = 2, 3
	var from, exchanged float64
	stream := s.Stream.(*simulatedStream)
	for i, tape := range in.Steps(warm + timed) {
		if i == warm {
			from, exchanged = stream.move(0, 0), comm.alone
			s.Cache.ResetPeakStats()
		}
		optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), opt)
	}
	step = simulatedStep{time: (stream.move(0, 0) - from) / timed, exchange: (comm.alone - exchanged) / timed, allocated: s.Cache.MaxMemoryAllocated()}
	if dp != nil {
		step.buckets = (warm + timed) * len(parallel.BucketsOf(dp))
		for _, paused := range comm.gpu.pauses {
			if paused == streamOf(dp) {
				step.pauses++
			}
		}
		if len(comm.gpu.pauses) != step.pauses {
			return step, errors.New("the runtime's stream paused")
		}
	}
	return step, in.Err()
}

// TestParallelSimulated: a free exchange takes no time. Otherwise a step takes at least the time of
// the exchange and that of the computation, but less than their sum, because they overlap.
func TestParallelSimulated(t *testing.T) {
	c := simulation{speeds: measured, width: 1024, batch: 512, cfg: parallel.Config{BucketBytes: 1 << 20, FirstBucketBytes: 1 << 18}}
	alone := c.run(t, 1)
	require.Zero(t, alone.exchange)
	for _, ranks := range []int{2, 3, 8} {
		free := c
		free.start, free.bus = 0, math.Inf(1)
		require.InDelta(t, alone.time, free.run(t, ranks).time, 1e-6)
		for _, slower := range []float64{0.1, 1, 10} {
			linked := c
			linked.start *= slower
			linked.bus /= slower
			step := linked.run(t, ranks)
			require.Greater(t, step.time, max(alone.time, step.exchange), "%d ranks, %v times as slow", ranks, slower)
			require.Less(t, step.time, alone.time+step.exchange, "%d ranks, %v times as slow", ranks, slower)
		}
	}
}

// TestParallelSimulatedHidesAllButTheLastBucket: gradients of weights are exchanged while those of
// the layer's input are computed, so the exchange lengthens a step only by the last bucket, which
// has the first layer and the counts of ranks.
func TestParallelSimulatedHidesAllButTheLastBucket(t *testing.T) {
	c := simulation{speeds: measured, width: 2048, batch: 1024}
	last := float64(4 * (784*c.width + c.width + 6)) // bytes
	alone := c.run(t, 1).time
	for _, ranks := range []int{2, 5} {
		n := float64(ranks)
		exposed := c.run(t, ranks).time - alone
		require.InDelta(t, measured.start+last*2*(n-1)/n/measured.bus, exposed, 1e-6)
	}
}

// TestParallelGoesFirst: the communication stream pauses once before each bucket except the last
// one, after which the backward pass has nothing to compute.
func TestParallelGoesFirst(t *testing.T) {
	for _, bytes := range []int64{1 << 10, 1 << 18, 1 << 30} {
		step := simulation{speeds: measured, width: 256, batch: 64, cfg: parallel.Config{BucketBytes: bytes, FirstBucketBytes: bytes}}.run(t, 2)
		steps := 5
		require.Equal(t, step.buckets-steps, step.pauses, "buckets of %d bytes", bytes)
	}
}

// BenchmarkParallelSimulated simulates a step of an MLP on ranks of one machine, with the measured
// speeds of an H200 and of NVLink between two, and on machines with a network, which was not
// measured. sim-µs/step is a step's time, exposed-µs the part of it that a rank alone would not
// need, and efficiency the time of a rank alone divided by sim-µs/step. ns/op is the time of the
// simulation itself.
func BenchmarkParallelSimulated(b *testing.B) {
	for _, links := range []struct {
		name string
		speeds
	}{{"NVLink", measured}, {"network", measured.network()}} {
		for _, shard := range []parallel.Sharding{parallel.ShardNothing, parallel.ShardState, parallel.ShardGradients} {
			c := simulation{speeds: links.speeds, width: 4096, batch: 1024, cfg: parallel.Config{Shard: shard}}
			for _, ranks := range []int{1, 2, 4, 8, 16, 64} {
				b.Run(fmt.Sprintf("%s/shard=%d/ranks=%d", links.name, shard, ranks), func(b *testing.B) {
					alone := c.run(b, 1)
					var step simulatedStep
					for b.Loop() {
						step = c.run(b, ranks)
					}
					b.ReportMetric(step.time, "sim-µs/step")
					b.ReportMetric(step.time-alone.time, "exposed-µs")
					b.ReportMetric(alone.time/step.time, "efficiency")
					b.ReportMetric(float64(step.allocated)/(1<<20), "MiB-at-most")
				})
			}
		}
	}
}
