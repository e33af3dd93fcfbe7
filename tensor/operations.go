package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/internal/describe"
	"github.com/cistern-ml/cistern/tensor/internal/upcast"
)

// OnOperation calls f before each operation is queued on the runtime's stream, with the operation's
// context and name. about describes the operation's shapes and dtypes; it must not be used after f
// has returned. If f returns a function, it is called once the operation is queued. Both run on the
// goroutine of the operation, without locks, and must not use the runtime.
//
// Captured operations are not reported. A replay of a [Graph] is one operation, and about is how
// many operations of each name the graph has. If the option is given several times, each f is
// called. A runtime without it does no extra work.
func OnOperation(f func(ctx context.Context, s device.Stream, name string, about fmt.Stringer) (queued func())) Option {
	return optionFunc(func(c config) config {
		earlier := c.onOperation
		switch {
		case earlier == nil:
			c.onOperation = f
		case f != nil:
			c.onOperation = func(ctx context.Context, s device.Stream, name string, about fmt.Stringer) func() {
				return queued{earlier(ctx, s, name, about), f(ctx, s, name, about)}.call
			}
		}
		return c
	})
}

// queued are what two functions of OnOperation returned.
type queued [2]func()

func (q queued) call() {
	for _, f := range q {
		if f != nil {
			f()
		}
	}
}

// noteShapes adds the shapes of tensors to the call, for OnOperation. A nil tensor is an absent
// operand.
func noteShapes(c *backend.Call, ts ...*Tensor) {
	for _, t := range ts {
		if t == nil {
			c.Shapes = append(c.Shapes, nil)
		} else {
			c.Shapes = append(c.Shapes, t.shape)
		}
	}
}

// noteItem is noteShapes for a list: its first item begins with n tensors of t's shape.
func noteItem(c *backend.Call, t *Tensor, n int) {
	c.Shapes = make([][]int, c.N, c.N+n)
	for range n {
		c.Shapes = append(c.Shapes, t.shape)
	}
}

// observed is a backend that reports its operations to OnOperation.
type observed struct {
	backend.Backend
	rt *Runtime
}

// Do implements backend.Backend.
func (o observed) Do(ctx context.Context, c *backend.Call) error {
	defer o.begin(ctx, c.Op, (*describe.Call)(c))()
	return o.Backend.Do(ctx, c)
}

// DoLists reports calls of one operation, such as a step of an optimiser, as one operation.
func (o observed) DoLists(ctx context.Context, calls []*backend.Call) error {
	if len(calls) > 0 {
		defer o.begin(ctx, calls[0].Op, describe.Calls(calls))()
	}
	return upcast.DoLists(ctx, o.Backend, calls)
}

func (o observed) begin(ctx context.Context, op backend.Op, about fmt.Stringer) (end func()) {
	if c := o.rt.capturing.Load(); c != nil {
		if c.operations == nil {
			c.operations = make(map[string]int)
		}
		c.operations[op.Name()]++
	} else if queued := o.rt.onOperation(ctx, o.rt.stream, op.Name(), about); queued != nil {
		return queued
	}
	return func() {}
}

// observeReplay is OnOperation for a graph's replay.
func (rt *Runtime) observeReplay(ctx context.Context, g *describe.Graph) (end func()) {
	if rt.onOperation != nil {
		if queued := rt.onOperation(ctx, rt.stream, g.Name, g); queued != nil {
			return queued
		}
	}
	return func() {}
}
