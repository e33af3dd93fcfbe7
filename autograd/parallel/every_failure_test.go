package parallel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// course is an operation of a Parallel that all ranks call.
type course struct {
	Of    string // its names, as in a failtest.Row
	cfg   parallel.Config
	brief bool // the model is its last layer
	// prepare runs before the operation, without failures. nil: make a Parallel.
	prepare func(s *rankOf) error
	do      func(ctx context.Context, s *rankOf) error
	// tells is set if a failed operation makes the others' operation fail without a Close of the
	// communicator.
	tells bool
	// keeps is the number of ranks, from rank 0 on, whose parameters a failure does not change.
	keeps int
	// after checks the state after a failure. It may be nil.
	after func(s *rankOf) error
}

// rankOf is a rank of a course.
type rankOf struct {
	*tapetest.Rank
	bench *tapetest.Failing
	cfg   parallel.Config
	in    *nn.Initializer
	model nn.Sequential
	x     *tensor.Tensor
	dp    *parallel.Parallel
	opt   *optim.Adam
	got   any    // the result of an operation
	path  string // of a checkpoint
}

// crewOf is the ranks of a course. They are made again for each try, as the documentation demands.
type crewOf struct {
	*tapetest.FailingCrew
	course course
	ranks  []*rankOf
	path   string
	met    bool
	seen   []any
}

// row returns the failtest row of a course.
func (c course) row() failtest.Row[*tapetest.FailingCrew] {
	return failtest.Row[*tapetest.FailingCrew]{Of: c.Of, Make: func(t testing.TB, m *tapetest.FailingCrew) failtest.Trial {
		g := &crewOf{FailingCrew: m, course: c, path: filepath.Join(t.TempDir(), "c"), met: true}
		require.NoError(t, g.begin())
		g.see(false)
		return failtest.Trial{Do: g.do, See: func() any { return g.seen }, Undo: g.end}
	}}
}

// begin makes models, optimisers and Parallels, with a new communicator unless the ranks have met.
func (g *crewOf) begin() error {
	if !g.met {
		g.Meet(0)
	}
	g.ranks = make([]*rankOf, len(g.Ranks))
	return errors.Join(g.All(func(r *tapetest.Rank) (err error) {
		s := &rankOf{Rank: r, bench: g.Benches[r.N], cfg: g.course.cfg, path: g.path, in: nn.Init(r.Ctx, r.RT, nn.Seed(uint64(1+r.N)), nn.Dtype(tensor.Float64))}
		g.ranks[r.N] = s
		s.model = nn.Sequential{s.in.Linear(3, 3), s.in.BatchNorm(3), s.in.Linear(3, 1)}
		if g.course.brief {
			s.model = s.model[2:]
		}
		s.x = s.in.Tensor([]float64{1, 2, 3, float64(r.N), -1, 0.5}, 2, 3)
		if err := s.in.Err(); err != nil {
			return err
		}
		if g.course.prepare != nil {
			return g.course.prepare(s)
		}
		return s.start(r.Ctx)
	})...)
}

// start makes a Parallel and then an optimiser.
func (s *rankOf) start(ctx context.Context) (err error) {
	if s.dp, err = parallel.New(ctx, s.Comm, s.model, s.cfg); err == nil {
		s.opt = nn.Own(s.in, optim.NewAdam(s.model.Parameters(), optim.AdamConfig{LR: new(0.5)}))
		err = s.in.Err()
	}
	return err
}

// end frees everything that the ranks hold.
func (g *crewOf) end() (err error) {
	for _, s := range g.ranks {
		err = errors.Join(err, s.dp.Close(), s.model.Parameters().ZeroGrad(s.Ctx), s.in.Close())
		_ = s.Comm.Close() // its error is already checked
	}
	g.ranks, g.met = nil, false
	return err
}

