package main

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// stepGraphs are the steps of -graph. Each batch size has a graph. All graphs share a pool, so that
// the graph of an epoch's last batch uses memory that the others leave free. The nil stepGraphs
// takes all steps eagerly.
type stepGraphs struct {
	env  *tensor.Runtime
	pool *memcache.Pool
	all  map[int]*stepGraph // by batch size
}

// stepGraph is a captured step of one batch size. It reads the batch from its own memory.
type stepGraph struct {
	x, y  *tensor.Tensor
	graph *tensor.Graph
}

func newStepGraphs(env *tensor.Runtime) (*stepGraphs, error) {
	pool, err := env.Cache().NewPool(memcache.PoolOptions{StartSmall: true})
	if err != nil {
		return nil, err
	}
	return &stepGraphs{env: env, pool: pool, all: make(map[int]*stepGraph)}, nil
}

// take takes a step on the pictures x with the labels y. The first step of each batch size is
// eager, because it loads kernels and allocates memory that outlives the step. The second is
// captured. It and all later ones are replayed.
func (g *stepGraphs) take(ctx context.Context, x, y *tensor.Tensor, step func(ctx context.Context, x, y *tensor.Tensor) error) error {
	if g == nil {
		return step(ctx, x, y)
	}
	n := y.Elements()
	s, again := g.all[n]
	if !again {
		g.all[n] = nil
		return step(ctx, x, y)
	}
	if s == nil {
		s = &stepGraph{}
		if err := s.capture(ctx, g, x, y, step); err != nil {
			return errors.Join(err, s.close())
		}
		g.all[n] = s
	}
	if err := errors.Join(g.env.CopyInPlace(ctx, s.x, x), g.env.CopyInPlace(ctx, s.y, y)); err != nil {
		return err
	}
	return s.graph.Replay(ctx)
}

// capture captures a step for batches of the shapes of x and y.
func (s *stepGraph) capture(ctx context.Context, g *stepGraphs, x, y *tensor.Tensor, step func(ctx context.Context, x, y *tensor.Tensor) error) (err error) {
	inputs := memcache.WithCategory(ctx, memcache.CategoryInput)
	if s.x, err = g.env.New(inputs, x.Dtype(), x.Shape()...); err != nil {
		return err
	}
	if s.y, err = g.env.New(inputs, y.Dtype(), y.Shape()...); err != nil {
		return err
	}
	s.graph, err = g.env.Capture(g.pool.Context(ctx), func(ctx context.Context) error { return step(ctx, s.x, s.y) })
	return err
}

func (s *stepGraph) close() error { return errors.Join(s.graph.Close(), s.x.Release(), s.y.Release()) }

func (g *stepGraphs) close() (err error) {
	for _, s := range g.all {
		if s != nil {
			err = errors.Join(err, s.close())
		}
	}
	return errors.Join(err, g.pool.Release(), g.pool.EmptyCache(context.Background()))
}
