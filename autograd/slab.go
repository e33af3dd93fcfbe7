package autograd

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// slab is what a tape records in: lists that are empty when the tape ends, and that the next one
// goes on with, so that a step of a training makes no garbage for them. What the program can have a
// pointer to, variables, is new each time.
type slab struct {
	nodes  []Node
	values []*Variable // those that Backward, or the frame that made them, releases
	saved  []saved     // of the nodes, one after the other
	uses   []*Variable // the same, of those that are trained

	hooks     []Hooks
	recorders []Recorder  // of hooks
	reads     []*Variable // for hooks

	params map[*Parameter]*Variable

	records records
	sizes   sizes
}

// sizes are those of the two tapes that had the slab last. A tape makes at once what both have
// needed, so that in a training, whose steps are alike, each kind of object is one of the Go heap,
// and a small tape between large ones makes no more than it needs.
type sizes struct{ last, before size }

// size is how many variables, tensors and contexts a tape has made.
type size struct{ variables, tensors, contexts int }

// size is what the tape has made.
func (t *Tape) size() size { return size{t.variables, t.lifetime.Made(), t.labels.Made()} }

func (s *sizes) note(of size)   { s.last, s.before = of, s.last }
func (s *sizes) variables() int { return min(s.last.variables, s.before.variables) }
func (s *sizes) tensors() int   { return min(s.last.tensors, s.before.tensors) }
func (s *sizes) contexts() int  { return min(s.last.contexts, s.before.contexts) }

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
	s.unhookAll()
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
	s.nodes, s.values, s.saved, s.uses = s.nodes[:0], s.values[:0], s.saved[:0], s.uses[:0]
}

func (s *slab) unhookAll() {
	clear(s.hooks)
	clear(s.recorders)
	s.hooks, s.recorders = s.hooks[:0], s.recorders[:0]
}

// save notes what the backward step of an operation reads, and at which version.
func (t *Tape) save(reads []*Variable) []saved {
	s := t.slab
	from := len(s.saved)
	for _, v := range reads {
		v.holds++
		t.hookNeeded(v)
		s.saved = append(s.saved, saved{v, v.value.Version()})
	}
	return s.saved[from:len(s.saved):len(s.saved)]
}
