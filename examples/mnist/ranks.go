package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/rendezvous"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/telemetry"
)

const (
	// meeting is how long a rank waits for the others at the start.
	meeting = 2 * time.Minute
	// stopEvery is the number of steps after which the ranks check whether one was interrupted. The
	// check waits for all ranks, so it is not done in every step.
	stopEvery = 16
)

// shardings are the values of -shard.
var shardings = map[string]parallel.Sharding{"none": parallel.ShardNothing, "state": parallel.ShardState, "gradients": parallel.ShardGradients}

// party is one of the ranks of a training. It is nil if there is only one.
type party struct {
	rank, size int
	device     int             // its number on this machine
	meeting    context.Context // ends when a rank of this process has failed
	join       func(ctx context.Context, dev device.Device) (device.Communicator, error)
}

func (p *party) number() int {
	if p == nil {
		return 0
	}
	return p.rank
}

func (p *party) ranks() int {
	if p == nil {
		return 1
	}
	return p.size
}

// leastOfRank is the least memory of a rank, in bytes. The default model with a batch of 250 takes
// 85 MiB, of which 47 MiB are the rank's copy of the data set.
const leastOfRank = 128 << 20

// checkRanks returns an error if the machine's memory is too small for the ranks of -ranks.
func (o *options) checkRanks() error {
	if o.memory == 0 || o.ranks < 2 || int64(o.ranks) <= o.memory/leastOfRank {
		return nil
	}
	return fmt.Errorf("-ranks %d: each takes %s or more, and this machine has %s, which is enough for %d", o.ranks,
		humanize.IBytes(leastOfRank), humanize.IBytes(uint64(o.memory)), o.memory/leastOfRank)
}

// shareOfRank returns the capacity in bytes of a rank's host device: all ranks together take half
// of the machine's memory. It returns 0 if that is above the device's default, or unknown.
func (o *options) shareOfRank(ranks int) int64 {
	if share := o.memory / 2 / int64(ranks); share < 4<<30 {
		return share
	}
	return 0
}

// parties returns the ranks of this process: those of -ranks, or the launcher's one, or a nil
// party.
func (o *options) parties() ([]*party, error) {
	env, err := rendezvous.FromEnvironment()
	switch {
	case err != nil:
		return nil, err
	case env.Size > 1 && o.ranks > 1:
		return nil, fmt.Errorf("-ranks %d: the launcher has started %d processes, each of which is one rank", o.ranks, env.Size)
	case env.Size > 1 && strings.HasPrefix(o.device, "host"):
		return nil, fmt.Errorf("-device %s: the host device's ranks are goroutines of one process, and the launcher has started %d: want -ranks %d without a launcher", o.device, env.Size, env.Size)
	case env.Size > 1:
		return []*party{{env.Rank, env.Size, env.LocalRank, nil, func(ctx context.Context, dev device.Device) (device.Communicator, error) {
			return rendezvous.Join(ctx, env, dev, device.CommunicatorOptions{Timeout: o.timeout, Overlapped: true})
		}}}, nil
	case o.ranks == 1:
		return []*party{nil}, nil
	}
	return o.here(), nil
}

// here returns the ranks of -ranks.
func (o *options) here() []*party {
	var mu sync.Mutex
	var id *device.CommunicatorID // made by the rank that comes first
	var all []*party
	for rank := range o.ranks {
		all = append(all, &party{rank, o.ranks, rank, nil, func(ctx context.Context, dev device.Device) (device.Communicator, error) {
			c, ok := dev.(device.Collectives)
			if !ok {
				return nil, fmt.Errorf("-ranks %d: device %s has no collective operations", o.ranks, dev.Name())
			}
			mu.Lock()
			if id == nil {
				if made, err := c.NewCommunicatorID(); err == nil {
					id = &made
				}
			}
			mine := id
			mu.Unlock()
			if mine == nil {
				return nil, fmt.Errorf("-ranks %d: device %s made no communicator", o.ranks, dev.Name())
			}
			return c.NewCommunicator(ctx, *mine, rank, o.ranks, device.CommunicatorOptions{Timeout: o.timeout, Overlapped: true})
		}})
	}
	return all
}

// deviceOf returns the name of a rank's device: a host device of its own, with its share of the
// machine's memory, or the GPU of the rank's number, unless -device has a number.
func (o *options) deviceOf(p *party) string {
	name := o.deviceName()
	if p != nil && name == "host" {
		if share := o.shareOfRank(p.size); share > 0 {
			name = fmt.Sprintf("host?capacity=%d", share)
		}
	}
	if driver, options, has := strings.Cut(name, "?"); p != nil && driver == "cuda" {
		name = fmt.Sprintf("cuda:%d", p.device)
		if has {
			name += "?" + options
		}
	}
	return name
}

// quiet returns the options of all ranks except the first, which prints and writes everything.
func (o options) quiet() options {
	o.trace, o.json, o.save, o.memprofile, o.profileSteps, o.steps, o.http, o.busy = "none", "", "", "", nil, "", "", false
	return o
}

