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
	// stopEvery is after how many steps ranks ask each other whether the program was interrupted: they wait for it.
	stopEvery = 16
)

// shardings are the values of -shard.
var shardings = map[string]parallel.Sharding{"none": parallel.ShardNothing, "state": parallel.ShardState, "gradients": parallel.ShardGradients}

// party is a rank among those that train together. The nil party is alone.
type party struct {
	rank, size int
	device     int             // among those of this machine
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

// leastOfRank is the memory in bytes that a rank takes at least. With a batch of 250 of the default
// model it is 85 MiB, of which 47 are its copy of the data set.
const leastOfRank = 128 << 20

// checkRanks returns an error if the ranks of -ranks have less than they take at least, each.
func (o *options) checkRanks() error {
	if o.memory == 0 || o.ranks < 2 || int64(o.ranks) <= o.memory/leastOfRank {
		return nil
	}
	return fmt.Errorf("-ranks %d: each takes %s or more, and this machine has %s, which is enough for %d", o.ranks,
		humanize.IBytes(leastOfRank), humanize.IBytes(uint64(o.memory)), o.memory/leastOfRank)
}

// shareOfRank is the capacity in bytes of a rank's host device with which those of all ranks take half
// of the machine's memory; 0: that is more than the device's default, or unknown.
func (o *options) shareOfRank(ranks int) int64 {
	if share := o.memory / 2 / int64(ranks); share < 4<<30 {
		return share
	}
	return 0
}

// parties are the ranks of this process: those of -ranks, or the one that a launcher says, or nil.
func (o *options) parties() ([]*party, error) {
	env, err := rendezvous.FromEnvironment()
	switch {
	case err != nil:
		return nil, err
	case env.Size > 1 && o.ranks > 1:
		return nil, fmt.Errorf("-ranks %d: the launcher has started %d processes, each of which is one rank", o.ranks, env.Size)
	case env.Size > 1 && strings.HasPrefix(o.device, "host"):
		return nil, fmt.Errorf("-device %s: the host device's ranks are goroutines of one process, and the launcher has started %d: want -ranks %d without it", o.device, env.Size, env.Size)
	case env.Size > 1:
		return []*party{{env.Rank, env.Size, env.LocalRank, nil, func(ctx context.Context, dev device.Device) (device.Communicator, error) {
			return rendezvous.Join(ctx, env, dev, device.CommunicatorOptions{Timeout: o.timeout, Overlapped: true})
		}}}, nil
	case o.ranks == 1:
		return []*party{nil}, nil
	}
	return o.here(), nil
}

// here are the ranks of -ranks.
func (o *options) here() []*party {
	var mu sync.Mutex
	var id *device.CommunicatorID // of the first that comes
	var all []*party
	for rank := range o.ranks {
		all = append(all, &party{rank, o.ranks, rank, nil, func(ctx context.Context, dev device.Device) (device.Communicator, error) {
			c, ok := dev.(device.Collectives)
			if !ok {
				return nil, fmt.Errorf("-ranks %d: device %s has no collectives", o.ranks, dev.Name())
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

// deviceOf is the name of a rank's device. Each opens a host device of its own, with its share of the
// machine's memory, and the GPU of its number, unless -device has one.
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

// quiet are the options of the ranks but the first, which tells and writes everything.
func (o options) quiet() options {
	o.trace, o.json, o.save, o.memprofile, o.profileSteps, o.steps, o.http, o.busy = "none", "", "", "", nil, "", "", false
	return o
}

// run trains and tests, with all ranks of this process; the result is nil if it did not get that far, or another process has the first rank.
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

// atOnce calls f for each rank of this process, all at a time. If one fails none waits for it to come.
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

// tracerOf is the tracer of a rank; without an SDK it is nil.
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

// cause is the error of the rank that has failed by itself, if one has: the others' say that it has.
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

// join makes the model one of several ranks'.
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
		_ = t.comm.Close() // what has ended it is told already
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

// errStopped: another rank was interrupted.
var errStopped = errors.New("interrupted on another rank")

// stops is why the training stops here, on all ranks alike: ctx's error, or errStopped.
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

// together is a number of all ranks'.
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

// peaks are the most bytes that each rank had allocated.
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
