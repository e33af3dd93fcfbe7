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

// Plan chooses which layers of a model are checkpointed, so that a step's memory stays within a
// budget and as little as possible is computed twice. Its layers are not checkpointed until Choose,
// which needs the profile of one step:
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
	name    string // path of its module
	chosen  bool
	result  int64        // bytes of Forward's last result, which a checkpoint keeps
	compute tensor.Dtype // of the tape of the last Forward
}

// Layer adds l to the plan and returns a layer that runs it. name is the path of its module in
// profiles ([memcache.Label]), including the modules that the step's context names before it.
// Modules inside it count for it. Parameters and buffers are l's.
func (p *Plan) Layer(name string, l nn.Layer) nn.Layer {
	part := &planned{Wrapped: nn.Wrapped{Layer: Layer(l)}, name: name}
	p.parts = append(p.parts, part)
	return part
}

// Forward calls the layer's Forward, in a checkpoint if the layer is chosen.
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

// Chosen returns the names of the layers that are checkpointed.
func (p *Plan) Chosen() (names []string) {
	for _, part := range p.parts {
		if part.chosen {
			names = append(names, part.name)
		}
	}
	return names
}

// Set chooses the layers with these names, as [Plan.Chosen] returns them, and no others. An unknown
// name is an error that wraps [autograd.ErrInvalid] and changes nothing.
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

// Choose replaces the choice of layers, and returns an upper bound of the bytes that a step will
// allocate. peak is the profile of the peak of a step in which no layer was checkpointed
// ([memcache.Scope.EndProfile]), and budget is in bytes. The layers must run in the order of their
// [Plan.Layer] calls.
//
// The bound is the greatest of several sums, one for the backward pass of each layer. A sum counts
// the layer's own activations, those of the layers before it (only their results if these are
// checkpointed), and the gradients of the layers after it, at their final size. On tapes that
// compute in 16 bits it also counts the copies of parameters that are still needed. Everything else
// counts as in the profile.
//
// If no choice stays within the budget, Choose checkpoints every layer for which that lowers the
// peak, and returns an error that wraps [autograd.ErrInvalid] and includes the bytes that a step
// needs.
func (p *Plan) Choose(peak memcache.Profile, budget int64) (estimate int64, err error) {
	c := newSelection(p.parts, peak)
	for c.most() > budget && c.add(budget) {
	}
	c.prune(budget)
	for i, part := range p.parts {
		part.chosen = c.chosen[i]
	}
	if estimate = c.most(); estimate > budget {
		return estimate, fmt.Errorf("remat: Plan.Choose: %w: a step needs %d bytes with the %d layers checkpointed that lower the peak, and the budget is %d",
			autograd.ErrInvalid, estimate, len(p.Chosen()), budget)
	}
	return estimate, nil
}

// selection is a choice of parts, and the bytes that each part holds, by the part's index.
type selection struct {
	chosen  []bool
	held    []int64 // activations, until the part's backward pass
	results []int64 // the part of held that stays with a checkpoint
	grads   []int64 // gradients of parameters, from the part's backward pass on
	copies  []int64 // copies of parameters in the compute dtype, until then
	fixed   int64   // everything else
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

// weigh sums the gradients and copies of the parts' parameters. A parameter that several parts
// share has one gradient, which exists from the backward pass of the last part on, and one copy,
// which exists until that of the first.
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

// worst returns the part whose backward pass holds the most bytes, and these bytes.
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

// add chooses one more part that lowers the worst moment: the smallest one that suffices, or else
// the largest one. It reports whether there was one.
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

// prune removes parts that are not needed from the choice, the largest first.
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

// inModule reports whether a module's path is a part's or inside of it.
func inModule(path, part string) bool { return path == part || strings.HasPrefix(path, part+".") }
