package remat

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// When a checkpoint's function runs again, nobody reads what its last operations compute: the
// result is there already, and no backward step has saved one of their values. The first run finds
// out which these are (the early stop of torch.utils.checkpoint). They are the results behind the
// last one that a backward step saves, the program looks at or an operation has made that does more
// than compute it. In the second run their operations are recorded, and their values are memory
// that nobody has written.

// unread is a result that the second run of a function does not read.
type unread struct {
	number int // of the variable, in the first run
	dtype  tensor.Dtype
	shape  tensor.Shape
}

// unreadResult is what is known of the result that is made when there are so many on the tape, if
// nobody reads it. Of the nil checkpoint all are read.
func (c *checkpoint) unreadResult(results int) *unread {
	if c == nil {
		return nil
	}
	if i := results - c.results - c.read; i >= 0 && i < len(c.unread) {
		return &c.unread[i]
	}
	return nil
}

// made notes the result v of an operation that begins when there are so many results on the tape.
func (c *checkpoint) made(op string, v *autograd.Variable, results int, onlyComputes bool) error {
	for ; c != nil; c = c.outer {
		c.shapes.add(op, v.Tensor())
		switch {
		case c.again:
			if !onlyComputes && c.unreadResult(results) != nil {
				return fmt.Errorf("%w: the checkpoint's function did something else when it ran again: it had no %s before", autograd.ErrInvalid, op)
			}
			return nil
		case onlyComputes:
			c.unread = append(c.unread, unread{v.Number(), v.Tensor().Dtype(), v.Tensor().Shape()})
		default:
			c.unread = c.unread[:0]
		}
	}
	return nil
}

// needs notes that the second run has to compute v, and so what was made before it. Of the nil
// checkpoint nothing is noted.
func (c *checkpoint) needs(v *autograd.Variable) {
	for ; c != nil && !c.again; c = c.outer {
		for i := len(c.unread) - 1; i >= 0; i-- {
			if c.unread[i].number == v.Number() {
				c.unread = c.unread[i+1:]
				break
			}
		}
	}
}

// shapeHash is a hash of what results were, in order: FNV-1a.
type shapeHash uint64

func (h *shapeHash) add(op string, x *tensor.Tensor) {
	h.mixString(op)
	h.mixString(x.Dtype().String())
	var room [8]int
	for _, d := range tensor.AppendShape(room[:0], x) {
		h.mix(uint64(d))
	}
}

func (h *shapeHash) mixString(s string) {
	for i := range len(s) {
		h.mix(uint64(s[i]))
	}
}

func (h *shapeHash) mix(x uint64) { *h = (*h ^ shapeHash(x)) * 1099511628211 }