// do runs the operation on all ranks. If it fails on one of them, it must fail on all.
func (g *crewOf) do(ctx context.Context) error {
	if g.ranks == nil {
		if err := g.begin(); err != nil {
			return err
		}
	}
	errs, late := g.Together(g.course.tells, func(r *tapetest.Rank) error {
		with := r.Ctx
		if r.N == g.Victim {
			with = ctx
		}
		return g.course.do(with, g.ranks[r.N])
	})
	g.Benches[g.Victim].Faults.Disarm() // no more faults
	if late != nil {
		g.T.Error(late)
	}
	own, other := errs[g.Victim], errs[1-g.Victim]
	if own == nil && other == nil {
		g.see(true)
		return nil
	}
	s := g.ranks[1-g.Victim]
	if other == nil && g.course.tells && s.dp.Err() == nil {
		g.T.Errorf("rank %d does not learn of it: %v", s.N, own)
	}
	if other != nil && !toldOf(other, g.Victim) {
		g.T.Errorf("rank %d has %v: %v", s.N, other, own)
	}
	if own == nil {
		own = other
	}
	for _, s := range g.ranks {
		err := s.model.Parameters().ZeroGrad(s.Ctx)
		if after := g.course.after; after != nil {
			err = errors.Join(err, after(s))
		}
		assert.NoError(g.T, err, "rank %d, after %v", s.N, own)
	}
	g.see(false)
	assert.NoError(g.T, g.end(), "the end after %v", own)
	return own
}

// toldOf reports whether an error is that of an operation which another rank has aborted.
func toldOf(err error, rank int) bool {
	var e *device.CollectiveError
	return errors.Is(err, device.ErrAborted) && (!errors.As(err, &e) || slices.Contains(e.Ranks, rank))
}

// see returns the parameters that a failure keeps, or after a success the state of all ranks.
func (g *crewOf) see(all bool) {
	g.seen = nil
	for _, s := range g.ranks {
		if !all {
			if s.N < g.course.keeps {
				g.seen = append(g.seen, s.bench.SeeParameters(s.model.Parameters()))
			}
			continue
		}
		g.seen = append(g.seen, s.bench.SeeOptimizer(s.opt))
		for _, p := range s.model.Parameters() {
			part, _, _, _ := parallel.PartOf(p.Parameter)
			g.seen = append(g.seen, s.bench.Numbers(part))
		}
		_, buffers := nn.ModelState(s.model)
		for _, b := range buffers {
			if b.Dtype() == tensor.Float64 {
				g.seen = append(g.seen, s.bench.Numbers(b.Tensor))
			}
		}
		g.seen = append(g.seen, s.bench.Numbers(s.x), s.got)
	}
}

// pass makes a forward and a backward pass of the first layers.
func (s *rankOf) pass(ctx context.Context, layers int) error {
	tape := autograd.NewTape(ctx, s.RT)
	for _, p := range s.model.Parameters() {
		tape.Param(p.Parameter) // a later failure of the tape then aborts the communicator
	}
	_, err := tape.Backward(tape.Mean(tape.Square(s.model[:min(layers, len(s.model))].Forward(tape, tape.Input(s.x)))))
	return errors.Join(err, tape.Close())
}

func pass(ctx context.Context, s *rankOf) error { return s.pass(ctx, 3) }

// passed prepares a rank with gradients.
func passed(s *rankOf) error {
	return errors.Join(s.start(s.Ctx), s.pass(s.Ctx, 3), s.RT.Synchronize(s.Ctx))
}

func step(ctx context.Context, s *rankOf) error { return s.opt.Step(ctx) }

// small returns a Config with a bucket for each gradient.
func small(s parallel.Sharding) parallel.Config {
	return parallel.Config{Shard: s, BucketBytes: 1, FirstBucketBytes: 1}
}

// checkpoint returns the Checkpoint of the training.
func (s *rankOf) checkpoint() checkpoint.Checkpoint {
	return checkpoint.Checkpoint{Model: s.model, Optimizer: s.opt, Init: s.in, Ranks: s.dp}
}

// stepped prepares a rank after a step; rank 0 has an older file.
func stepped(s *rankOf) error {
	err := errors.Join(passed(s), s.opt.Step(s.Ctx), s.model.Parameters().ZeroGrad(s.Ctx), s.checkpoint().Save(s.Ctx, s.path+".want"))
	if s.N == 0 {
		err = errors.Join(err, os.WriteFile(s.path, []byte("older"), 0o600))
	}
	return err
}

// saves returns a course that saves a checkpoint.
func saves(ctx context.Context, s *rankOf) error {
	err := s.checkpoint().Save(ctx, s.path)
	if err == nil && s.N == 0 {
		s.got, err = os.ReadFile(s.path)
	}
	return err
}

// olderOrWhole checks that the older file stays until the new one is complete.
func olderOrWhole(s *rankOf) error {
	got, err := os.ReadFile(s.path)
	want, failed := os.ReadFile(s.path + ".want")
	if files, _ := filepath.Glob(filepath.Dir(s.path) + "/*"); len(files) != 2 || string(got) != "older" && !slices.Equal(got, want) {
		return errors.Join(fmt.Errorf("%d files, and of %d bytes %d are saved", len(files), len(want), len(got)), err, failed)
	}
	return nil
}

