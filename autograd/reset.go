package autograd

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
)

// Reset ends the step as Close does, and makes the tape ready for the next one, as [NewTape] or
// [NoGrad] made it: what it was told (SetContext, SetTraining, SetComputeDtype, SetSeed,
// SetSeedFrom) is told again. A training that has one tape and resets it makes no Go objects in a
// step, from its third one on, where the model's operations need none and the steps are alike and
// have one context. In captured steps ([tensor.Runtime.Capture]) it is what a new tape is.
//
//	tape := autograd.NewTape(ctx, env)
//	for batch := range batches {
//		if err := errors.Join(train(tape, batch), tape.Reset(ctx)); err != nil { … }
//	}
//	err := tape.Close()
//
// What the tape has made is made again in the same places: variables of steps before, and tensors
// of theirs that were released, as values are by Close and gradients of parameters by ZeroGrad,
// must not be used any more, nor released again. What lives on is left alone: gradients that
// parameters have, and views that the program has made ([tensor.Runtime.Share]) without the tape's
// context. Nobody makes tensors with the tape's contexts meanwhile.
//
// It returns what Close would, which is forgotten then, so that a tape can be used again after an
// error, and after Close. In a layer, and in a function that the tape has called (Frame, Layer,
// Module, Checkpoint, Offload, Func, Backward), it is an error that sticks to the tape, and nothing
// ends.
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

// begins is where a tape is at the beginning of a step. With the context of the step before the
// modules' contexts are the same.
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

// sameContext reports whether two contexts are one. Those of a type that Go can't compare, which panics, are not.
func sameContext(a, b context.Context) (same bool) {
	defer func() {
		if recover() != nil {
			same = false
		}
	}()
	return a != nil && a == b
}
