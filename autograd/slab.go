package autograd

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor"
)

// slab is what a tape records in: lists that are empty when the tape ends, and that the next one goes on with, so that a step
// of a training makes no garbage for them. What the program can have a pointer to, variables, is new each time.
type slab struct {
	nodes  []node
	values []*Variable // those that Backward, or the frame that made them, releases
	saved  []saved     // of the nodes, one after the other
	uses   []*Variable // the same, of those that are trained

	// What the optimiser's steps in the backward pass have to do with; see MinimizeInBackward.
	ready   []*Variable     // parameters whose gradients are final, until they are updated
	numbers []int           // of these, with the optimiser
	foreign []tensor.Memory // of what the functions of checkpoints have brought to the tape
	params  map[*Parameter]*Variable

	ordering ordering
}

// slabs keeps slabs for reuse. In race builds each is new: the pool's edges would order the goroutines that have tapes.
var slabs = sync.Pool{New: func() any { return &slab{params: make(map[*Parameter]*Variable)} }}

func newSlab() *slab {
	if race.Enabled {
		return slabs.New().(*slab)
	}
	return slabs.Get().(*slab)
}

// recycle gives the slab back, without what it refers to.
func (s *slab) recycle() {
	s.forget()
	clear(s.params)
	if !race.Enabled {
		slabs.Put(s)
	}
}

// forget empties the lists.
func (s *slab) forget() {
	clear(s.nodes)
	clear(s.values)
	clear(s.saved)
	clear(s.uses)
	clear(s.ready)
	clear(s.foreign)
	s.nodes, s.values, s.saved, s.uses = s.nodes[:0], s.values[:0], s.saved[:0], s.uses[:0]
	s.ready, s.numbers, s.foreign = s.ready[:0], s.numbers[:0], s.foreign[:0]
}

// save notes what the backward step of an operation reads, and at which version.
func (s *slab) save(reads []*Variable) []saved {
	from := len(s.saved)
	for _, v := range reads {
		v.users++
		s.saved = append(s.saved, saved{v, v.value.Version()})
	}
	return s.saved[from:len(s.saved):len(s.saved)]
}

// newVariables is how many variables are made at a time.
const newVariables = 16

// newVariable makes a variable without a value.
func (t *Tape) newVariable() *Variable {
	if len(t.fresh) == 0 {
		t.fresh = make([]Variable, newVariables)
	}
	v := &t.fresh[0]
	t.fresh = t.fresh[1:]
	t.variables++
	v.tape, v.number = t, t.variables
	return v
}
