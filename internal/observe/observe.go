// Package observe combines several observers of one kind into one. memcache and transfer each have
// an observer interface of their own, of the same shape.
package observe

import "context"

// Operation is an operation that an observer follows from its start to its end. Info describes its
// outcome.
type Operation[Info any] interface {
	comparable
	// End is called once.
	End(Info)
}

// Observer is called at the start of each operation. It returns the context for calls inside the
// operation, and the zero Run if it doesn't follow the operation.
type Observer[Op, Run any] interface {
	comparable
	// Start is called before the operation.
	Start(context.Context, Op) (context.Context, Run)
}

// All returns an observer that calls the non-nil observers of list in their order, and ends their
// operations in reverse order. Each gets the context that the one before it returned. All returns
// nil if there are none. O and Run must be interface types.
func All[Info, Op any, Run Operation[Info], O Observer[Op, Run]](list []O) O {
	var none O
	var all observers[Info, Op, Run, O]
	for _, o := range list {
		if o != none {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return none
	case 1:
		return all[0]
	}
	return any(all).(O)
}

type observers[Info, Op any, Run Operation[Info], O Observer[Op, Run]] []O

func (all observers[Info, Op, Run, O]) Start(ctx context.Context, op Op) (context.Context, Run) {
	var none, run Run
	var started operations[Info, Run]
	for _, o := range all {
		if ctx, run = o.Start(ctx, op); run != none {
			started = append(started, run)
		}
	}
	switch len(started) {
	case 0:
		return ctx, none
	case 1:
		return ctx, started[0]
	}
	return ctx, any(started).(Run)
}

type operations[Info any, Run Operation[Info]] []Run

func (started operations[Info, Run]) End(info Info) {
	for i := len(started) - 1; i >= 0; i-- {
		started[i].End(info)
	}
}
