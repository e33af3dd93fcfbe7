package remat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Plan chooses which layers of a model are checkpointed, so that a step's memory keeps
// within a budget and as little as possible is computed twice. Its layers run plainly until Choose,
// for which one step is profiled:
//
//	var plan remat.Plan
//	for i, b := range blocks {
//		blocks[i] = plan.Layer(fmt.Sprint("blocks.", i), b)
//	}
//	… one step in a scope of the cache …
//	estimate, err := plan.Choose(scope.EndProfile(), 8<<30)
//
// The zero plan is ready to use. It and its layers belong to one goroutine at a time.
type Plan struct {
	parts []*planned
}

// planned is a layer of a plan.
type planned struct {
	nn.Wrapped
	name    string // its module
	chosen  bool
	result  int64        // bytes of what Forward last returned, which a checkpoint does not save
	compute tensor.Dtype // of the tape that it was on
}

// Layer makes l a part of the plan. The name is that of its module in profiles ([memcache.Label]),
// with what the step's context names before it; modules inside it count for it. Parameters and
// buffers are l's.
func (p *Plan) Layer(name string, l nn.Layer) nn.Layer {
	part := &planned{Wrapped: nn.Wrapped{Layer: Layer(l)}, name: name}
	p.parts = append(p.parts, part)
	return part
}

// Forward is the layer's, in a checkpoint or not.
func (p *planned) Forward(t *autograd.Tape, x *autograd.Variable) (y *autograd.Variable) {
	l := p.Layer
	if inner := l.(checkpointed).Layer; !p.chosen && inner != nil {
		l = inner
	}
	if y = l.Forward(t, x); y.Tensor() != nil {
		p.result, p.compute = y.Tensor().Bytes(), t.ComputeDtype()
	}
	return y
}

// Chosen are the names of the layers that are checkpointed.
func (p *Plan) Chosen() (names []string) {
	for _, part := range p.parts {
		if part.chosen {
			names = append(names, part.name)
		}
	}
	return names
}

// Set chooses the layers of these names, as [Plan.Chosen] returns them, and no others. A name of no
// layer is an error that wraps [autograd.ErrInvalid], and the choice stays as it is.
func (p *Plan) Set(names ...string) error {
	for _, name := range names {
		if !slices.ContainsFunc(p.parts, func(part *planned) bool { return part.name == name }) {
			return fmt.Errorf("remat: Plan.Set: %w: %q is none of the %d layers", autograd.ErrInvalid, name, len(p.parts))
		}
	}
	for _, part := range p.parts {
		part.chosen = slices.Contains(names, part.name)
	}
	return nil
}

// Choose chooses anew, and returns an upper bound of the bytes that a step will allocate. peak is
// the profile of the peak of a step in which no layer was checkpointed
// ([memcache.Scope.EndProfile]), and budget is in bytes. The layers run in the order of
// [Plan.Layer].
//
// The bound is the greatest sum of the layers' backward passes. A sum counts the layer's own
// activations, those of the layers before it, or only their results where these are checkpointed,
// and the gradients of the layers after it, at their last size. On tapes that compute in 16 bits it
// counts the copies of parameters that are still needed. Everything else counts as in the profile.
//
// If no choice keeps the budget, Choose checkpoints every layer for which that lowers the peak, and
// the error, which wraps [autograd.ErrInvalid], says how many bytes a step needs.
func (p *Plan) Choose(peak memcache.Profile, budget int64) (estimate int64, err error) {
	c := newSelection(p.parts, peak)
	for c.most() > budget && c.add(budget) {
	}
	c.prune(budget)
	for i, part := range p.parts {
		part.chosen = c.chosen[i]
	}
	if estimate = c.most(); estimate > budget {
		return estimate, fmt.Errorf("remat: Plan.Choose: %w: a step needs %d bytes with the %d layers checkpointed that help, and the budget is %d",
			autograd.ErrInvalid, estimate, len(p.Chosen()), budget)
	}
	return estimate, nil
}

