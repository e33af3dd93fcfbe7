package remat

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// When a checkpoint's function runs again, the results of its last operations are not read: the
// function's result already exists, and no backward step has saved their values. The first run
// finds these results (the early stop of torch.utils.checkpoint). They follow the last result that
// a backward step saves, that the program reads, or that an operation with other effects has made.
// In the second run their operations are recorded but not computed, and their values are
// uninitialised memory.

// unread is a result that the second run of a function does not read.
type unread struct {
	number int // the variable's number in the first run
	dtype  tensor.Dtype
	shape  tensor.Shape
}

// unreadResult returns the unread result with the given number of earlier results on the tape, or
// nil if that result is read. A nil checkpoint has none.
func (c *checkpoint) unreadResult(results int) *unread {
	if c == nil {
		return nil
	}
	if i := results - c.results - c.read; i >= 0 && i < len(c.unread) {
		return &c.unread[i]
	}
	return nil
}

// made records the result v of an operation, with the given number of earlier results on the tape.
func (c *checkpoint) made(op string, v *autograd.Variable, results int, onlyComputes bool) error {
	for ; c != nil; c = c.outer {
		c.shapes.add(op, v.Tensor())
		switch {
		case c.again:
			if !onlyComputes && c.unreadResult(results) != nil {
				return fmt.Errorf("%w: the checkpoint's function ran differently the second time: it had no %s before", autograd.ErrInvalid, op)
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

// needs records that the second run must compute v and everything before it. On a nil checkpoint it
// does nothing.
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

// shapeHash is an FNV-1a hash of the operations, dtypes and shapes of results, in order.
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
