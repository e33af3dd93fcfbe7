package autograd

import (
	"github.com/cistern-ml/cistern/tensor"
)

// Unexported parts of the package for tests, by their files. Some are functions instead of methods,
// because a test calls all exported methods of a type.

// tape.go

func Recording(t *Tape) bool          { return t.record }
func SetOutOfPlace(t *Tape, yes bool) { t.outOfPlace = yes }
func ScopeOf(t *Tape) scope           { return t.scope }
func Seeded(t *Tape) bool             { return t.seeded }

// variable.go

func TapeOf(v *Variable) *Tape         { return v.tape }
func Released(v *Variable) bool        { return v.released() }
func MarkMade(v *Variable)             { v.made = true }
func LastOf(v *Variable) *int          { return &v.last }
func FreeOn(t *Tape, x *tensor.Tensor) { t.free(x) }

// slab.go

func NodesOf(t *Tape) []Node       { return t.nodes }
func ValuesOf(t *Tape) []*Variable { return t.values }
func HooksOf(t *Tape) []Hooks      { return t.hooks }
func SlabOf(t *Tape) *slab         { return t.slab }

// ListsOf returns the lists of a tape, up to their capacities.
func ListsOf(t *Tape) (nodes []Node, values []*Variable, saved []saved, uses, reads []*Variable) {
	s := t.slab
	return s.nodes[:cap(s.nodes)], s.values[:cap(s.values)], s.saved[:cap(s.saved)], s.uses[:cap(s.uses)], s.reads[:cap(s.reads)]
}

func SavedOn(t *Tape) []saved                      { return t.saved }
func VariablesOf(t *Tape) map[*Parameter]*Variable { return t.params }

// ExpectedOf returns the numbers of variables and tensors that a tape expects.
func ExpectedOf(t *Tape) (variables, tensors int) { return t.sizes.variables(), t.sizes.tensors() }

// backward.go

func CallOf(n *Node) *Call    { return n.call }
func SavedOf(n *Node) []saved { return n.saved }

// call.go

// WatchStep runs watch before the backward step of a node, and the function that it returns after
// it.
func WatchStep(n *Node, watch func() (done func())) {
	n.call.step = watchedStep{n.call.step, watch}
}

type watchedStep struct {
	Step
	watch func() (done func())
}

func (s watchedStep) Backward(c *Call, g *tensor.Tensor) error {
	c.step = s.Step
	defer s.watch()()
	return s.Step.Backward(c, g)
}

func (s watchedStep) seedless() bool {
	inner, ok := s.Step.(interface{ seedless() bool })
	return ok && inner.seedless()
}

// module.go

const MostPaths = mostPaths

func ModulesOf(t *Tape) int   { return len(t.modules) }
func ModuleOf(t *Tape) string { return t.module.module }

// InOwnPlace reports whether a tape is in the module of closed tapes.
func InOwnPlace(t *Tape) bool { return t.module == &t.after.modulePlace }

// parameter.go

func NameOf(p *Parameter) string { return p.name }
