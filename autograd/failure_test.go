package autograd_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

type (
	failing  = tapetest.Failing
	onTape   = *autograd.Tape
	variable = *autograd.Variable
)

// program is operations of parameters of these shapes, and of an index, the numbers 1 and 0.
type program struct {
	do     func(t onTape, vs []variable) variable
	shapes [][]int
}

func operation(do func(t onTape, vs []variable) variable, shapes ...[]int) program {
	return program{do, shapes}
}

// kindOfTape is the tape of a trial.
type kindOfTape struct {
	operands tensor.Dtype
	compute  tensor.Dtype
	noGrad   bool
	each     int // how many operations there are for one that is tried
}

// kindsOfTapes round the operands of all operations in one way.
var kindsOfTapes = map[string]kindOfTape{
	"float64":  {tensor.Float64, tensor.Float32, false, 1},
	"bfloat16": {tensor.Float32, tensor.BFloat16, false, 8},
	"NoGrad":   {tensor.Float64, tensor.Float32, true, 1},

	"NoGrad in bfloat16": {tensor.Float32, tensor.BFloat16, true, 8},
}

// trial is one of the program and, on a tape that records, of its backward pass.
func (p program) trial(kind kindOfTape) func(t testing.TB, m *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		ps := m.Operands(kind.operands, p.shapes...)
		index, err := tensor.FromSlice(m.Ctx, m.RT, []int32{1, 0})
		require.NoError(t, err)
		return m.OnTape(tapetest.TapeTrial{
			NoGrad: kind.noGrad, Compute: kind.compute, Parameters: ps,
			Do:   func(t onTape) variable { return p.do(t, append(tapetest.ParamsOf(t, ps), t.Input(index))) },
			Undo: func() error { return errors.Join(index.Release(), ps.Release()) },
		})
	}
}

// TestEveryOperationFails: whichever driver call, allocation or check of a context fails, an
// operation and its backward pass take full effect or none, and succeed afterwards on the same
// tape. With -short a third of them is tried on each kind of tape.
func TestEveryOperationFails(t *testing.T) {
	for name, kind := range kindsOfTapes {
		if testing.Short() {
			kind.each *= 3
		}
		var rows []failtest.Row[*failing]
		for i, r := range operationRows {
			if (i+len(name))%kind.each == 0 {
				rows = append(rows, failtest.Row[*failing]{Of: r.Of, Make: r.trial(kind)})
			}
		}
		t.Run(name, func(t *testing.T) { tapetest.UncachedSuite(t, rows) })
	}
}
