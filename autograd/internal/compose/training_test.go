package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// observation is a result at some point of a training, as bits.
type observation struct {
	what      string
	bits      []byte
	sometimes bool // some features have it not
}

// run is a training on a machine.
type run struct {
	*machine
	*model
	ctx        context.Context
	in         *nn.Initializer
	opt        optim.Optimizer
	parallel   *parallel.Parallel
	scheduler  *optim.Scheduler
	kept       *autograd.Tape // that is reset
	graph      *tensor.Graph
	x          *tensor.Tensor
	step       int
	batch      int              // the first of this rank's
	results    []nn.NamedTensor // of the captured step, or of one that has just been taken
	seen       []observation
	peak       int64 // of the memory of tensors, in the second step or a later one
	statistics tensor.OffloadStats
	failed     error // the first error of a step, which was taken again
}

// train trains, and releases everything. It repeats a step after an error for which again is true.
func (tr *trial) train(ctx context.Context, m *machine, comm device.Communicator, again func(error) bool) (r *run, err error) {
	r = &run{machine: m, ctx: ctx}
	if tr.has(batches) {
		r.batch = 1000 * comm.Rank()
	}
	if err = r.begin(tr, comm); err == nil {
		err = r.steps(again)
	}
	return r, errors.Join(err, r.end(err))
}

const littlePinnedBytes = 3 * 512

func (r *run) begin(tr *trial, comm device.Communicator) (err error) {
	r.in = nn.Init(r.ctx, r.rt, nn.Seed(tr.seed))
	r.model = newModel(r.in, tr)
	r.constant = r.in.Tensor(numbers(tr, 1<<20, tr.rows), tr.rows, tr.width)
	r.x = r.in.Tensor(numbers(tr, 0, tr.batchRows()), tr.batchRows(), tr.width)
	index := make([]int32, tr.rows)
	for i := range index {
		index[i] = int32(i * 3 % 5)
	}
	if err := r.in.Err(); err != nil {
		return err
	}
	if r.index, err = tensor.FromSlice(r.ctx, r.rt, index); err != nil {
		return err
	}
	if tr.options&(offloadActivations|offloadParameters|offloadState) != 0 {
		cfg := tensor.OffloadConfig{MinBytes: 1}
		if tr.has(littlePinned) {
			cfg.MaxBytes = littlePinnedBytes
		}
		if tr.has(notAhead) {
			cfg.Ahead = -1
		}
		if r.offloader, err = tensor.NewOffloader(r.rt, cfg); err != nil {
			return err
		}
	}
	if tr.has(ranks) {
		cfg := parallel.Config{BucketBytes: 200, FirstBucketBytes: 50}
		switch {
		case tr.has(shardGradients):
			cfg.Shard = parallel.ShardGradients
		case tr.has(shardState):
			cfg.Shard = parallel.ShardState
		}
		if r.parallel, err = parallel.New(r.ctx, comm, r.model, cfg); err != nil {
			return err
		}
	}
	if r.opt, err = r.newOptimizer(r.in); err != nil {
		return err
	}
	if err := r.in.Err(); err != nil {
		return err
	}
	if tr.has(offloadState) {
		if err := offload.State(r.ctx, r.opt, r.offloader, 700); err != nil {
			return err
		}
	}
	if tr.has(offloadParameters) {
		for _, l := range r.Layers {
			if err := offload.Parameters(r.ctx, l.Parameters(), r.offloader); err != nil {
				return err
			}
		}
		if err := offload.Parameters(r.ctx, r.Head.Parameters(), r.offloader); err != nil {
			return err
		}
	}
	if tr.has(schedule) {
		if r.scheduler, err = optim.NewScheduler(r.opt, optim.StepLR{Size: 2}); err != nil {
			return err
		}
	}
	if tr.has(prepare) {
		return r.opt.Prepare(r.ctx)
	}
	return nil
}

func numbers(tr *trial, n, rows int) []float64 {
	random := rand.New(rand.NewPCG(tr.seed, uint64(n)))
	data := make([]float64, rows*tr.width)
	for i := range data {
		data[i] = random.NormFloat64()
	}
	return data
}