// selection is one of the parts, by number, and what they hold, in bytes.
type selection struct {
	chosen  []bool
	held    []int64 // activations, until the backward pass has come to the part
	results []int64 // of these, what a checkpoint leaves
	grads   []int64 // of parameters, from then on
	copies  []int64 // of parameters in the compute dtype, until then
	fixed   int64   // all else
}

func newSelection(parts []*planned, peak memcache.Profile) *selection {
	n := len(parts)
	c := &selection{chosen: make([]bool, n), held: make([]int64, n), results: make([]int64, n), grads: make([]int64, n), copies: make([]int64, n)}
	for i, part := range parts {
		for _, h := range peak.Holdings {
			if h.Label.Category == memcache.CategoryActivation && inModule(h.Label.Module, part.name) {
				c.held[i] += h.Bytes
			}
		}
		c.results[i] = min(part.result, c.held[i])
	}
	c.weigh(parts)
	c.fixed = peak.Allocated - c.most()
	return c
}

// weigh sums up the gradients and copies of the parts' parameters. One that several parts share has
// one gradient, which is there as of the backward pass of the last of them, and one copy, until
// that of the first.
func (c *selection) weigh(parts []*planned) {
	first, last := map[*autograd.Parameter]int{}, map[*autograd.Parameter]int{}
	for i, part := range parts {
		for _, w := range part.Parameters() {
			if w.Parameter == nil || w.Value() == nil {
				continue
			}
			if _, seen := first[w.Parameter]; !seen && part.compute.Wide() != 0 && w.Value().Dtype() == part.compute.Wide() {
				first[w.Parameter] = i
			}
			if w.Parameter.RequiresGrad() {
				last[w.Parameter] = i
			}
		}
	}
	for w, i := range last {
		c.grads[i] += w.GradBytes()
	}
	for w, i := range first {
		c.copies[i] += int64(w.Value().Elements() * parts[i].compute.Size())
	}
}

// worst is the part in whose backward pass the most is held, and how much.
func (c *selection) worst() (at int, bytes int64) {
	now, at := c.fixed, -1
	for _, g := range c.grads {
		now += g
	}
	for i, held := range c.held {
		if i > 0 {
			now -= c.grads[i-1]
		}
		now += c.copies[i]
		if at < 0 || now+held > bytes {
			at, bytes = i, now+held
		}
		if c.chosen[i] {
			held = c.results[i]
		}
		now += held
	}
	if at < 0 {
		bytes = c.fixed
	}
	return at, bytes
}

func (c *selection) most() int64 {
	_, bytes := c.worst()
	return bytes
}

// add chooses one part more for the worst moment: the smallest one that is enough for it, or the
// largest one. It reports whether there is any.
func (c *selection) add(budget int64) bool {
	at, bytes := c.worst()
	best, most := -1, int64(0)
	for i := range max(at, 0) {
		saves := c.held[i] - c.results[i]
		if c.chosen[i] || saves <= 0 {
			continue
		}
		enough, was := bytes-saves <= budget, bytes-most <= budget && best >= 0
		if best < 0 || enough && (!was || saves < most) || !enough && !was && saves > most {
			best, most = i, saves
		}
	}
	if best >= 0 {
		c.chosen[best] = true
	}
	return best >= 0
}

// prune leaves out what is not needed after all, the largest first.
func (c *selection) prune(budget int64) {
	order := make([]int, len(c.held))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.held[b], c.held[a]) })
	most := max(budget, c.most())
	for _, i := range order {
		if c.chosen[i] {
			if c.chosen[i] = false; c.most() > most {
				c.chosen[i] = true
			}
		}
	}
}

// inModule reports whether a module's path is that of a part, or inside it.
func inModule(path, part string) bool { return path == part || strings.HasPrefix(path, part+".") }
