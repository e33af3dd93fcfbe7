package autograd

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
)

// Reset ends the step as Close does, and makes the tape ready for the next one, as [NewTape] or
// [NoGrad] made it. The program must repeat its settings (SetContext, SetTraining, SetComputeDtype,
// SetSeed, SetSeedFrom). A training that resets one tape makes no Go objects in a step, from its
// third one on, if the model's operations need none and the steps are alike and have the same
// context. In captured steps ([tensor.Runtime.Capture]) a reset tape acts as a new one.
//
//	tape := autograd.NewTape(ctx, env)
//	for batch := range batches {
//		if err := errors.Join(train(tape, batch), tape.Reset(ctx)); err != nil { … }
//	}
//	err := tape.Close()
//
// The next step reuses the Go objects of the earlier ones. So the program must neither use nor
// release again the variables of earlier steps, nor their released tensors, such as values after
// Close and parameters' gradients after ZeroGrad. Tensors that live on stay valid: the gradients of
// parameters, and views that the program has made ([tensor.Runtime.Share]) without the tape's
// context. During Reset no goroutine may make tensors with the tape's contexts.
//
// Reset returns the error that Close would return, and clears it, so that a tape can be used again
// after an error, and after Close. In a layer, and in a function that the tape has called (Frame,
// Layer, Module, Checkpoint, Offload, Func, Backward), Reset is an error that sticks to the tape,
// and the step does not end.
func (t *Tape) Reset(ctx context.Context) error {
	if t.none() {
		return errNoTape
	}
	if t.running || t.calls > 0 || t.scope.number > 0 {
		t.fail("Reset", fmt.Errorf("%w: it was called by a function that the tape has called: reset the tape between steps", ErrInvalid))
		return t.err
	}
	again := t.state != "closed"
	if again {
		t.sizes.note(t.size())
		t.forget()
		clear(t.params)
	}
	if err := t.lifetime.Reset(t.ctx); err != nil {
		t.fail("Reset", err)
	}
	t.hookLeave()
	t.unhookAll()
	err := t.err
	next := Tape{rt: t.rt, ctx: t.ctx, lifetime: t.lifetime, record: t.record, training: t.record,
		slab: t.slab, places: t.places, room: t.room, given: t.given, base: t.base, label: t.label, labels: t.labels}
	if !again {
		next.slab, next.places = newSlab(), newPlaces()
	} else if len(t.modules)+len(t.paths) > mostPaths {
		t.places.recycle()
		next.places, again = newPlaces(), false // and with them all contexts
	}
	*t = next
	t.room.reset(t.sizes.variables())
	t.begins(ctx, again)
	t.checkRuntime("Reset")
	if err == nil {
		err = t.err
	}
	return err
}

// begins starts a step at the root module. If ctx is the context of the previous step, the modules'
// contexts are reused.
func (t *Tape) begins(ctx context.Context, again bool) {
	t.module = t.modules[at{}]
	if t.module == nil {
		t.module = t.place(at{})
	}
	if again && sameContext(t.given, ctx) {
		t.ctx = t.moduleContext()
		return
	}
	t.label.Step = 0
	t.labels = memcache.LabelContexts{}
	t.labels.Expect(t.sizes.contexts())
	t.SetContext(ctx)
	t.given = ctx
}

// sameContext reports whether a and b are the same context. It returns false for contexts of a type
// that Go can't compare, instead of panicking.
func sameContext(a, b context.Context) (same bool) {
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	return a != nil && a == b
}
