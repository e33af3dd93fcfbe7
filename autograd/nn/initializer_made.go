package nn

import (
	"context"
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// made is an object that the initialiser releases.
type made struct {
	release func(context.Context) error
	data    *tensor.Tensor // of Tensor or Labels; otherwise nil
}

// add appends m. Before the list grows, it removes tensors that the program has released, so that a
// loop that makes and releases tensors does not lengthen the list. In a body of Steps it removes
// none, because Steps does.
func (in *Initializer) add(m made) {
	if len(in.made) == cap(in.made) && in.bodies == 0 {
		in.forget(0, func(t *tensor.Tensor) bool { return t.Released() })
		in.made = slices.Grow(in.made, len(in.made)+1)
	}
	in.made = append(in.made, m)
}

// releaseData releases the tensors of the list from the i-th element on.
func (in *Initializer) releaseData(i int) (err error) {
	in.forget(i, func(t *tensor.Tensor) bool {
		err = errors.Join(err, t.ReleaseContext(in.ctx))
		return true
	})
	return err
}

// forget removes from the list the tensors for which gone is true, from the i-th element on.
func (in *Initializer) forget(i int, gone func(*tensor.Tensor) bool) {
	if i > len(in.made) { // Fail has released them
		return
	}
	kept, accepted := in.made[:i], in.accepted
	for ; i < len(in.made); i++ {
		switch m := in.made[i]; {
		case m.data == nil || !gone(m.data):
			kept = append(kept, m)
		case i < accepted:
			in.accepted--
		}
	}
	clear(in.made[len(kept):])
	in.made = kept
}

// releaseAll releases all in reverse order, and returns err joined with the errors of the releases.
func releaseAll(ctx context.Context, all []made, err error) error {
	for _, m := range slices.Backward(all) {
		if e := m.release(ctx); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}
