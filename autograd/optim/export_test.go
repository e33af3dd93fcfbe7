package optim

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Unexported parts of the package for tests, by their files.

// optimizer.go and its parts

var (
	SGDRule     = sgdRule
	AdamRule    = adamRule
	RMSpropRule = rmspropRule
	AdagradRule = adagradRule

	HasGrad       = hasGrad
	CheckSchedule = checkSchedule
)

func StateOf(o Optimizer) [][]*tensor.Tensor { return o.Core().state }
func StepsOf(o Optimizer) []int              { return o.Core().steps }
func UpdatesOf(o Optimizer) []Update         { return o.Core().updates }
func SlotsOf(g *Group) []Slot                { return g.slots }

// UpdateOf returns the next update of a parameter.
func UpdateOf(ctx context.Context, o Optimizer, i int) (u Update, err error) {
	err = u.fill(ctx, o.Core(), i)
	return u, err
}
