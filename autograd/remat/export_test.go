package remat

import (
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Unexported parts of the package for tests, by their files.

// plan.go

func NewSelection(p *Plan, peak memcache.Profile) *selection {
	return newSelection(p.parts, peak)
}

func (c *selection) Most() int64     { return c.most() }
func (c *selection) Chosen() []bool  { return c.chosen }
func (c *selection) Grads() []int64  { return c.grads }
func (c *selection) Copies() []int64 { return c.copies }

// PlannedOf returns the layers of a plan.
func PlannedOf(p *Plan) []*planned { return p.parts }

func (p *planned) SetChosen(yes bool)            { p.chosen = yes }
func (p *planned) SetResult(bytes int64)         { p.result = bytes }
func (p *planned) SetCompute(dtype tensor.Dtype) { p.compute = dtype }
