package report

import (
	"cmp"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
)

// Peak has the holders of a device's memory at the moment of the most allocated bytes. Sizes are
// bytes.
type Peak struct {
	Name string // of the file, with the device if the file has several; or of the program
	// Allocated and Reserved are the most, each at a moment of its own.
	Allocated, Reserved int64
	// Holdings add up to Allocated, the largest first. Several may be of one category, module and
	// line.
	Holdings []Holding
	// Labelled and Stacked report whether any block, of any moment, has a label and a call stack.
	Labelled, Stacked bool
	Steps             []StepPeak // in their order
	Notes             []string   // about data that the source lacks
}

// Holding is the blocks of one owner.
type Holding struct {
	Category string // of memcache.Category.String, "not labelled" or "before the recording"
	Module   string // its path; "": none
	// Function, File and Line are the innermost call of the program's own code; "": unknown.
	Function, File string
	Line           int
	Blocks, Bytes  int64
}

// StepPeak is the most that was allocated while a step was open.
type StepPeak struct{ Step, Allocated int64 }

// Peak returns the holders at the peak that the page begins with. The caller owns the result.
func (r *Report) Peak() Peak {
	if r == nil || r.account == nil {
		return Peak{}
	}
	a := r.account
	p := Peak{Name: a.name, Allocated: a.peakBytes, Reserved: a.mostReserved, Labelled: a.owners.labelled, Stacked: a.owners.stacked, Notes: slices.Clone(a.notes)}
	held := make([]Holding, len(a.owners.list)) // by the first owner of each place
	same := a.owners.merged()
	if a.forgotten != nil {
		p.Allocated = a.forgotten.allocated
		for _, h := range a.forgotten.holdings {
			held[same[h.owner]].add(h.blocks, h.bytes)
		}
	} else {
		for i := range a.blocks {
			if b := &a.blocks[i]; b.alloc <= a.peak && b.free > a.peak {
				held[same[b.owner]].add(1, b.size)
			}
		}
	}
	for i, h := range held {
		if h.Blocks > 0 {
			a.owners.name(int32(i), &h)
			p.Holdings = append(p.Holdings, h)
		}
	}
	slices.SortStableFunc(p.Holdings, func(x, y Holding) int { return cmp.Compare(y.Bytes, x.Bytes) })
	for i := range a.steps {
		p.Steps = append(p.Steps, StepPeak{a.steps[i].step, a.steps[i].peak})
	}
	return p
}

func (h *Holding) add(blocks, bytes int64) { h.Blocks, h.Bytes = h.Blocks+blocks, h.Bytes+bytes }

// name fills in an owner's category, module and line.
func (o *owners) name(id int32, h *Holding) {
	owner := o.list[id]
	switch owner.category {
	case before:
		h.Category = "before the recording"
	case unlabelled:
		h.Category = "not labelled"
	default:
		h.Category = categoryName(int(owner.category))
	}
	h.Module = memcache.ModulePath(owner.module)
	if owner.stack >= 0 {
		f := o.frames[o.sites[owner.stack]]
		h.Function, h.File, h.Line = f.function, f.file, f.line
	}
}
