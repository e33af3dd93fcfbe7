package gpuop

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// pass holds the kernels that run all steps of a kind of recurrent layer in one launch, for layers
// of up to 64 and up to 128 states.
type pass struct {
	gates         int
	forward, grad [2]name
}

// passes is indexed by an operation's code.
var passes = func() (all [4]pass) {
	for kind, of := range [...]string{"rnn", "rnn", "lstm", "gru"} {
		all[kind] = pass{[...]int{1, 1, 4, 3}[kind], [2]name{named(of + "_64"), named(of + "_128")}, [2]name{named(of + "_grad_64"), named(of + "_grad_128")}}
	}
	return all
}()

// These constants are the same in recurrence.cu.
const (
	passStates = 64 // of the first edition
	passTile   = 4  // results of a thread, and numbers of a vector at each stage
	passHeld   = 5  // stages whose weights are in registers
)

// mostStates is the largest number of states of all rows of a batch together. With more states the
// products of single steps fill the GPU, and an LSTM and a GRU are slower in one launch, as
// docs/benchmarks.md shows.
const mostStates = 1 << 17

// recurs reports whether there is an edition for the layer. Otherwise each step is a product and a
// kernel. The weights are read four at a time. GPUs without matrix units have too little shared
// memory for the second edition.
func recurs(b *Backend, c *backend.Call) bool {
	weight := 1
	if c.Op.Family() == backend.RecurrenceGrad {
		weight = 7
	}
	p := backend.ParamsOf[plan.Recurrence](c.Params())
	return table[c.Op].kernel.has(c.Dtype) && p.Size%passTile == 0 && c.Args[weight].Ptr%16 == 0 && p.Size*p.Batch <= mostStates &&
		(p.Size <= passStates || p.Size <= 2*passStates && b.hasMatrixUnits())
}

// pass sets one block per row of the batch. The block's threads compute, for each state, a product
// with that many results and terms, with that many lanes per result. It returns the edition's
// number.
func (l *launcher) pass(results, terms, lanes int) (edition int) {
	p := backend.ParamsOf[plan.Recurrence](l.c.Params())
	if p.Size > passStates {
		edition = 1
	}
	threads := (results*p.Size/passTile*lanes + 31) / 32 * 32
	l.Blocks(p.Batch, threads, 1)
	stages := terms * passStates << edition / (lanes * passTile)
	l.SharedBytes = uint32(max(0, stages-passHeld) * passTile * passTile * bytesOfFloat * threads)
	l.all().Word(p.Steps, p.Batch, p.Size).Flag(p.Reverse)
	return edition
}

func recurrence(_ context.Context, l *launcher, _ name) error {
	const h, newC = 5, 6
	k := passes[l.c.Op.Code()]
	edition := l.pass(k.gates, 1, 4)
	return l.Flag(l.arg(newC).Count() == l.arg(h).Count(), l.c.Op == backend.RNNReLU).run(k.forward[edition])
}

func recurrenceGrad(_ context.Context, l *launcher, _ name) error {
	k, lanes := passes[l.c.Op.Code()], 16
	if k.gates == 1 {
		lanes = 4
	}
	edition := l.pass(1, k.gates, lanes)
	return l.Flag(l.c.Op == backend.RNNReLUGrad).run(k.grad[edition])
}