// run trains and tests with all ranks of this process. The result is nil after an error before the
// training, or if another process has the first rank.
func (o options) run(ctx context.Context, parties []*party, sdk *telemetry.SDK, profiling *profiling, stdout, stderr io.Writer) (*result, error) {
	if o.rankprofile != "" && parties[0] == nil {
		return nil, fmt.Errorf("-rankprofile %s: there is one rank; want -ranks, or a launcher", o.rankprofile)
	}
	var first *result
	err := cause(atOnce(ctx, parties, func(p *party) (err error) {
		o := o
		if o.party = p; p.number() > 0 {
			return o.runQuiet(ctx, sdk)
		}
		first, err = o.runRank(ctx, sdk, profiling, stdout, stderr)
		return err
	}))
	return first, errors.Join(err, o.reportRanks(parties))
}

// atOnce calls f for all ranks of this process concurrently. If one fails, the others stop waiting
// for it to join.
func atOnce(ctx context.Context, parties []*party, f func(p *party) error) []error {
	errs := make([]error, len(parties))
	meeting, failed := context.WithCancel(ctx)
	defer failed()
	var wait sync.WaitGroup
	for i, p := range parties {
		if p != nil {
			p.meeting = meeting
		}
		wait.Go(func() {
			if errs[i] = f(p); errs[i] != nil {
				failed()
			}
		})
	}
	wait.Wait()
	return errs
}

// tracerOf returns the tracer of a rank, or nil without an SDK.
func tracerOf(sdk *telemetry.SDK, p *party) (*trace.Tracer, error) {
	if p == nil {
		return sdk.Tracer(), nil
	}
	return sdk.RankTracer(p.rank, p.size)
}

func (o options) runQuiet(ctx context.Context, sdk *telemetry.SDK) error {
	profiling, err := newProfiling(o.quiet(), io.Discard)
	if err != nil {
		return err
	}
	_, err = o.quiet().runRank(ctx, sdk, profiling, io.Discard, io.Discard)
	return err
}

// cause returns the error of a rank that failed by itself, if there is one. The errors of the other
// ranks only report that a rank has failed.
func cause(errs []error) error {
	var first error
	for rank, err := range errs {
		if err == nil {
			continue
		}
		if len(errs) > 1 {
			err = fmt.Errorf("rank %d of %d: %w", rank, len(errs), err)
		}
		if !errors.Is(err, device.ErrAborted) && !errors.Is(err, context.Canceled) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// join joins the other ranks and makes the model parallel.
func (t *trainer) join(ctx context.Context, o options) error {
	p := o.party
	if p == nil {
		return nil
	}
	waiting, cancel := context.WithTimeout(p.meeting, meeting)
	defer cancel()
	comm, err := p.join(waiting, t.env.Device())
	if err != nil {
		return err
	}
	if t.comm, err = t.tracer.Communicator(ctx, comm); err != nil {
		return errors.Join(err, comm.Close())
	}
	t.onClose(func() error {
		_ = t.comm.Close() // its error was returned by the operation that failed
		return nil
	})
	t.ranks, err = parallel.New(ctx, t.comm, t.model, parallel.Config{Shard: shardings[o.shard]})
	if err != nil {
		return err
	}
	t.onClose(t.ranks.Close)
	t.abort = comm.Abort
	return nil
}

// errStopped is the error of a rank that stops because another one was interrupted.
var errStopped = errors.New("interrupted on another rank")

// stops returns why the training stops at this step: ctx's error, or errStopped. All ranks stop at
// the same step.
func (t *trainer) stops(ctx context.Context) (why, err error) {
	if t.ranks == nil {
		return ctx.Err(), nil
	}
	if t.place.Step%stopEvery != 0 {
		return nil, nil
	}
	why = ctx.Err()
	mine := 0.0
	if why != nil {
		mine = 1
	}
	any, err := t.together(context.WithoutCancel(ctx), mine, device.ReduceMax)
	switch {
	case err != nil || any == 0:
		return nil, err
	case why == nil:
		return errStopped, nil
	}
	return why, nil
}

// together reduces a number over all ranks.
func (t *trainer) together(ctx context.Context, mine float64, op device.ReduceOp) (all float64, err error) {
	number, err := t.env.Full(ctx, mine, tensor.Float64)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, number.ReleaseContext(ctx)) }()
	if err := t.ranks.AllReduce(ctx, number, op); err != nil {
		return 0, err
	}
	all, err = tensor.Item[float64](ctx, number)
	return all, errors.Join(err, t.ranks.Err())
}

// peaks returns the peak of the allocated bytes of each rank.
func (t *trainer) peaks(ctx context.Context) (all []int64, err error) {
	if t.ranks == nil {
		return nil, nil
	}
	for rank := range t.ranks.Size() {
		mine := 0.0
		if rank == t.ranks.Rank() {
			mine = float64(t.env.Cache().MaxMemoryAllocated())
		}
		bytes, err := t.together(ctx, mine, device.ReduceSum)
		if err != nil {
			return nil, err
		}
		all = append(all, int64(bytes))
	}
	return all, nil
}
