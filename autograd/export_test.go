package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// What tests use of the package that programs can't, by the file that it is of. They are functions
// rather than methods where a test calls all exported methods of a type.

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

// ListsOf are the lists of a tape, with what is behind their ends.
func ListsOf(t *Tape) (nodes []Node, values []*Variable, saved []saved, uses, reads []*Variable) {
	s := t.slab
	return s.nodes[:cap(s.nodes)], s.values[:cap(s.values)], s.saved[:cap(s.saved)], s.uses[:cap(s.uses)], s.reads[:cap(s.reads)]
}

func SavedOn(t *Tape) []saved                      { return t.saved }
func VariablesOf(t *Tape) map[*Parameter]*Variable { return t.params }

// ExpectedOf is how many variables and tensors a tape expects.
func ExpectedOf(t *Tape) (variables, tensors int) { return t.sizes.variables(), t.sizes.tensors() }

// backward.go

func CallOf(n *Node) *Call    { return n.call }
func SavedOf(n *Node) []saved { return n.saved }

// call.go

// WatchStep lets watch run before the backward step of a node, and what it returns behind it.
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
func ModuleOf(t *Tape) string { return t.module.path }

// InOwnPlace reports whether a tape is in the place that a closed one has.
func InOwnPlace(t *Tape) bool { return t.module == &t.after.modulePlace }

// parameter.go

func NameOf(p *Parameter) string { return p.name }

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
func SetPiece(o Optimizer, bytes int64)      { o.Core().piece = bytes }
func SlotsOf(g *Group) []Slot                { return g.slots }

// UpdateOf is the next update of a parameter.
func UpdateOf(ctx context.Context, o Optimizer, i int) (u Update, err error) {
	err = u.fill(ctx, o.Core(), i)
	return u, err
}

// optimizer_offload.go, parameter_offload.go

type HostStage = hostStage

var GroupOf = groupOf

func (g *parameterGroup) Members() []*Parameter { return g.params }

// parallel.go and its parts

const DefaultBucketBytes = defaultBucketBytes

// ExchangeOf is what a Parallel exchanges with.
func ExchangeOf(d *Parallel) (stream *device.Stream, comm *device.Communicator) {
	return &d.stream, &d.comm
}

func SetLearned(d *Parallel)    { d.learned = true }
func PassesOf(d *Parallel) int  { return d.passes }
func ReducedOf(d *Parallel) int { return d.pass.next } // buckets, in this pass

// BucketsOf are the names of the parameters in the buckets.
func BucketsOf(d *Parallel) (all [][]string) {
	for _, b := range d.buckets {
		var names []string
		for _, r := range b.replicas {
			names = append(names, r.name)
		}
		all = append(all, names)
	}
	return all
}

// PartOf is this rank's part of a parameter that is trained by a Parallel, if it is.
func PartOf(p *Parameter) (grad *tensor.Tensor, lo, hi int, ok bool) {
	r := replicaOf(p)
	if r == nil {
		return nil, 0, 0, false
	}
	return r.part.grad, r.part.lo, r.part.hi, true
}

// checkpoint_plan.go

func NewSelection(p *CheckpointPlan, peak memcache.Profile) *selection {
	return newSelection(p.parts, peak)
}

func (c *selection) Most() int64     { return c.most() }
func (c *selection) Chosen() []bool  { return c.chosen }
func (c *selection) Grads() []int64  { return c.grads }
func (c *selection) Copies() []int64 { return c.copies }

// PlannedOf are what a plan knows of its layers.
func PlannedOf(p *CheckpointPlan) []*planned { return p.parts }

func (p *planned) SetChosen(yes bool)            { p.chosen = yes }
func (p *planned) SetResult(bytes int64)         { p.result = bytes }
func (p *planned) SetCompute(dtype tensor.Dtype) { p.compute = dtype }

// layer_module.go, walk.go

var (
	NameBuffer    = nameBuffer
	ModulesBefore = &modulesBefore
	Snake         = snake
)