func (r *run) steps(again func(error) bool) error {
	for r.step = range r.model.steps {
		r.held.most()
		err := r.take()
		if r.step > 0 {
			r.peak = max(r.peak, r.held.most())
		}
		if err != nil && r.failed == nil && again(err) {
			r.failed = err
			r.ctx = context.Background()
			if err = errors.Join(r.forget(), r.opt.ZeroGrad(r.ctx)); err == nil {
				err = r.take()
			}
		}
		if err == nil {
			err = r.look()
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", r.step, err)
		}
	}
	return nil
}

// take runs a step: calls it, captures it, or replays it.
func (r *run) take() error {
	if r.has(freeze) {
		r.Head.Weight.SetRequiresGrad(r.step%2 == 0)
	}
	data := make([]float32, r.batchRows()*r.width)
	for i, v := range numbers(r.trial, r.batch+r.step, r.batchRows()) {
		data[i] = float32(v)
	}
	if err := tensor.CopyFrom(r.ctx, r.x, data); err != nil {
		return err
	}
	if r.has(capture) && r.step > 0 { // the first step makes the state that a capture needs
		if r.graph == nil {
			graph, err := r.rt.Capture(r.ctx, r.minimize)
			if err != nil {
				return err
			}
			r.graph = graph
		}
		return r.graph.Replay(r.ctx)
	}
	return r.minimize(r.ctx)
}

// look records the results of a step.
func (r *run) look() error {
	for _, t := range r.results {
		if err := r.see(t.Name, t.Tensor); err != nil {
			return err
		}
	}
	if r.graph == nil {
		if err := r.forget(); err != nil {
			return err
		}
	}
	state, err := nn.StateDict(r.model)
	if err != nil {
		return err
	}
	for _, t := range state {
		if err := r.see(t.Name, t.Tensor); err != nil {
			return err
		}
	}
	if r.parallel != nil { // after the wait for the read above
		if err := r.parallel.Err(); err != nil {
			return err
		}
	}
	if !r.has(evaluate) && r.options&^(training|ranks) != 0 {
		return nil
	}
	t := autograd.NoGrad(r.ctx, r.rt)
	if r.has(bfloat16) {
		t.SetComputeDtype(tensor.BFloat16)
	}
	forward := func() *autograd.Variable {
		loss, _ := r.loss(t, r.rowsOf(t, t.Input(r.x), 0))
		return loss
	}
	var y *autograd.Variable
	if r.example { // one layer reads each value, and alone has to hold it
		y = forward().Keep()
	} else {
		y = t.Frame(forward).Keep()
	}
	if err := t.Err(); err != nil {
		return errors.Join(err, t.Close())
	}
	return errors.Join(r.see("evaluation", y.Value()), t.Close())
}

func (r *run) see(what string, t *tensor.Tensor) error {
	var w bytes.Buffer
	err := tensor.WriteBytes(r.ctx, t, &w)
	sometimes := strings.HasPrefix(what, "gradient") || what == "evaluation"
	r.seen = append(r.seen, observation{fmt.Sprintf("step %d: %s", r.step, what), w.Bytes(), sometimes})
	return err
}

// forget releases the results of a step.
func (r *run) forget() error {
	var errs []error
	for _, t := range r.results {
		errs = append(errs, t.Release())
	}
	r.results = nil
	return errors.Join(errs...)
}

// end releases everything of the training. If err is not nil, errors of closing do not count.
func (r *run) end(err error) error {
	errs := []error{r.graph.Close(), r.forget(), r.index.Release()}
	if r.kept != nil {
		errs = append(errs, r.kept.Close())
	}
	if r.opt != nil {
		errs = append(errs, r.opt.Close())
	}
	errs = append(errs, r.parallel.Close(), r.in.Close(), r.moved(), r.offloader.Close())
	if err != nil {
		return nil
	}
	return errors.Join(errs...)
}

// moved returns an error if the offloader's statistics contradict the options.
func (r *run) moved() error {
	if r.offloader == nil {
		return nil
	}
	s := r.offloader.Stats()
	if s.Offloaded.Current != 0 || s.OffloadedBytes.Current != 0 || r.has(notAhead) && s.Prefetched > 0 || r.has(littlePinned) && s.PinnedBytes.Peak > littlePinnedBytes {
		return fmt.Errorf("the offloader ends with %+v", s)
	}
	r.statistics = s
	return nil
}
