package transfer

import "context"

// Observers is an observer that tells all of those in list that are not nil, in their order, and ends in the opposite order; nil if there
// are none. Contexts pass through: each gets the one that the observer before it returned.
func Observers(list ...Observer) Observer {
	var all observers
	for _, o := range list {
		if o != nil {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type observers []Observer

func (all observers) Start(ctx context.Context, op Op) (context.Context, Operation) {
	var started operations
	for _, o := range all {
		var run Operation
		if ctx, run = o.Start(ctx, op); run != nil {
			started = append(started, run)
		}
	}
	switch len(started) {
	case 0:
		return ctx, nil
	case 1:
		return ctx, started[0]
	}
	return ctx, started
}

type operations []Operation

func (started operations) End(info OpInfo) {
	for i := len(started) - 1; i >= 0; i-- {
		started[i].End(info)
	}
}