// loads returns a course that loads a checkpoint.
func loads(ctx context.Context, s *rankOf) error { return s.checkpoint().Load(ctx, s.path+".want") }

// captures returns a course that captures and replays a pass.
func captures(ctx context.Context, s *rankOf) error {
	graph, err := s.RT.Capture(ctx, func(ctx context.Context) error { return s.pass(ctx, 3) })
	if err == nil {
		err = graph.Replay(ctx)
	}
	return errors.Join(err, graph.Close())
}

var courses = []course{
	{Of: "New", keeps: 1, prepare: func(*rankOf) error { return nil }, do: func(ctx context.Context, s *rankOf) error { return s.start(ctx) }},
	{Of: "Backward", keeps: 2, tells: true, do: pass},
	{Of: "Backward in small buckets", cfg: small(parallel.ShardNothing), keeps: 2, tells: true, do: pass},
	{Of: "Backward with parts of gradients", cfg: small(parallel.ShardGradients), keeps: 2, tells: true, do: pass},
	{Of: "Backward without all gradients", keeps: 2, tells: true, do: func(ctx context.Context, s *rankOf) error { return s.pass(ctx, 3-s.N) }},
	{Of: "Backward with Verify", cfg: parallel.Config{VerifyEvery: 1}, keeps: 2, tells: true, do: pass},
	{Of: "Capture", prepare: func(s *rankOf) error { return errors.Join(passed(s), s.model.Parameters().ZeroGrad(s.Ctx)) }, keeps: 2, do: captures},
	{Of: "Step with parts of the state", cfg: parallel.Config{Shard: parallel.ShardState}, prepare: passed, tells: true, do: step},
	{Of: "Step with parts of gradients", cfg: parallel.Config{Shard: parallel.ShardGradients}, prepare: passed, tells: true, do: step},
	{Of: "ClipGradNorm", cfg: parallel.Config{Shard: parallel.ShardGradients}, prepare: passed, keeps: 2, tells: true, do: func(ctx context.Context, s *rankOf) error {
		return optim.ClipGradNorm(ctx, s.model.Parameters(), 0.25)
	}},
	{Of: "Parallel.NoSync", keeps: 2, do: func(ctx context.Context, s *rankOf) error {
		if err := s.dp.NoSync(func() error { return pass(ctx, s) }); err != nil {
			return err
		}
		return pass(ctx, s)
	}},
	{Of: "Parallel.Verify Parallel.Err", keeps: 2, tells: true, do: func(ctx context.Context, s *rankOf) error { return errors.Join(s.dp.Verify(ctx), s.dp.Err()) }},
	{Of: "Parallel.Check", keeps: 2, tells: true, do: func(ctx context.Context, s *rankOf) error { return s.dp.Check(ctx) }},
	{Of: "Parallel.Gather", keeps: 2, tells: true, do: func(ctx context.Context, s *rankOf) (err error) {
		s.got, err = s.dp.Gather(ctx, []int64{int64(s.N), 7})
		return err
	}},
	{Of: "Parallel.AllReduce", keeps: 2, tells: true, do: func(ctx context.Context, s *rankOf) error {
		return s.dp.AllReduce(ctx, s.x, device.ReduceSum)
	}},
	{Of: "Checkpoint.Save", brief: true, cfg: parallel.Config{Shard: parallel.ShardState}, prepare: stepped, keeps: 2, tells: true, do: saves, after: olderOrWhole},
	{Of: "Checkpoint.Load", brief: true, cfg: parallel.Config{Shard: parallel.ShardState}, prepare: stepped, tells: true, do: loads},
	{Of: "Parallel.Close", prepare: passed, keeps: 2, do: func(_ context.Context, s *rankOf) error { return s.dp.Close() }},
}

// TestEveryFailure: whichever driver call, allocation or check of a context of one rank fails, no
// rank waits for the communicator's timeout, all ranks get an error, and a new group trains
// normally.
func TestEveryFailure(t *testing.T) {
	var rows []failtest.Row[*tapetest.FailingCrew]
	for _, c := range courses {
		rows = append(rows, c.row())
	}
	tapetest.FailingCrewSuite(t, rows)
}
